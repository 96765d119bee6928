//! On-disk structures of ext2, ext3, ext4 and jbd2: bytes to types and back.
//!
//! Every structure has the same shape: a `Raw…` layout with the kernel's field names at their documented offsets, a type
//! with English names over it, `parse` that admits only what is consistent, `write_to`, checksums, and `Display`, which is
//! what `extant info` and `extant debug` print. Layouts follow the kernel's *ext4 Data Structures and Algorithms*
//! (Documentation/filesystems/ext4).
//!
//! This crate never does I/O, never reads a clock, has no `unsafe`, and never panics, overflows, loops without bound or
//! allocates more than a small multiple of its input, whatever the bytes are.
//!
//! ```ignore
//! use extant_format::{Corrupt, Problem, Superblock};
//!
//! let bytes = [0u8; 1024];
//! let refused = Superblock::parse(&bytes).unwrap_err();
//! assert!(matches!(refused.problem, Problem::Magic { found: 0, expected: 0xef53 }));
//! assert_eq!(refused.to_string(), "superblock: magic is 0x0, expected 0xef53");
//! ```ignore
#![forbid(unsafe_code)]

mod checksum;
mod error;
mod ids;

pub use checksum::{ChecksumSeed, crc16, crc32c};
pub use error::{Corrupt, Place, Problem};
pub use ids::{BlockSize, FileBlock, Group, InodeNumber, VolumeBlock};

//! One ext2, ext3 or ext4 volume on a block device.
//!
//! [`Volume`] opens it and checks its features. If the journal is dirty, the volume is seen as the
//! journal leaves it, without touching the device. Inodes, directories, files and extended
//! attributes are read from there; [`recover`] replays a journal on disk.
//!
//! [`Volume::open_writable`] opens it for changes, through a cache. A [`Node`] has the operations
//! on names and attributes, an [`OpenFile`] those on contents. Changes are journalled if the volume
//! has a journal, and checked against the [`Caller`]. Flows are straight async code over
//! [`extant_block::Device`]. This crate never opens host files and uses neither clocks nor threads
//! directly; it does not depend on FUSE, the command line or the lab.
//!
//! ```
//! use extant_block::MemDevice;
//! use extant_fs::{OpenOptions, Volume};
//! # use std::sync::Arc;
//! # let rt = extant_rt::Rt::real(Default::default());
//! let device = Arc::new(MemDevice::new(1 << 20));
//! let opened = rt.block_on(Volume::open(device, OpenOptions::default())).unwrap();
//! assert_eq!(opened.unwrap_err().to_string(), "superblock: magic is 0x0, expected 0xef53");
//! ```
#![forbid(unsafe_code)]

mod alloc;
mod cost;
mod dir;
mod dump;
mod error;
mod file;
mod inode;
mod journal;
mod map;
mod meta;
mod names;
mod quota;
mod quote;
mod recovery;
#[cfg(test)]
mod testbed;
mod view;
mod volume;
mod writer;
mod xattr;

pub use cost::Cost;
pub use dir::{Cookie, DirItem, DirReader, Listed};
pub use dump::Dump;
pub use error::{Error, Lost, Result};
pub use file::{
    Chunk, Dates, Defragmented, ExtentFlags, Fallocate, File, FileExtent, FileOptions, FileStream, OpenFile,
};
pub use map::{Run, RunState, Runs};
pub use meta::{BlockRef, RemovalStep};
pub use names::{
    Attributes, Caller, Capabilities, DEPTH_MAX, Follow, Node, NotMade, PATH_MAX, PathNodes, RenameMode,
    SYMLINKS_MAX, SetAttributes, SetTime, SmallFile, SmallFiles, Walk, WalkEntry, WalkError, WalkOptions,
    Way, walk_path,
};
pub use quote::{printable, quote};
pub use recovery::{JournalCopies, JournalCopy, OldCopy, Recovery, journal_copies};
pub use view::{Damage, DescriptorSource, OpenOptions, read_superblock};
pub use volume::{Protection, Restored, Space, Volume, WriteOptions, recover, restore};
pub use writer::{ErrorPolicy, Synchronous};
pub use xattr::{Attribute, SetMode};

//! Directories, tar archives and OCI layouts become ext2, ext3 or ext4 volumes in one pass, or are added to one that exists;
//! volumes become archives and directories again, are compared, and rewritten as small as they get; empty volumes are made.
//!
//! The size is known before the first byte is written: sources are read into one compact tree, a pure planner gives every
//! block its place, and then contents stream from the sources into the image, large buffers at a time. The same input gives
//! the same bytes on any machine.
//!
//! This crate never needs root or a mount, never changes a source, never follows what an archive or image says out of the
//! place it was told to work in, and leaves nothing under the image's name until the image is complete and durable.
//!
//! ```
//! use extant_image::{BuildOptions, Source, build};
//! use std::sync::Arc;
//!
//! # let dir = tempfile::tempdir()?;
//! # std::fs::create_dir(dir.path().join("rootfs"))?;
//! # std::env::set_current_dir(&dir)?;
//! let rt = extant_rt::Rt::real(Default::default());
//! let options = BuildOptions::new("rootfs.img");
//! let report = build(&options, &[Source::Directory("rootfs".into())], &rt, Arc::new(|_, _| {}))?;
//! assert_eq!(std::fs::metadata("rootfs.img")?.len(), report.image_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod add;
mod base64;
mod build;
pub mod diff;
mod error;
pub mod export;
mod layout;
mod notes;
mod options;
mod owner;
mod settle;
mod shrink;
mod source;
mod tree;
mod workers;
mod write;

pub use add::{AddOptions, AddReport, add};
pub use base64::base64_decoded;
pub use build::{BuildReport, build, mkfs, mkfs_over};
pub(crate) use error::quoted_path;
pub use error::{BuildError, quoted};
pub use extant_format::Timestamp;
pub use notes::Note;
pub use options::*;
pub use shrink::{ShrinkReport, shrink};
pub use write::Progress;

//! Builds ext2, ext3 and ext4 volumes from directories, tar archives and OCI layouts in one pass,
//! or adds such sources to an existing volume.
//!
//! It also exports volumes to archives and directories, rescues damaged ones, brings back deleted
//! files, compares volumes, rewrites them at minimal size, and creates empty ones.
//!
//! The size is known before the first byte is written: sources are read into one compact tree, a
//! pure planner places every block, and then contents stream from the sources into the image in
//! large buffers. The same input gives the same bytes on any machine.
//!
//! This crate never needs root or a mount and never changes a source. Paths and links in an archive
//! or image never lead it outside the place it was told to work in. Until the image is complete and
//! durable, nothing is left under its name.
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
mod contexts;
mod devices;
pub mod diff;
mod error;
pub mod export;
mod layout;
mod notes;
mod options;
mod owner;
pub mod rescue;
mod selection;
mod settle;
mod shrink;
mod source;
mod tree;
pub mod undelete;
mod workers;
mod write;

pub use add::{AddOptions, AddReport, add};
pub use base64::base64_decoded;
pub use build::{BuildReport, build, mkfs, mkfs_on, mkfs_temporary, random_uuid};
pub use contexts::FileContexts;
pub use devices::DeviceTable;
pub(crate) use error::quoted_path;
pub use error::{BuildError, quoted};
pub use extant_format::Timestamp;
pub use notes::Note;
pub use options::*;
pub use selection::{NamePattern, Selection};
pub use shrink::{ShrinkReport, shrink};
pub use write::{Occupant, Progress, contents};

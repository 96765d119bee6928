//! A library for ext2, ext3 and ext4 volumes, shaped like `std::fs`. It needs neither a mount nor
//! root.
//!
//! [`Volume`], [`Dir`] and [`File`] block the calling thread; their counterparts in [`asynch`] are
//! awaited instead. All are cheap to clone and can be used from many threads at once. Paths are
//! resolved relative to a [`Dir`], as in cap-std. Every error carries the errno that Linux would
//! return ([`Error::errno`]) and converts to an [`std::io::Error`] of the same kind.
//!
//! ```
//! # fn main() -> Result<(), extant::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk.img");
//! # let volume = extant_image::VolumeOptions {
//! #     size: extant_image::SizePolicy::Fixed(16 << 20),
//! #     ..Default::default()
//! # };
//! # let created = extant_image::Timestamp { seconds: 1_700_000_000, nanos: 0 };
//! # extant_image::mkfs(&path, &volume, created, &extant_rt::Rt::real(Default::default()),
//! #     std::sync::Arc::new(|_, _| {})).unwrap();
//! use extant::{OpenOptions, Volume};
//!
//! let volume = Volume::open(&path, &OpenOptions::new().write(true))?;
//! let root = volume.root();
//! root.create_dir("etc")?;
//! root.write("etc/hostname", "box\n")?;
//! root.open("etc/hostname")?.sync_all()?; // durable from here on
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Blocking calls are for ordinary threads. They panic inside a task, or inside a future run by the
//! `block_on` of any world; await the [`asynch`] counterparts there.
//!
//! A volume has one writer at a time. A second writer, in this process or another, gets
//! [`Error::Busy`].
//!
//! # Durability
//! On a volume with a journal, names, links, modes, owners, attributes, explicit times and sizes
//! after a power cut match the state after some prefix of the operations, and that prefix includes
//! everything synced. Contents written since the last sync may read as old, new or zero, but never
//! as another file's data. Without a journal (ext2, `^has_journal`) there is no such prefix and
//! e2fsck has to run: synced files survive, at worst in `lost+found` if they had been moved. The
//! project's `docs/crash-safety.md` describes how this is tested.
//!
//! This crate has no on-disk structures, journal or cache of its own; those live in
//! `extant-format`, `extant-fs` and `extant-cache`; [`check`] is `extant-check`.
#![forbid(unsafe_code)]

pub mod asynch;
mod copy;
mod dir;
mod file;
mod inode;
mod metadata;
mod options;
mod place;
mod sys;
mod volume;
mod walk;
mod world;

pub use copy::copy_tree;
pub use dir::Dir;
pub use extant_block::Buf;
pub use extant_check as check;
pub use extant_format::{Acl, AclEntry, AclTag, InodeFlags, InodeNumber};
#[doc(hidden)]
pub use extant_fs::RemovalStep;
pub use extant_fs::{
    Caller, Capabilities, Defragmented, Error, ErrorPolicy, ExtentFlags, Fallocate, FileExtent, RenameMode,
    Result, SetMode as XattrMode, Space as Statfs,
};
pub use file::File;
pub use inode::Inode;
pub use metadata::{DirEntry, FileType, Metadata, Time};
pub use options::{AclKind, FileOptions, OpenOptions};
pub use place::{Part, Partition, PlaceError, is_address, open_place, open_place_at, partitions};
pub use sys::{NewFile, Special};
pub use volume::Volume;
pub use walk::Walk;

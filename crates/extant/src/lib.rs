//! Volumes for programs: ext2, ext3 and ext4 with the shape of `std::fs`, without mounting and without root.
//!
//! [`Volume`], [`Dir`] and [`File`] block the calling thread; their twins in [`asynch`] await instead. All are cheap to
//! clone and may be used from many threads at once. Paths belong to a [`Dir`], as in cap-std. Every error has the errno that
//! Linux would give ([`Error::errno`]) and becomes an [`std::io::Error`] of the same kind.
//!
//! ```
//! # fn main() -> Result<(), extant::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk.img");
//! # let (volume, created) = (extant_image::VolumeOptions { size: extant_image::SizePolicy::Fixed(16 << 20), ..Default::default() },
//! #     extant_image::Timestamp { seconds: 1_700_000_000, nanos: 0 });
//! # extant_image::mkfs(&path, &volume, created, &extant_rt::Rt::real(Default::default()), std::sync::Arc::new(|_, _| {})).unwrap();
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
//! Calls that block are for ordinary threads. Inside a task, or a future that `block_on` of any world runs, they panic: await
//! those of [`asynch`] there.
//!
//! A volume has one writer at a time: a second one, in this process or another, is refused with [`Error::Busy`].
//!
//! # Durability
//! After a power cut names, links, modes, owners, attributes, explicit times and sizes of a volume with a journal are as after
//! some prefix of the operations, no shorter than what was synced. Contents written since the last sync read old, new or
//! zero, never as those of another file. Without a journal (ext2, `^has_journal`) there is no such prefix and e2fsck has to
//! run: what was synced is there afterwards, at worst in `lost+found` if it was moved. `docs/crash-safety.md` of the project
//! says how this is tested.
//!
//! This crate has no structures, journal or cache of its own: those are of `extant-fs`, `extant-format` and `extant-cache`.
#![forbid(unsafe_code)]

pub mod asynch;
mod copy;
mod dir;
mod file;
mod inode;
mod metadata;
mod options;
mod sys;
mod volume;
mod walk;
mod world;

pub use copy::copy_tree;
pub use dir::Dir;
pub use extant_block::Buf;
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
pub use sys::{NewFile, Special};
pub use volume::Volume;
pub use walk::Walk;

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
//! use extant::{OpenOptions, Volume};
//!
//! let volume = Volume::create(&path, 64 << 20)?; // with the feature "build"
//! let root = volume.root();
//! root.create_dir("etc")?;
//! root.write("etc/hostname", "box\n")?;
//! root.open("etc/hostname")?.sync_all()?; // durable from here on
//! volume.close()?;
//!
//! let volume = Volume::open(&path, &OpenOptions::new())?; // for reading
//! assert_eq!(volume.read("/etc/hostname")?, b"box\n");
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! Reading and writing volumes needs none. `build` adds [`Volume::create`] and [`image`], which
//! builds volumes from directories and archives and exports them. `check` adds
//! [`Volume::check`] and [`check`], which find and repair damage.
//!
//! The folder `examples` has complete programs: read, edit, walk, build, several writers at once,
//! tasks of tokio, storage of one's own, and NBD.
//!
//! Blocking calls are for ordinary threads. Inside a task, or inside a future run by the `block_on`
//! of any world, they panic unless the answer is in memory; await the [`asynch`] counterparts
//! there.
//!
//! # Writers
//! A volume has one writer at a time. A second writer, in this process or another, gets
//! [`Error::Busy`]. Within that writer, any number of threads work on the volume at once:
//!
//! ```
//! # fn main() -> Result<(), extant::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk.img");
//! # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
//! # let volume = extant::Volume::open(&path, &extant::OpenOptions::new().write(true))?;
//! let log = volume.root().open_with("log", extant::FileOptions::new().append(true).create(true))?;
//! std::thread::scope(|scope| {
//!     for n in 0..4 {
//!         let (root, log) = (volume.root(), log.clone());
//!         scope.spawn(move || {
//!             root.write(format!("part-{n}"), "done\n")?;
//!             log.write_all_at(0, b"done\n") // at the end, wherever that is by then
//!         });
//!     }
//! });
//! log.sync_all()?;
//! assert_eq!(volume.read("/log")?.len(), 20);
//! # drop(log);
//! # volume.close()
//! # }
//! ```
//!
//! # Storage of one's own
//! A volume can lie in anything that reads and writes at byte offsets, such as a `Vec<u8>`, an
//! encrypted file or, for reading, an object store. See [`Storage`]:
//!
//! ```
//! use extant::{OpenOptions, Storage, Volume};
//! use std::{io, sync::Mutex};
//!
//! struct Memory(Mutex<Vec<u8>>);
//!
//! impl Storage for Memory {
//!     fn size(&self) -> u64 {
//!         self.0.lock().unwrap().len() as u64
//!     }
//!     fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
//!         to.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..to.len()]);
//!         Ok(())
//!     }
//!     fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
//!         self.0.lock().unwrap()[at as usize..][..bytes.len()].copy_from_slice(bytes);
//!         Ok(())
//!     }
//! }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("disk.img");
//! # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
//!
//! let memory = Memory(Mutex::new(std::fs::read(&path)?));
//! let volume = Volume::open_storage("memory", memory, &OpenOptions::new().write(true))?;
//! volume.root().write("hello", "world")?;
//! volume.sync()?;
//! assert_eq!(volume.read("/hello")?, b"world");
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
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
// docs.rs then says which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Holds the example of the README, which has to compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod asynch;
mod copy;
#[cfg(feature = "build")]
mod create_volume;
mod dir;
mod file;
mod inode;
mod metadata;
mod options;
mod place;
mod small_files;
mod sys;
mod volume;
mod walk;
mod whole;
mod world;

pub use copy::copy_tree;
pub use dir::Dir;
pub use extant_block::{Buf, Device, FileDevice, MemDevice, Storage, StorageDevice};
#[cfg(feature = "check")]
pub use extant_check as check;
pub use extant_format::{Acl, AclEntry, AclTag, InodeFlags, InodeNumber};
#[doc(hidden)]
pub use extant_fs::RemovalStep;
pub use extant_fs::{
    Caller, Capabilities, Defragmented, Error, ErrorPolicy, ExtentFlags, Fallocate, FileExtent, NotMade,
    RenameMode, Result, SetMode as XattrMode, Space as Statfs, Synchronous,
};
#[cfg(feature = "build")]
pub use extant_image as image;
pub use extant_rt::Rt;
pub use file::File;
pub use inode::Inode;
pub use metadata::{DirEntry, FileType, Metadata, Time};
pub use options::{AclKind, FileOptions, OpenOptions};
pub use place::{Part, Partition, PlaceError, is_address, open_place, open_place_at, partitions};
pub use small_files::SmallFiles;
pub use sys::{NewFile, SmallFile, Special};
pub use volume::Volume;
pub use walk::Walk;

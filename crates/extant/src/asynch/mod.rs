//! Async counterparts of the blocking types; nothing here waits for the disk on the calling thread,
//! with three exceptions.
//!
//! Small buffered writes to the host's file are copied there, which takes as long as the host
//! throttles its writers. Dropping a volume's last handle waits for its bios. A device without
//! threads ([`extant_block::FileDevice`] that no world drives) does all of its work inside the
//! call.
//!
//! A future runs on any executor; I/O is driven by the threads of the volume's own world
//! ([`extant_rt::Rt`]).
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk.img");
//! # let options = extant_image::VolumeOptions {
//! #     size: extant_image::SizePolicy::Fixed(16 << 20),
//! #     ..Default::default()
//! # };
//! # let created = extant_image::Timestamp { seconds: 1_700_000_000, nanos: 0 };
//! let rt = extant_rt::Rt::real(Default::default());
//! # extant_image::mkfs(&path, &options, created, &rt, std::sync::Arc::new(|_, _| {})).unwrap();
//! use extant::{OpenOptions, asynch::Volume};
//! use std::sync::Arc;
//!
//! let file = extant_block::FileOptions { write: true, ..Default::default() };
//! let device = Arc::new(extant_block::FileDevice::open(&path, file).unwrap().driven_by(&rt));
//! rt.block_on(async {
//!     let volume = Volume::open(&rt, device, &OpenOptions::new().write(true)).await?;
//!     let root = volume.root();
//!     root.create_dir("var").await?;
//!     let log = root.create("var/log").await?;
//!     log.write_all_at(0, b"started\n").await?;
//!     log.sync_data().await?;
//!     drop((log, root));
//!     volume.close().await
//! })
//! .unwrap()?;
//! # Ok::<(), extant::Error>(())
//! ```

mod dir;
mod file;
mod inode;
mod path;
mod visited;
mod volume;
mod walk;

pub use crate::metadata::DirEntry;
pub use dir::Dir;
pub use file::File;
pub use inode::Inode;
pub(crate) use visited::Visited;
pub use volume::Volume;
pub use walk::Walk;

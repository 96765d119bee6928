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
//! # fn main() -> Result<(), extant::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("disk.img");
//! # extant::Volume::create(&path, 16 << 20)?.close()?;
//! use extant::{OpenOptions, asynch::Volume};
//!
//! # pollster::block_on(async {
//! let volume = Volume::open(&path, &OpenOptions::new().write(true)).await?;
//! let root = volume.root();
//! root.create_dir("var").await?;
//! let log = root.create("var/log").await?;
//! log.write_all_at(0, b"started\n").await?;
//! log.sync_data().await?;
//! drop((log, root));
//! volume.close().await
//! # })
//! # }
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

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

mod async_dir;
mod async_file;
mod async_inode;
mod async_small_files;
mod async_volume;
mod async_walk;
mod path_arguments;
mod visited;

pub use crate::metadata::DirEntry;
pub use async_dir::Dir;
pub use async_file::File;
pub use async_inode::Inode;
pub use async_small_files::SmallFiles;
pub use async_volume::Volume;
pub use async_walk::Walk;
pub(crate) use visited::Visited;

//! The page cache: frames, mappings, read-ahead, eviction, write-back and the accounting of dirty memory.
//!
//! One [`PageCache`] serves all files of a process, on any number of devices. A [`Mapping`] holds one file's pages; a
//! [`Backing`] says where they are on the device. Cached reads and overwrites copy on the caller's thread: they take no
//! lock that excludes another reader and allocate nothing. This crate never knows what a file system looks like: it asks
//! a backing for sectors, and tells it when they have been written.
//!
//! ```
//! use extant_block::{MemDevice, Sector};
//! use extant_cache::{CacheConfig, FlatFile, PageCache};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rt = extant_rt::Rt::real(Default::default());
//! let cache = PageCache::new(&rt, CacheConfig::with_budget(8 << 20))?;
//! let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
//! let file = disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0).open();
//! file.write_blocking(5, b"hello")?; // in memory
//! file.sync_blocking()?; // on the device
//! let mut buf = [0; 5];
//! file.read_blocking(5, &mut buf)?;
//! assert_eq!(&buf, b"hello");
//! # rt.block_on(cache.close())??;
//! # Ok(())
//! # }
//! ```

pub mod accounts;
mod arena;
mod audit;
mod backing;
pub mod blocks;
mod cache;
mod caught;
pub mod control;
mod cost;
pub mod dirty;
mod disk;
mod error;
mod errseq;
mod event;
pub mod evict;
mod exclude;
mod file;
mod flush;
mod flusher;
mod frames;
mod index;
mod load;
mod mapping;
mod open;
mod page;
mod pageset;
pub mod pass;
pub mod pressure;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod racy;
mod range;
mod read;
pub mod readahead;
mod shared;
mod state;
mod stuck;
mod sweep;
mod throttle;
mod waits;
mod write;
mod writeback;

pub use backing::{
    Answer, Answering, Backing, BeyondFlatFile, DirtyRun, Extent, FlatFile, Place, Placed, WriteExtent,
    WriteTo, WrittenExtent, WrittenRun,
};
pub use cache::{CacheConfig, Disk, OnWriteError, PageCache, Usage};
pub use cost::Cost;
pub use error::{BackingError, BackingErrorKind, CacheError, Result, WouldWait, WriteError};
pub use event::Event;
pub use exclude::Exclusion;
pub use file::Mapping;
pub use open::OpenFile;
pub use page::{FrameNo, MAX_FILE_BYTES, PAGE_BYTES};
pub use range::{ByteRange, PageRange};

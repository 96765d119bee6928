//! The page cache: frames, mappings, read-ahead, eviction, write-back and dirty accounting.
//!
//! One [`PageCache`] serves all files of a process, on any number of devices. A [`Mapping`] holds
//! one file's pages; a [`Backing`] says where they are on the device. Cached reads and overwrites
//! copy on the caller's thread: they take no lock that excludes another reader, and allocate
//! nothing. This crate knows nothing about file systems: it asks a backing for sectors, and tells
//! it when they have been written.
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
mod audit;
mod backing;
pub mod blocks;
mod cache;
mod caught;
mod cost;
pub mod dirty;
mod error;
mod event;
mod mapping;
#[cfg(all(test, extant_loom))]
mod models;
mod page;
mod pageset;
pub mod pass;
mod pool;
mod range;
mod registry;
mod state;
mod waits;
mod writeback;

pub use backing::{
    Answer, Answering, Backing, BeyondFlatFile, DirtyRun, FlatFile, Placed, ReadExtent, ReadFrom,
    WriteExtent, WriteTo, WrittenExtent, WrittenRun,
};
pub use cache::{CacheConfig, Disk, PageCache, SyncUnderWay, Usage};
pub use cost::Cost;
pub use dirty::control;
pub use error::{BackingError, BackingErrorKind, CacheError, Result, WouldWait, WriteError};
pub use event::Event;
pub use mapping::exclude::Exclusion;
pub use mapping::file::{DirectWrite, Mapping};
pub use mapping::open::{OpenFile, ReadOrder};
pub use mapping::readahead;
pub use page::{FrameNo, MAX_FILE_BYTES, PAGE_BYTES};
pub use pool::evict;
pub use range::{ByteRange, PageRange};
pub use state::shared::OnWriteError;

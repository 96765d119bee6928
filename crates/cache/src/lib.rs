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
//! rt.block_on(async {
//!     file.write(5, b"hello").await?; // in memory
//!     file.sync().await?; // on the device
//!     let mut buf = [0; 5];
//!     file.read(5, &mut buf).await?;
//!     assert_eq!(&buf, b"hello");
//!     cache.close().await
//! })??;
//! # Ok(())
//! # }
//! ```

pub mod accounts;
mod audit;
mod backing;
pub mod blocks;
mod cache;
mod caught;
mod config;
mod cost;
mod device;
pub mod dirty;
mod disk;
mod error;
mod error_log;
mod event;
mod file;
mod flat_file;
mod mapping;
#[cfg(all(test, extant_loom))]
mod models;
mod open_file;
mod page;
mod pages;
mod pageset;
pub mod pass_policy;
mod pool;
mod range;
mod registry;
mod waits;
mod writeback;

pub use backing::{
    Answer, Answering, Backing, DirtyRun, Placed, ReadExtent, ReadFrom, WriteExtent, WriteTo, WrittenExtent,
    WrittenRun,
};
pub use cache::{PageCache, Usage};
pub use config::{CacheConfig, OnWriteError};
pub use cost::Cost;
pub use dirty::control_interface as control;
pub use disk::{Disk, SyncUnderWay};
pub use error::{BackingError, BackingErrorKind, CacheError, Result, WouldWait, WriteError};
pub use event::Event;
pub use flat_file::{BeyondFlatFile, FlatFile};
pub use mapping::{DirectWrite, Mapping};
pub use open_file::{CachedOpenFile, ReadOrder, readahead};
pub use page::{FrameNo, MAX_FILE_BYTES, PAGE_BYTES};
pub use pages::exclude::Exclusion;
pub use pass_policy as pass;
pub use pool::evict;
pub use range::{ByteRange, PageRange};

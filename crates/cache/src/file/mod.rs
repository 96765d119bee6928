//! Files, devices, and what all of them share.
//!
//! These types refer to each other: a file knows its device, a device lists its dirty files and the
//! runs that have ended, and a run knows its file. So they are declared together, below the flows:
//! [`crate::writeback`] writes back, and [`crate::mapping`] and [`crate::open_file`] above it read
//! and write. Nothing here waits or submits I/O.

pub(crate) mod cached_device;
pub(crate) mod core;
pub(crate) mod dirty_levels;
pub(crate) mod fill_control;
pub(crate) mod page_table;
pub(crate) mod removals;
pub(crate) mod runs_in_flight;
pub(crate) mod unplaceable;
pub(crate) mod write_run;

use crate::CacheError;
use crate::backing::Backing;
use crate::config::Settings;
use crate::device::completion_queue::CompletionQueue;
use crate::device::dirty_file_order::TurnOrder;
use crate::device::flush::{DeviceFlush, HearsOfFlush};
use crate::device::health::DeviceHealth;
use crate::device::sync_priority::SyncPriority;
use crate::dirty::control_interface::{DeviceIndex, DirtyControl};
use crate::dirty::ledger::{DeviceLedger, Ledger};
use crate::error_log::ErrorLog;
use crate::file::core::FilesByNumber;
use crate::file::page_table::PageTable;
use crate::file::removals::Removals;
use crate::file::unplaceable::Unplaceable;
use crate::file::write_run::WriteRun;
use crate::page::{FileId, PAGE, PAGE_SHIFT, PageKey};
use crate::pass_policy::WriteBackPass;
use crate::pool::Pool;
use crate::registry::Accounts;
use crate::waits::Waits;
use extant_block::{Device, IoError};
use extant_rt::{Overseer, Rt, WaitKey, WaitTable, sync};
use parking_lot::{Mutex, RwLock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// State shared by all files of a process.
#[derive(Debug)]
pub(crate) struct CacheCore {
    pub(crate) rt: Rt,
    pub(crate) pool: Pool,
    /// Waiters for pages and flushes, keyed by [`loaded`], [`written`], [`excluded`] and
    /// [`flushed`].
    pub(crate) pages: Arc<WaitTable>,
    pub(crate) waits: Arc<Waits>,
    /// Oversees work that a task does for others.
    pub(crate) overseer: Arc<Overseer>,
    files: RwLock<FilesByNumber>,
    pub(crate) disks: RwLock<Vec<Arc<CachedDevice>>>,
    pub(crate) control: Mutex<Box<dyn DirtyControl>>,
    /// Number of writers so far.
    writers: AtomicU64,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) removals: Removals,
    pub(crate) accounts: Accounts,
    pub(crate) settings: Settings,
    pub(crate) pass: Box<dyn WriteBackPass>,
    is_closed: AtomicBool,
    /// The world ended before a task of the cache did.
    is_forsaken: AtomicBool,
}

/// A device that files of the cache are on.
#[derive(Debug)]
pub(crate) struct CachedDevice {
    pub(crate) index: DeviceIndex,
    /// Number of handles and files.
    holders: AtomicU64,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) ledger: Arc<DeviceLedger>,
    pub(crate) health: Arc<DeviceHealth>,
    pub(crate) flushes: Arc<DeviceFlush<CachedFile>>,
    pub(crate) sync_priority: SyncPriority,
    pub(crate) turns: TurnOrder<Arc<CachedFile>>,
    pub(crate) completions: CompletionQueue<Arc<WriteRun>>,
    /// Set while a task waits for frames or room: the flusher then writes back even if the
    /// controller says stop.
    pub(crate) wanted: AtomicBool,
    /// When the flusher's timer makes it look for dirty files; [`CachedDevice::NEVER`] if it has
    /// none.
    pub(crate) looks_at: AtomicU64,
    /// Number of requests so far to retry files that could not be placed.
    pub(crate) retries: AtomicU64,
    /// When the amount of dirty memory was last traced.
    traced_at: AtomicU64,
}

/// A file's state.
#[derive(Debug)]
pub(crate) struct CachedFile {
    pub(crate) core: Arc<CacheCore>,
    pub(crate) disk: Arc<CachedDevice>,
    pub(crate) backing: Arc<dyn Backing>,
    pub(crate) number: FileId,
    pub(crate) inode: u64,
    size: AtomicU64,
    pages: sync::Mutex<PageTable>,
    pub(crate) errors: ErrorLog,
    unplaceable: Unplaceable,
    /// Whether a task is writing back its dirty pages because there are too many; others then skip
    /// it (kernel: `I_SYNC`).
    pub(crate) is_visited: AtomicBool,
    /// Holds the remaining pages of a file that was dropped.
    pub(crate) is_remainder: bool,
}

impl CachedFile {
    pub(crate) fn new(
        core: &Arc<CacheCore>,
        disk: &Arc<CachedDevice>,
        backing: Arc<dyn Backing>,
        inode: u64,
        size: u64,
    ) -> Arc<Self> {
        disk.hold();
        core.register(|number| {
            Arc::new_cyclic(|file| Self {
                core: core.clone(),
                disk: disk.clone(),
                backing,
                number,
                inode,
                size: AtomicU64::new(size),
                pages: sync::Mutex::new(PageTable::new(file.clone(), disk.ledger.clone())),
                errors: ErrorLog::default(),
                unplaceable: Unplaceable::default(),
                is_visited: AtomicBool::new(false),
                is_remainder: false,
            })
        })
    }

    /// Moves the pages of a file being dropped to a file of their own, with the same number.
    pub(crate) fn remainder(&self) -> Arc<Self> {
        self.disk.hold();
        let remainder = Arc::new_cyclic(|file| Self {
            core: self.core.clone(),
            disk: self.disk.clone(),
            backing: self.backing.clone(),
            number: self.number,
            inode: self.inode,
            size: AtomicU64::new(self.size()),
            pages: sync::Mutex::new(self.lock_pages().move_to(file.clone())),
            errors: ErrorLog::default(),
            unplaceable: Unplaceable::default(),
            is_visited: AtomicBool::new(false),
            is_remainder: true,
        });
        self.core.replace(self.number, &remainder);
        remainder
    }

    /// The size that callers see.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn store_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Raises the size to at least `size`.
    pub(crate) fn grow_size(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn key(&self, index: u64) -> PageKey {
        PageKey::new(self.number, index)
    }

    /// The quarters of a page that `range` touches (in bytes of the page), rounded to whole blocks.
    pub(crate) fn dirty_mask(&self, range: Range<usize>) -> u8 {
        let block = (self.backing.block_bytes() as usize).min(PAGE as usize);
        let start = range.start / block * block;
        let end = range.end.next_multiple_of(block);
        let (first, last) = (start >> (PAGE_SHIFT - 2), end >> (PAGE_SHIFT - 2));
        (0xf_u8 >> (4 - (last - first))) << first
    }
}

impl HearsOfFlush for CachedFile {
    fn number(&self) -> FileId {
        self.number
    }

    fn record_failed_flush(&self, error: &IoError) {
        self.errors.record(CacheError::Io(error.clone()));
    }
}

/// Key: a page was loaded, or could not be.
pub(crate) fn loaded(page: PageKey) -> WaitKey {
    WaitKey { object: page.0, event: 0 }
}

/// Key: write-back of some of a file's pages ended.
pub(crate) fn written(file: FileId) -> WaitKey {
    WaitKey { object: file.0.into(), event: 1 }
}

/// Key: an exclusion of some of a file's pages ended.
pub(crate) fn excluded(file: FileId) -> WaitKey {
    WaitKey { object: file.0.into(), event: 2 }
}

/// Key: a flush of a device ended.
pub(crate) fn flushed(device: DeviceIndex) -> WaitKey {
    WaitKey { object: device.0.into(), event: 3 }
}

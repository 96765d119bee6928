//! The state of a cache: files with their pages, devices, runs of write-back, and what all of them share.
//!
//! These types hold each other: a file knows its device, a device lists its dirty files, and a run that has ended is
//! queued at its file until the backing has heard of it. So they are declared together, below the flows, which are `impl`
//! blocks of them: [`crate::writeback`] writes back, and [`crate::mapping`] above it reads and writes. The bookkeeping
//! that keeps these types consistent is here; none of it waits, and only `plug` submits I/O.

pub(crate) mod disk;
pub(crate) mod errseq;
pub(crate) mod fills;
pub(crate) mod flushes;
pub(crate) mod inner;
pub(crate) mod levels;
pub(crate) mod plug;
pub(crate) mod run;
pub(crate) mod shared;
mod stuck;
pub(crate) mod sweeps;
pub(crate) mod underway;
pub(crate) mod urgent;

use crate::CacheError;
use crate::backing::Backing;
use crate::dirty::control::{DeviceIndex, DirtyControl};
use crate::dirty::ledger::{DeviceLedger, DirtyPages, Ledger};
use crate::page::{FileId, PageKey};
use crate::pass::WriteBackPass;
use crate::pool::Pool;
use crate::registry::Accounts;
use crate::state::disk::{Completions, DirtyFiles, Listed};
use crate::state::errseq::{ErrorLog, Told};
use crate::state::fills::Fills;
use crate::state::flushes::Flushes;
use crate::state::run::Writing;
use crate::state::shared::{Files, Settings};
use crate::state::stuck::Stuck;
use crate::state::sweeps::Sweeps;
use crate::state::underway::Underway;
use crate::state::urgent::Urgent;
use crate::waits::Waits;
use extant_block::Device;
use extant_rt::{Overseer, Rt, WaitKey, WaitTable, sync};
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// State that all mappings of a process share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rt: Rt,
    pub(crate) pool: Pool,
    /// Waiters for pages, by [`loaded`], [`written`] and [`excluded`].
    pub(crate) pages: WaitTable,
    pub(crate) waits: Arc<Waits>,
    /// Of work that a task does for others.
    pub(crate) overseer: Arc<Overseer>,
    files: RwLock<Files>,
    pub(crate) disks: RwLock<Vec<Arc<DiskState>>>,
    pub(crate) control: Mutex<Box<dyn DirtyControl>>,
    /// Writers so far.
    writers: AtomicU64,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) sweeps: Sweeps,
    /// The error of the last file that became stuck.
    pub(crate) stuck_error: Mutex<Option<CacheError>>,
    pub(crate) accounts: Accounts,
    pub(crate) settings: Settings,
    pub(crate) pass: Box<dyn WriteBackPass>,
    pub(crate) closed: AtomicBool,
    /// The world has ended before a task of the cache.
    forsaken: AtomicBool,
}

/// A device that files of the cache live on.
#[derive(Debug)]
pub(crate) struct DiskState {
    pub(crate) index: DeviceIndex,
    /// Handles and files.
    holders: AtomicU64,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) ledger: Arc<DeviceLedger>,
    /// Ended runs that wait for the completion task.
    pub(crate) completions: Mutex<Completions>,
    /// A task waits for frames or room, whatever the controller says.
    pub(crate) wanted: AtomicBool,
    /// When the trace last heard how much is dirty.
    pub(crate) traced_at: AtomicU64,
    /// Every failure of write-back or flush, and how much of it a sync of the device has told.
    pub(crate) errors: ErrorLog,
    pub(crate) told: Mutex<Told>,
    pub(crate) flushes: Flushes,
    pub(crate) urgent: Urgent,
    /// How often stuck files were to be tried again.
    pub(crate) retries: AtomicU64,
    last_error: Mutex<Option<CacheError>>,
    files: Mutex<DirtyFiles>,
    /// The file that had its turn last, among those who write back some of all files.
    turn: Mutex<Option<Listed>>,
}

/// A mapping's state. Its lock is held for bookkeeping only: never across an await, never while waiting for a frame.
///
/// A task that holds the lock only *tries* to claim frames; a task that holds a claim may take the lock.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: Arc<DiskState>,
    pub(crate) backing: Arc<dyn Backing>,
    pub(crate) file: FileId,
    pub(crate) inode: u64,
    size: AtomicU64,
    pub(crate) pages: sync::Mutex<Pages>,
    pub(crate) errors: ErrorLog,
    /// Why no page can become dirty, where the backing could not place those that are.
    pub(crate) stuck: Stuck,
    /// Runs whose bios have ended and whose backing has not heard of it.
    pub(crate) ended: Mutex<VecDeque<Arc<Writing>>>,
    /// A task goes over its dirty pages because there are too many, and others pass it over (kernel: `I_SYNC`).
    pub(crate) is_visited: AtomicBool,
    /// It has what is left of a file that was dropped.
    pub(crate) is_remainder: bool,
}

/// A mapping's pages, under its lock.
#[derive(Debug)]
pub(crate) struct Pages {
    /// A frame of the ring of all.
    pub(crate) first: u32,
    /// Whether a sweep goes round it.
    pub(crate) is_swept: bool,
    pub(crate) cached: u64,
    /// A truncation has not removed all pages past the file's end: it is under way, or its caller left.
    pub(crate) is_cut: bool,
    pub(crate) dirty: DirtyPages,
    /// Pages in flight; what is written to them meanwhile is in frames of its own.
    pub(crate) writeback: Underway,
    pub(crate) listed: Option<Listed>,
    pub(crate) fills: Fills,
}

/// A page was loaded, or could not be.
pub(crate) fn loaded(page: PageKey) -> WaitKey {
    WaitKey { object: page.0, event: 0 }
}

/// Write-back of some of a file's pages ended.
pub(crate) fn written(file: FileId) -> WaitKey {
    WaitKey { object: file.0.into(), event: 1 }
}

/// An exclusion of some of a file's pages ended.
pub(crate) fn excluded(file: FileId) -> WaitKey {
    WaitKey { object: file.0.into(), event: 2 }
}

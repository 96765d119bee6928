//! The state of a cache: files and their pages, devices, write-back runs, and what all of them
//! share.
//!
//! These types refer to each other: a file knows its device, a device lists its dirty files, and an
//! ended run is queued at its file until the backing has been notified. So they are declared
//! together, below the flows, which are `impl` blocks on them: [`crate::writeback`] writes back,
//! and [`crate::mapping`] above it reads and writes. The bookkeeping that keeps these types
//! consistent is here. None of it waits, and only `plug` submits I/O.

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

/// State shared by all mappings of a process.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rt: Rt,
    pub(crate) pool: Pool,
    /// Waiters for pages, keyed by [`loaded`], [`written`] and [`excluded`].
    pub(crate) pages: WaitTable,
    pub(crate) waits: Arc<Waits>,
    /// Oversees work that a task does for others.
    pub(crate) overseer: Arc<Overseer>,
    files: RwLock<Files>,
    pub(crate) disks: RwLock<Vec<Arc<DiskState>>>,
    pub(crate) control: Mutex<Box<dyn DirtyControl>>,
    /// Number of writers so far.
    writers: AtomicU64,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) sweeps: Sweeps,
    /// The error of the file that became stuck last.
    pub(crate) stuck_error: Mutex<Option<CacheError>>,
    pub(crate) accounts: Accounts,
    pub(crate) settings: Settings,
    pub(crate) pass: Box<dyn WriteBackPass>,
    pub(crate) closed: AtomicBool,
    /// The world ended before a task of the cache did.
    forsaken: AtomicBool,
}

/// A device that files of the cache are on.
#[derive(Debug)]
pub(crate) struct DiskState {
    pub(crate) index: DeviceIndex,
    /// Number of handles and files.
    holders: AtomicU64,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) ledger: Arc<DeviceLedger>,
    /// Ended runs that wait for the completion task.
    pub(crate) completions: Mutex<Completions>,
    /// A task waits for frames or room: write back, whatever the controller says.
    pub(crate) wanted: AtomicBool,
    /// When the amount of dirty memory was last traced.
    pub(crate) traced_at: AtomicU64,
    /// Every failure of write-back or flush, and how many of them a sync of the device has
    /// returned.
    pub(crate) errors: ErrorLog,
    pub(crate) told: Mutex<Told>,
    pub(crate) flushes: Flushes,
    pub(crate) urgent: Urgent,
    /// How often stuck files were to be retried.
    pub(crate) retries: AtomicU64,
    last_error: Mutex<Option<CacheError>>,
    files: Mutex<DirtyFiles>,
    /// The file that had the last turn, among those who write back some pages of every file.
    turn: Mutex<Option<Listed>>,
}

/// A mapping's state. Its lock is held only for bookkeeping: never across an await, and never while
/// waiting for a frame.
///
/// A task that holds the lock may only *try* to claim frames; a task that holds a claim may take
/// the lock.
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
    /// Set while no page can become dirty, because the backing could not place those that are.
    pub(crate) stuck: Stuck,
    /// Runs whose bios have ended but whose backing has not been notified.
    pub(crate) ended: Mutex<VecDeque<Arc<Writing>>>,
    /// A task is writing back its dirty pages because there are too many, and others skip it
    /// (kernel: `I_SYNC`).
    pub(crate) is_visited: AtomicBool,
    /// Holds the remaining pages of a file that was dropped.
    pub(crate) is_remainder: bool,
}

/// A mapping's pages, under its lock.
#[derive(Debug)]
pub(crate) struct Pages {
    /// A frame in the ring of all frames of the file; 0 if none.
    pub(crate) first: u32,
    /// Whether a sweep is walking the ring.
    pub(crate) is_swept: bool,
    pub(crate) cached: u64,
    /// A truncation has not yet removed all pages past the end of the file: it is in progress, or
    /// its caller went away.
    pub(crate) is_cut: bool,
    pub(crate) dirty: DirtyPages,
    /// Pages in flight. New writes to them go to separate frames.
    pub(crate) writeback: Underway,
    pub(crate) listed: Option<Listed>,
    pub(crate) fills: Fills,
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

//! The cache of a process.

use crate::accounts::{Account, AccountConfig};
use crate::backing::Backing;
use crate::dirty::TurnControl;
use crate::dirty::control::{DeviceIndex, DirtyControl, DirtyLimits};
use crate::mapping::file::Mapping;
use crate::page::PAGE;
use crate::pass::{ByRuns, WriteBackPass};
use crate::pool::evict::{Eviction, S3Fifo, SPARE_FRAMES};
use crate::state::shared::{OnWriteError, Settings};
use crate::state::{DiskState, Inner, Shared};
use crate::writeback::flusher;
use crate::writeback::{write_back_all, write_back_files};
use crate::{CacheError, Result};
use extant_block::{Bio, Device, Exclusive, IoError};
use extant_rt::{Class, Nanos, Rt, Task, WaitConfig, WaitStats};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// How a [`PageCache`] is set up.
#[derive(Debug)]
pub struct CacheConfig {
    /// Memory for pages. Their descriptors come on top: less than 2 %.
    pub budget_bytes: u64,
    /// Flushers work while more than this is dirty; a quarter of the budget if not given.
    pub background_bytes: Option<u64>,
    /// Dirty and write-back pages never exceed this; half of the budget if not given, three quarters at most.
    pub dirty_bytes: Option<u64>,
    /// Longest read-ahead; 0 turns it off.
    pub read_ahead_bytes: u64,
    /// Largest bio.
    pub bio_bytes: u64,
    /// Longest run of dirty pages for which the backing is asked at a time; as long as a bio if not given.
    pub run_bytes: Option<u64>,
    /// Time between periodic passes (kernel: `dirty_writeback_centisecs`).
    pub periodic: Nanos,
    /// Age at which a periodic pass writes a file back (kernel: `dirty_expire_centisecs`).
    pub expire: Nanos,
    /// The fate of pages that cannot be written.
    pub on_write_error: OnWriteError,
    /// Frames without bytes, for virtual worlds: a write copies nothing, a read finds zeroes, the device is sent
    /// [zeroes](extant_block::Segment::zeroes) and what it answers is dropped. All else is as ever, costs included, so
    /// that an hour of streaming takes neither memory nor copies.
    pub phantom_frames: bool,
    /// The dirty controller: who may dirty how much, and when flushers work. [`TurnControl`] by default.
    pub control: Box<dyn DirtyControl>,
    /// How a pass of write-back goes over a file's dirty pages. [`ByRuns`] by default.
    pub pass: Box<dyn WriteBackPass>,
    /// The table in which tasks wait for pages; the lab puts older ones here.
    pub page_waits: WaitConfig,
    /// The eviction policy, for the frames of the budget and [`SPARE_FRAMES`] more; [`S3Fifo`] if not given.
    pub eviction: Option<Box<dyn Eviction>>,
}

impl CacheConfig {
    /// The defaults, with a budget.
    pub fn with_budget(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            background_bytes: None,
            dirty_bytes: None,
            read_ahead_bytes: (budget_bytes / 32).clamp(PAGE, 1 << 20),
            bio_bytes: (budget_bytes / 32).clamp(PAGE, 1 << 20),
            run_bytes: None,
            periodic: Nanos::from_secs(5),
            expire: Nanos::from_secs(30),
            on_write_error: OnWriteError::default(),
            phantom_frames: false,
            control: Box::new(TurnControl::new()),
            pass: Box::new(ByRuns),
            page_waits: WaitConfig::new("pages"),
            eviction: None,
        }
    }

    fn limits(&self, frames: u64) -> DirtyLimits {
        let most = most_dirty(frames);
        let limit_pages = self.dirty_bytes.map_or(frames / 2, |bytes| bytes / PAGE);
        let background_pages = self.background_bytes.map_or(frames / 4, |bytes| bytes / PAGE);
        DirtyLimits { background_pages, limit_pages }.within(most)
    }
}

/// Pages that may be dirty whatever the limits are: reads need frames, too.
fn most_dirty(frames: u64) -> u64 {
    (frames * 3 / 4).max(1)
}

/// Contents of a cache at one moment, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All frames.
    pub frames: u64,
    /// Those that hold nothing.
    pub free: u64,
    /// Clean pages, to be evicted when a frame is needed.
    pub evictable: u64,
    /// Dirty pages.
    pub dirty: u64,
    /// Pages in flight, until their backing has heard of the end.
    pub writeback: u64,
    /// Dirty pages that their backing could not place; they are not among those above.
    pub stuck: u64,
    /// Pages that count against the limit on dirty memory: dirty, in flight, or about to be written to. The two above are
    /// read one after the other, while pages go from one to the other.
    pub charged: u64,
    /// Frames that the budget does not cover at present.
    pub parked: u64,
}

/// The page cache of a process: one budget for the files of all its devices. Cheap to clone.
///
/// Before the process ends, [`PageCache::close`] writes back what is dirty. Where the last handle is dropped instead, the
/// flushers still do, as long as the world lives, and end; a writer that meets the limits on dirty memory afterwards gets
/// [`crate::CacheError::ShutDown`]. So does a caller that needs room or a frame once the world has ended.
#[derive(Clone, Debug)]
pub struct PageCache {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    /// By device; those of devices that were let go have ended.
    flushers: Mutex<Vec<(Weak<DiskState>, Task<()>)>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// A device whose files are cached. Cheap to clone. When the last clone and the last [`Mapping`] are gone and what was dirty is
/// durable, the cache lets the device go, unless an error has not been told: that waits for [`PageCache::close`].
#[derive(Debug)]
pub struct Disk {
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Arc<DiskState>,
}

impl Disk {
    fn new(shared: &Arc<Shared>, state: &Arc<DiskState>) -> Self {
        state.hold();
        Self { shared: shared.clone(), state: state.clone() }
    }
}

impl Clone for Disk {
    fn clone(&self) -> Self {
        Self::new(&self.shared, &self.state)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.state.release(&self.shared);
    }
}

impl PageCache {
    /// A cache in the world `rt`.
    ///
    /// # Errors
    /// The system gives no address space for the budget.
    ///
    /// # Panics
    /// Phantom frames in the real world, where they would lose what is written.
    pub fn new(rt: &Rt, mut config: CacheConfig) -> std::io::Result<Self> {
        assert!(rt.is_virtual() || !config.phantom_frames, "phantom frames are for virtual worlds");
        let most_frames = u64::from(u32::MAX - 1 - SPARE_FRAMES);
        let frames = (config.budget_bytes / PAGE).clamp(16, most_frames) as u32;
        let limits = config.limits(u64::from(frames));
        let settings = Settings {
            on_write_error: config.on_write_error,
            read_ahead_pages: config.read_ahead_bytes / PAGE,
            run_pages: (config.run_bytes.unwrap_or(config.bio_bytes) / PAGE).max(1),
            bio_pages: (config.bio_bytes / PAGE).max(1),
            periodic: config.periodic,
            expire: config.expire,
            phantom: config.phantom_frames,
            page_waits: config.page_waits,
            most_dirty_pages: most_dirty(frames.into()),
        };
        let policy = match config.eviction.take() {
            Some(policy) => policy,
            None => Box::new(S3Fifo::new(frames)?),
        };
        let shared =
            Arc::new(Shared::new(rt, frames, policy, config.control, limits, config.pass, settings)?);
        Ok(Self { handle: Arc::new(Handle { shared, flushers: Mutex::default() }) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Adds a device, and starts its flusher. Once it is claimed, it is written to as long as the claim lives:
    /// [`Exclusive`].
    pub fn attach(&self, device: Arc<dyn Device>) -> Disk {
        let shared = self.shared();
        let device = Arc::new(Exclusive::new(device));
        let state = Arc::new(DiskState::new(shared.ledger.attach(), device));
        let disk = Disk::new(shared, &state);
        shared.disks.write().push(state.clone());
        shared.rt.trace_name("device", state.index.0, &state.device.limits().name);
        let name = format!("flusher of {}", state.device.limits().name);
        let serving = flusher::Serving::new(shared, &state);
        let task = shared.rt.spawn(&name, Class::Normal, flusher::run(serving));
        let mut flushers = self.handle.flushers.lock();
        flushers.retain(|(disk, _)| disk.strong_count() > 0);
        flushers.push((Arc::downgrade(&state), task));
        disk
    }

    /// Its contents at this moment.
    pub fn usage(&self) -> Usage {
        let shared = self.shared();
        let (counts, amounts) = (shared.pool.frame_counts(), shared.ledger.amounts());
        Usage {
            frames: counts.total.into(),
            free: counts.free.into(),
            evictable: counts.evictable.into(),
            dirty: amounts.dirty_pages,
            writeback: amounts.writeback_pages,
            stuck: shared.ledger.stuck(),
            charged: shared.ledger.charged(),
            parked: counts.parked.into(),
        }
    }

    /// Counters of the table in which tasks wait for pages.
    pub fn wait_stats(&self) -> WaitStats {
        self.shared().pages.stats()
    }

    /// Bytes that describe frames, on top of the budget, whatever the frames hold.
    pub fn overhead_bytes(&self) -> u64 {
        self.shared().pool.overhead_bytes() as u64
    }

    /// Changes the budget, within what the cache was made with; a smaller one takes effect by eviction at once, and gives
    /// the memory back to the system. Returns how many pages beyond it are in use and cannot go yet; they go as they are
    /// written back or let go.
    pub fn set_budget(&self, bytes: u64) -> u64 {
        u64::from(self.shared().set_budget((bytes / PAGE).min(u32::MAX.into()) as u32))
    }

    /// The budget at present, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        u64::from(self.shared().pool.budget()) * PAGE
    }

    /// Changes the limits on dirty memory: at least a page, at most three quarters of what the cache was made with; a
    /// background threshold that is not below the limit becomes half of it, as on Linux.
    pub fn set_limits(&self, limits: DirtyLimits) {
        self.shared().set_limits(limits);
    }

    /// The limits on dirty memory.
    pub fn limits(&self) -> DirtyLimits {
        self.shared().ledger.limits()
    }

    /// Writes back every file that is dirty now, and flushes the devices (`sync(2)`), all of them at a time: one that does
    /// not answer keeps the caller waiting, but not the others' data.
    ///
    /// # Errors
    /// The first that this call met. Each file's own are reported by its open files, too.
    pub async fn sync(&self) -> Result<()> {
        let shared = self.shared();
        let disks: Vec<_> = shared.disks.read().iter().map(|state| Disk::new(shared, state)).collect();
        let tasks: Vec<_> = disks
            .into_iter()
            .map(|disk| shared.rt.spawn("sync", Class::Normal, async move { disk.sync().await }))
            .collect();
        let mut result = Ok(());
        for task in tasks {
            let outcome = task.await.unwrap_or_else(|ended| Err(ended.into()));
            if result.is_ok() {
                result = outcome;
            }
        }
        result
    }

    /// Writes everything back and ends the flushers. Files must not be used after this.
    ///
    /// # Errors
    /// A failure of write-back or flush that no sync of a device has returned yet. Pages that a device or a backing still
    /// refuses are given up.
    pub async fn close(self) -> Result<()> {
        let mut result = self.sync().await;
        self.shared().close();
        let flushers = std::mem::take(&mut *self.handle.flushers.lock());
        for (_, flusher) in flushers {
            // One that panicked keeps no other from ending.
            if let Err(ended) = flusher.await {
                result = result.and(Err(ended.into()));
            }
        }
        let disks = self.shared().disks.read().clone();
        for disk in disks {
            result = result.and(disk.errors.check(&mut disk.told.lock()));
        }
        result
    }

    /// Checks every frame and every list against each other, for tests; the cache must be at rest.
    ///
    /// # Panics
    /// Something is lost, counted twice or still held.
    pub fn audit(&self) {
        crate::audit::check(self.shared());
    }
}

impl Disk {
    /// Pages for a file of `size` bytes on this device. `inode` is its name in traces.
    ///
    /// # Panics
    /// The file is larger than [`crate::MAX_FILE_BYTES`].
    pub fn mapping(&self, backing: Arc<dyn Backing>, inode: u64, size: u64) -> Mapping {
        assert!(size <= crate::MAX_FILE_BYTES, "a file of {size} bytes is larger than the cache can address");
        Mapping(Inner::new(&self.shared, &self.state, backing, inode, size))
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.state.device
    }

    /// Its number among the devices of the process.
    pub fn index(&self) -> DeviceIndex {
        self.state.index
    }

    /// Writes back what is dirty of these files of this device, and waits for it and for what was under way before; no flush.
    /// Their runs are placed file by file, in order, and written together. Gives the result of each: errors stay in the record
    /// that [`OpenFile::sync`](crate::OpenFile::sync) reports from.
    pub async fn write_back(&self, files: &[Mapping]) -> Vec<Result<()>> {
        let files: Vec<_> = files.iter().map(|file| file.0.clone()).collect();
        write_back_files(&self.shared, &self.state, &files).await
    }

    /// Writes back every file of this device that is dirty now, all at a time, and flushes it.
    ///
    /// # Errors
    /// A failure of write-back or flush since this began, or since the last sync of this device.
    pub async fn sync(&self) -> Result<()> {
        let Self { shared, state } = self;
        let mut since = state.errors.now();
        write_back_all(shared, state).await;
        if state.errors.peek(&mut since.clone()).is_ok() {
            // A failure is in the log.
            let _ = state.flush(shared).await;
        }
        let told = state.errors.check(&mut state.told.lock());
        told.and(state.errors.peek(&mut since))
    }

    /// Has the flusher try again to write back those of the device's files that their backing could not place, and whose errors
    /// `may_be_over`: there is space again. Until then only syncs try.
    pub fn retry(&self, may_be_over: impl Fn(&CacheError) -> bool) {
        self.state.retry(may_be_over);
    }

    /// Makes writes that have ended durable: flushes the device's cache. For a file system's own writes; every file that
    /// was written since the last good flush reports a failure.
    pub async fn flush(&self) -> Result<()> {
        self.state.flush(&self.shared).await
    }

    /// Runs a write with `PREFLUSH` of a file system's own, such as a journal's commit block, in turn with the flushes of the
    /// device: beside one in flight it might end well although that one loses data. A failure is a failed flush, for every
    /// file that was written since the last good one: the device does not say which part failed. Where the caller leaves
    /// after the submission, the outcome is entered all the same.
    ///
    /// # Errors
    /// The device's.
    pub async fn write_behind_flush(&self, bio: Bio) -> std::result::Result<(), IoError> {
        self.state.write_behind_flush(&self.shared, bio).await
    }

    /// A sync of a file system on this device begins: until it is dropped, and for a moment after, background write-back
    /// keeps the device's queue short, so that the sync's own writes and flushes do not wait behind it.
    pub fn begin_sync(&self) -> SyncUnderWay {
        self.state.urgent.begin();
        SyncUnderWay(self.clone())
    }

    /// How many flushes of this device have failed. A file system reads it once at mount, and latches when it changes: what
    /// it had written before may be gone.
    pub fn flush_failures(&self) -> u64 {
        self.state.flushes.failures()
    }
}

/// A sync that is under way: see [`Disk::begin_sync`].
#[derive(Debug)]
#[must_use = "dropping it ends the sync"]
pub struct SyncUnderWay(Disk);

impl Drop for SyncUnderWay {
    fn drop(&mut self) {
        self.0.state.urgent.end(self.0.shared.rt.now());
    }
}

impl AccountConfig {
    /// A quarter of the budget, half of that pinned at most.
    pub fn new(name: &'static str, cache: &PageCache) -> Self {
        let budget = cache.budget_bytes();
        Self { name, limit_bytes: budget / 4, pinned_bytes: budget / 8 }
    }
}

impl PageCache {
    /// Opens an account for memory outside frames.
    pub fn account(&self, config: AccountConfig) -> Account {
        Account::open(self.shared(), config)
    }
}

impl Disk {
    /// Opens an account for memory outside frames, with the cache of this disk.
    pub fn account(&self, config: AccountConfig) -> Account {
        Account::open(&self.shared, config)
    }
}

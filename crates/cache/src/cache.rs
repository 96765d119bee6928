//! The cache of a process, and its devices.

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

/// Settings of a [`PageCache`].
#[derive(Debug)]
pub struct CacheConfig {
    /// Memory for pages, in bytes. Their descriptors add less than 2 %.
    pub budget_bytes: u64,
    /// Flushers work while more than this is dirty; default: a quarter of the budget.
    pub background_bytes: Option<u64>,
    /// Limit on dirty plus write-back pages; default: half of the budget; at most three quarters.
    pub dirty_bytes: Option<u64>,
    /// Longest read-ahead; 0 turns it off.
    pub read_ahead_bytes: u64,
    /// Largest bio.
    pub bio_bytes: u64,
    /// Longest run of dirty pages the backing is asked to place at once; default: `bio_bytes`.
    pub run_bytes: Option<u64>,
    /// Time between periodic passes (kernel: `dirty_writeback_centisecs`).
    pub periodic: Nanos,
    /// Age at which a periodic pass writes a file back (kernel: `dirty_expire_centisecs`).
    pub expire: Nanos,
    /// What happens to pages that cannot be written.
    pub on_write_error: OnWriteError,
    /// Frames without memory, for virtual worlds.
    ///
    /// A write copies nothing and a read returns zeros; the device receives
    /// [zeroes](extant_block::Segment::zeroes), and the data it returns is dropped. Everything else
    /// works as usual, including costs. An hour of streaming then needs neither memory nor copies.
    pub phantom_frames: bool,
    /// The dirty controller: decides who may dirty how much, and when flushers work.
    /// [`TurnControl`] by default.
    pub control: Box<dyn DirtyControl>,
    /// How a write-back pass walks a file's dirty pages. [`ByRuns`] by default.
    pub pass: Box<dyn WriteBackPass>,
    /// The table in which tasks wait for pages; the lab substitutes older ones.
    pub page_waits: WaitConfig,
    /// The eviction policy, sized for the frames of the budget plus [`SPARE_FRAMES`]; [`S3Fifo`] if
    /// `None`.
    pub eviction: Option<Box<dyn Eviction>>,
}

impl CacheConfig {
    /// The defaults for a given budget.
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

/// Upper bound on dirty pages, whatever the limits: reads need frames too.
fn most_dirty(frames: u64) -> u64 {
    (frames * 3 / 4).max(1)
}

/// Contents of a cache at one moment, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All frames.
    pub frames: u64,
    /// Frames that hold nothing.
    pub free: u64,
    /// Clean pages that can be evicted when a frame is needed.
    pub evictable: u64,
    /// Dirty pages.
    pub dirty: u64,
    /// Pages under write-back, until their backing has been told that it ended.
    pub writeback: u64,
    /// Dirty pages their backing could not place. Not included in `dirty`.
    pub stuck: u64,
    /// Pages that count against the limit on dirty memory: dirty, under write-back, or about to be
    /// written.
    ///
    /// `dirty` and `writeback` are read one after the other, while pages move between them.
    pub charged: u64,
    /// Frames the budget does not cover at present.
    pub parked: u64,
}

/// The page cache of a process: one budget for the files of all its devices. Cheap to clone.
///
/// Call [`PageCache::close`] before the process ends; it writes back what is dirty. If the last
/// handle is dropped instead, the flushers still write everything back, as long as the world lives,
/// and then end. After that, a writer that hits the limits on dirty memory gets
/// [`crate::CacheError::ShutDown`]. So does a caller that needs room or a frame once the world has
/// ended.
#[derive(Clone, Debug)]
pub struct PageCache {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    /// By device. Flushers of devices that were released have ended.
    flushers: Mutex<Vec<(Weak<DiskState>, Task<()>)>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// A device whose files are cached. Cheap to clone.
///
/// The cache releases the device once the last clone and the last [`Mapping`] are gone and
/// everything dirty is durable. A device with an unreported error is kept until
/// [`PageCache::close`].
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
    /// Creates a cache in the world `rt`.
    ///
    /// # Errors
    /// The system has no address space for the budget.
    ///
    /// # Panics
    /// `phantom_frames` is set in the real world, where it would lose written data.
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

    /// Adds a device and starts its flusher. Once the device has been claimed, the cache writes to
    /// it only while the claim lives: see [`Exclusive`].
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

    /// The cache's contents at this moment.
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

    /// Bytes used to describe frames, on top of the budget. Does not depend on what the frames
    /// hold.
    pub fn overhead_bytes(&self) -> u64 {
        self.shared().pool.overhead_bytes() as u64
    }

    /// Changes the budget, up to the one the cache was created with.
    ///
    /// A smaller budget takes effect at once, by eviction, and returns the memory to the system.
    /// Returns how many pages beyond it are in use and cannot go yet; they go once they are written
    /// back or released.
    pub fn set_budget(&self, bytes: u64) -> u64 {
        u64::from(self.shared().set_budget((bytes / PAGE).min(u32::MAX.into()) as u32))
    }

    /// The current budget, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        u64::from(self.shared().pool.budget()) * PAGE
    }

    /// Changes the limits on dirty memory.
    ///
    /// They are at least one page, and at most three quarters of the budget the cache was created
    /// with. A background threshold that is not below the limit becomes half of it, as on Linux.
    pub fn set_limits(&self, limits: DirtyLimits) {
        self.shared().set_limits(limits);
    }

    /// The limits on dirty memory.
    pub fn limits(&self) -> DirtyLimits {
        self.shared().ledger.limits()
    }

    /// Writes back every file that is dirty now, and flushes the devices (`sync(2)`).
    ///
    /// All devices sync concurrently: one that does not answer keeps the caller waiting, but does
    /// not delay the others' data.
    ///
    /// # Errors
    /// The first error this call met. Each open file reports its own errors too.
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

    /// Writes everything back and ends the flushers. Files must not be used afterwards.
    ///
    /// # Errors
    /// A write-back or flush failure that no sync of a device has returned yet. Pages that a device
    /// or a backing still refuses are given up.
    pub async fn close(self) -> Result<()> {
        let mut result = self.sync().await;
        self.shared().close();
        let flushers = std::mem::take(&mut *self.handle.flushers.lock());
        for (_, flusher) in flushers {
            // A flusher that panicked does not keep the others from ending.
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

    /// Cross-checks all frames and lists, for tests. The cache must be at rest.
    ///
    /// # Panics
    /// Something is lost, counted twice or still held.
    pub fn audit(&self) {
        crate::audit::check(self.shared());
    }
}

impl Disk {
    /// Creates a mapping for a file of `size` bytes on this device. `inode` names it in traces.
    ///
    /// # Panics
    /// The file is larger than [`crate::MAX_FILE_BYTES`].
    pub fn mapping(&self, backing: Arc<dyn Backing>, inode: u64, size: u64) -> Mapping {
        assert!(size <= crate::MAX_FILE_BYTES, "a file of {size} bytes is larger than the cache can address");
        Mapping(Inner::new(&self.shared, &self.state, backing, inode, size))
    }

    /// The current budget of the disk's cache, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        u64::from(self.shared.pool.budget()) * PAGE
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.state.device
    }

    /// The device's number within the process.
    pub fn index(&self) -> DeviceIndex {
        self.state.index
    }

    /// Writes back the dirty pages of these files of this device, without a flush.
    ///
    /// Waits for that, and for writes that were already under way. Runs are placed file by file, in
    /// order, and written together. Returns the result for each file; errors also stay in the
    /// record that [`OpenFile::sync`](crate::OpenFile::sync) reports from.
    pub async fn write_back(&self, files: &[Mapping]) -> Vec<Result<()>> {
        let files: Vec<_> = files.iter().map(|file| file.0.clone()).collect();
        write_back_files(&self.shared, &self.state, &files).await
    }

    /// Writes back every file of this device that is dirty now, all concurrently, and flushes the
    /// device.
    ///
    /// # Errors
    /// A write-back or flush failure since this call began, or since the last sync of this device.
    pub async fn sync(&self) -> Result<()> {
        let Self { shared, state } = self;
        let mut since = state.errors.now();
        write_back_all(shared, state).await;
        if state.errors.peek(&mut since.clone()).is_ok() {
            // A failure is in the error log, which is checked below.
            let _ = state.flush(shared).await;
        }
        let told = state.errors.check(&mut state.told.lock());
        told.and(state.errors.peek(&mut since))
    }

    /// Makes the flusher retry files of this device that their backing could not place and whose
    /// error `may_be_over`, because there is space again. Until then only syncs retry.
    pub fn retry(&self, may_be_over: impl Fn(&CacheError) -> bool) {
        self.state.retry(may_be_over);
    }

    /// Flushes the device's cache, which makes completed writes durable. For a file system's own
    /// writes. A failure is reported by every file written since the last successful flush.
    pub async fn flush(&self) -> Result<()> {
        self.state.flush(&self.shared).await
    }

    /// Runs a `PREFLUSH` write of a file system's own, such as a journal's commit block, unless
    /// more than `failures` flushes have failed ([`Self::flush_failures`]).
    ///
    /// It takes its turn with the device's flushes. Next to a flush in flight, or after one that
    /// failed, the write might succeed although data that it vouches for are lost. A failure counts
    /// as a failed flush for every file written since the last successful one, because the device
    /// does not say which part failed. The outcome is recorded even if the caller goes away after
    /// the submission.
    ///
    /// # Errors
    /// The device's error, or that of the last flush that failed: then nothing was written.
    pub async fn write_behind_flush(&self, bio: Bio, failures: u64) -> std::result::Result<(), IoError> {
        self.state.write_behind_flush(&self.shared, bio, failures).await
    }

    /// Announces a sync of a file system on this device.
    ///
    /// Until the result is dropped, and for a moment after, background write-back keeps the
    /// device's queue short, so that the sync's writes and flushes do not wait behind it.
    pub fn begin_sync(&self) -> SyncUnderWay {
        self.state.urgent.begin();
        SyncUnderWay(self.clone())
    }

    /// How many flushes of this device have failed. A file system reads it once at mount and
    /// latches an error when it changes: data it wrote earlier may be gone. See also
    /// [`Self::write_behind_flush`].
    pub fn flush_failures(&self) -> u64 {
        self.state.flushes.failures()
    }
}

/// A sync in progress: see [`Disk::begin_sync`].
#[derive(Debug)]
#[must_use = "dropping it ends the sync"]
pub struct SyncUnderWay(Disk);

impl Drop for SyncUnderWay {
    fn drop(&mut self) {
        self.0.state.urgent.end(self.0.shared.rt.now());
    }
}

impl AccountConfig {
    /// Limits the account to a quarter of the budget, of which at most half may be pinned.
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

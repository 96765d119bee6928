//! The cache of a process.

use crate::Result;
use crate::accounts::{Account, AccountConfig};
use crate::config::CacheConfig;
use crate::dirty::control_interface::DirtyLimits;
use crate::disk::Disk;
use crate::file::{CacheCore, CachedDevice};
use crate::page::PAGE;
use crate::pool::evict::S3Fifo;
use crate::writeback::flusher;
use extant_block::{Device, Exclusive};
use extant_rt::{Class, Rt, Task, WaitStats};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

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
    /// Pages under write-back, until their backing has been notified of its end.
    pub writeback: u64,
    /// Dirty pages their backing could not place. Not included in `dirty`.
    pub unplaceable: u64,
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
    core: Arc<CacheCore>,
    /// By device. Flushers of devices that were released have ended.
    flushers: Mutex<Vec<(Weak<CachedDevice>, Task<()>)>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close();
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
        let frames = config.frames();
        let (limits, settings) = (config.limits(frames.into()), config.settings(frames.into()));
        let policy = match config.eviction.take() {
            Some(policy) => policy,
            None => Box::new(S3Fifo::new(frames)?),
        };
        let core = CacheCore::new(rt, frames, policy, config.control, limits, config.pass, settings)?;
        Ok(Self { handle: Arc::new(Handle { core: Arc::new(core), flushers: Mutex::default() }) })
    }

    pub(crate) fn core(&self) -> &Arc<CacheCore> {
        &self.handle.core
    }

    /// Adds a device and starts its flusher. Once the device has been claimed, the cache writes to
    /// it only while the claim lives: see [`Exclusive`].
    pub fn attach(&self, device: Arc<dyn Device>) -> Disk {
        let core = self.core();
        let device = Arc::new(Exclusive::new(device));
        let state = Arc::new(CachedDevice::new(core, device));
        let disk = Disk::new(core, &state);
        core.disks.write().push(state.clone());
        core.rt.trace_name("device", state.index.0, &state.device.limits().name);
        let name = format!("flusher of {}", state.device.limits().name);
        let serving = flusher::Serving::new(core, &state);
        let task = core.rt.spawn(&name, Class::Normal, flusher::run(serving));
        let mut flushers = self.handle.flushers.lock();
        flushers.retain(|(disk, _)| disk.strong_count() > 0);
        flushers.push((Arc::downgrade(&state), task));
        disk
    }

    /// The cache's contents at this moment.
    pub fn usage(&self) -> Usage {
        let core = self.core();
        let (counts, amounts) = (core.pool.frame_counts(), core.ledger.amounts());
        Usage {
            frames: counts.total.into(),
            free: counts.free.into(),
            evictable: counts.evictable.into(),
            dirty: amounts.dirty_pages,
            writeback: amounts.writeback_pages,
            unplaceable: core.ledger.unplaceable(),
            charged: core.ledger.charged(),
            parked: counts.parked.into(),
        }
    }

    /// Counters of the table in which tasks wait for pages.
    pub fn wait_stats(&self) -> WaitStats {
        self.core().pages.stats()
    }

    /// Bytes used to describe frames, on top of the budget. Does not depend on what the frames
    /// hold.
    pub fn overhead_bytes(&self) -> u64 {
        self.core().pool.overhead_bytes() as u64
    }

    /// Changes the budget, up to the one the cache was created with.
    ///
    /// A smaller budget takes effect at once, by eviction, and returns the memory to the system.
    /// Returns how many pages beyond it are in use and cannot go yet; they go once they are written
    /// back or released.
    pub fn set_budget(&self, bytes: u64) -> u64 {
        u64::from(self.core().set_budget((bytes / PAGE).min(u32::MAX.into()) as u32))
    }

    /// The current budget, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        u64::from(self.core().pool.budget()) * PAGE
    }

    /// Changes the limits on dirty memory.
    ///
    /// They are at least one page, and at most three quarters of the budget the cache was created
    /// with. A background threshold that is not below the limit becomes half of it, as on Linux.
    pub fn set_limits(&self, limits: DirtyLimits) {
        self.core().set_limits(limits);
    }

    /// The limits on dirty memory.
    pub fn limits(&self) -> DirtyLimits {
        self.core().ledger.limits()
    }

    /// Writes back every file that is dirty now, and flushes the devices (`sync(2)`).
    ///
    /// All devices sync concurrently: one that does not answer keeps the caller waiting, but does
    /// not delay the others' data.
    ///
    /// # Errors
    /// The first error this call met. Each open file reports its own errors too.
    pub async fn sync(&self) -> Result<()> {
        let core = self.core();
        let disks: Vec<_> = core.disks.read().iter().map(|state| Disk::new(core, state)).collect();
        let tasks: Vec<_> = disks
            .into_iter()
            .map(|disk| core.rt.spawn("sync", Class::Normal, async move { disk.sync().await }))
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
        self.core().close();
        let flushers = std::mem::take(&mut *self.handle.flushers.lock());
        for (_, flusher) in flushers {
            // A flusher that panicked does not keep the others from ending.
            if let Err(ended) = flusher.await {
                result = result.and(Err(ended.into()));
            }
        }
        let disks = self.core().disks.read().clone();
        for disk in disks {
            result = result.and(disk.health.return_error());
        }
        result
    }

    /// Cross-checks all frames and lists, for tests. The cache must be at rest.
    ///
    /// # Panics
    /// Something is lost, counted twice or still held.
    pub fn audit(&self) {
        crate::audit::check(self.core());
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
        Account::open(self.core(), config)
    }
}

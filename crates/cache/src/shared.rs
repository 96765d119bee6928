//! State that all mappings of a process share: the pool, the files by number, counters of dirty memory.

use crate::CacheError;
use crate::accounts::Accounts;
use crate::dirty::control::{Amounts, DeviceIndex, DirtyControl, DirtyLimits, Numbers};
use crate::mapping::Inner;
use crate::page::{FileId, FrameNo};
use crate::pool::evict::Eviction;
use crate::pool::frames::Claimed;
use crate::pool::{Pool, Purpose};
use crate::waits::{Condition, Waits};
use crate::writeback::disk::DiskState;
use crate::writeback::pass::WriteBackPass;
use extant_rt::{Rt, WaitConfig, WaitTable};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rt: Rt,
    pub(crate) pool: Pool,
    /// Waiters for pages, by [`crate::mapping::loaded`] and [`crate::mapping::written`].
    pub(crate) pages: WaitTable,
    pub(crate) waits: Arc<Waits>,
    files: RwLock<Files>,
    pub(crate) disks: RwLock<Vec<Arc<DiskState>>>,
    pub(crate) control: Mutex<Box<dyn DirtyControl>>,
    pub(crate) limits: Mutex<DirtyLimits>,
    limit_pages: AtomicU64,
    pub(crate) dirty: AtomicU64,
    pub(crate) writeback: AtomicU64,
    /// Dirty, under write-back, or about to become dirty: what the limit is held against.
    charged: AtomicU64,
    /// Dirty pages of stuck files, which are counted nowhere else, and the error of the last such file.
    pub(crate) stuck: AtomicU64,
    pub(crate) stuck_error: Mutex<Option<CacheError>>,
    pub(crate) accounts: Accounts,
    pub(crate) settings: Settings,
    pub(crate) pass: Box<dyn WriteBackPass>,
    pub(crate) closed: AtomicBool,
}

/// Settings, which do not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) on_write_error: crate::OnWriteError,
    pub(crate) read_ahead_pages: u64,
    pub(crate) run_pages: u64,
    pub(crate) bio_pages: u64,
    pub(crate) periodic: extant_rt::Nanos,
    pub(crate) expire: extant_rt::Nanos,
    pub(crate) phantom: bool,
    pub(crate) page_waits: WaitConfig,
    /// Upper bound on pages dirty or under write-back, whatever the limits are.
    pub(crate) most_dirty_pages: u64,
}

#[derive(Debug, Default)]
struct Files {
    /// By number; 0 is not used.
    slots: Vec<Weak<Inner>>,
    free: Vec<u32>,
}

/// Why dirty pages are not allowed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    Everywhere,
    OnDevice(u32),
    /// The file is stuck.
    Stuck,
}

impl Shared {
    pub(crate) fn new(
        rt: &Rt,
        frames: u32,
        policy: Box<dyn Eviction>,
        control: Box<dyn DirtyControl>,
        limits: DirtyLimits,
        pass: Box<dyn WriteBackPass>,
        settings: Settings,
    ) -> std::io::Result<Self> {
        let waits = Arc::new(Waits::default());
        Ok(Self {
            rt: rt.clone(),
            pool: Pool::new(rt, frames, settings.phantom, policy, waits.clone())?,
            pages: WaitTable::new(rt, settings.page_waits),
            waits,
            files: RwLock::new(Files { slots: vec![Weak::new()], free: Vec::new() }),
            disks: RwLock::default(),
            control: Mutex::new(control),
            limits: Mutex::new(limits),
            limit_pages: AtomicU64::new(limits.limit_pages),
            dirty: AtomicU64::new(0),
            writeback: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            stuck_error: Mutex::default(),
            accounts: Accounts::default(),
            settings,
            pass,
            closed: AtomicBool::new(false),
        })
    }

    // Mappings by number.

    pub(crate) fn register(&self, make: impl FnOnce(FileId) -> Arc<Inner>) -> Arc<Inner> {
        let mut files = self.files.write();
        let number = files.free.pop().unwrap_or_else(|| {
            files.slots.push(Weak::new());
            files.slots.len() as u32 - 1
        });
        assert!(number <= FileId::MAX, "fewer than 16 million mappings at a time");
        let inner = make(FileId(number));
        files.slots[number as usize] = Arc::downgrade(&inner);
        inner
    }

    pub(crate) fn unregister(&self, file: FileId) {
        let mut files = self.files.write();
        files.slots[file.0 as usize] = Weak::new();
        files.free.push(file.0);
    }

    fn file(&self, file: FileId) -> Option<Arc<Inner>> {
        self.files.read().slots.get(file.0 as usize)?.upgrade()
    }

    /// Mappings that are alive.
    pub(crate) fn all_files(&self) -> Vec<Arc<Inner>> {
        self.files.read().slots.iter().filter_map(Weak::upgrade).collect()
    }

    /// As [`Pool::take_frames`], evicting pages of any file. To be called without a mapping's lock.
    pub(crate) fn take_frames(&self, n: usize, purpose: Purpose, taken: &mut Vec<FrameNo>) {
        self.pool.take_frames(n, purpose, taken, &|run| self.forget(run));
    }

    /// As [`Pool::set_budget`].
    pub(crate) fn set_budget(&self, frames: u32) -> u32 {
        self.pool.set_budget(frames, &|run| self.forget(run))
    }

    /// As [`Pool::fit_budget`].
    pub(crate) fn fit_budget(&self) -> u32 {
        self.pool.fit_budget(&|run| self.forget(run))
    }

    fn forget(&self, run: &[Claimed<'_>]) {
        // A mapping that is gone is being dropped, and its drop detaches the frames.
        if let Some(file) = self.file(run[0].key().file()) {
            file.forget_claimed(run);
        }
    }

    // Dirty memory.

    /// Allows up to `n` more dirty pages on a disk; says why not where it allows none.
    pub(crate) fn charge_dirty(&self, disk: &DiskState, n: u64) -> Result<u64, NoRoom> {
        let stuck = self.stuck.load(Ordering::Relaxed);
        let limit = self.limit_pages.load(Ordering::Relaxed).min(self.pool.dirty_limit());
        let limit = limit.min(self.settings.most_dirty_pages.saturating_sub(stuck));
        let got = add_up_to(&self.charged, n, limit);
        if got == 0 {
            return Err(NoRoom::Everywhere);
        }
        let ours = add_up_to(&disk.charged, got, disk.limit_pages.load(Ordering::Relaxed));
        if ours < got {
            self.charged.fetch_sub(got - ours, Ordering::SeqCst);
            self.waits.wake(Condition::Room(None), (got - ours) as usize);
        }
        if ours == 0 { Err(NoRoom::OnDevice(disk.index.0)) } else { Ok(ours) }
    }

    /// Allows `n` more dirty pages, whatever the limits are.
    pub(crate) fn charge_exempt(&self, disk: &DiskState, n: u64) {
        self.charged.fetch_add(n, Ordering::SeqCst);
        disk.charged.fetch_add(n, Ordering::SeqCst);
    }

    /// Takes the allowance back, for pages that did not become dirty or no longer are.
    pub(crate) fn uncharge_dirty(&self, disk: &DiskState, n: u64) {
        if n == 0 {
            return;
        }
        let before = self.charged.fetch_sub(n, Ordering::SeqCst);
        let on_disk = disk.charged.fetch_sub(n, Ordering::SeqCst);
        debug_assert!(before >= n && on_disk >= n);
        self.waits.wake(Condition::Room(Some(disk.index.0)), n as usize);
        self.waits.wake(Condition::Room(None), n as usize);
    }

    pub(crate) fn room(reason: NoRoom) -> Condition {
        match reason {
            NoRoom::Everywhere | NoRoom::Stuck => Condition::Room(None),
            NoRoom::OnDevice(device) => Condition::Room(Some(device)),
        }
    }

    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::SeqCst)
    }

    pub(crate) fn set_limits(&self, limits: DirtyLimits) {
        let limits = limits.within(self.settings.most_dirty_pages);
        *self.limits.lock() = limits;
        self.set_pool_limit(limits.limit_pages);
        self.disks.read().iter().for_each(|disk| disk.kick(self));
    }

    /// Takes over how much may be dirty in all.
    pub(crate) fn set_pool_limit(&self, pages: u64) {
        let pages = pages.clamp(1, self.settings.most_dirty_pages);
        if pages > self.limit_pages.swap(pages, Ordering::SeqCst) {
            self.waits.wake_all(Condition::Room(None));
        }
    }

    /// Has the tasks of the cache end when their work is done.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.waits.wake_all(Condition::Closing);
        self.disks.read().iter().for_each(|disk| disk.kick(self));
    }

    pub(crate) fn numbers(&self, disk: &DiskState) -> Numbers {
        let amounts = |dirty: &AtomicU64, writeback: &AtomicU64| Amounts {
            dirty_pages: dirty.load(Ordering::Relaxed),
            writeback_pages: writeback.load(Ordering::Relaxed),
        };
        Numbers {
            limits: *self.limits.lock(),
            global: amounts(&self.dirty, &self.writeback),
            device: DeviceIndex(disk.index.0),
            on_device: amounts(&disk.dirty, &disk.writeback),
            dirtied_total: disk.dirtied_total.load(Ordering::Relaxed),
            written_total: disk.written_total.load(Ordering::Relaxed),
            devices: self.disks.read().len() as u32,
        }
    }
}

/// Adds up to `n`, so that the sum does not exceed `limit`; returns how much that was.
fn add_up_to(counter: &AtomicU64, n: u64, limit: u64) -> u64 {
    let mut got = 0;
    let _ = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
        got = n.min(limit.saturating_sub(now));
        (got > 0).then_some(now + got)
    });
    got
}

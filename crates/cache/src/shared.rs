//! What all mappings of a process share: frames, index, free frames, counters of dirty memory.

use crate::accounts::Accounts;
use crate::control::{Amounts, DeviceIndex, DirtyControl, DirtyLimits, Numbers};
use crate::disk::DiskState;
use crate::evict::{Eviction, Uses};
use crate::frames::Frames;
use crate::index::Index;
use crate::mapping::Inner;
use crate::page::{FileId, FrameNo};
use crate::pass::WriteBackPass;
use crate::state::After;
use crate::waits::{Key, Waits};
use crate::{CacheError, Cost};
use extant_rt::{Rt, WaitConfig, WaitTable};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Victims that are chosen in one go.
const VICTIMS_MAX: usize = 64;
/// Goes at victims before a caller gives up for this time.
const ROUNDS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rt: Rt,
    pub(crate) frames: Frames,
    pub(crate) index: Index,
    /// Who waits for a page, by [`crate::mapping::loaded`] and [`crate::mapping::written`].
    pub(crate) pages: WaitTable,
    pub(crate) waits: Arc<Waits>,
    pool: Mutex<Pool>,
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
    /// Dirty pages that the frames allow which are not set apart for accounts.
    frames_limit: AtomicU64,
    pub(crate) accounts: Accounts,
    pub(crate) settings: Settings,
    pub(crate) pass: Box<dyn WriteBackPass>,
    pub(crate) closed: AtomicBool,
}

/// What does not change.
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
    /// Whatever the limits are, no more is dirty or under write-back.
    pub(crate) most_dirty_pages: u64,
}

#[derive(Debug, Default)]
struct Files {
    /// By number; 0 is not used.
    slots: Vec<Weak<Inner>>,
    free: Vec<u32>,
}

/// Frames that are nobody's, and those that could be.
#[derive(Debug)]
struct Pool {
    policy: Box<dyn Eviction>,
    /// Free frames in order of their freeing, chained as in the index's buckets.
    free_first: u32,
    free_last: u32,
    free: u32,
    /// Frames up to here have been used once.
    fresh: u32,
    /// Free frames that the budget does not cover at present, chained likewise.
    parked_first: u32,
    parked: u32,
    /// Frames that may be in use or free.
    in_force: u32,
    /// What the budget is without accounts …
    budget: u32,
    /// … and what of it is set apart for them.
    set_apart: u32,
}

/// What a frame is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Somebody waits for it.
    Demand,
    /// Read-ahead, which takes nothing from anybody.
    Ahead,
}

/// Why dirty pages are not allowed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    Everywhere,
    OnDevice(u32),
    /// The file is stuck.
    Stuck,
}

struct FrameUses<'a>(&'a Frames);

impl Uses for FrameUses<'_> {
    fn uses(&self, frame: FrameNo) -> u8 {
        self.0.state(frame).snapshot().uses()
    }
    fn set(&self, frame: FrameNo, uses: u8) {
        self.0.state(frame).lower_uses(uses);
    }
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
        Ok(Self {
            rt: rt.clone(),
            frames: Frames::new(frames, settings.phantom)?,
            index: Index::new(frames)?,
            pages: WaitTable::new(rt, settings.page_waits),
            waits: Arc::new(Waits::default()),
            pool: Mutex::new(Pool {
                policy,
                free_first: 0,
                free_last: 0,
                free: 0,
                fresh: 0,
                parked_first: 0,
                parked: 0,
                in_force: frames,
                budget: frames,
                set_apart: 0,
            }),
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
            frames_limit: AtomicU64::new(u64::MAX),
            accounts: Accounts::default(),
            settings,
            pass,
            closed: AtomicBool::new(false),
        })
    }

    /// Memory that describes frames, whatever they hold.
    pub(crate) fn overhead_bytes(&self) -> usize {
        self.frames.overhead_bytes() + self.index.overhead_bytes() + self.pool.lock().policy.overhead_bytes()
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

    // Frames.

    /// Takes back a frame whose last user has left.
    pub(crate) fn free(&self, frame: FrameNo) {
        self.free_all([frame]);
    }

    pub(crate) fn free_all(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let mut count = 0;
        {
            let mut pool = self.pool.lock();
            for frame in frames {
                pool.policy.remove(frame);
                pool.put_free(&self.frames, frame);
                count += 1;
            }
        }
        self.waits.wake(Key::Frames, count);
    }

    /// Frees what `after` says is to be freed.
    #[inline]
    pub(crate) fn settle(&self, frame: FrameNo, after: After) {
        if after == After::Freed {
            self.free(frame);
        }
    }

    /// Frames that hold clean pages may be evicted from now on.
    pub(crate) fn evictable(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let mut count = 0;
        {
            let mut pool = self.pool.lock();
            for frame in frames {
                let page = self.frames.key(frame).0;
                pool.policy.insert(frame, page);
                count += 1;
            }
        }
        self.waits.wake(Key::Frames, count);
    }

    /// Frames became dirty: no candidates any more.
    pub(crate) fn not_evictable(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let mut pool = self.pool.lock();
        frames.into_iter().for_each(|frame| pool.policy.remove(frame));
    }

    /// Up to `n` frames for the caller, evicting clean pages where none is free; fewer, even none, where that does not do.
    /// To be called without a mapping's lock.
    pub(crate) fn take_frames(&self, n: usize, purpose: Purpose, taken: &mut Vec<FrameNo>) {
        let (before, wanted) = (taken.len(), taken.len() + n);
        {
            let mut pool = self.pool.lock();
            while taken.len() < wanted {
                let Some(frame) = pool.take_free(&self.frames) else { break };
                taken.push(frame);
            }
        }
        // Victims that are in use at the moment are passed over; a few rounds tell whether there are others.
        for _ in 0..ROUNDS_MAX {
            if taken.len() >= wanted || !self.evict(purpose, wanted - taken.len(), taken) {
                break;
            }
        }
        // Pages that follow each other in frames that do are one segment of a bio, whatever the order of eviction.
        taken[before..].sort_unstable();
    }

    /// Gives back frames that were taken and not used.
    pub(crate) fn return_frames(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let mut count = 0;
        {
            let mut pool = self.pool.lock();
            for frame in frames {
                pool.put_free(&self.frames, frame);
                count += 1;
            }
        }
        self.waits.wake(Key::Frames, count);
    }

    /// Evicts up to `n` clean pages and gives their frames to the caller. Says whether it is worth trying again.
    fn evict(&self, purpose: Purpose, n: usize, taken: &mut Vec<FrameNo>) -> bool {
        let mut victims = Vec::with_capacity(n.min(VICTIMS_MAX));
        {
            let page_of = |frame| self.frames.key(frame).0;
            let mut pool = self.pool.lock();
            while victims.len() < n.min(VICTIMS_MAX) {
                let Some(frame) = pool.policy.victim(&FrameUses(&self.frames), &page_of) else { break };
                victims.push(frame);
            }
        }
        let mut go_on = !victims.is_empty();
        let (mut claims, mut kept) = (Vec::with_capacity(victims.len()), Vec::new());
        for frame in victims {
            let claimed = match self.frames.claim(frame) {
                Ok(claimed) => claimed,
                Err(seen) => {
                    // Dirty frames and those under write-back come back when they are clean; this one is in use now, or
                    // its load is just ending.
                    let comes_back = seen.is_detached() || seen.is_writeback() || seen.dirty() != 0;
                    if !comes_back && (seen.is_uptodate() || seen.is_loading()) {
                        kept.push(frame);
                    }
                    continue;
                }
            };
            if claimed.seen.dirty() != 0 {
                self.settle(frame, claimed.end());
                continue;
            }
            if purpose == Purpose::Ahead && claimed.seen.is_unread() {
                // Read ahead and not used yet: more read-ahead would only push out what it has just brought.
                self.settle(frame, claimed.end());
                kept.push(frame);
                go_on = false;
                continue;
            }
            claims.push(claimed);
        }
        for run in claims.chunk_by(|a, b| a.key().file() == b.key().file()) {
            // A mapping that is gone is being dropped, and its drop detaches the frames.
            if let Some(file) = self.file(run[0].key().file()) {
                file.forget_claimed(run);
            }
        }
        self.rt.charge(Cost::PageInsert(claims.len() as u64));
        let mut freed = Vec::with_capacity(claims.len());
        for claimed in claims {
            let frame = claimed.frame;
            if claimed.end() == After::Freed {
                freed.push(frame);
            }
        }
        let mut pool = self.pool.lock();
        kept.into_iter().for_each(|frame| pool.policy.put_back(frame));
        for frame in freed {
            pool.policy.remove(frame);
            if pool.over_budget() {
                pool.put_free(&self.frames, frame);
            } else {
                taken.push(frame);
            }
        }
        go_on
    }

    /// Changes how many frames may be in use; evicts what it can. Returns how many are still too many.
    pub(crate) fn set_budget(&self, frames: u32) -> u32 {
        self.change_budget(|pool, count| pool.budget = frames.clamp(1, count));
        self.fit_budget()
    }

    /// Sets pages of the budget apart for accounts; a quarter of the frames stays in any case.
    pub(crate) fn set_apart(&self, pages: u64) {
        self.change_budget(|pool, _| pool.set_apart = pages.try_into().unwrap_or(u32::MAX));
    }

    fn change_budget(&self, change: impl FnOnce(&mut Pool, u32)) {
        {
            let mut pool = self.pool.lock();
            change(&mut pool, self.frames.count());
            let least = pool.budget.div_ceil(4);
            pool.in_force = pool.budget.saturating_sub(pool.set_apart).max(least);
            let limit = if pool.set_apart > 0 { u64::from(pool.in_force) * 3 / 4 } else { u64::MAX };
            self.frames_limit.store(limit.max(1), Ordering::Relaxed);
            pool.park(&self.frames);
            pool.unpark(&self.frames);
        }
        // Waiters look again: there may be frames now, or room.
        self.waits.wake_all(Key::Frames);
        self.waits.wake_all(Key::Room(None));
    }

    /// Evicts what is beyond the budget, as far as it can. Returns how many frames still are.
    pub(crate) fn fit_budget(&self) -> u32 {
        for _ in 0..self.frames.count().div_ceil(VICTIMS_MAX as u32) + ROUNDS_MAX as u32 {
            let over = self.pool.lock().excess() as usize;
            let mut taken = Vec::new();
            // Frames beyond the budget are parked rather than given to us.
            if over == 0 || !self.evict(Purpose::Demand, over, &mut taken) {
                break;
            }
            self.return_frames(taken);
        }
        self.pool.lock().excess()
    }

    /// The budget in frames, what is set apart for accounts included.
    pub(crate) fn budget(&self) -> u32 {
        self.pool.lock().budget
    }

    /// Frames in the four conditions: free, evictable, parked, and never used.
    pub(crate) fn frame_counts(&self) -> FrameCounts {
        let pool = self.pool.lock();
        FrameCounts {
            total: self.frames.count(),
            free: pool.free + (self.frames.count() - pool.fresh),
            evictable: pool.policy.len() as u32,
            parked: pool.parked,
        }
    }

    // Dirty memory.

    /// Allows up to `n` more dirty pages on a disk; says why not where it allows none.
    pub(crate) fn charge_dirty(&self, disk: &DiskState, n: u64) -> Result<u64, NoRoom> {
        let stuck = self.stuck.load(Ordering::Relaxed);
        let limit = self.limit_pages.load(Ordering::Relaxed).min(self.frames_limit.load(Ordering::Relaxed));
        let limit = limit.min(self.settings.most_dirty_pages.saturating_sub(stuck));
        let got = add_up_to(&self.charged, n, limit);
        if got == 0 {
            return Err(NoRoom::Everywhere);
        }
        let ours = add_up_to(&disk.charged, got, disk.limit_pages.load(Ordering::Relaxed));
        if ours < got {
            self.charged.fetch_sub(got - ours, Ordering::SeqCst);
            self.waits.wake(Key::Room(None), (got - ours) as usize);
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
        self.waits.wake(Key::Room(Some(disk.index.0)), n as usize);
        self.waits.wake(Key::Room(None), n as usize);
    }

    pub(crate) fn room_key(reason: NoRoom) -> Key {
        match reason {
            NoRoom::Everywhere | NoRoom::Stuck => Key::Room(None),
            NoRoom::OnDevice(device) => Key::Room(Some(device)),
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
        if pages > self.limit_pages.swap(pages, Ordering::Relaxed) {
            self.waits.wake_all(Key::Room(None));
        }
    }

    /// Has the tasks of the cache end when their work is done.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.waits.wake_all(Key::Closing);
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

/// See [`Shared::frame_counts`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameCounts {
    pub(crate) total: u32,
    pub(crate) free: u32,
    pub(crate) evictable: u32,
    pub(crate) parked: u32,
}

impl Pool {
    fn put_free(&mut self, frames: &Frames, frame: FrameNo) {
        if self.over_budget() {
            frames.chain(frame).store(self.parked_first, Ordering::Relaxed);
            // SAFETY: the frame is free, and on no list before the next line.
            unsafe { frames.forget(frame) };
            self.parked_first = frame.get();
            self.parked += 1;
            return;
        }
        frames.chain(frame).store(0, Ordering::Relaxed);
        match FrameNo::new(self.free_last) {
            Some(last) => frames.chain(last).store(frame.get(), Ordering::Relaxed),
            None => self.free_first = frame.get(),
        }
        self.free_last = frame.get();
        self.free += 1;
    }

    fn take_free(&mut self, frames: &Frames) -> Option<FrameNo> {
        if let Some(frame) = FrameNo::new(self.free_first) {
            self.free_first = frames.chain(frame).load(Ordering::Relaxed);
            if self.free_first == 0 {
                self.free_last = 0;
            }
            self.free -= 1;
            return Some(frame);
        }
        if self.fresh == frames.count() || self.fresh - self.parked >= self.in_force {
            return None;
        }
        self.fresh += 1;
        FrameNo::new(self.fresh)
    }

    /// Frames in use or free beyond the budget.
    fn excess(&self) -> u32 {
        (self.fresh - self.parked).saturating_sub(self.in_force)
    }

    fn over_budget(&self) -> bool {
        self.excess() > 0
    }

    /// Parks free frames beyond the budget.
    fn park(&mut self, frames: &Frames) {
        while self.over_budget() && self.free > 0 {
            let Some(frame) = self.take_free(frames) else { break };
            self.put_free(frames, frame);
        }
    }

    fn unpark(&mut self, frames: &Frames) {
        while self.fresh - self.parked < self.in_force
            && let Some(frame) = FrameNo::new(self.parked_first)
        {
            self.parked_first = frames.chain(frame).load(Ordering::Relaxed);
            self.parked -= 1;
            self.put_free(frames, frame);
        }
    }
}

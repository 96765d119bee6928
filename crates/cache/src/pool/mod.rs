//! The frames of a process: which are free, which may be evicted, and how many there may be.
//!
//! The pool knows frames and page keys, and no files: evicting pages, it has its caller remove them from their mappings.

mod arena;
pub mod evict;
pub(crate) mod frames;
pub(crate) mod index;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod racy;
pub(crate) mod state;

use crate::Cost;
use crate::page::FrameNo;
use crate::pool::evict::{Eviction, Uses};
use crate::pool::frames::{Claimed, Frames};
use crate::pool::index::Index;
use crate::pool::state::After;
use crate::waits::{Condition, Waits};
use extant_rt::Rt;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Victims that are chosen in one go.
const VICTIMS_MAX: usize = 64;
/// Goes at victims before a caller gives up for this time.
const ROUNDS_MAX: usize = 64;

/// Removes claimed frames, all of one file, from their mapping.
pub(crate) type Forget<'a> = &'a dyn Fn(&[Claimed<'_>]);

/// Frames, the index over them, and the lists that they are on.
#[derive(Debug)]
pub(crate) struct Pool {
    rt: Rt,
    pub(crate) frames: Frames,
    pub(crate) index: Index,
    waits: Arc<Waits>,
    lists: Mutex<Lists>,
    /// Dirty pages that the frames allow which are not set apart for accounts.
    frames_limit: AtomicU64,
}

/// Free frames, and those that may be evicted.
#[derive(Debug)]
struct Lists {
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
    /// The budget without accounts …
    budget: u32,
    /// … and the part of it that is set apart for them.
    set_apart: u32,
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A task waits for it.
    Demand,
    /// Read-ahead, which takes nothing from anybody.
    Ahead,
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

impl Pool {
    pub(crate) fn new(
        rt: &Rt,
        frames: u32,
        phantom: bool,
        policy: Box<dyn Eviction>,
        waits: Arc<Waits>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            rt: rt.clone(),
            frames: Frames::new(frames, phantom)?,
            index: Index::new(frames)?,
            waits,
            lists: Mutex::new(Lists {
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
            frames_limit: AtomicU64::new(u64::MAX),
        })
    }

    /// Memory that describes frames, whatever they hold.
    pub(crate) fn overhead_bytes(&self) -> usize {
        self.frames.overhead_bytes() + self.index.overhead_bytes() + self.lists.lock().policy.overhead_bytes()
    }

    /// Pages that may be dirty, with the frames that accounts leave.
    pub(crate) fn dirty_limit(&self) -> u64 {
        self.frames_limit.load(Ordering::Relaxed)
    }

    /// Takes back a frame whose last user has left.
    pub(crate) fn free(&self, frame: FrameNo) {
        self.free_all([frame]);
    }

    pub(crate) fn free_all(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let mut count = 0;
        {
            let mut lists = self.lists.lock();
            for frame in frames {
                lists.policy.remove(frame);
                lists.put_free(&self.frames, frame);
                count += 1;
            }
        }
        self.waits.wake(Condition::Frames, count);
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
            let mut lists = self.lists.lock();
            for frame in frames {
                let page = self.frames.key(frame).0;
                lists.policy.insert(frame, page);
                count += 1;
            }
        }
        self.waits.wake(Condition::Frames, count);
    }

    /// Frames became dirty: no candidates any more.
    pub(crate) fn not_evictable(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let mut lists = self.lists.lock();
        frames.into_iter().for_each(|frame| lists.policy.remove(frame));
    }

    /// Up to `n` frames for the caller, evicting clean pages where none is free; fewer, even none, where that does not do.
    /// To be called without a mapping's lock.
    pub(crate) fn take_frames(
        &self,
        n: usize,
        purpose: Purpose,
        taken: &mut Vec<FrameNo>,
        forget: Forget<'_>,
    ) {
        let (before, wanted) = (taken.len(), taken.len() + n);
        {
            let mut lists = self.lists.lock();
            while taken.len() < wanted {
                let Some(frame) = lists.take_free(&self.frames) else { break };
                taken.push(frame);
            }
        }
        // Victims that are in use at the moment are passed over; a few rounds tell whether there are others.
        for _ in 0..ROUNDS_MAX {
            if taken.len() >= wanted || !self.evict(purpose, wanted - taken.len(), taken, forget) {
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
            let mut lists = self.lists.lock();
            for frame in frames {
                lists.put_free(&self.frames, frame);
                count += 1;
            }
        }
        self.waits.wake(Condition::Frames, count);
    }

    /// Evicts up to `n` clean pages and gives their frames to the caller. Says whether it is worth trying again.
    fn evict(&self, purpose: Purpose, n: usize, taken: &mut Vec<FrameNo>, forget: Forget<'_>) -> bool {
        let mut victims = Vec::with_capacity(n.min(VICTIMS_MAX));
        {
            let page_of = |frame| self.frames.key(frame).0;
            let mut lists = self.lists.lock();
            while victims.len() < n.min(VICTIMS_MAX) {
                let Some(frame) = lists.policy.victim(&FrameUses(&self.frames), &page_of) else { break };
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
            forget(run);
        }
        self.rt.charge(Cost::PageInsert(claims.len() as u64));
        let mut freed = Vec::with_capacity(claims.len());
        for claimed in claims {
            let frame = claimed.frame;
            if claimed.end() == After::Freed {
                freed.push(frame);
            }
        }
        let mut lists = self.lists.lock();
        kept.into_iter().for_each(|frame| lists.policy.put_back(frame));
        for frame in freed {
            lists.policy.remove(frame);
            if lists.over_budget() {
                lists.put_free(&self.frames, frame);
            } else {
                taken.push(frame);
            }
        }
        go_on
    }

    /// Changes how many frames may be in use; evicts what it can. Returns how many are still too many.
    pub(crate) fn set_budget(&self, frames: u32, forget: Forget<'_>) -> u32 {
        self.change_budget(|lists, count| lists.budget = frames.clamp(1, count));
        self.fit_budget(forget)
    }

    /// Sets pages of the budget apart for accounts; a quarter of the frames stays in any case.
    pub(crate) fn set_apart(&self, pages: u64) {
        self.change_budget(|lists, _| lists.set_apart = pages.try_into().unwrap_or(u32::MAX));
    }

    fn change_budget(&self, change: impl FnOnce(&mut Lists, u32)) {
        {
            let mut lists = self.lists.lock();
            change(&mut lists, self.frames.count());
            let least = lists.budget.div_ceil(4);
            lists.in_force = lists.budget.saturating_sub(lists.set_apart).max(least);
            let limit = if lists.set_apart > 0 { u64::from(lists.in_force) * 3 / 4 } else { u64::MAX };
            self.frames_limit.store(limit.max(1), Ordering::Relaxed);
            lists.park(&self.frames);
            lists.unpark(&self.frames);
        }
        // Waiters look again: there may be frames now, or room.
        self.waits.wake_all(Condition::Frames);
        self.waits.wake_all(Condition::Room(None));
    }

    /// Evicts what is beyond the budget, as far as it can. Returns how many frames still are.
    pub(crate) fn fit_budget(&self, forget: Forget<'_>) -> u32 {
        for _ in 0..self.frames.count().div_ceil(VICTIMS_MAX as u32) + ROUNDS_MAX as u32 {
            let over = self.lists.lock().excess() as usize;
            let mut taken = Vec::new();
            // Frames beyond the budget are parked rather than given to us.
            if over == 0 || !self.evict(Purpose::Demand, over, &mut taken, forget) {
                break;
            }
            self.return_frames(taken);
        }
        self.lists.lock().excess()
    }

    /// The budget in frames, what is set apart for accounts included.
    pub(crate) fn budget(&self) -> u32 {
        self.lists.lock().budget
    }

    /// Frames in the four conditions: free, evictable, parked, and never used.
    pub(crate) fn frame_counts(&self) -> FrameCounts {
        let lists = self.lists.lock();
        FrameCounts {
            total: self.frames.count(),
            free: lists.free + (self.frames.count() - lists.fresh),
            evictable: lists.policy.len() as u32,
            parked: lists.parked,
        }
    }
}

/// See [`Pool::frame_counts`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameCounts {
    pub(crate) total: u32,
    pub(crate) free: u32,
    pub(crate) evictable: u32,
    pub(crate) parked: u32,
}

impl Lists {
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

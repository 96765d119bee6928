//! The frames of a process: which are free, which may be evicted, and how many there may be.
//!
//! The pool knows frames and page keys but no files: when it evicts pages, its caller removes them
//! from their mappings.

mod arena;
pub mod evict;
pub(crate) mod frame_word;
pub(crate) mod frames;
mod free;
pub(crate) mod index;
mod magazines;
mod missed;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod racy;

use crate::Cost;
use crate::page::FrameNo;
use crate::pool::evict::{Eviction, SPARE_FRAMES, Uses};
use crate::pool::frame_word::After;
use crate::pool::frames::{Claimed, Frames};
use crate::pool::free::Free;
use crate::pool::index::Index;
use crate::pool::magazines::Magazines;
use crate::pool::missed::Missed;
use crate::waits::{Condition, Waits};
use extant_rt::Rt;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of victims chosen at once.
const VICTIMS_MAX: usize = 64;
/// Maximum number of frames parked at once.
const PARKED_MAX: usize = 1024;
/// Eviction attempts before a caller gives up for now.
const ROUNDS_MAX: usize = 64;
/// One frame in this many is added as reserve, which completions may take beyond the budget.
const RESERVE_SHARE: u32 = 128;
/// Free frames, or clean pages, required per frame that goes into a magazine.
const MANY_FREE: usize = 16;

/// Removes claimed frames, all of the same file, from their mapping.
pub(crate) type Forget<'a> = &'a dyn Fn(&[Claimed<'_>]);

/// The frames, their index, and the lists they are on.
#[derive(Debug)]
pub(crate) struct Pool {
    rt: Rt,
    pub(crate) frames: Frames,
    pub(crate) index: Index,
    pub(crate) missed: Missed,
    waits: Arc<Waits>,
    /// Locked before `lists`.
    magazines: Magazines,
    lists: Mutex<Lists>,
    /// Number of frames without the reserve.
    capacity: u32,
    /// Maximum number of dirty pages that the frames in force allow; `u64::MAX` if all frames are
    /// in force.
    frames_limit: AtomicU64,
}

/// Free frames, and eviction candidates.
#[derive(Debug)]
struct Lists {
    policy: Box<dyn Eviction>,
    free: Free,
    /// The budget, including the part for accounts.
    budget: u32,
    /// The part of the budget reserved for accounts.
    set_apart: u32,
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A task waits for it.
    Demand,
    /// Read-ahead, which must not take anything in use.
    Ahead,
    /// A completion, which other tasks wait for; it may use the reserve.
    Completion,
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
        let reserve = (frames / RESERVE_SHARE).clamp(1, SPARE_FRAMES);
        let all = Frames::new(frames + reserve, phantom)?;
        let free = Free::new(&all, reserve);
        Ok(Self {
            rt: rt.clone(),
            index: Index::new(frames)?,
            missed: Missed::new(frames)?,
            magazines: Magazines::new(frames),
            waits,
            lists: Mutex::new(Lists { policy, free, budget: frames, set_apart: 0 }),
            frames_limit: AtomicU64::new(u64::MAX),
            capacity: frames,
            frames: all,
        })
    }

    /// Number of frames the cache was created with.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Memory used to describe frames; does not depend on what they hold.
    pub(crate) fn overhead_bytes(&self) -> usize {
        let tables =
            self.frames.overhead_bytes() + self.index.overhead_bytes() + self.missed.overhead_bytes();
        tables + self.lists.lock().policy.overhead_bytes()
    }

    /// Maximum number of dirty pages, given the frames that accounts leave.
    pub(crate) fn dirty_limit(&self) -> u64 {
        self.frames_limit.load(Ordering::Relaxed)
    }

    /// Takes back a frame whose last user is done.
    pub(crate) fn free(&self, frame: FrameNo) {
        self.free_all([frame]);
    }

    pub(crate) fn free_all(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let (mut count, mut surplus) = (0, Vec::new());
        {
            let mut lists = self.lists.lock();
            for frame in frames {
                lists.policy.remove(frame);
                lists.free.put(&self.frames, frame, &mut surplus);
                count += 1;
            }
        }
        self.park(surplus);
        self.waits.wake(Condition::Frames, count);
    }

    /// Returns the memory of free frames beyond the budget to the system, and parks them. Called
    /// without the lock: a system call that splits a huge page takes microseconds.
    fn park(&self, mut surplus: Vec<FrameNo>) {
        if surplus.is_empty() {
            return;
        }
        surplus.sort_unstable();
        for run in surplus.chunk_by(|a, b| a.get() + 1 == b.get()) {
            // SAFETY: the frames are free, and on no list until `park` below.
            unsafe { self.frames.forget(run[0], run.len()) };
        }
        let count = self.lists.lock().free.park(&self.frames, &surplus);
        self.waits.wake(Condition::Frames, count);
    }

    /// Frees the frame if `after` says so.
    #[inline]
    pub(crate) fn settle(&self, frame: FrameNo, after: After) {
        if after == After::Freed {
            self.free(frame);
        }
    }

    /// Makes frames that hold clean pages eviction candidates.
    pub(crate) fn evictable(&self, frames: &[FrameNo]) {
        self.enter_evictable(frames);
        self.wake_for(frames.len());
    }

    /// Like [`Pool::evictable`], for a caller that holds a file's lock so that the pages cannot
    /// become dirty first. It calls [`Pool::wake_for`] after releasing the lock.
    pub(crate) fn enter_evictable(&self, frames: &[FrameNo]) {
        let mut lists = self.lists.lock();
        for &frame in frames {
            let page = self.frames.key(frame).0;
            lists.policy.insert(frame, page);
        }
    }

    /// Wakes waiters, because this many frames became free or evictable.
    pub(crate) fn wake_for(&self, frames: usize) {
        self.waits.wake(Condition::Frames, frames);
    }

    /// Frames became dirty and are no longer candidates.
    pub(crate) fn not_evictable(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let mut lists = self.lists.lock();
        frames.into_iter().for_each(|frame| lists.policy.remove(frame));
    }

    /// Takes up to `n` frames, evicting clean pages if none is free. May yield fewer, even none.
    /// Call it without a file's lock.
    pub(crate) fn take_frames(
        &self,
        n: usize,
        purpose: Purpose,
        taken: &mut Vec<FrameNo>,
        forget: Forget<'_>,
    ) {
        let (before, wanted) = (taken.len(), taken.len() + n);
        let is_small = n <= self.magazines.size() && purpose != Purpose::Completion;
        if is_small {
            self.take_from_magazine(wanted, taken);
        } else {
            let mut lists = self.lists.lock();
            taken.extend(std::iter::from_fn(|| lists.free.take(&self.frames)).take(n));
        }
        // Victims in use at the moment are skipped; a few rounds show whether there are others.
        for _ in 0..ROUNDS_MAX {
            let more = if is_small { self.magazines.size() } else { 0 };
            if taken.len() >= wanted || !self.evict(purpose, wanted - taken.len(), more, taken, forget) {
                break;
            }
        }
        if taken.len() < wanted && purpose != Purpose::Ahead {
            self.take_last(wanted, purpose, taken);
        }
        if is_small && taken.len() > wanted {
            self.put_in_magazine(taken.split_off(wanted));
        }
        // Sort, so that consecutive pages get consecutive frames and form one segment of a bio,
        // even if the frames were evicted in another order.
        taken[before..].sort_unstable();
    }

    /// Takes free frames through the caller's magazine, and fills the magazine if there are many.
    fn take_from_magazine(&self, wanted: usize, taken: &mut Vec<FrameNo>) {
        let mut magazine = self.magazines.lock(self.rt.lane());
        let missing = wanted - taken.len();
        let got = missing.min(magazine.len());
        taken.extend(magazine.drain(..got));
        if taken.len() == wanted {
            return;
        }
        let mut lists = self.lists.lock();
        while taken.len() < wanted {
            let Some(frame) = lists.free.take(&self.frames) else { return };
            taken.push(frame);
        }
        // When frames are scarce, they stay visible to all.
        if lists.free.len() as usize > MANY_FREE * self.magazines.size() {
            magazine.extend(std::iter::from_fn(|| lists.free.take(&self.frames)).take(self.magazines.size()));
        }
    }

    /// Keeps extra evicted frames for the next callers on this processor, which then need not
    /// evict.
    fn put_in_magazine(&self, mut frames: Vec<FrameNo>) {
        let count = {
            let mut magazine = self.magazines.lock(self.rt.lane());
            let room = self.magazines.size().saturating_sub(magazine.len()).min(frames.len());
            magazine.extend(frames.drain(..room));
            room
        };
        // A caller that looked between the eviction and now found neither the pages nor the frames:
        // wake it.
        self.wake_for(count);
        if !frames.is_empty() {
            self.return_frames(frames);
        }
    }

    /// Last resort when nothing can be evicted: frames in magazines and, for a completion, the
    /// reserve.
    fn take_last(&self, wanted: usize, purpose: Purpose, taken: &mut Vec<FrameNo>) {
        let mut held = self.magazines.take_back();
        let rest = held.split_off(held.len().min(wanted - taken.len()));
        taken.append(&mut held);
        if !rest.is_empty() {
            self.return_frames(rest);
        }
        if purpose == Purpose::Completion {
            let mut lists = self.lists.lock();
            let missing = wanted - taken.len();
            taken.extend(std::iter::from_fn(|| lists.free.take_spare(&self.frames)).take(missing));
        }
    }

    /// Returns frames that were taken but not used.
    pub(crate) fn return_frames(&self, frames: impl IntoIterator<Item = FrameNo>) {
        let (mut count, mut surplus) = (0, Vec::new());
        {
            let mut lists = self.lists.lock();
            for frame in frames {
                lists.free.put(&self.frames, frame, &mut surplus);
                count += 1;
            }
        }
        self.park(surplus);
        self.waits.wake(Condition::Frames, count);
    }

    /// Evicts up to `n` clean pages, plus `more` if there are many, and gives their frames to the
    /// caller. Returns whether trying again is worthwhile.
    fn evict(
        &self,
        purpose: Purpose,
        n: usize,
        more: usize,
        taken: &mut Vec<FrameNo>,
        forget: Forget<'_>,
    ) -> bool {
        let mut victims = Vec::with_capacity((n + more).min(VICTIMS_MAX));
        {
            let page_of = |frame| self.frames.key(frame).0;
            let mut lists = self.lists.lock();
            let more = if lists.policy.len() > MANY_FREE * more { more } else { 0 };
            while victims.len() < (n + more).min(VICTIMS_MAX) {
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
                    // Dirty frames and those under write-back return once clean. This one is in use
                    // right now, or its load is just ending.
                    let comes_back = seen.is_detached() || seen.is_writeback() || seen.dirty() != 0;
                    if !comes_back && (seen.is_uptodate() || seen.is_loading()) {
                        kept.push((frame, self.frames.key(frame)));
                    }
                    continue;
                }
            };
            if claimed.seen.dirty() != 0 {
                self.settle(frame, claimed.end());
                continue;
            }
            if purpose == Purpose::Ahead && claimed.seen.is_unread() {
                // The page was read ahead and not used yet: more read-ahead would only evict what
                // it has just loaded.
                let key = claimed.key();
                self.settle(frame, claimed.end());
                kept.push((frame, key));
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
        let kept_count = kept.len();
        let mut surplus = Vec::new();
        {
            let mut lists = self.lists.lock();
            for (frame, key) in kept {
                // The frame's last user may have freed it since, or changed it and withdrawn it. In
                // the second case the end of its write-back enters it again.
                let seen = self.frames.state(frame).snapshot();
                let is_clean = seen.dirty() == 0 && !seen.is_writeback();
                let is_candidate = is_clean && (seen.is_uptodate() || seen.is_loading());
                if is_candidate && !seen.is_detached() && self.frames.key(frame) == key {
                    lists.policy.put_back(frame);
                }
            }
            for frame in freed {
                lists.policy.remove(frame);
                let stays = if purpose == Purpose::Completion {
                    lists.free.excess() > 0
                } else {
                    lists.free.is_short()
                };
                if stays {
                    lists.free.put(&self.frames, frame, &mut surplus);
                } else {
                    taken.push(frame);
                }
            }
        }
        self.park(surplus);
        // A caller that looked while these frames were out found no candidate: wake it.
        self.waits.wake(Condition::Frames, kept_count);
        go_on
    }

    /// Changes how many frames may be in use, and evicts what it can. Returns how many are still
    /// too many.
    pub(crate) fn set_budget(&self, frames: u32, forget: Forget<'_>) -> u32 {
        self.change_budget(|lists, count| lists.budget = frames.clamp(1, count));
        self.fit_budget(forget)
    }

    /// Reserves pages of the budget for accounts. A quarter of the frames always remains.
    pub(crate) fn set_apart(&self, pages: u64) {
        self.change_budget(|lists, _| lists.set_apart = pages.try_into().unwrap_or(u32::MAX));
    }

    fn change_budget(&self, change: impl FnOnce(&mut Lists, u32)) {
        let held = self.magazines.take_back();
        let mut surplus = Vec::new();
        {
            let mut lists = self.lists.lock();
            held.into_iter().for_each(|frame| lists.free.put(&self.frames, frame, &mut surplus));
            change(&mut lists, self.capacity);
            let least = lists.budget.div_ceil(4);
            let in_force = lists.budget.saturating_sub(lists.set_apart).max(least);
            let limit = if in_force < self.capacity { u64::from(in_force) * 3 / 4 } else { u64::MAX };
            self.frames_limit.store(limit.max(1), Ordering::SeqCst);
            lists.free.set_in_force(&self.frames, in_force);
        }
        loop {
            self.park(surplus);
            surplus = self.lists.lock().free.take_surplus(&self.frames, PARKED_MAX);
            if surplus.is_empty() {
                break;
            }
        }
        // Waiters look again: there may be frames or room now.
        self.waits.wake_all(Condition::Frames);
        self.waits.wake_all(Condition::Room(None));
    }

    /// Evicts the frames that exceed the budget, if possible. Returns how many still exceed it.
    pub(crate) fn fit_budget(&self, forget: Forget<'_>) -> u32 {
        for _ in 0..self.capacity.div_ceil(VICTIMS_MAX as u32) + ROUNDS_MAX as u32 {
            let over = self.lists.lock().free.excess() as usize;
            let mut taken = Vec::new();
            // Frames beyond the budget are parked instead of being given to us.
            if over == 0 || !self.evict(Purpose::Demand, over, 0, &mut taken, forget) {
                break;
            }
            self.return_frames(taken);
        }
        self.lists.lock().free.excess()
    }

    /// The budget in frames, including what is reserved for accounts.
    pub(crate) fn budget(&self) -> u32 {
        self.lists.lock().budget
    }

    /// Whether `count` frames are free, not counting magazines.
    pub(crate) fn has_free(&self, count: u64) -> bool {
        u64::from(self.lists.lock().free.len()) >= count
    }

    /// Number of clean pages that can be evicted.
    pub(crate) fn evictable_frames(&self) -> usize {
        self.lists.lock().policy.len()
    }

    /// Number of frames that the budget and accounts leave for pages.
    pub(crate) fn frames_in_force(&self) -> u32 {
        self.lists.lock().free.in_force()
    }

    /// Counts of frames by condition: free, evictable, parked, and beyond the budget.
    pub(crate) fn frame_counts(&self) -> FrameCounts {
        let in_magazines = self.magazines.len();
        let lists = self.lists.lock();
        FrameCounts {
            total: lists.free.capacity(),
            free: lists.free.len() + in_magazines,
            evictable: lists.policy.len() as u32,
            parked: lists.free.parked(),
            overdrawn: lists.free.overdrawn(),
        }
    }
}

/// See [`Pool::frame_counts`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameCounts {
    /// Not counting the reserve.
    pub(crate) total: u32,
    pub(crate) free: u32,
    pub(crate) evictable: u32,
    pub(crate) parked: u32,
    /// Frames of the reserve that are in use.
    pub(crate) overdrawn: u32,
}

#[cfg(test)]
mod tests;

//! Free frames, protected by the pool's lock: the queue of free frames, those beyond the budget,
//! and the reserve.
//!
//! The arena has a few more frames than the cache may use: the *reserve*. Only completions may take
//! these, when no other frame is available. Completions make pages clean, and would otherwise wait
//! for frames that only they can free. While the reserve is incomplete, every freed frame goes
//! there first. So memory in use exceeds the budget by at most the reserve, and only until the next
//! page is freed or evicted.

use crate::page::FrameNo;
use crate::pool::frames::Frames;
use std::sync::atomic::Ordering;

/// A list of frames, linked like the index's buckets: each holds the number of the next, or 0.
#[derive(Debug, Default)]
struct Chain {
    first: u32,
    last: u32,
    len: u32,
}

impl Chain {
    fn push(&mut self, frames: &Frames, frame: FrameNo) {
        frames.chain(frame).store(0, Ordering::Relaxed);
        match FrameNo::new(self.last) {
            Some(last) => frames.chain(last).store(frame.get(), Ordering::Relaxed),
            None => self.first = frame.get(),
        }
        self.last = frame.get();
        self.len += 1;
    }

    fn pop(&mut self, frames: &Frames) -> Option<FrameNo> {
        let frame = FrameNo::new(self.first)?;
        self.first = frames.chain(frame).load(Ordering::Relaxed);
        if self.first == 0 {
            self.last = 0;
        }
        self.len -= 1;
        Some(frame)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Free {
    /// Free frames in the order in which they were freed, so that neighbours freed together are
    /// taken together.
    queue: Chain,
    /// Frames the budget does not cover at present.
    parked: Chain,
    /// Frames whose memory is being returned to the system before they are parked; on no list.
    parking: u32,
    spare: Chain,
    /// Size of the complete reserve.
    reserve: u32,
    /// Number of frames without the reserve.
    capacity: u32,
    /// Frames up to this number have been used at least once.
    fresh: u32,
    /// Number of frames that may be in use or free.
    in_force: u32,
}

impl Free {
    /// All of `frames` are free; the last `reserve` of them form the reserve.
    pub(super) fn new(frames: &Frames, reserve: u32) -> Self {
        let capacity = frames.count() - reserve;
        let mut spare = Chain::default();
        for number in capacity + 1..=frames.count() {
            spare.push(frames, FrameNo::new(number).expect("not 0"));
        }
        let (queue, parked) = (Chain::default(), Chain::default());
        Self { queue, parked, parking: 0, spare, reserve, capacity, fresh: 0, in_force: capacity }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Frames that can be taken without touching the reserve, ignoring the budget.
    pub(super) fn len(&self) -> u32 {
        self.queue.len + (self.capacity - self.fresh)
    }

    /// Number of frames that may be in use or free.
    pub(super) fn in_force(&self) -> u32 {
        self.in_force
    }

    pub(super) fn parked(&self) -> u32 {
        self.parked.len + self.parking
    }

    /// Frames missing from the reserve; that many are in use beyond the budget.
    pub(super) fn overdrawn(&self) -> u32 {
        self.reserve - self.spare.len
    }

    /// Frames in use or free beyond the budget, not counting the reserve.
    pub(super) fn excess(&self) -> u32 {
        (self.fresh - self.parked()).saturating_sub(self.in_force)
    }

    /// Whether a frame that becomes free must stay here, because the budget or the reserve needs
    /// it.
    pub(super) fn is_short(&self) -> bool {
        self.excess() > 0 || self.overdrawn() > 0
    }

    /// Adds a free frame. If the budget does not cover it, it goes to `surplus`: the caller returns
    /// its memory to the system without holding the lock, since that may take long, and then
    /// [parks](Self::park) it.
    pub(super) fn put(&mut self, frames: &Frames, frame: FrameNo, surplus: &mut Vec<FrameNo>) {
        if self.overdrawn() > 0 {
            self.spare.push(frames, frame);
        } else if self.excess() > 0 {
            self.parking += 1;
            surplus.push(frame);
        } else {
            self.queue.push(frames, frame);
        }
    }

    /// Parks frames that have no memory. Returns how many parked frames became free because the
    /// budget covers them by now.
    pub(super) fn park(&mut self, frames: &Frames, surplus: &[FrameNo]) -> usize {
        self.parking -= surplus.len() as u32;
        surplus.iter().for_each(|&frame| self.parked.push(frames, frame));
        self.unpark(frames)
    }

    /// Takes back as many parked frames as the budget covers; returns how many.
    fn unpark(&mut self, frames: &Frames) -> usize {
        let mut count = 0;
        while self.fresh - self.parked() < self.in_force
            && let Some(frame) = self.parked.pop(frames)
        {
            if self.overdrawn() > 0 {
                self.spare.push(frames, frame);
            } else {
                self.queue.push(frames, frame);
            }
            count += 1;
        }
        count
    }

    pub(super) fn take(&mut self, frames: &Frames) -> Option<FrameNo> {
        if let Some(frame) = self.queue.pop(frames) {
            return Some(frame);
        }
        if self.fresh == self.capacity || self.fresh - self.parked() >= self.in_force {
            return None;
        }
        self.fresh += 1;
        FrameNo::new(self.fresh)
    }

    /// Takes a frame from the reserve.
    pub(super) fn take_spare(&mut self, frames: &Frames) -> Option<FrameNo> {
        self.spare.pop(frames)
    }

    /// Sets how many frames may be in use or free, and takes parked frames back.
    pub(super) fn set_in_force(&mut self, frames: &Frames, in_force: u32) {
        self.in_force = in_force;
        self.unpark(frames);
    }

    /// Takes up to `most` free frames that the budget does not cover; the caller treats them like
    /// the surplus of [`Free::put`].
    pub(super) fn take_surplus(&mut self, frames: &Frames, most: usize) -> Vec<FrameNo> {
        let mut surplus = Vec::new();
        while self.excess() > 0
            && surplus.len() < most
            && let Some(frame) = self.queue.pop(frames)
        {
            self.parking += 1;
            surplus.push(frame);
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(free: &mut Free, frames: &Frames) -> Vec<FrameNo> {
        std::iter::from_fn(|| free.take(frames)).collect()
    }

    #[test]
    fn the_reserve_is_taken_last_and_made_whole_first() {
        let frames = Frames::new(10, false).unwrap();
        let mut free = Free::new(&frames, 2);
        let mut taken = take_all(&mut free, &frames);
        assert_eq!((taken.len(), free.overdrawn(), free.is_short()), (8, 0, false));
        let spare = free.take_spare(&frames).unwrap();
        assert_eq!((free.overdrawn(), free.is_short()), (1, true));
        // The reserve takes the first frame that is freed, whichever it is.
        let mut surplus = Vec::new();
        free.put(&frames, taken.pop().unwrap(), &mut surplus);
        assert_eq!((free.overdrawn(), free.take(&frames)), (0, None));
        free.put(&frames, spare, &mut surplus);
        assert!(surplus.is_empty());
        assert_eq!(free.take(&frames), Some(spare));
    }

    #[test]
    fn frames_beyond_the_budget_are_parked_and_come_back() {
        let frames = Frames::new(8, false).unwrap();
        let mut free = Free::new(&frames, 0);
        let mut taken = take_all(&mut free, &frames);
        free.set_in_force(&frames, 3);
        assert_eq!(free.excess(), 5);
        let mut surplus = Vec::new();
        taken.drain(..6).for_each(|frame| free.put(&frames, frame, &mut surplus));
        assert_eq!((free.excess(), free.parked(), free.len(), surplus.len()), (0, 5, 1, 5));
        assert_eq!(free.park(&frames, &surplus), 0);
        free.set_in_force(&frames, 8);
        assert_eq!((free.parked(), take_all(&mut free, &frames).len()), (0, 6));
    }

    #[test]
    fn frames_that_the_budget_covers_again_before_they_are_parked_are_free() {
        let frames = Frames::new(8, false).unwrap();
        let mut free = Free::new(&frames, 0);
        let (taken, mut surplus) = (take_all(&mut free, &frames), Vec::new());
        taken.into_iter().for_each(|frame| free.put(&frames, frame, &mut surplus));
        free.set_in_force(&frames, 2);
        let surplus = free.take_surplus(&frames, 4);
        assert_eq!((surplus.len(), free.excess(), free.take_surplus(&frames, 4).len()), (4, 2, 2));
        free.set_in_force(&frames, 8);
        assert_eq!((free.len(), free.park(&frames, &surplus), free.len()), (2, 4, 6));
    }
}

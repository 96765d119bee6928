//! S3-FIFO (Yang et al., SOSP 2023): a small probation queue, a main queue, and a memory of recent
//! evictions.
//!
//! New pages enter the small queue. Those used again while there move to the main queue; the others
//! leave after one pass, so that a scan displaces at most a tenth of the cache. A page that returns
//! soon after its eviction enters the main queue directly.

use super::lists::Lists;
use super::{Eviction, SPARE_FRAMES, Uses};
use crate::page::{FrameNo, mix};
use crate::pool::arena::Table;

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The small queue's share of the frames: one in ten, as in the paper.
const SMALL_SHARE: usize = 10;
/// A page's first use is counted too, so two uses are one reuse.
const USES_TO_STAY: u8 = 2;
/// A search for a victim looks at a frame at most this many times on average: the use count has
/// three steps.
const LOOKS_MAX: usize = 5;
/// Slots in which a page's ghost may lie.
const WAYS: usize = 4;
/// Log2 of the number of pages whose ghosts are stored as a row.
const GHOST_RUN_SHIFT: u32 = 6;
/// Lifetime of a ghost in ticks; a 16-bit stamp covers many lifetimes.
const GHOST_TICKS: u16 = 1024;

/// The policy's queues.
#[derive(Debug)]
pub struct S3Fifo {
    lists: Lists<2>,
    frames: usize,
    /// One ghost each: fingerprint in the high bits, tick of eviction in the low bits.
    ghosts: Table<u32>,
    evictions: u64,
    /// Evictions per tick, so that ghosts live for as many evictions as the main queue has frames.
    evictions_per_tick: u64,
}

impl S3Fifo {
    /// Queues for a budget of `frames` frames.
    ///
    /// # Errors
    /// The system has no memory for the queues.
    pub fn new(frames: u32) -> std::io::Result<Self> {
        let main = frames as u64 - frames as u64 / SMALL_SHARE as u64;
        Ok(Self {
            lists: Lists::new(frames.saturating_add(SPARE_FRAMES))?,
            frames: frames as usize,
            ghosts: Table::zeroed((frames as usize).next_power_of_two().max(WAYS))?,
            evictions: 0,
            evictions_per_tick: (main / u64::from(GHOST_TICKS)).max(1),
        })
    }

    fn tick(&self) -> u16 {
        // Zero marks an empty slot.
        (self.evictions / self.evictions_per_tick % 0xfffe) as u16 + 1
    }

    /// Ghosts of neighbouring pages are stored next to each other, four to a cache line, since they
    /// come and go together. A row may begin anywhere, so that files of one page each use all of
    /// the memory.
    fn ghost_places(&self, page: u64) -> (std::ops::Range<usize>, u16) {
        let hash = mix(page >> GHOST_RUN_SHIFT ^ 0x5bf0_3635);
        let set = (hash as usize).wrapping_add(page as usize & ((1 << GHOST_RUN_SHIFT) - 1));
        let first = set.wrapping_mul(WAYS) & (self.ghosts.len() - 1);
        (first..first + WAYS, (hash >> 48) as u16)
    }

    fn age(&self, ghost: u32) -> u16 {
        if ghost & 0xffff == 0 { u16::MAX } else { self.tick().wrapping_sub(ghost as u16) }
    }

    fn remember(&mut self, page: u64) {
        self.evictions += 1;
        let (places, print) = self.ghost_places(page);
        let place = places.max_by_key(|&i| self.age(self.ghosts[i])).expect("there are places");
        self.ghosts[place] = u32::from(print) << 16 | u32::from(self.tick());
    }

    /// Whether the page was evicted recently; forgets its ghost.
    fn recall(&mut self, page: u64) -> bool {
        let (mut places, print) = self.ghost_places(page);
        let ticks = (self.frames as u64 / self.evictions_per_tick).min(u64::from(GHOST_TICKS)) as u16;
        let place =
            places.find(|&i| (self.ghosts[i] >> 16) as u16 == print && self.age(self.ghosts[i]) <= ticks);
        if let Some(place) = place {
            self.ghosts[place] = 0;
        }
        place.is_some()
    }
}

impl Eviction for S3Fifo {
    fn insert(&mut self, frame: FrameNo, page: u64) {
        if self.lists.list_of(frame).is_none() {
            let list = if self.recall(page) { MAIN } else { SMALL };
            self.lists.push_back(list, frame);
        }
    }

    fn remove(&mut self, frame: FrameNo) {
        self.lists.remove(frame);
    }

    fn victim(&mut self, uses: &dyn Uses, page_of: &dyn Fn(FrameNo) -> u64) -> Option<FrameNo> {
        // Readers raise counts while this lowers them. So each frame is looked at no more often
        // than its count has steps, plus once in the small queue.
        let mut looks_left = LOOKS_MAX * self.len();
        loop {
            let is_last = looks_left == 0;
            looks_left = looks_left.saturating_sub(1);
            let from_small = self.lists.len(SMALL) > self.frames / SMALL_SHARE || self.lists.len(MAIN) == 0;
            if from_small && let Some(frame) = self.lists.pop_front(SMALL) {
                if uses.uses(frame) >= USES_TO_STAY && !is_last {
                    uses.set(frame, 0);
                    self.lists.push_back(MAIN, frame);
                    continue;
                }
                self.remember(page_of(frame));
                return Some(frame);
            }
            let frame = self.lists.pop_front(MAIN)?;
            match uses.uses(frame) {
                n if n > 0 && !is_last => {
                    uses.set(frame, n - 1);
                    self.lists.push_back(MAIN, frame);
                }
                _ => return Some(frame),
            }
        }
    }

    fn put_back(&mut self, frame: FrameNo) {
        if self.lists.list_of(frame).is_none() {
            self.lists.push_back(MAIN, frame);
        }
    }

    fn len(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }

    fn overhead_bytes(&self) -> usize {
        self.lists.overhead_bytes() + self.ghosts.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Frames whose use count is raised as often as the search looks at them.
    struct Hot(Cell<u32>);

    impl Uses for Hot {
        fn uses(&self, _: FrameNo) -> u8 {
            self.0.set(self.0.get() + 1);
            assert!(self.0.get() < 1000, "the search goes on as long as readers do");
            3
        }
        fn set(&self, _: FrameNo, _: u8) {}
    }

    #[test]
    fn a_search_ends_while_every_frame_is_read_again_and_again() {
        let mut policy = S3Fifo::new(64).unwrap();
        (1..=16).for_each(|n| policy.insert(FrameNo::new(n).unwrap(), n.into()));
        for left in (0..16).rev() {
            let hot = Hot(Cell::new(0));
            assert!(policy.victim(&hot, &|frame| frame.get().into()).is_some());
            assert_eq!(policy.len(), left);
        }
        assert!(policy.victim(&Hot(Cell::new(0)), &|_| 0).is_none());
    }

    #[test]
    fn files_of_one_page_are_remembered_as_well_as_one_long_file() {
        let recalled = |page: fn(u64) -> u64| {
            let mut policy = S3Fifo::new(4096).unwrap();
            (0..2048).for_each(|n| policy.remember(page(n)));
            (0..2048).filter(|n| policy.recall(page(*n))).count()
        };
        let (long, short) = (recalled(|n| n), recalled(|n| n << 40));
        assert!(long > 1800 && short > 1800, "{long} and {short} of 2048");
    }
}

//! Block bitmaps of all groups, searched as in ext2 and ext3.

use super::seam::{FreeSpace, Geometry};

/// One group.
#[derive(Clone, Debug)]
struct Group {
    /// One bit per block, 1 if in use; bits past the group's last block are 1.
    words: Vec<u64>,
    free: u64,
}

/// All bitmaps of a volume.
#[derive(Clone, Debug)]
pub(super) struct Bitmaps {
    pub(super) geometry: Geometry,
    groups: Vec<Group>,
}

/// A search checks single bits up to the next multiple of this, then whole bytes (`ext2_new_block`,
/// ext3's `find_next_usable_block`).
const NEAR_BITS: u64 = 64;
/// Maximum bits that a search moves back from the start of a free byte.
const BACK_BITS: u64 = 7;

impl Bitmaps {
    pub(super) fn new(space: &FreeSpace) -> Self {
        let geometry = space.geometry;
        let words = geometry.group_blocks.div_ceil(64) as usize;
        let groups = vec![Group { words: vec![u64::MAX; words], free: 0 }; geometry.groups as usize];
        let mut bitmaps = Self { geometry, groups };
        for (group, run) in geometry.cut(space.free.iter().cloned()) {
            run.for_each(|bit| bitmaps.give(group, bit));
        }
        bitmaps
    }

    /// Number of free blocks in a group.
    pub(super) fn free(&self, group: u64) -> u64 {
        self.groups[group as usize].free
    }

    pub(super) fn is_free(&self, group: u64, bit: u64) -> bool {
        self.groups[group as usize].words[(bit / 64) as usize] & (1 << (bit % 64)) == 0
    }

    /// Allocates a free block.
    pub(super) fn take(&mut self, group: u64, bit: u64) {
        debug_assert!(self.is_free(group, bit), "a block is given out once");
        let group = &mut self.groups[group as usize];
        group.words[(bit / 64) as usize] |= 1 << (bit % 64);
        group.free -= 1;
    }

    /// Frees a block.
    pub(super) fn give(&mut self, group: u64, bit: u64) {
        let group = &mut self.groups[group as usize];
        group.words[(bit / 64) as usize] &= !(1 << (bit % 64));
        group.free += 1;
    }

    /// The first free block of a group in `from..until`.
    pub(super) fn next_free(&self, group: u64, from: u64, until: u64) -> Option<u64> {
        let words = &self.groups[group as usize].words;
        let mut bit = from;
        while bit < until {
            let free = !words[(bit / 64) as usize] >> (bit % 64);
            if free != 0 {
                let found = bit + u64::from(free.trailing_zeros());
                return (found < until).then_some(found);
            }
            bit = (bit / 64 + 1) * 64;
        }
        None
    }

    /// The first block of the first entirely free byte, starting with the byte that holds `from`.
    fn next_free_byte(&self, group: u64, from: u64, until: u64) -> Option<u64> {
        let words = &self.groups[group as usize].words;
        let is_free = |byte: &u64| words[(byte / 8) as usize] & (0xff << (byte % 8 * 8)) == 0;
        (from / 8..until.div_ceil(8)).find(is_free).map(|byte| byte * 8).filter(|bit| *bit < until)
    }

    /// A free block near `start`, which is in use: the next one before a multiple of 64 bits, else
    /// the start of an entirely free byte, else any.
    pub(super) fn near(&self, group: u64, start: u64, until: u64) -> Option<Near> {
        let mut from = start;
        if start > 0 {
            let near = start.next_multiple_of(NEAR_BITS).min(until);
            match self.next_free(group, start, near) {
                Some(bit) => return Some(Near { bit, begins_byte: false }),
                None => from = near,
            }
        }
        if let Some(bit) = self.next_free_byte(group, from, until).filter(|bit| *bit >= start) {
            return Some(Near { bit, begins_byte: true });
        }
        self.next_free(group, from, until).map(|bit| Near { bit, begins_byte: false })
    }

    /// The first of up to 7 consecutive free blocks that end before `bit`, not before `least`;
    /// `bit` if there are none.
    pub(super) fn back_from(&self, group: u64, bit: u64, least: u64) -> u64 {
        let least = bit.saturating_sub(BACK_BITS).max(least);
        (least..bit).rev().take_while(|bit| self.is_free(group, *bit)).last().unwrap_or(bit)
    }
}

/// A free block near a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Near {
    pub(super) bit: u64,
    /// Whether the search by bytes found it; then it starts an entirely free byte.
    pub(super) begins_byte: bool,
}

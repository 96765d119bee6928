//! ext2's allocator, Linux 2.4.18 (fs/ext2/balloc.c, fs/ext2/inode.c).

use super::bitmap::Bitmaps;
use super::goal::Goals;
use super::seam::{AllocatesAt, BlockAllocator, FileId, FreeSpace, Geometry, Request, Work};
use crate::direct::FullVolume;
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks taken per search: the requested block and those preallocated after it
/// (`EXT2_DEFAULT_PREALLOC_BLOCKS`, used if the superblock's `s_prealloc_blocks` is 0).
const PREALLOCATED: u64 = 8;

#[derive(Debug, Default)]
struct File {
    goals: Goals,
    /// Preallocated blocks after the last one; in use on disk (`i_prealloc_block`,
    /// `i_prealloc_count`).
    ahead: Range<u64>,
}

/// ext2's allocator for one volume.
///
/// It searches for each new block when its page is written (`ext2_alloc_block`). If the goal is
/// free, it takes it and up to seven free blocks after it. These serve the next requests in order.
/// They are freed when the file is closed (`ext2_put_inode`) or when a request is not for the next
/// block.
#[derive(Debug)]
pub struct Ext2 {
    bitmaps: Bitmaps,
    files: BTreeMap<FileId, File>,
}

impl Ext2 {
    /// An allocator for a volume with this free space.
    pub fn new(space: &FreeSpace) -> Self {
        Self { bitmaps: Bitmaps::new(space), files: BTreeMap::new() }
    }

    /// Free blocks of a group, not counting preallocated ones (`bg_free_blocks_count`).
    pub fn free_of_group(&self, group: u64) -> u64 {
        self.bitmaps.free(group)
    }

    /// Finds a free block: the goal, one near it, or one in the following groups
    /// (`ext2_new_block`).
    fn search(&self, goal: u64, work: &mut Work) -> Option<(u64, u64)> {
        let Geometry { groups, group_blocks, .. } = self.bitmaps.geometry;
        let (goal_group, bit) = self.bitmaps.geometry.place(goal);
        work.considered += 1;
        if self.bitmaps.free(goal_group) > 0 {
            work.searched += 1;
            if self.bitmaps.is_free(goal_group, bit) {
                return Some((goal_group, bit));
            }
            if let Some(found) = self.look_into(goal_group, bit, group_blocks) {
                return Some((goal_group, found));
            }
        }
        // The goal's group comes again last, for the blocks before the goal.
        let behind = (1..=groups).map(|n| (goal_group + n) % groups);
        let mut considered = 0;
        let group = behind.inspect(|_| considered += 1).find(|group| self.bitmaps.free(*group) > 0);
        work.considered += considered;
        work.searched += 1;
        let group = group?;
        self.look_into(group, 0, group_blocks).map(|bit| (group, bit))
    }

    fn look_into(&self, group: u64, from: u64, until: u64) -> Option<u64> {
        let near = self.bitmaps.near(group, from, until)?;
        Some(if near.begins_byte { self.bitmaps.back_from(group, near.bit, 0) } else { near.bit })
    }

    fn give_back(&mut self, ahead: Range<u64>) {
        for block in ahead {
            let (group, bit) = self.bitmaps.geometry.place(block);
            self.bitmaps.give(group, bit);
        }
    }
}

impl BlockAllocator for Ext2 {
    fn allocates_at(&self) -> AllocatesAt {
        AllocatesAt::Write
    }

    fn allocate(&mut self, request: Request) -> Result<(Range<u64>, Work), FullVolume> {
        let mut work = Work::default();
        let file = self.files.entry(request.file).or_default();
        let goal = file.goals.find(request.block, request.goal);
        let mut ahead = std::mem::take(&mut file.ahead);
        let found = if !ahead.is_empty() && (goal == ahead.start || goal + 1 == ahead.start) {
            ahead.start += 1;
            ahead.start - 1
        } else {
            self.give_back(ahead);
            let (group, bit) = self.search(goal, &mut work).ok_or(FullVolume)?;
            self.bitmaps.take(group, bit);
            let most = (bit + PREALLOCATED).min(self.bitmaps.geometry.group_blocks);
            let more = (bit + 1..most).take_while(|bit| self.bitmaps.is_free(group, *bit)).count() as u64;
            (bit + 1..=bit + more).for_each(|bit| self.bitmaps.take(group, bit));
            let found = self.bitmaps.geometry.block(group, bit);
            ahead = found + 1..found + 1 + more;
            found
        };
        let file = self.files.entry(request.file).or_default();
        file.ahead = ahead;
        file.goals.note(request.block, found);
        Ok((found..found + 1, work))
    }

    fn close(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            let ahead = std::mem::take(&mut file.ahead);
            self.give_back(ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{Grown, empty, space};
    use super::*;

    #[test]
    fn seven_blocks_ahead_are_taken_and_given_back_at_the_close() {
        let mut ext2 = Ext2::new(&empty());
        let before = ext2.bitmaps.free(0);
        let (blocks, work) = ext2.allocate(Request::append(FileId(1), 0, 0)).unwrap();
        assert_eq!((blocks, work.searched, ext2.bitmaps.free(0)), (100..101, 1, before - 8));
        // The next seven need no search.
        for block in 1..8 {
            let (blocks, work) = ext2.allocate(Request::append(FileId(1), block, 0)).unwrap();
            assert_eq!((blocks.start, work), (100 + block, Work::default()));
        }
        let (_, work) = ext2.allocate(Request::append(FileId(1), 8, 0)).unwrap();
        assert_eq!((work.searched, ext2.bitmaps.free(0)), (1, before - 16));
        ext2.close(FileId(1));
        assert_eq!(ext2.bitmaps.free(0), before - 9);
    }

    #[test]
    fn files_that_grow_at_once_lie_in_pieces_of_eight() {
        let mut ext2 = Ext2::new(&empty());
        let grown = Grown::in_turns(&mut ext2, 4, 256);
        assert!(grown.extents.iter().all(|extents| *extents == 256 / 8), "{:?}", grown.extents);
        assert!(grown.starts_from(100));
    }

    #[test]
    fn a_goal_in_use_leads_to_the_next_64_bits_then_to_a_whole_byte_then_to_any_bit() {
        // Blocks in use: 0..1000 except 70, and all odd blocks up to 1100.
        let pieces = (1000..1100).step_by(2).map(|at| at..at + 1);
        let ext2 =
            Ext2::new(&space(std::iter::once(70..71).chain(pieces).chain(std::iter::once(1100..4000))));
        let mut work = Work::default();
        let mut found = |goal| ext2.search(goal, &mut work).unwrap();
        assert_eq!(found(65), (0, 70), "in the 64 bits of the goal");
        assert_eq!(found(1001), (0, 1002));
        // After 71, the 64 bits end at 128. The first free byte is 1104..1112, with four free bits
        // before it.
        assert_eq!(found(71), (0, 1100));
        let bits = Ext2::new(&space((1000..1100).step_by(2).map(|at| at..at + 1)));
        assert_eq!(bits.search(71, &mut work), Some((0, 1000)), "no byte is free");
    }

    #[test]
    fn a_block_far_from_the_last_gives_up_those_ahead() {
        let mut ext2 = Ext2::new(&empty());
        let before = ext2.bitmaps.free(0);
        ext2.allocate(Request::append(FileId(1), 0, 0)).unwrap();
        // Its goal is the nearest block before it, and the preallocated blocks follow that.
        let (blocks, work) = ext2.allocate(Request::append(FileId(1), 1000, 0)).unwrap();
        assert_eq!((blocks.start, work, ext2.bitmaps.free(0)), (101, Work::default(), before - 8));
        // The goal is block 100; block 101 is in use.
        let (blocks, work) = ext2.allocate(Request::append(FileId(1), 5, 0)).unwrap();
        assert_eq!((blocks.start, work.searched, ext2.bitmaps.free(0)), (102, 1, before - 2 - 8));
    }
}

//! ext3's reservation windows, Linux 2.6.11 (fs/ext3/balloc.c; introduced in 2.6.10, described in
//! lwn.net/Articles/81357).

use super::bitmap::Bitmaps;
use super::goal::Goals;
use super::seam::{AllocatesAt, BlockAllocator, FileId, FreeSpace, Geometry, Request, Work};
use crate::direct::FullVolume;
use std::collections::BTreeMap;
use std::ops::Range;

/// Length of a file's first window (`EXT3_DEFAULT_RESERVE_BLOCKS`).
const FIRST_WINDOW: u64 = 8;
/// Length of the longest window (`EXT3_MAX_RESERVE_BLOCKS`).
const LONGEST_WINDOW: u64 = 1027;
/// Number of starting points in a group, over which processes are spread (`ext3_find_near`: the
/// "colour").
const COLOURS: u64 = 16;

#[derive(Debug)]
struct File {
    goals: Goals,
    /// The reservation window; empty for none (`rsv_start`, `rsv_end`).
    window: Range<u64>,
    /// Blocks allocated in the window (`rsv_alloc_hit`).
    hits: u64,
    /// Length of the next window (`rsv_goal_size`); survives the window.
    next_blocks: u64,
}

impl Default for File {
    fn default() -> Self {
        Self { goals: Goals::default(), window: 0..0, hits: 0, next_blocks: FIRST_WINDOW }
    }
}

/// ext3's allocator for one volume.
///
/// It searches for each new block when its page is written (`ext3_new_block`), in the file's
/// window. A window is only a promise in memory: its blocks are free on disk, and a file without a
/// window in a group may take them if nothing else is left. A used-up window is replaced by the
/// next one after the goal that overlaps no other. It is twice as long if more than half of the
/// last one was used. Closing the file releases it (`ext3_release_file`).
///
/// ext3 does not reuse blocks freed by the running transaction; here nothing is ever freed.
#[derive(Debug)]
pub struct Ext3 {
    bitmaps: Bitmaps,
    files: BTreeMap<FileId, File>,
    /// All windows, from first block to the block after the last (kernel: a red-black tree,
    /// `s_rsv_window_root`).
    windows: BTreeMap<u64, u64>,
}

impl Ext3 {
    /// An allocator for a volume with this free space.
    pub fn new(space: &FreeSpace) -> Self {
        Self { bitmaps: Bitmaps::new(space), files: BTreeMap::new(), windows: BTreeMap::new() }
    }

    fn geometry(&self) -> Geometry {
        self.bitmaps.geometry
    }

    /// Releases a file's window.
    fn discard(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            self.windows.remove(&file.window.start);
            (file.window, file.hits) = (0..0, 0);
        }
    }

    /// The part of a window that lies in a group, relative to the group.
    fn within(&self, group: u64, window: &Range<u64>) -> Range<u64> {
        let (begin, len) = (self.geometry().block(group, 0), self.geometry().group_blocks);
        let cut = |block: u64| block.saturating_sub(begin).min(len);
        cut(window.start)..cut(window.end)
    }

    /// A free block of a group, within the window if there is one (`ext3_try_to_allocate`).
    fn try_in(&self, group: u64, goal: Option<u64>, window: Option<&Range<u64>>) -> Option<u64> {
        let part = match window {
            Some(window) => self.within(group, window),
            None => goal.unwrap_or(0)..self.geometry().group_blocks,
        };
        let goal = goal.filter(|goal| part.contains(goal));
        if let Some(goal) = goal.filter(|goal| self.bitmaps.is_free(group, *goal)) {
            return Some(goal);
        }
        let start = goal.unwrap_or(part.start);
        let near = self.bitmaps.near(group, start, part.end)?;
        Some(if window.is_none() { self.bitmaps.back_from(group, near.bit, start) } else { near.bit })
    }

    /// A free block of a group in the file's window. Moves the window if it does not cover the
    /// goal, or creates one (`ext3_try_to_allocate_with_rsv`).
    fn try_reserved(
        &mut self,
        id: FileId,
        group: u64,
        mut goal: Option<u64>,
        work: &mut Work,
    ) -> Option<u64> {
        work.searched += 1;
        let mut failed = false;
        loop {
            let window = &self.files[&id].window;
            let has_goal = |window: &Range<u64>, goal: Option<u64>, this: &Self| {
                let part = this.within(group, window);
                !part.is_empty() && goal.is_none_or(|goal| part.contains(&goal))
            };
            if failed || !has_goal(window, goal, self) {
                self.move_window(id, group, goal, work)?;
                goal = goal.filter(|_| has_goal(&self.files[&id].window, goal, self));
            }
            let window = self.files[&id].window.clone();
            if let Some(bit) = self.try_in(group, goal, Some(&window)) {
                self.files.get_mut(&id)?.hits += 1;
                return Some(bit);
            }
            failed = true;
        }
    }

    /// Moves a file's window to the next place in a group with a free block
    /// (`alloc_new_reservation`). Returns `None` if there is none.
    fn move_window(&mut self, id: FileId, group: u64, goal: Option<u64>, work: &mut Work) -> Option<()> {
        let begin = self.geometry().block(group, 0);
        let end = begin + self.geometry().group_blocks;
        let mut start = begin + goal.unwrap_or(0);
        let file = self.files.get_mut(&id)?;
        if !file.window.is_empty() {
            // The window continues in the next group.
            if file.window.start < end && file.window.end > end && start >= file.window.start {
                return None;
            }
            if file.hits > (file.window.end - file.window.start) / 2 {
                file.next_blocks = (file.next_blocks * 2).min(LONGEST_WINDOW);
            }
        }
        let blocks = file.next_blocks;
        loop {
            work.runs += 1;
            start = self.next_space(start, blocks);
            let free = if start < end {
                self.bitmaps.next_free(group, start - begin, self.geometry().group_blocks)
            } else {
                None
            };
            let Some(free) = free.map(|bit| begin + bit) else {
                self.discard(id);
                return None;
            };
            if free < start + blocks {
                break;
            }
            start = free;
        }
        self.discard(id);
        self.windows.insert(start, start + blocks);
        self.files.get_mut(&id)?.window = start..start + blocks;
        Some(())
    }

    /// The first position at or after `from` where `blocks` blocks are in no window
    /// (`find_next_reservable_window`). The file's own window counts, so the next one comes after
    /// it. Block 0 of the volume is never included.
    fn next_space(&self, from: u64, blocks: u64) -> u64 {
        let mut at = from.max(1);
        if let Some((_, end)) = self.windows.range(..=at).next_back() {
            at = at.max(*end);
        }
        for (start, end) in self.windows.range(at..) {
            if at + blocks <= *start {
                break;
            }
            at = *end;
        }
        at
    }
}

impl BlockAllocator for Ext3 {
    fn allocates_at(&self) -> AllocatesAt {
        AllocatesAt::Write
    }

    fn allocate(&mut self, request: Request) -> Result<(Range<u64>, Work), FullVolume> {
        let mut work = Work::default();
        let Geometry { groups, group_blocks, .. } = self.geometry();
        let colour = request.process % COLOURS * (group_blocks / COLOURS);
        let file = self.files.entry(request.file).or_default();
        let goal = file.goals.find(request.block, request.goal + colour);
        let too_few = file.next_blocks / 2;
        let (goal_group, bit) = self.geometry().place(goal);
        // Search the goal's group, the following groups, and the goal's group again; then all of
        // these without windows. In the pass without windows, Linux 2.6.11 still skips groups with
        // fewer free blocks than half a window; later versions do not, nor does this model.
        let behind = (1..=groups).map(|n| ((goal_group + n) % groups, None));
        let order: Vec<(u64, Option<u64>)> = std::iter::once((goal_group, Some(bit))).chain(behind).collect();
        let mut found = None;
        for (n, (group, goal)) in order.iter().enumerate() {
            work.considered += 1;
            if self.bitmaps.free(*group) <= if n == 0 { 0 } else { too_few } {
                continue;
            }
            found = self.try_reserved(request.file, *group, *goal, &mut work).map(|bit| (*group, bit));
            if found.is_some() {
                break;
            }
        }
        if found.is_none() {
            work.considered += order.len() as u64;
            let any = order.iter().filter(|(group, _)| self.bitmaps.free(*group) > 0);
            found = any
                .map(|(group, goal)| (*group, self.try_in(*group, *goal, None)))
                .find_map(|(group, bit)| bit.map(|bit| (group, bit)));
        }
        let (group, bit) = found.ok_or(FullVolume)?;
        self.bitmaps.take(group, bit);
        let block = self.geometry().block(group, bit);
        self.files.entry(request.file).or_default().goals.note(request.block, block);
        Ok((block..block + 1, work))
    }

    fn close(&mut self, file: FileId) {
        self.discard(file);
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{Grown, empty, space};
    use super::*;

    impl Ext3 {
        fn window(&self, file: u64) -> Range<u64> {
            self.files[&FileId(file)].window.clone()
        }
    }

    #[test]
    fn a_file_that_grows_alone_gets_windows_of_8_16_32_up_to_1027_blocks() {
        let mut ext3 = Ext3::new(&empty());
        let mut lengths = Vec::new();
        let mut last = 0..0;
        for block in 0..8000 {
            ext3.allocate(Request::append(FileId(1), block, 0)).unwrap();
            let window = ext3.window(1);
            if window != last {
                lengths.push(window.end - window.start);
                last = window;
            }
        }
        assert_eq!(lengths[..10], [8, 16, 32, 64, 128, 256, 512, 1024, 1027, 1027]);
        let grown = Grown::in_turns(&mut Ext3::new(&empty()), 1, 8000);
        assert_eq!(grown.extents, [1]);
    }

    #[test]
    fn a_window_of_which_half_was_used_is_followed_by_one_as_long() {
        // The first window of eight blocks has four free ones.
        let mut ext3 = Ext3::new(&space([104..108, 200..4000]));
        for block in 0..4 {
            ext3.allocate(Request::append(FileId(1), block, 104)).unwrap();
        }
        assert_eq!(ext3.window(1), 104..112);
        ext3.allocate(Request::append(FileId(1), 4, 104)).unwrap();
        assert_eq!((ext3.window(1), ext3.files[&FileId(1)].next_blocks), (200..208, 8));
    }

    #[test]
    fn windows_of_files_that_grow_at_once_never_overlap_and_grow() {
        let mut ext3 = Ext3::new(&empty());
        for block in 0..3000 {
            for file in 0..5 {
                ext3.allocate(Request::append(FileId(file), block, 0)).unwrap();
            }
            let mut end = 0;
            for (start, behind) in &ext3.windows {
                assert!(*start >= end && behind > start, "{start}..{behind} after {end}");
                end = *behind;
            }
            assert_eq!(ext3.windows.len(), 5);
        }
        let grown = Grown::in_turns(&mut Ext3::new(&empty()), 5, 3000);
        // 8 + 16 + ... + 1024 make 2,040 blocks in eight windows; the ninth holds the rest.
        assert!(grown.extents.iter().all(|extents| *extents <= 9), "{:?}", grown.extents);
    }

    #[test]
    fn a_close_gives_the_window_up_and_keeps_the_length_of_the_next() {
        let mut ext3 = Ext3::new(&empty());
        for block in 0..20 {
            ext3.allocate(Request::append(FileId(1), block, 0)).unwrap();
        }
        ext3.close(FileId(1));
        assert!(ext3.windows.is_empty());
        // The window's unused blocks were free on disk: the next file continues after the first
        // one's blocks.
        let (blocks, _) = ext3.allocate(Request::append(FileId(2), 0, 0)).unwrap();
        assert_eq!(blocks.start, 120);
        ext3.allocate(Request::append(FileId(1), 20, 0)).unwrap();
        assert_eq!(ext3.window(1).end - ext3.window(1).start, 16);
    }

    #[test]
    fn processes_begin_in_different_sixteenths_of_a_group() {
        let mut ext3 = Ext3::new(&empty());
        for process in 1..20 {
            let request = Request { process, ..Request::append(FileId(process), 0, 0) };
            let (blocks, _) = ext3.allocate(request).unwrap();
            let sixteenth = process % 16 * 2048;
            assert!((sixteenth..sixteenth + 200).contains(&blocks.start), "{process}: {blocks:?}");
        }
    }
}

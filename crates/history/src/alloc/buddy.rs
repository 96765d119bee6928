//! A group's free runs, seen as buddies: aligned chunks of powers of two (fs/ext4/mballoc.c:
//! `mb_find_extent`, `mb_find_order_for_block`).

use std::collections::BTreeMap;
use std::ops::Range;

/// Order of the longest chunk (`s_blocksize_bits + 1` of 4 KiB blocks).
const LONGEST_ORDER: u32 = 13;

/// One group.
#[derive(Clone, Debug, Default)]
pub(super) struct Buddies {
    /// Free runs, from first block to the block after the last, relative to the group. No two runs
    /// touch.
    runs: BTreeMap<u64, u64>,
    free: u64,
}

/// The order and range of the largest aligned chunk that contains `at` and lies within the free
/// run.
fn chunk_of(run: &Range<u64>, at: u64) -> (u32, Range<u64>) {
    let chunk = |order: u32| {
        let start = at >> order << order;
        (order, start..start + (1 << order))
    };
    let fits = |(_, chunk): &(u32, Range<u64>)| chunk.start >= run.start && chunk.end <= run.end;
    (1..=LONGEST_ORDER).map(chunk).take_while(fits).last().unwrap_or_else(|| chunk(0))
}

impl Buddies {
    /// Number of free blocks.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Mean length of a free run (`bb_free / bb_fragments`).
    pub(super) fn average(&self) -> u64 {
        self.free / (self.runs.len() as u64).max(1)
    }

    fn run_at(&self, at: u64) -> Option<Range<u64>> {
        let (start, end) = self.runs.range(..=at).next_back()?;
        (at < *end).then_some(*start..*end)
    }

    /// Free blocks starting at `at`: whole chunks until there are `needed` blocks. `None` if `at`
    /// is in use.
    pub(super) fn extent_at(&self, at: u64, needed: u64) -> Option<Range<u64>> {
        let run = self.run_at(at)?;
        let mut end = chunk_of(&run, at).1.end;
        while end < run.end && end - at < needed {
            end = chunk_of(&run, end).1.end;
        }
        Some(at..end)
    }

    /// The extents that a search of the group measures, in order.
    pub(super) fn extents(&self, needed: u64) -> impl Iterator<Item = Range<u64>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let from = self
                .run_at(at)
                .map(|_| at)
                .or_else(|| self.runs.range(at..).next().map(|(start, _)| *start))?;
            let extent = self.extent_at(from, needed)?;
            at = extent.end;
            Some(extent)
        })
    }

    /// The first of the smallest chunks of at least this order.
    pub(super) fn chunk(&self, order: u32) -> Option<Range<u64>> {
        let mut best: Option<(u32, Range<u64>)> = None;
        for (start, end) in &self.runs {
            let mut at = *start;
            while at < *end {
                let (found, chunk) = chunk_of(&(*start..*end), at);
                at = chunk.end;
                if found >= order && best.as_ref().is_none_or(|(best, _)| found < *best) {
                    best = Some((found, chunk));
                }
            }
        }
        best.map(|(_, chunk)| chunk)
    }

    /// Allocates free blocks.
    ///
    /// # Panics
    /// If one of them is in use.
    pub(super) fn take(&mut self, blocks: &Range<u64>) {
        let run = self
            .run_at(blocks.start)
            .filter(|run| blocks.end <= run.end)
            .expect("the search found them free");
        self.runs.remove(&run.start);
        if run.start < blocks.start {
            self.runs.insert(run.start, blocks.start);
        }
        if blocks.end < run.end {
            self.runs.insert(blocks.end, run.end);
        }
        self.free -= blocks.end - blocks.start;
    }

    /// Frees blocks.
    pub(super) fn give(&mut self, blocks: &Range<u64>) {
        let (mut start, mut end) = (blocks.start, blocks.end);
        self.free += end - start;
        if let Some(behind) = self.runs.remove(&end) {
            end = behind;
        }
        if let Some((before, until)) = self.runs.range(..start).next_back()
            && *until == start
        {
            start = *before;
        }
        self.runs.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_made_of_the_longest_aligned_chunks() {
        let mut buddies = Buddies::default();
        buddies.give(&(100..1000));
        let orders = [
            (100, 2),
            (103, 2),
            (104, 3),
            (112, 4),
            (128, 7),
            (255, 7),
            (256, 8),
            (512, 8),
            (768, 7),
            (896, 6),
        ];
        for (at, order) in orders {
            assert_eq!(chunk_of(&(100..1000), at).0, order, "block {at}");
        }
        // Whole chunks, starting from a block inside one.
        assert_eq!(buddies.extent_at(130, 100), Some(130..256));
        assert_eq!(buddies.extent_at(130, 200), Some(130..512));
        assert_eq!(buddies.extent_at(960, 100), Some(960..1000));
        assert_eq!(buddies.extent_at(1000, 1), None);
        assert_eq!(buddies.chunk(4), Some(112..128));
        assert_eq!(buddies.chunk(5), Some(960..992));
        assert_eq!(buddies.chunk(9), None);
        assert_eq!(buddies.extents(200).collect::<Vec<_>>(), [100..512, 512..768, 768..992, 992..1000]);
    }

    #[test]
    fn buddies_that_are_free_again_are_merged() {
        let mut buddies = Buddies::default();
        buddies.give(&(0..64));
        buddies.take(&(8..16));
        assert_eq!((buddies.chunk(3), buddies.chunk(6), buddies.free()), (Some(0..8), None, 56));
        buddies.give(&(8..12));
        buddies.give(&(12..16));
        assert_eq!((buddies.chunk(6), buddies.free(), buddies.average()), (Some(0..64), 64, 64));
    }
}

//! Free runs of a volume under construction.

use extant_format::{UintExt, VolumeBlock};

/// A run of volume blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: VolumeBlock,
    pub(crate) blocks: u64,
}

impl Run {
    /// `start..end`.
    pub(crate) fn between(start: VolumeBlock, end: VolumeBlock) -> Self {
        Self { start, blocks: end.0 - start.0 }
    }

    /// The block after the last one.
    pub(crate) fn end(self) -> VolumeBlock {
        self.block(self.blocks)
    }

    /// Block `index` of the run.
    pub(crate) fn block(self, index: u64) -> VolumeBlock {
        VolumeBlock(self.start.0 + index)
    }
}

/// An allocation failed for lack of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    /// How many more blocks are needed.
    pub(crate) missing: u64,
}

/// Free runs, in order. Blocks are only ever taken, and, except by [`Space::take_run_outside`],
/// from the front of a run.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    runs: Vec<Run>,
    free: u64,
    /// For each power of two, index of the first run that may still be at least that long.
    first_fit: [usize; 65],
}

impl Space {
    /// The blocks of `first..end` outside `used`, which is sorted and disjoint.
    pub(crate) fn between(first: VolumeBlock, end: VolumeBlock, used: &[Run]) -> Self {
        let mut runs = Vec::new();
        let mut at = first;
        for run in used {
            if run.start > at {
                runs.push(Run::between(at, run.start));
            }
            at = at.max(run.end());
        }
        if end > at {
            runs.push(Run::between(at, end));
        }
        let free = runs.iter().map(|run| run.blocks).sum();
        Self { runs, free, first_fit: [0; 65] }
    }

    /// Blocks left.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Free runs clipped to `start..end`.
    pub(crate) fn runs_within(&self, start: VolumeBlock, end: VolumeBlock) -> impl Iterator<Item = Run> + '_ {
        let first = self.runs.partition_point(|run| run.end() <= start);
        self.runs[first..].iter().take_while(move |run| run.start < end).filter_map(move |run| {
            let (from, to) = (run.start.max(start), run.end().min(end));
            (from < to).then(|| Run::between(from, to))
        })
    }

    /// Takes the first run that fits `blocks` blocks; `None` if there is none.
    pub(crate) fn take_run(&mut self, blocks: u64) -> Option<VolumeBlock> {
        debug_assert!(blocks > 0);
        let class = blocks.ilog2().to_usize();
        let mut at = self.first_fit[class];
        while self.runs.get(at).is_some_and(|run| run.blocks < 1 << class) {
            at += 1;
        }
        self.first_fit[class] = at;
        let fits = self.runs[at..].iter().position(|run| run.blocks >= blocks)?;
        Some(self.take_from(at + fits, blocks))
    }

    /// Takes a run of `blocks` blocks that avoids `zones` (sorted, disjoint), not necessarily from
    /// the front of a free run; `None` if there is none.
    pub(crate) fn take_run_outside(&mut self, zones: &[Run], blocks: u64) -> Option<VolumeBlock> {
        let (at, taken) = self.runs.iter().enumerate().find_map(|(at, run)| {
            let first = zones.partition_point(|zone| zone.end() <= run.start);
            let mut taken = Run { start: run.start, blocks };
            for zone in zones[first..].iter().take_while(|zone| zone.start < run.end()) {
                if taken.end() <= zone.start {
                    break;
                }
                taken.start = taken.start.max(zone.end());
            }
            (taken.end() <= run.end()).then_some((at, taken))
        })?;
        let run = self.runs[at];
        self.runs[at] = Run::between(run.start, taken.start);
        self.runs.insert(at + 1, Run::between(taken.end(), run.end()));
        self.free -= blocks;
        // Run indexes changed, so the cached ones are invalid.
        self.first_fit = [0; 65];
        Some(taken.start)
    }

    /// Takes `blocks` blocks in address order, preferring long runs.
    pub(crate) fn take_runs(&mut self, blocks: u64) -> Result<Vec<Run>, Short> {
        if blocks == 0 {
            return Ok(Vec::new());
        }
        if let Some(start) = self.take_run(blocks) {
            return Ok(vec![Run { start, blocks }]);
        }
        if blocks > self.free {
            return Err(Short { missing: blocks - self.free });
        }
        let mut left = blocks;
        let mut taken = Vec::new();
        // A long file skips short runs unless nothing else is left.
        for at_least in [1 << 12, 1 << 6, 1] {
            for at in 0..self.runs.len() {
                let here = self.runs[at].blocks.min(left);
                if here > 0 && self.runs[at].blocks >= at_least {
                    taken.push(Run { start: self.take_from(at, here), blocks: here });
                    left -= here;
                }
            }
        }
        assert!(left == 0, "the runs add up to the free blocks");
        Ok(taken)
    }

    fn take_from(&mut self, at: usize, blocks: u64) -> VolumeBlock {
        let run = &mut self.runs[at];
        let start = run.start;
        run.start = run.block(blocks);
        run.blocks -= blocks;
        self.free -= blocks;
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, blocks: u64) -> Run {
        Run { start: VolumeBlock(start), blocks }
    }

    fn space(end: u64, used: &[Run]) -> Space {
        Space::between(VolumeBlock(0), VolumeBlock(end), used)
    }

    #[test]
    fn files_fill_the_first_run_that_holds_them_whole() {
        let used = [run(0, 10), run(20, 5)];
        let mut space = space(1000, &used);
        assert_eq!(space.free(), 985);
        assert_eq!(space.take_run(8), Some(VolumeBlock(10)));
        assert_eq!(space.take_run(100), Some(VolumeBlock(25)), "does not fit the two blocks left in front");
        assert_eq!(space.take_run(2), Some(VolumeBlock(18)), "but this does");
        assert_eq!(space.take_run(1), Some(VolumeBlock(125)));
        assert_eq!(space.take_run(5000), None);
        assert_eq!(space.runs_within(VolumeBlock(0), VolumeBlock(1000)).collect::<Vec<_>>(), [run(126, 874)]);
    }

    #[test]
    fn a_run_outside_zones_leaves_both_sides() {
        let mut space = space(100, &[run(40, 10)]);
        let zones = [run(0, 20), run(30, 40)];
        assert_eq!(space.take_run_outside(&zones, 10), Some(VolumeBlock(20)));
        assert_eq!(space.take_run_outside(&zones, 10), Some(VolumeBlock(70)));
        assert_eq!(space.take_run_outside(&zones, 21), None);
        assert_eq!(space.free(), 70);
        assert_eq!(space.take_run(20), Some(VolumeBlock(0)));
        assert_eq!(space.take_run(20), Some(VolumeBlock(50)));
        assert_eq!(space.take_run(20), Some(VolumeBlock(80)));
    }

    #[test]
    fn runs_that_fit_nowhere_whole_are_split() {
        let used = [run(10, 1), run(5000, 1)];
        let mut space = space(9000, &used);
        let runs = space.take_runs(6000).unwrap();
        assert_eq!(runs, [run(11, 4989), run(5001, 1011)]);
        assert_eq!(space.free(), 8998 - 6000);
        assert_eq!(space.take_runs(3000).unwrap_err().missing, 2);
    }
}

//! Clusters in use that no inode claims.

use extant_format::ChecksumSeed;
use std::sync::Arc;

/// The lost clusters that are known.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// Runs (first, end), in order.
    pub(super) runs: Vec<(u64, u64)>,
    /// Nodes found in these clusters; `None` before the clusters were searched.
    pub(super) read: Option<Arc<Candidates>>,
}

/// Blocks that look like leaves of extent trees, and like blocks of directories.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) leaves: BySeed,
    pub(super) dirs: BySeed,
}

/// Blocks by their owner's checksum seed, which is computed from the block and its checksum. An
/// inode finds its blocks by its seed, without reading all the others.
#[derive(Debug, Default)]
pub(super) struct BySeed(Vec<(u32, u64)>);

impl BySeed {
    pub(super) fn new(mut blocks: Vec<(u32, u64)>) -> Self {
        blocks.sort_unstable();
        blocks.dedup();
        Self(blocks)
    }

    /// The blocks of an inode, in order.
    pub(super) fn of(&self, seed: ChecksumSeed) -> impl ExactSizeIterator<Item = u64> {
        let first = self.0.partition_point(|block| block.0 < seed.0);
        let len = self.0[first..].partition_point(|block| block.0 == seed.0);
        self.0[first..first + len].iter().map(|block| block.1)
    }
}

impl Lost {
    /// The end of the run that a cluster is in.
    pub(super) fn end_of(&self, cluster: u64) -> Option<u64> {
        let n = self.runs.partition_point(|run| run.1 <= cluster);
        self.runs.get(n).filter(|run| run.0 <= cluster).map(|run| run.1)
    }

    /// Whether all of these clusters are lost.
    pub(super) fn has(&self, first: u64, end: u64) -> bool {
        self.end_of(first).is_some_and(|run_end| end <= run_end)
    }

    /// Removes clusters that got an owner.
    pub(super) fn take(&mut self, first: u64, end: u64) {
        let n = self.runs.partition_point(|run| run.1 <= first);
        let Some(&(start, run_end)) = self.runs.get(n).filter(|run| run.0 < end) else { return };
        let left = [(start, first.max(start)), (end.min(run_end), run_end)];
        self.runs.splice(n..=n, left.into_iter().filter(|(first, end)| first < end));
    }
}

#[cfg(test)]
mod tests {
    use super::{BySeed, Lost};
    use extant_format::ChecksumSeed;

    #[test]
    fn an_inode_finds_its_own_blocks() {
        let blocks = BySeed::new(vec![(7, 30), (5, 1), (7, 10), (9, 2), (7, 10)]);
        assert_eq!(blocks.of(ChecksumSeed(7)).collect::<Vec<_>>(), [10, 30]);
        assert_eq!(blocks.of(ChecksumSeed(6)).len(), 0);
    }

    #[test]
    fn what_has_an_owner_is_lost_no_more() {
        let mut lost = Lost { runs: vec![(10, 20), (30, 40)], read: None };
        lost.take(12, 14);
        lost.take(30, 40);
        lost.take(25, 28);
        assert_eq!(lost.runs, [(10, 12), (14, 20)]);
        assert!(lost.has(14, 20) && !lost.has(11, 13) && !lost.has(30, 31));
    }
}

//! Clusters (`bigalloc`) that several blocks of a file share: which are reserved for pending
//! blocks, and which blocks an allocated cluster implies.

use super::block_state::{Pending, WasBefore};
use super::run_map::RunMap;
use extant_format::{BlockRange, ClusterSize, VolumeBlock};

/// The clusters that a file's pending blocks are in. Without `bigalloc` each has one block.
pub(super) struct PendingClusters<'a> {
    pub(super) size: ClusterSize,
    pub(super) pending: &'a RunMap<Pending>,
}

impl PendingClusters<'_> {
    fn around(&self, block: u64) -> BlockRange {
        self.size.around(BlockRange::one(block))
    }

    /// Whether a cluster is reserved, or allocated in memory, for delayed blocks or blocks in
    /// flight to a new place.
    fn is_reserved(&self, cluster: BlockRange) -> bool {
        self.pending.iter_in(cluster).any(|(_, pending)| pending.needs_cluster())
    }

    /// Whether blocks of the cluster of `block` are in flight to a place that no transaction
    /// contains yet.
    pub(super) fn is_being_allocated(&self, block: u64) -> bool {
        !self.size.is_block()
            && self
                .pending
                .iter_in(self.around(block))
                .any(|(_, pending)| matches!(pending, Pending::InFlight { was: WasBefore::New, .. }))
    }

    /// Counts the clusters touched by `run` that have no reservation, from block `counted` on, and
    /// moves `counted` to the end of the last one. No block of `run` is pending.
    pub(super) fn unreserved(&self, run: BlockRange, counted: &mut u64) -> u64 {
        if self.size.is_block() {
            return run.len();
        }
        let mut clusters = self.size.around(run);
        clusters.start = clusters.start.max(*counted);
        *counted = clusters.end.max(*counted);
        if !clusters.is_empty() && self.is_reserved(self.around(clusters.start)) {
            clusters.start += self.size.blocks();
        }
        if !clusters.is_empty() && self.is_reserved(self.around(clusters.end - 1)) {
            clusters.end -= self.size.blocks();
        }
        self.size.count(clusters)
    }

    /// The reserved ones among the clusters of `holes`, in order, with adjacent ones joined. No
    /// block of a hole is pending.
    pub(super) fn contested(&self, holes: impl Iterator<Item = BlockRange>) -> Vec<BlockRange> {
        let mut found: Vec<BlockRange> = Vec::new();
        for hole in holes {
            // If a hole spans several clusters, only the first and the last can have other blocks.
            for cluster in [self.around(hole.start), self.around(hole.end - 1)] {
                if !self.is_reserved(cluster) {
                    continue;
                }
                match found.last_mut().filter(|last| cluster.start <= last.end) {
                    Some(last) => last.end = cluster.end,
                    None => found.push(cluster),
                }
            }
        }
        found
    }

    /// Blocks of the clusters that are reserved, or allocated in memory.
    pub(super) fn reserved_blocks(&self) -> u64 {
        let (mut counted, mut blocks) = (0, 0);
        let all = self.pending.iter_in(BlockRange::ALL);
        for (run, _) in all.filter(|(_, pending)| pending.needs_cluster()) {
            let clusters = self.size.around(run);
            blocks += BlockRange::new(clusters.start.max(counted), clusters.end).len();
            counted = clusters.end;
        }
        blocks
    }
}

/// The other blocks of the clusters of an allocated run: they belong to the file, so its holes
/// there are implied.
pub(super) struct RestOfClusters {
    clusters: BlockRange,
    run: BlockRange,
    /// Place of the first cluster.
    first: VolumeBlock,
}

impl RestOfClusters {
    /// For a run allocated at `to`; `None` if a cluster is a block.
    pub(super) fn around(size: ClusterSize, run: BlockRange, to: VolumeBlock) -> Option<Self> {
        let first = VolumeBlock(size.start(to.0));
        (!size.is_block()).then(|| Self { clusters: size.around(run), run, first })
    }

    pub(super) fn parts(&self) -> [BlockRange; 2] {
        [self.clusters.until(self.run.start), BlockRange::new(self.run.end, self.clusters.end)]
    }

    pub(super) fn place(&self, block: u64) -> VolumeBlock {
        VolumeBlock(self.first.0 + (block - self.clusters.start))
    }
}

//! Blocks allocated for writes in flight, which no transaction contains yet.

use crate::alloc::Allocated;
use extant_format::{BlockRange, ClusterSize, VolumeBlock};
use std::collections::BTreeMap;

/// One file's blocks, keyed by the first file block in flight to them.
#[derive(Debug, Default)]
pub(super) struct InFlightPlaces(BTreeMap<u64, NewPlace>);

#[derive(Debug)]
struct NewPlace {
    allocated: Allocated,
    /// The write-back run that writes them, if any.
    run: Option<u64>,
}

impl InFlightPlaces {
    /// Adds blocks allocated for file blocks from `first` on, for a write-back run if there is one.
    pub(super) fn add(&mut self, first: u64, allocated: Allocated, run: Option<u64>) {
        self.0.insert(first, NewPlace { allocated, run });
    }

    /// Removes the blocks for file blocks from `first` on, to be logged.
    pub(super) fn remove(&mut self, first: u64) -> Option<Allocated> {
        self.0.remove(&first).map(|place| place.allocated)
    }

    /// Removes the blocks of a range of file blocks, to be taken back.
    pub(super) fn remove_in(&mut self, blocks: BlockRange) -> Vec<Allocated> {
        let firsts: Vec<u64> = self.0.range(blocks.blocks()).map(|(&first, _)| first).collect();
        firsts.into_iter().filter_map(|first| self.remove(first)).collect()
    }

    /// Place of block `block` if its cluster is already allocated for the same write-back run.
    pub(super) fn shared(&self, block: u64, run: u64, cluster: ClusterSize) -> Option<VolumeBlock> {
        let (&first, place) = self.0.range(..cluster.end(block + 1)).next_back()?;
        let (skip, at) = (block - cluster.start(first), place.allocated.run());
        (place.run == Some(run) && skip < at.blocks).then(|| VolumeBlock(at.start.0 + skip))
    }
}

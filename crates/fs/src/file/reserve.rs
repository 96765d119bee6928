//! The space promised to a file's dirty blocks and to the nodes that mapping them may need.

use crate::alloc::Reservation;
use crate::map::block_state::Need;
use crate::map::file_map::FileMap;
use crate::map::growth::{TreeShape, pointer_growth, tree_growth};
use extant_format::{BlockRange, BlockSize, UintExt};

/// Typical length in blocks of an extent allocated ahead of writes.
const EXTENT_EXPECTED_BLOCKS: u64 = 512;

/// The form of a file's map on disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapForm {
    Tree(TreeShape),
    Pointers,
}

/// One file's reservation.
#[derive(Debug, Default)]
pub(super) struct FileReserve {
    /// Clusters reserved for delayed blocks and for the nodes that mapping them may need.
    reservation: Option<Reservation>,
    /// How many of these clusters are for nodes.
    for_nodes: u64,
}

impl FileReserve {
    /// Adds a reservation of which `for_nodes` clusters are for nodes.
    pub(super) fn keep(&mut self, more: Reservation, for_nodes: u64) {
        self.for_nodes += for_nodes;
        match &mut self.reservation {
            Some(reservation) => reservation.merge(more),
            none => *none = Some(more),
        }
    }

    /// Takes up to `clusters` clusters for delayed blocks. [`Self::keep`] puts back what is unused.
    pub(super) fn take(&mut self, clusters: u64) -> Option<Reservation> {
        let taken = self.reservation.as_mut().map(|reservation| reservation.split(clusters));
        taken.filter(|reservation| reservation.clusters() > 0)
    }

    /// Takes up to `clusters` clusters for nodes.
    pub(super) fn take_for_nodes(&mut self, clusters: u64) -> Option<Reservation> {
        let clusters = clusters.min(self.for_nodes);
        self.for_nodes -= clusters;
        self.take(clusters)
    }

    /// Releases the reservation for `delayed` clusters, and the one for nodes once nothing in `map`
    /// needs it. The result must be dropped without locks held.
    pub(super) fn give_back(&mut self, delayed: u64, map: &FileMap) -> [Option<Reservation>; 2] {
        let part = self.take(delayed);
        let is_needed = map.pending.reserved().0 > 0;
        let rest = if is_needed { None } else { std::mem::take(self).reservation };
        [part, rest]
    }

    /// Additional nodes to reserve when `need`, which is not empty, joins what is already dirty.
    pub(super) fn nodes_for(&self, map: &FileMap, need: &Need, form: MapForm, block: BlockSize) -> u64 {
        if let MapForm::Tree(shape) = form {
            let (blocks, runs) = map.pending.reserved();
            let blocks = blocks + need.delayed_blocks + need.converted_blocks;
            let runs = runs + need.delayed.len().to_u64() + u64::from(need.converted_blocks > 0);
            return tree_growth(shape, blocks, runs, block).saturating_sub(self.for_nodes);
        }
        let growth = |range| pointer_growth(range, block);
        need.delayed
            .iter()
            .map(|run| {
                let around = map.pending.delayed_around(*run);
                let before = growth(around.until(run.start)) + growth(BlockRange::new(run.end, around.end));
                growth(around).saturating_sub(before)
            })
            .sum()
    }
}

/// Nodes for an allocation that no acknowledged write depends on. Assumes extents of typical
/// length.
pub(super) fn nodes_for_holes(need: &Need, shape: TreeShape, block: BlockSize) -> u64 {
    if need.delayed_blocks == 0 {
        return 0;
    }
    let runs = need.delayed.len().to_u64();
    tree_growth(shape, runs + need.delayed_blocks / EXTENT_EXPECTED_BLOCKS, runs, block)
}

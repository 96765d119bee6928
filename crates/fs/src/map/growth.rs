//! Worst-case number of map blocks that a change may need. A write reserves them together with its
//! data before it is acknowledged, so write-back never gets ENOSPC.

use extant_format::{
    BlockRange, BlockSize, DIRECT_POINTERS, EXTENT_MAX_DEPTH, ExtentNode, UintExt, pointers_per_block,
};

/// Extents that fit in an inode.
const ROOT_EXTENTS: u64 = 4;

/// A file's extent tree, as far as its root shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeShape {
    /// Levels below the root.
    pub(crate) depth: u16,
    /// Entries of the root.
    pub(crate) entries: u16,
}

/// Nodes that a tree may grow by when `runs` disjoint ranges of `blocks` blocks in total are
/// mapped, in the worst case with one extent per block.
///
/// A range is within one gap or one extent, so it splits at most one full node per level, and the
/// entries it adds to a level fill nodes at least half. An extent cut in the middle leaves two, so
/// `runs` adds one more entry each.
pub(crate) fn tree_growth(shape: TreeShape, blocks: u64, runs: u64, block: BlockSize) -> u64 {
    if blocks == 0 {
        return 0;
    }
    let half = (ExtentNode::capacity(block.byte_len(), false) / 2).to_u64();
    let mut added = blocks + 2 * runs;
    let mut nodes = 0;
    for _ in 0..shape.depth {
        added = runs + added.div_ceil(half);
        nodes += added;
    }
    // The root overflows and is pushed down once for each level this adds.
    let mut entries = u64::from(shape.entries) + added;
    for _ in shape.depth..EXTENT_MAX_DEPTH {
        if entries <= ROOT_EXTENTS {
            break;
        }
        entries = entries.div_ceil(half);
        nodes += entries;
    }
    nodes
}

/// Nodes that a tree may grow by when one extent is split in two: one per level, if the root is
/// full.
pub(crate) fn split_growth(shape: TreeShape) -> u64 {
    if shape.depth == 0 && u64::from(shape.entries) < ROOT_EXTENTS {
        return 0;
    }
    u64::from(shape.depth) + 1
}

/// Pointer blocks on the paths to the blocks of `range`, all of them new in the worst case.
pub(crate) fn pointer_growth(range: BlockRange, block: BlockSize) -> u64 {
    let per_block = u64::from(pointers_per_block(block));
    let mut top = u64::from(DIRECT_POINTERS);
    let mut nodes = 0;
    for levels in 1..=3u32 {
        let reach = per_block.pow(levels);
        let (from, to) = (range.start.max(top), range.end.min(top + reach));
        if from < to {
            let mut span = 1;
            for _ in 0..levels {
                span *= per_block;
                nodes += (to - 1 - top) / span - (from - top) / span + 1;
            }
        }
        top += reach;
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    const K1: BlockSize = BlockSize::K1;

    #[test]
    fn a_tree_in_the_inode_needs_no_node_until_the_root_is_full() {
        let empty = TreeShape::default();
        assert_eq!(tree_growth(empty, 0, 0, K1), 0);
        assert_eq!(tree_growth(empty, 2, 1, K1), 0);
        assert_eq!(tree_growth(empty, 3, 1, K1), 1, "5 entries at worst");
        assert_eq!(tree_growth(empty, 39, 1, K1), 1);
        assert_eq!(tree_growth(empty, 200, 1, K1), 5 + 1, "leaves half full, and a node above them");
    }

    #[test]
    fn every_run_splits_one_node_of_each_level() {
        let shape = TreeShape { depth: 2, entries: 4 };
        assert_eq!(tree_growth(shape, 1, 1, K1), 2 + 2 + 1);
        let shape = TreeShape { depth: 1, entries: 1 };
        assert_eq!(tree_growth(shape, 3, 3, K1), 4 + 1);
    }

    #[test]
    fn pointer_blocks_of_ranges_at_the_seams() {
        assert_eq!(pointer_growth(BlockRange::new(0, 12), K1), 0);
        assert_eq!(pointer_growth(BlockRange::new(11, 13), K1), 1);
        assert_eq!(pointer_growth(BlockRange::at(12 + 256, 257), K1), 3);
        let triple = 12 + 256 + 65536;
        assert_eq!(pointer_growth(BlockRange::new(triple - 1, triple + 1), K1), 2 + 3);
    }
}

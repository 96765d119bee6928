//! Clusters: the units in which a volume with `bigalloc` allocates blocks (Documentation/filesystems/ext4/bigalloc.rst).

use crate::BlockRange;

/// The number of blocks in a cluster, a power of two: 1 without `bigalloc`.
///
/// The blocks of a file are in logical clusters as those of the volume are in physical ones: two blocks of one logical cluster
/// lie in one physical cluster, at the same offsets. So the methods take blocks of either kind.
///
/// ```
/// use extant_format::{BlockRange, ClusterSize};
///
/// let size = ClusterSize::from_log_blocks(2);
/// assert_eq!((size.blocks(), size.start(7), size.end(7), size.offset(7)), (4, 4, 8, 3));
/// assert_eq!(size.around(BlockRange::new(3, 9)), BlockRange::new(0, 12));
/// assert_eq!(size.count(BlockRange::new(3, 9)), 3);
/// assert!(ClusterSize::BLOCK.is_block());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSize {
    log_blocks: u8,
}

impl ClusterSize {
    /// Of volumes without `bigalloc`.
    pub const BLOCK: Self = Self { log_blocks: 0 };

    /// 2 to the power of `log_blocks` blocks, at most 2^20.
    pub const fn from_log_blocks(log_blocks: u32) -> Self {
        Self { log_blocks: if log_blocks < 20 { log_blocks as u8 } else { 20 } }
    }

    /// Whether a cluster is one block.
    pub const fn is_block(self) -> bool {
        self.log_blocks == 0
    }

    /// Logarithm of [`Self::blocks`].
    pub const fn log2(self) -> u32 {
        self.log_blocks as u32
    }

    /// Blocks in a cluster.
    pub const fn blocks(self) -> u64 {
        1 << self.log_blocks
    }

    /// The first block of the cluster that holds `block`.
    pub const fn start(self, block: u64) -> u64 {
        block & !(self.blocks() - 1)
    }

    /// The block behind the cluster that ends with or behind block `block - 1`: `block`, rounded up.
    pub const fn end(self, block: u64) -> u64 {
        self.start(block.saturating_add(self.blocks() - 1))
    }

    /// The place of a block in its cluster.
    pub const fn offset(self, block: u64) -> u64 {
        block - self.start(block)
    }

    /// The clusters that have a block in a range.
    pub const fn around(self, range: BlockRange) -> BlockRange {
        BlockRange::new(self.start(range.start), self.end(range.end))
    }

    /// How many clusters have a block in a range.
    pub const fn count(self, range: BlockRange) -> u64 {
        if range.is_empty() { 0 } else { self.around(range).len() >> self.log_blocks }
    }
}

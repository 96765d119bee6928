//! Clusters, the allocation unit of a volume with `bigalloc`
//! (Documentation/filesystems/ext4/bigalloc.rst).

use crate::BlockRange;

/// The number of blocks in a cluster, a power of two: 1 without `bigalloc`.
///
/// A file's blocks form logical clusters just as a volume's blocks form physical ones: blocks of a
/// logical cluster are stored in one physical cluster, at the same offsets. So the methods accept
/// blocks of either kind.
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
    /// The size on volumes without `bigalloc`.
    pub const BLOCK: Self = Self { log_blocks: 0 };

    /// A size of 2^`log_blocks` blocks, at most 2^20.
    pub const fn from_log_blocks(log_blocks: u32) -> Self {
        Self { log_blocks: if log_blocks < 20 { log_blocks as u8 } else { 20 } }
    }

    /// Whether a cluster is one block.
    pub const fn is_block(self) -> bool {
        self.log_blocks == 0
    }

    /// Base-2 logarithm of [`Self::blocks`].
    pub const fn log2(self) -> u32 {
        self.log_blocks as u32
    }

    /// Number of blocks in a cluster.
    pub const fn blocks(self) -> u64 {
        1 << self.log_blocks
    }

    /// First block of the cluster that contains `block`.
    pub const fn start(self, block: u64) -> u64 {
        block & !(self.blocks() - 1)
    }

    /// `block` rounded up to a cluster boundary.
    pub const fn end(self, block: u64) -> u64 {
        self.start(block.saturating_add(self.blocks() - 1))
    }

    /// Offset of a block in its cluster.
    pub const fn offset(self, block: u64) -> u64 {
        block - self.start(block)
    }

    /// The blocks of all clusters that overlap a range.
    pub const fn around(self, range: BlockRange) -> BlockRange {
        BlockRange::new(self.start(range.start), self.end(range.end))
    }

    /// Number of clusters that overlap a range.
    pub const fn count(self, range: BlockRange) -> u64 {
        if range.is_empty() { 0 } else { self.around(range).len() >> self.log_blocks }
    }
}

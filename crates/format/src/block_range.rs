//! Ranges of a file's blocks.

use crate::FileBlock;
use std::fmt;
use std::ops::Range;

/// A half-open range of a file's blocks. Its end may be one past the last [`FileBlock`], or even
/// larger for a range that no map can address.
///
/// ```
/// use extant_format::BlockRange;
///
/// let range = BlockRange::at(10, 5);
/// assert_eq!((range.start, range.end, range.len()), (10, 15, 5));
/// assert_eq!(range.until(12), BlockRange::new(10, 12));
/// assert!(!range.overlaps(BlockRange::from_block(15)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// The first block.
    pub start: u64,
    /// One past the last block.
    pub end: u64,
}

impl BlockRange {
    /// One past the last block that any map can address.
    pub const MAP_END: u64 = 1 << u32::BITS;
    /// Every block that any map can address.
    pub const ALL: Self = Self { start: 0, end: Self::MAP_END };

    /// The range `start..end`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// `blocks` blocks starting at `start`.
    pub const fn at(start: u64, blocks: u64) -> Self {
        Self { start, end: start + blocks }
    }

    /// A single block.
    pub const fn one(block: u64) -> Self {
        Self::at(block, 1)
    }

    /// From `start` to the end of the addressable range.
    pub const fn from_block(start: u64) -> Self {
        Self { start, end: Self::MAP_END }
    }

    /// Number of blocks; 0 if the range ends before it begins.
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range contains no block.
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Whether the range contains `block`.
    pub const fn contains(self, block: u64) -> bool {
        self.start <= block && block < self.end
    }

    /// Whether the ranges share a block.
    pub const fn overlaps(self, other: Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.start < other.end && other.start < self.end
    }

    /// The part before block `end`.
    #[must_use]
    pub fn until(self, end: u64) -> Self {
        Self { end: self.end.min(end), ..self }
    }

    /// The blocks in order.
    pub const fn blocks(self) -> Range<u64> {
        self.start..self.end
    }
}

/// Sorts the ranges and joins those that overlap or touch; empty ones are left out.
pub fn joined_ranges<T: Copy + Ord>(mut ranges: Vec<Range<T>>) -> Vec<Range<T>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

impl From<FileBlock> for BlockRange {
    fn from(block: FileBlock) -> Self {
        Self::one(block.0.into())
    }
}

impl From<Range<u64>> for BlockRange {
    fn from(range: Range<u64>) -> Self {
        Self::new(range.start, range.end)
    }
}

impl fmt::Display for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}..{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        let range = BlockRange::new(3, 5);
        assert!(range.overlaps(BlockRange::one(4)) && !range.overlaps(BlockRange::one(5)));
        assert!(!BlockRange::new(4, 4).overlaps(range), "an empty range overlaps nothing");
        assert!(range.contains(3) && !range.contains(5));
        assert_eq!(range.blocks().collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn ranges_that_overlap_or_touch_are_joined() {
        let ranges = vec![8..9, 1..4, 5..7, 2..3, 6..6, 3..5, 10..10];
        assert_eq!(joined_ranges(ranges), [1..7, 8..9]);
    }

    #[test]
    fn the_last_block_of_a_map_is_in_all_of_it() {
        assert!(BlockRange::ALL.overlaps(FileBlock(u32::MAX).into()));
        assert!(BlockRange::from_block(u32::MAX.into()).len() == 1 && BlockRange::new(5, 4).is_empty());
    }
}

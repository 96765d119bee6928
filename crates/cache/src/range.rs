//! Ranges of a file, in bytes and in pages.

use crate::page::PAGE;
use std::fmt;
use std::ops::{Range, RangeFrom, RangeFull};

/// A half-open range of a file's bytes.
///
/// ```
/// use extant_cache::{ByteRange, PageRange};
///
/// let range = ByteRange::at(4000, 200);
/// assert_eq!((range.start, range.end, range.len()), (4000, 4200, 200));
/// assert_eq!(range.pages(), PageRange { start: 0, end: 2 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset just past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// Every byte of every file.
    pub const ALL: Self = Self { start: 0, end: u64::MAX };

    /// From `start` up to, but not including, `end`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// `len` bytes from `offset`; the end saturates at `u64::MAX`.
    pub const fn at(offset: u64, len: u64) -> Self {
        Self { start: offset, end: offset.saturating_add(len) }
    }

    /// Length in bytes; 0 if `end` is before `start`.
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range contains no bytes.
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// The intersection of both ranges; may be empty.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// Whether the ranges share a byte.
    pub fn overlaps(self, other: Self) -> bool {
        !self.intersect(other).is_empty()
    }

    /// The pages that contain at least one byte of the range.
    pub fn pages(self) -> PageRange {
        if self.is_empty() {
            return PageRange { start: self.start / PAGE, end: self.start / PAGE };
        }
        PageRange { start: self.start / PAGE, end: self.end.div_ceil(PAGE) }
    }
}

impl From<Range<u64>> for ByteRange {
    fn from(range: Range<u64>) -> Self {
        Self::new(range.start, range.end)
    }
}

impl From<RangeFrom<u64>> for ByteRange {
    fn from(range: RangeFrom<u64>) -> Self {
        Self::new(range.start, u64::MAX)
    }
}

impl From<RangeFull> for ByteRange {
    fn from(_: RangeFull) -> Self {
        Self::ALL
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{}", self.start, self.end)
    }
}

/// A half-open range of a file's page indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first page.
    pub start: u64,
    /// The page after the last.
    pub end: u64,
}

impl PageRange {
    /// Every page of every file.
    pub const ALL: Self = Self { start: 0, end: u64::MAX };

    /// From page `start` up to, but not including, page `end`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// One page.
    pub const fn one(index: u64) -> Self {
        Self { start: index, end: index + 1 }
    }

    /// Number of pages.
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range contains no pages.
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// The pages' bytes; both ends saturate at `u64::MAX`.
    pub const fn bytes(self) -> ByteRange {
        ByteRange { start: self.start.saturating_mul(PAGE), end: self.end.saturating_mul(PAGE) }
    }

    /// Whether the ranges share a page.
    pub fn overlaps(self, other: Self) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }

    pub(crate) const fn indices(self) -> Range<u64> {
        self.start..self.end
    }
}

impl From<Range<u64>> for PageRange {
    fn from(range: Range<u64>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_at_the_end_of_the_numbers_do_not_overflow() {
        assert_eq!(ByteRange::at(u64::MAX - 1, 10).end, u64::MAX);
        assert_eq!(ByteRange::ALL.pages().bytes().end, u64::MAX);
        assert!(ByteRange::new(5, 4).is_empty() && ByteRange::new(5, 4).pages().is_empty());
    }

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        assert!(!ByteRange::new(0, 4096).overlaps((4096..5000).into()));
        assert!(ByteRange::new(0, 4097).overlaps((4096..).into()));
        assert!(!ByteRange::new(0, 4096).pages().overlaps(PageRange { start: 1, end: 2 }));
    }
}

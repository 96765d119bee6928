//! Page fills of a file, the ranges they are excluded from, and changes of the map that overtake
//! them.

use crate::PageRange;

/// Excluded ranges of one mapping, and fills that have asked the backing where a range is.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    pub(crate) excluded: Vec<PageRange>,
    pub(crate) lookups: Vec<(u64, PageRange)>,
    pub(crate) next: u64,
}

impl Fills {
    /// Whether any page of `range` is excluded.
    pub(crate) fn excludes(&self, range: PageRange) -> bool {
        !self.excluded.is_empty() && self.excluded.iter().any(|excluded| excluded.overlaps(range))
    }

    /// The part of `range` before its first excluded page.
    pub(crate) fn admitted(&self, mut range: PageRange) -> PageRange {
        for excluded in &self.excluded {
            if excluded.overlaps(range) {
                range.end = excluded.start.max(range.start);
            }
        }
        range
    }

    /// The backing's map changed for `range`: earlier answers are cut back to what still holds.
    pub(crate) fn remapped(&mut self, range: PageRange) {
        for (_, lookup) in self.lookups.iter_mut().filter(|(_, lookup)| lookup.overlaps(range)) {
            lookup.end = range.start.max(lookup.start);
        }
    }
}

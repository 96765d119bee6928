//! Pages of a file under write-back, and the runs they belong to.

use crate::PageRange;
use crate::pageset::PageSet;
use std::collections::BTreeMap;
use std::ops::Deref;

/// A run's number within its file, in the order in which runs were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunNumber(pub(crate) u64);

/// The pages of a file under write-back: a set that changes by whole runs.
#[derive(Debug, Default)]
pub(crate) struct RunsInFlight {
    pages: PageSet,
    runs: BTreeMap<RunNumber, PageRange>,
    next: RunNumber,
}

impl RunsInFlight {
    /// Begins a run. None of its pages may be under write-back.
    pub(crate) fn begin(&mut self, pages: PageRange) -> RunNumber {
        let run = self.next;
        self.next.0 += 1;
        self.pages.insert(pages.indices());
        self.runs.insert(run, pages);
        run
    }

    /// Ends a run.
    pub(crate) fn end(&mut self, run: RunNumber) {
        let pages = self.runs.remove(&run).expect("a run ends once");
        self.pages.remove(pages.indices());
    }

    /// The number of the next run to begin.
    pub(crate) fn next(&self) -> RunNumber {
        self.next
    }

    /// Whether a run numbered below `before` has pages of `range`.
    pub(crate) fn has_older(&self, before: RunNumber, range: PageRange) -> bool {
        self.runs.range(..before).any(|(_, run)| run.overlaps(range))
    }
}

impl Deref for RunsInFlight {
    type Target = PageSet;
    fn deref(&self) -> &PageSet {
        &self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_began_later_are_not_older() {
        let mut underway = RunsInFlight::default();
        let first = underway.begin(PageRange::new(0, 4));
        let before = underway.next();
        let second = underway.begin(PageRange::new(4, 8));
        let older = |underway: &RunsInFlight, before, start, end| {
            underway.has_older(before, PageRange::new(start, end))
        };
        assert!(older(&underway, before, 3, 5) && !older(&underway, before, 4, 8));
        underway.end(first);
        assert!(!older(&underway, before, 0, 8) && older(&underway, underway.next(), 7, 9));
        underway.end(second);
        assert!(underway.is_empty());
    }
}

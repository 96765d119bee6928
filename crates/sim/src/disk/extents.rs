//! Sets of sectors, kept as maximal runs.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of sectors.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents {
    /// Maps start to end; runs neither overlap nor touch.
    runs: BTreeMap<u64, u64>,
    sectors: u64,
}

impl Extents {
    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adds a range, which may overlap the set.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        // Merge the preceding run first, if it overlaps or touches the range; then every run that
        // starts within.
        if let Some((&s, &e)) = self.runs.range(..=start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
            self.runs.remove(&s);
            self.sectors -= e - s;
        }
        while let Some((&s, &e)) = self.runs.range(start..=end).next() {
            end = end.max(e);
            self.runs.remove(&s);
            self.sectors -= e - s;
        }
        self.runs.insert(start, end);
        self.sectors += end - start;
    }

    /// Removes a range.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        if self.runs.is_empty() {
            return;
        }
        if let Some((&s, &e)) = self.runs.range(..range.start).next_back()
            && e > range.start
        {
            self.runs.insert(s, range.start);
            self.sectors -= e - range.start;
            if e > range.end {
                self.runs.insert(range.end, e);
                self.sectors += e - range.end;
            }
        }
        while let Some((&s, &e)) = self.runs.range(range.clone()).next() {
            self.runs.remove(&s);
            self.sectors -= e - s;
            if e > range.end {
                self.runs.insert(range.end, e);
                self.sectors += e - range.end;
            }
        }
    }

    /// Whether the whole range is in the set.
    pub(super) fn contains(&self, range: Range<u64>) -> bool {
        !self.is_empty() && self.runs.range(..=range.start).next_back().is_some_and(|(_, e)| *e >= range.end)
    }

    /// Runs in order, from the first that starts at or after `sector`, then wrapping around to the
    /// beginning.
    pub(super) fn around(&self, sector: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.range(sector..).chain(self.runs.range(..sector)).map(|(s, e)| *s..*e)
    }

    /// Moves all of `other` into this set.
    pub(super) fn absorb(&mut self, other: &mut Self) {
        if self.is_empty() {
            std::mem::swap(self, other);
        } else {
            for (s, e) in std::mem::take(&mut other.runs) {
                self.insert(s..e);
            }
            other.sectors = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_rt::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn behaves_as_a_set_of_sectors() {
        let mut rng = Rng::new(11);
        let mut extents = Extents::default();
        let mut model = BTreeSet::new();
        for _ in 0..5_000 {
            let start = rng.below(200);
            let range = start..start + 1 + rng.below(20);
            match rng.below(3) {
                0 => {
                    extents.remove(range.clone());
                    model.retain(|s| !range.contains(s));
                }
                _ => {
                    extents.insert(range.clone());
                    model.extend(range);
                }
            }
            assert_eq!(extents.sectors(), model.len() as u64);
            let all: Vec<u64> = extents.around(0).flatten().collect();
            assert!(all.iter().eq(model.iter()));
            let probe = rng.below(200);
            assert_eq!(extents.contains(probe..probe + 3), (probe..probe + 3).all(|s| model.contains(&s)));
            let ends: Vec<_> = extents.around(0).collect();
            assert!(ends.windows(2).all(|pair| pair[0].end < pair[1].start), "runs are maximal: {ends:?}");
        }
    }
}

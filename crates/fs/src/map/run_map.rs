//! A map from ranges of file blocks to values.

use extant_format::BlockRange;
use std::collections::BTreeMap;

/// The value of a run of blocks, as seen from its first block.
pub(crate) trait RunValue: Copy + PartialEq {
    /// The value as seen from the block `skip` blocks further on.
    fn advance(self, skip: u64) -> Self;
}

/// Disjoint runs, in order. Adjacent runs that continue each other are merged.
#[derive(Clone, Debug)]
pub(crate) struct RunMap<V> {
    /// Length and value by first block.
    runs: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RunMap<V> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<V: RunValue> RunMap<V> {
    /// The run that contains block `at`, from `at` on.
    pub(crate) fn get(&self, at: u64) -> Option<(BlockRange, V)> {
        let (&start, &(len, value)) = self.runs.range(..=at).next_back()?;
        (at < start + len).then(|| (BlockRange::new(at, start + len), value.advance(at - start)))
    }

    /// The first run, or part of one, at or after block `at`.
    pub(crate) fn first_from(&self, at: u64) -> Option<(BlockRange, V)> {
        self.get(at).or_else(|| {
            let (&start, &(len, value)) = self.runs.range(at..).next()?;
            Some((BlockRange::at(start, len), value))
        })
    }

    /// The runs and parts of runs within a range, in order.
    pub(crate) fn iter_in(&self, range: BlockRange) -> impl Iterator<Item = (BlockRange, V)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let (run, value) = self.first_from(at).filter(|(run, _)| run.start < range.end)?;
            let run = run.until(range.end);
            at = run.end;
            Some((run, value))
        })
    }

    /// First block of the run that contains block `at`, or `at` if there is none.
    pub(crate) fn start_of(&self, at: u64) -> u64 {
        self.runs
            .range(..=at)
            .next_back()
            .filter(|(start, (len, _))| at < *start + len)
            .map_or(at, |(&start, _)| start)
    }

    /// Sets a range to `value`, which applies to its first block.
    pub(crate) fn insert(&mut self, range: BlockRange, value: V) {
        debug_assert!(!range.is_empty());
        self.remove(range);
        let (mut start, mut len, mut value) = (range.start, range.len(), value);
        if let Some((&before, &(before_len, before_value))) = self.runs.range(..start).next_back()
            && before + before_len == start
            && before_value.advance(before_len) == value
        {
            (start, len, value) = (before, len + before_len, before_value);
        }
        if let Some(&(after_len, after_value)) = self.runs.get(&range.end)
            && value.advance(range.end - start) == after_value
        {
            self.runs.remove(&range.end);
            len += after_len;
        }
        let next = self.runs.range(start + 1..).next();
        debug_assert!(next.is_none_or(|(&next, _)| start + len <= next), "runs are disjoint");
        self.runs.insert(start, (len, value));
    }

    /// Empties a range.
    pub(crate) fn remove(&mut self, range: BlockRange) {
        if let Some((&start, &(len, value))) = self.runs.range(..range.start).next_back()
            && start + len > range.start
        {
            self.runs.insert(start, (range.start - start, value));
            if start + len > range.end {
                self.runs.insert(range.end, (start + len - range.end, value.advance(range.end - start)));
                return;
            }
        }
        while let Some((&start, &(len, value))) = self.runs.range(range.blocks()).next() {
            self.runs.remove(&start);
            if start + len > range.end {
                self.runs.insert(range.end, (start + len - range.end, value.advance(range.end - start)));
            }
        }
    }

    /// Number of runs.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Value(u64);

    impl RunValue for Value {
        fn advance(self, skip: u64) -> Self {
            Self(self.0 + skip)
        }
    }

    proptest! {
        #[test]
        fn a_run_map_is_a_map_of_blocks(ops in prop::collection::vec((0u64..60, 1u64..20, prop::option::of(0u64..3)), 1..40)) {
            let mut runs = RunMap::default();
            let mut model = BTreeMap::new();
            for (start, len, value) in ops {
                let range = BlockRange::at(start, len);
                match value {
                    // Values of one class continue each other wherever they meet.
                    Some(class) => runs.insert(range, Value(class * 1000 + start)),
                    None => runs.remove(range),
                }
                for at in range.blocks() {
                    match value {
                        Some(class) => model.insert(at, class * 1000 + at),
                        None => model.remove(&at),
                    };
                }
                let found: BTreeMap<u64, u64> = runs
                    .iter_in(BlockRange::new(0, 100))
                    .flat_map(|(run, value)| run.blocks().map(move |at| (at, value.0 + at - run.start)))
                    .collect();
                prop_assert_eq!(&found, &model);
                let continues = |(&at, &value): (&u64, &u64)| {
                    at > 0 && model.get(&(at - 1)).is_some_and(|before| before + 1 == value)
                };
                let breaks = model.iter().filter(|&entry| !continues(entry)).count();
                prop_assert_eq!(runs.len(), breaks, "neighbours that continue each other are one run");
            }
        }
    }
}

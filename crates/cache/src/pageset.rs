//! Sets of pages, stored as a tree of 64-page bitmaps.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of page indices of one file. Takes sixteen bytes for each aligned group of 64 pages that
/// has a page in the set.
#[derive(Debug, Default)]
pub(crate) struct PageSet {
    words: BTreeMap<u64, u64>,
    count: u64,
}

/// The bits of word `word` that lie in `range`.
fn bits(word: u64, range: &Range<u64>) -> u64 {
    let (start, end) = (range.start.max(word * 64), range.end.min(word * 64 + 64));
    if start >= end {
        return 0;
    }
    (u64::MAX >> (64 - (end - start))) << (start % 64)
}

impl PageSet {
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn contains(&self, index: u64) -> bool {
        self.words.get(&(index / 64)).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        for word in range.start / 64..=(range.end - 1) / 64 {
            let slot = self.words.entry(word).or_default();
            let new = bits(word, &range) & !*slot;
            *slot |= new;
            self.count += u64::from(new.count_ones());
        }
    }

    /// Removes the pages of `range`; returns how many were in the set.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> u64 {
        let before = self.count;
        if range.is_empty() {
            return 0;
        }
        let words = range.start / 64..=(range.end - 1) / 64;
        let mut emptied = Vec::new();
        for (&word, slot) in self.words.range_mut(words) {
            let old = *slot & bits(word, &range);
            *slot &= !old;
            self.count -= u64::from(old.count_ones());
            if *slot == 0 {
                emptied.push(word);
            }
        }
        for word in emptied {
            self.words.remove(&word);
        }
        before - self.count
    }

    /// End of the run of set pages that begins at `range.start`, at most `range.end`.
    pub(crate) fn run_end(&self, range: Range<u64>) -> u64 {
        let mut at = range.start;
        for (&word, slot) in self.words.range(range.start / 64..) {
            if word != at / 64 {
                break;
            }
            at += u64::from((!slot >> (at % 64)).trailing_zeros()).min(64 - at % 64);
            if at >= range.end || !at.is_multiple_of(64) {
                break;
            }
        }
        at.min(range.end)
    }

    /// One past the last page of the set; 0 if the set is empty.
    pub(crate) fn end(&self) -> u64 {
        self.words
            .last_key_value()
            .map_or(0, |(&word, slot)| word * 64 + 64 - u64::from(slot.leading_zeros()))
    }

    /// The first page of the set in `range`.
    pub(crate) fn first_in(&self, range: Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        let words = range.start / 64..=(range.end - 1) / 64;
        self.words.range(words).find_map(|(&word, slot)| {
            let there = slot & bits(word, &range);
            (there != 0).then(|| word * 64 + u64::from(there.trailing_zeros()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(ops in prop::collection::vec((any::<bool>(), 0u64..300, 0u64..150), 1..60)) {
            let (mut set, mut model) = (PageSet::default(), BTreeSet::new());
            for (add, start, len) in ops {
                let range = start..start + len;
                if add {
                    set.insert(range.clone());
                    model.extend(range.clone());
                } else {
                    let before = model.len() as u64;
                    model.retain(|i| !range.contains(i));
                    prop_assert_eq!(set.remove(range.clone()), before - model.len() as u64);
                }
                prop_assert_eq!(set.len(), model.len() as u64);
                prop_assert_eq!(set.end(), model.last().map_or(0, |last| last + 1));
                let run = range.clone().take_while(|index| model.contains(index)).count() as u64;
                prop_assert_eq!(set.run_end(range.clone()), range.start + run);
                prop_assert_eq!(set.first_in(range.clone()), model.range(range).next().copied());
                for i in 0..450 {
                    prop_assert_eq!(set.contains(i), model.contains(&i));
                }
            }
        }
    }
}

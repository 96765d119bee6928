//! The free-extent index of one group: free runs by position and by length.
//!
//! Built from a bitmap a word at a time and kept in memory while the group is in use. Positions
//! count blocks, or clusters with `bigalloc`, from the group's first.

use extant_format::UintExt;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks `start..start + len` of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

impl Span {
    pub(crate) const fn new(start: u32, len: u32) -> Self {
        Self { start, len }
    }

    pub(crate) const fn end(self) -> u32 {
        self.start + self.len
    }
}

/// Runs examined after the goal before falling back to the best fit in the whole group.
const NEAR_RUNS: usize = 32;
/// Shortest run taken at the goal itself if more is wanted. Shorter ones are left for small files.
const GOAL_RUN_MIN: u32 = 8;

/// Free runs, disjoint and never adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeRuns {
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
    free: u32,
}

impl FreeRuns {
    /// Builds the index from the clear bits among the first `bits` bits of a bitmap.
    pub(crate) fn from_bitmap(bitmap: &[u8], bits: u32) -> Self {
        debug_assert!(bits.to_usize() <= bitmap.len() * 8, "{bits} clusters in {} bytes", bitmap.len());
        let mut runs = Vec::new();
        let mut open = None;
        for (n, word) in bitmap.chunks(8).enumerate() {
            let base = n.fit_u32() * 64;
            if base >= bits {
                break;
            }
            let mut bytes = [0xff; 8];
            bytes[..word.len()].copy_from_slice(word);
            let mut word = u64::from_le_bytes(bytes);
            if bits - base < 64 {
                word |= !0 << (bits - base);
            }
            let mut at = 0;
            while at < 64 {
                let rest = word >> at;
                match open {
                    None if rest == !0 >> at => break,
                    None => {
                        at += rest.trailing_ones();
                        open = Some(base + at);
                    }
                    Some(_) if rest == 0 => break,
                    Some(start) => {
                        at += rest.trailing_zeros();
                        runs.push((start, base + at - start));
                        open = None;
                    }
                }
            }
        }
        if let Some(start) = open {
            let end = bits.min(bitmap.len().fit_u32() * 8);
            runs.push((start, end - start));
        }
        Self {
            free: runs.iter().map(|run| run.1).sum(),
            by_len: runs.iter().map(|&(start, len)| (len, start)).collect(),
            by_start: runs.into_iter().collect(),
        }
    }

    /// Number of free blocks.
    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    /// Number of runs; the index's memory is proportional to it.
    pub(crate) fn runs(&self) -> usize {
        self.by_start.len()
    }

    /// Length of the longest run; 0 in a full group.
    pub(crate) fn longest(&self) -> u32 {
        self.by_len.last().map_or(0, |run| run.0)
    }

    /// The free run that contains block `at`, from `at` on.
    pub(crate) fn at(&self, at: u32) -> Option<Span> {
        let (&start, &len) = self.by_start.range(..=at).next_back()?;
        (at < start + len).then(|| Span::new(at, start + len - at))
    }

    /// The first free blocks at or after `at`, in a run of at least `min`.
    pub(crate) fn next(&self, at: u32, min: u32) -> Option<Span> {
        let before = self.by_start.range(..at).next_back();
        let within = before.filter(|&(&start, &len)| at < start + len && min <= len);
        let behind = || self.by_start.range(at..).find(|&(_, &len)| min <= len);
        let (&start, &len) = within.or_else(behind)?;
        let first = start.max(at);
        Some(Span::new(first, start + len - first))
    }

    /// Up to `want` blocks starting at `goal`, or `None` if too few are free there to be
    /// worthwhile. Takes nothing.
    pub(crate) fn exact(&self, goal: u32, want: u32) -> Option<Span> {
        let span = self.at(goal).filter(|span| span.len >= want.min(GOAL_RUN_MIN))?;
        Some(Span::new(goal, span.len.min(want)))
    }

    /// Chooses at least `min` and up to `want` blocks: the nearest run after `from` that has all of
    /// them, else the shortest such run in the group, else the longest run. Takes nothing.
    pub(crate) fn choose(&self, from: u32, want: u32, min: u32) -> Option<Span> {
        let near = self.by_start.range(from..).take(NEAR_RUNS).find(|run| *run.1 >= want);
        let near = near.map(|(&start, &len)| (len, start));
        let best = || self.by_len.range((want, 0)..).next().copied();
        let longest = || self.by_len.last().copied().filter(|run| run.0 >= min);
        near.or_else(best).or_else(longest).map(|(len, start)| Span::new(start, len.min(want)))
    }

    /// Takes a span, all of which must be free.
    ///
    /// # Panics
    /// If part of it is not free, since a block would then have two owners.
    pub(crate) fn take(&mut self, span: Span) {
        let (&start, &len) = self.by_start.range(..=span.start).next_back().expect("the span is free");
        assert!(span.len > 0 && span.end() <= start + len, "{span:?} is not free as a whole");
        self.remove(start, len);
        if span.start > start {
            self.add(start, span.start - start);
        }
        if span.end() < start + len {
            self.add(span.end(), start + len - span.end());
        }
    }

    /// Returns a span.
    ///
    /// # Panics
    /// If part of it is already free.
    pub(crate) fn give(&mut self, span: Span) {
        assert!(span.len > 0, "an empty span");
        let Span { mut start, mut len } = span;
        if let Some((&next, &next_len)) = self.by_start.range(start..).next() {
            assert!(span.end() <= next, "{span:?} is free in part");
            if span.end() == next {
                self.remove(next, next_len);
                len += next_len;
            }
        }
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back() {
            assert!(before + before_len <= start, "{span:?} is free in part");
            if before + before_len == start {
                self.remove(before, before_len);
                start = before;
                len += before_len;
            }
        }
        self.add(start, len);
    }

    fn add(&mut self, start: u32, len: u32) {
        let before = self.by_start.insert(start, len);
        let is_new = self.by_len.insert((len, start));
        debug_assert!(before.is_none() && is_new, "two free runs begin at {start}");
        self.free += len;
    }

    fn remove(&mut self, start: u32, len: u32) {
        let known = self.by_start.remove(&start);
        let is_known = self.by_len.remove(&(len, start));
        debug_assert!(known == Some(len) && is_known, "the two indexes have the same runs");
        self.free -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(bits: &[bool]) -> FreeRuns {
        let mut bitmap = vec![0u8; bits.len().div_ceil(8)];
        for (n, _) in bits.iter().enumerate().filter(|(_, used)| **used) {
            bitmap[n / 8] |= 1 << (n % 8);
        }
        FreeRuns::from_bitmap(&bitmap, bits.len() as u32)
    }

    #[test]
    fn a_goal_is_met_then_the_nearest_then_the_best_fit_then_the_longest() {
        // Free: 0..4, 10..30, 40..44, 50..53.
        let mut runs = FreeRuns::default();
        for span in [Span::new(0, 4), Span::new(10, 20), Span::new(40, 4), Span::new(50, 3)] {
            runs.give(span);
        }
        assert_eq!(runs.exact(15, 8), Some(Span::new(15, 8)));
        assert_eq!(runs.exact(15, 100), Some(Span::new(15, 15)));
        assert_eq!(runs.exact(27, 8), None, "three blocks at the goal are too few");
        assert_eq!(runs.exact(27, 3), Some(Span::new(27, 3)));
        assert_eq!(runs.exact(31, 1), None);
        assert_eq!(runs.next(12, 5), Some(Span::new(12, 18)), "the rest of a run that is long enough");
        assert_eq!(runs.next(12, 21), None);
        assert_eq!(runs.next(30, 4), Some(Span::new(40, 4)));
        assert_eq!(runs.choose(31, 4, 1), Some(Span::new(40, 4)));
        assert_eq!(runs.choose(51, 4, 1), Some(Span::new(0, 4)), "the best fit wherever it lies");
        assert_eq!(runs.choose(60, 100, 1), Some(Span::new(10, 20)));
        assert_eq!(runs.choose(60, 100, 21), None);
    }

    #[test]
    fn padding_behind_the_last_block_is_never_free() {
        let runs = FreeRuns::from_bitmap(&[0; 128], 1000);
        assert_eq!((runs.free(), runs.longest(), runs.at(999)), (1000, 1000, Some(Span::new(999, 1))));
        assert_eq!(FreeRuns::from_bitmap(&[0xff; 128], 1000), FreeRuns::default());
    }

    proptest! {
        #[test]
        fn the_index_is_what_the_bits_say(
            bits in prop::collection::vec(any::<bool>(), 1..400),
            edits in prop::collection::vec((0u32..400, 1u32..90, 1u32..60), 0..40),
        ) {
            let mut bits = bits;
            let mut runs = model(&bits);
            for (goal, want, min) in edits {
                let longest = runs.longest();
                match runs.exact(goal, want).or_else(|| runs.choose(goal, want, min.min(want))) {
                    Some(span) => {
                        prop_assert!(span.len <= want && span.len >= min.min(want).min(GOAL_RUN_MIN));
                        runs.take(span);
                        for n in span.start..span.end() {
                            prop_assert!(!bits[n as usize], "taken twice");
                            bits[n as usize] = true;
                        }
                    }
                    None => {
                        prop_assert!(longest < min.min(want));
                        // Return the first run in use.
                        if let Some(start) = bits.iter().position(|used| *used) {
                            let len = bits[start..].iter().take_while(|used| **used).count().min(want as usize);
                            runs.give(Span::new(start as u32, len as u32));
                            bits[start..start + len].fill(false);
                        }
                    }
                }
                prop_assert_eq!(&runs, &model(&bits));
                prop_assert_eq!(runs.free() as usize, bits.iter().filter(|used| !**used).count());
            }
        }
    }
}

//! Proportions: each device's share of the writing, and each task's of the dirtying.

use std::collections::BTreeMap;

/// Floating proportions of pages: every event is counted, and all counts are halved after each
/// period of events (Linux 3.1 to 3.5, lib/proportions.c; users: `bdi_writeout_fraction()`,
/// `task_dirties_fraction()`).
#[derive(Clone, Debug)]
pub(super) struct Proportions<K> {
    pages: BTreeMap<K, u64>,
    total: u64,
}

impl<K> Default for Proportions<K> {
    fn default() -> Self {
        Self { pages: BTreeMap::new(), total: 0 }
    }
}

impl<K: Ord + Copy> Proportions<K> {
    /// Length of a period for a dirty limit of `limit` pages: 2^(2 + log2 of it).
    fn period(limit: u64) -> u64 {
        4 << limit.saturating_sub(1).max(1).ilog2()
    }

    /// Counts `pages` pages for `who`, under a dirty limit of `limit` pages.
    pub(super) fn add(&mut self, who: K, pages: u64, limit: u64) {
        *self.pages.entry(who).or_default() += pages;
        self.total += pages;
        while self.total >= Self::period(limit) {
            self.pages.retain(|_, pages| {
                *pages /= 2;
                *pages > 0
            });
            self.total = self.pages.values().sum();
        }
    }

    /// The share of `of` in proportion to the pages of `who`; 0 if it has none (kernel:
    /// `bdi_dirty_limit()`).
    pub(super) fn share(&self, who: K, of: u64) -> u64 {
        let done = self.pages.get(&who).copied().unwrap_or(0);
        (u128::from(of) * u128::from(done) / u128::from(self.total.max(1))) as u64
    }

    /// Drops an entry; its events still count in the total.
    pub(super) fn forget(&mut self, who: K) {
        self.pages.remove(&who);
    }
}

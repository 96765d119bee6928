//! Which part of the writing each device does.

use extant_cache::control::DeviceIndex;

/// Floating proportions of completed pages: every event counts, and all counts are halved once a period of events has gone
/// by (kernel: `lib/proportions.c`, `bdi_writeout_fraction()`).
#[derive(Clone, Debug, Default)]
pub(super) struct Completions {
    pages: Vec<u64>,
    total: u64,
}

impl Completions {
    /// The length of a period under a dirty limit of `limit` pages: 2^(2 + log2 of it).
    fn period(limit: u64) -> u64 {
        4 << limit.saturating_sub(1).max(1).ilog2()
    }

    /// `pages` pages were written to `device`.
    pub(super) fn add(&mut self, device: DeviceIndex, pages: u64, limit: u64) {
        let at = device.0 as usize;
        if self.pages.len() <= at {
            self.pages.resize(at + 1, 0);
        }
        self.pages[at] += pages;
        self.total += pages;
        while self.total >= Self::period(limit) {
            self.pages.iter_mut().for_each(|pages| *pages /= 2);
            self.total = self.pages.iter().sum();
        }
    }

    /// The part of `of` that is `device`'s by what it has written; 0 for one that has written nothing
    /// (kernel: `bdi_dirty_limit()`).
    pub(super) fn share(&self, device: DeviceIndex, of: u64) -> u64 {
        let done = self.pages.get(device.0 as usize).copied().unwrap_or(0);
        (u128::from(of) * u128::from(done) / u128::from(self.total.max(1))) as u64
    }
}

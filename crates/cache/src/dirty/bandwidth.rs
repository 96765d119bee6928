//! How fast a device writes.

use super::{INITIAL_RATE, time_for};
use extant_rt::Nanos;

/// The write rate of a device while it has something to write. Unlike an estimate over time it does not fall because writers
/// are held back, so that it can be used to decide how far to hold them back.
#[derive(Clone, Copy, Debug)]
pub struct BusyRate {
    rate: u64,
    known: bool,
    busy: Nanos,
    pages: u64,
    last_end: Nanos,
}

impl Default for BusyRate {
    fn default() -> Self {
        Self { rate: INITIAL_RATE, known: false, busy: Nanos::ZERO, pages: 0, last_end: Nanos::ZERO }
    }
}

impl BusyRate {
    /// One sample is made of this much busy time …
    const SAMPLE: Nanos = Nanos::from_millis(100);
    /// … or of so many pages, whichever comes first: 64 MiB, more than the caches of disks.
    const SAMPLE_PAGES: u64 = 64 << 20 >> 12;
    /// Nothing that ends this soon is taken for a stall.
    const STALL: Nanos = Nanos::from_millis(500);

    /// `pages` ended that were submitted `took` ago.
    pub fn written(&mut self, now: Nanos, pages: u64, took: Nanos) {
        let begun = now.saturating_sub(took).max(self.last_end);
        self.busy += now.saturating_sub(begun);
        self.pages += pages;
        self.last_end = self.last_end.max(now);
        if self.busy < Self::SAMPLE && self.pages < Self::SAMPLE_PAGES {
            return;
        }
        let sample = (u128::from(self.pages) * 1_000_000_000 / u128::from(self.busy.0.max(1))) as u64;
        // The first samples count fully; later ones move the estimate by an eighth.
        self.rate = if self.known { (self.rate * 7 + sample) / 8 } else { sample };
        self.known = true;
        (self.busy, self.pages) = (Nanos::ZERO, 0);
    }

    /// Pages per second, where `in_flight` pages have been in flight since `since` at least: a device that ends
    /// nothing is taken to be as slow as that shows it to be.
    pub fn rate(&self, now: Nanos, in_flight: u64, since: Nanos) -> u64 {
        let silent = now.saturating_sub(self.last_end.max(since));
        if in_flight == 0 || silent <= Self::STALL.max(time_for(in_flight, self.rate)) {
            return self.rate.max(1);
        }
        let shown = (u128::from(in_flight) * 1_000_000_000 / u128::from(silent.0)) as u64;
        shown.clamp(1, self.rate.max(1))
    }
}

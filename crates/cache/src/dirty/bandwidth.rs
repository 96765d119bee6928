//! How fast a device writes, measured while it is busy.

use super::{INITIAL_RATE, time_for};
use extant_rt::Nanos;

/// The write rate of a device while it has something to write. Unlike an average over time, it does
/// not fall when writers are throttled, so it can be used to decide how far to throttle them.
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
    /// A sample covers this much busy time …
    const SAMPLE: Nanos = Nanos::from_millis(100);
    /// … or this many pages, whichever comes first: 64 MiB, more than the caches of disks.
    const SAMPLE_PAGES: u64 = 64 << 20 >> 12;
    /// A gap shorter than this is not a stall.
    const STALL: Nanos = Nanos::from_millis(500);

    /// `pages` pages completed that were submitted `took` ago.
    pub fn written(&mut self, now: Nanos, pages: u64, took: Nanos) {
        let begun = now.saturating_sub(took).max(self.last_end);
        self.busy += now.saturating_sub(begun);
        self.pages += pages;
        self.last_end = self.last_end.max(now);
        if self.busy < Self::SAMPLE && self.pages < Self::SAMPLE_PAGES {
            return;
        }
        let sample = (u128::from(self.pages) * 1_000_000_000 / u128::from(self.busy.0.max(1))) as u64;
        // The first sample counts fully; each later one moves the estimate by an eighth.
        self.rate = if self.known { (self.rate * 7 + sample) / 8 } else { sample };
        self.known = true;
        (self.busy, self.pages) = (Nanos::ZERO, 0);
    }

    /// The rate in pages per second, given `in_flight` pages in flight since at least `since`.
    ///
    /// If the device has completed nothing for a while, the rate is at most `in_flight` pages in
    /// the time since its last completion.
    pub fn rate(&self, now: Nanos, in_flight: u64, since: Nanos) -> u64 {
        let silent = now.saturating_sub(self.last_end.max(since));
        if in_flight == 0 || silent <= Self::STALL.max(time_for(in_flight, self.rate)) {
            return self.rate.max(1);
        }
        let shown = (u128::from(in_flight) * 1_000_000_000 / u128::from(silent.0)) as u64;
        shown.clamp(1, self.rate.max(1))
    }
}

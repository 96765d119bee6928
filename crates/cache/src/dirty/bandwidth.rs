//! How fast a device writes.

use super::{INITIAL_RATE, time_for};
use extant_rt::Nanos;

/// Estimates are made this often (kernel: `BANDWIDTH_INTERVAL`).
pub(super) const INTERVAL: Nanos = Nanos::from_millis(200);
/// What an estimate looks back on: 3 s, rounded up to a power of two in milliseconds.
const WINDOW_MS: u64 = 4096;

/// The kernel's estimate: pages written in the last few seconds, idle times included (`bdi_update_write_bandwidth()`).
#[derive(Clone, Copy, Debug)]
pub struct WriteBandwidth {
    rate: u64,
    average: u64,
}

impl Default for WriteBandwidth {
    fn default() -> Self {
        Self { rate: INITIAL_RATE, average: INITIAL_RATE }
    }
}

impl WriteBandwidth {
    /// `written` pages ended in the last `elapsed_ms`.
    pub fn update(&mut self, elapsed_ms: u64, written: u64) {
        let old = self.rate;
        if elapsed_ms > WINDOW_MS {
            self.rate = written * 1000 / elapsed_ms;
            self.average = self.rate;
            return;
        }
        self.rate = (written * 1000 + old * (WINDOW_MS - elapsed_ms)) / WINDOW_MS;
        // The average moves only where two estimates in a row agree on the direction.
        if self.average > old && old >= self.rate {
            self.average -= (self.average - old) / 8;
        } else if self.average < old && old <= self.rate {
            self.average += (old - self.average) / 8;
        }
    }

    /// Pages per second, over the last seconds.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Pages per second, smoothed once more.
    pub fn average(&self) -> u64 {
        self.average
    }
}

/// What a device writes while it has something to write. Unlike [`WriteBandwidth`] it does not fall because writers are
/// held back, so that it can be used to decide how far to hold them back.
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

    /// Pages per second, where `in_flight` pages have been on their way since `since` at least: a device that ends
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

//! How fast a device writes, as the kernel estimates it.

use extant_cache::dirty::INITIAL_RATE;
use extant_rt::Nanos;

/// Estimates are made this often (kernel: `BANDWIDTH_INTERVAL`).
pub(super) const INTERVAL: Nanos = Nanos::from_millis(200);
/// The span that an estimate looks back on: 3 s, rounded up to a power of two in milliseconds.
const WINDOW_MS: u64 = 4096;

/// The kernel's estimate: pages written in the last few seconds, idle times included (`bdi_update_write_bandwidth()`).
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteBandwidth {
    pub(super) rate: u64,
    average: u64,
}

impl Default for WriteBandwidth {
    fn default() -> Self {
        Self { rate: INITIAL_RATE, average: INITIAL_RATE }
    }
}

impl WriteBandwidth {
    /// `written` pages ended in the last `elapsed_ms`.
    pub(super) fn update(&mut self, elapsed_ms: u64, written: u64) {
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

    /// Pages per second, smoothed once more.
    pub(super) fn average(&self) -> u64 {
        self.average
    }
}

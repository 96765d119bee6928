//! The kernel's estimate of a device's write bandwidth (Linux 3.1 to 3.7, mm/page-writeback.c:
//! `bdi_update_write_bandwidth()`).

use super::ticks::Ticks;
use extant_cache::dirty::INITIAL_RATE;

/// Pages per second over the last few seconds, idle times included.
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
    /// Updates the estimate: `written` pages completed in the last `elapsed` ticks.
    pub(super) fn update(&mut self, ticks: Ticks, elapsed: u64, written: u64) {
        // Window of the estimate: 3 s, rounded up to a power of two ticks.
        let window = (3 * ticks.hz()).next_power_of_two();
        let old = self.rate;
        if elapsed > window {
            self.rate = written * ticks.hz() / elapsed;
            self.average = self.rate;
            return;
        }
        self.rate = (written * ticks.hz() + old * (window - elapsed)) / window;
        // The average moves only if two consecutive estimates agree on the direction.
        if self.average > old && old >= self.rate {
            self.average -= (self.average - old) / 8;
        } else if self.average < old && old <= self.rate {
            self.average += (old - self.average) / 8;
        }
    }

    /// Pages per second, smoothed again.
    pub(super) fn average(&self) -> u64 {
        self.average
    }

    /// How many pages of a file a flusher writes before it goes to the next: half a second's worth,
    /// at most an eighth of the limit, rounded to chunks, at least one chunk (kernel:
    /// `writeback_chunk_size()`).
    pub(super) fn chunk_pages(&self, limit_pages: u64, most_pages: u64) -> u64 {
        let pages = (self.average / 2).min(limit_pages / 8).min(most_pages);
        (pages + super::CHUNK_UNIT) / super::CHUNK_UNIT * super::CHUNK_UNIT
    }
}

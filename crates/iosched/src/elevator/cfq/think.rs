//! Think time and seek history: predict a stream's next request.

/// Exponentially weighted mean of the time between the end of a request and the arrival of the
/// next, in ticks, in fixed point (8 fractional bits). A new sample weighs 1/8 and is clipped to
/// twice the idle time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThinkTime {
    /// When the last synchronous request completed.
    pub(super) last_end: i64,
    samples: u64,
    total: u64,
    mean: i64,
}

impl ThinkTime {
    pub(super) fn new(tick: i64) -> Self {
        Self { last_end: tick, samples: 0, total: 0, mean: 0 }
    }

    /// A request arrives.
    pub(super) fn arrival(&mut self, tick: i64, idle: i64) {
        let elapsed = (tick - self.last_end).min(2 * idle).max(0) as u64;
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * elapsed) / 8;
        self.mean = ((self.total + 128) / self.samples) as i64;
    }

    /// Whether enough samples were seen: the count approaches 256 and exceeds 80 at the third
    /// arrival (32, 60, 84).
    pub(super) fn known(&self) -> bool {
        self.samples > 80
    }

    pub(super) fn mean(&self) -> i64 {
        self.mean
    }

    /// Whether it is known that nothing will arrive within `idle`.
    pub(super) fn longer_than(&self, idle: i64) -> bool {
        self.known() && self.mean > idle
    }
}

/// Which of the last 32 requests were far from their predecessors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeekHistory {
    far: u32,
    /// End of the last request; 0 before the first.
    last: u64,
}

/// A distance of more than this many sectors is a seek.
const SEEK_SECTORS: u64 = 8 * 100;
/// On a device without seeks, a request shorter than this counts instead.
const SMALL_SECTORS: u64 = 2 * 32;

impl SeekHistory {
    pub(super) fn arrival(&mut self, start: u64, sectors: u64, rotational: bool) {
        let distance = if self.last == 0 { 0 } else { start.abs_diff(self.last) };
        let far = if rotational { distance > SEEK_SECTORS } else { sectors < SMALL_SECTORS };
        self.far = self.far << 1 | u32::from(far);
        self.last = start + sectors;
    }

    /// More than an eighth of them were far: such a queue gains nothing from idling.
    pub(super) fn seeky(&self) -> bool {
        self.far.count_ones() > 32 / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process pays for the idle window twice before CFQ has learned its think time, as the job
    /// with 500 readers shows.
    #[test]
    fn think_time_is_known_at_the_third_request() {
        let mut think = ThinkTime::new(0);
        let mut known = Vec::new();
        for i in 1..=4 {
            think.arrival(i * 1000, 8);
            think.last_end = i * 1000;
            known.push((think.samples, think.known()));
        }
        assert_eq!(known, [(32, false), (60, false), (84, true), (105, true)]);
        assert!(think.longer_than(8));
        // Clipped to twice the idle time; fixed-point rounding adds one while there are few
        // samples.
        assert_eq!(think.mean(), 17);
    }

    #[test]
    fn five_far_requests_of_32_make_a_queue_seeky() {
        let mut history = SeekHistory::default();
        history.arrival(1_000_000, 8, true);
        for i in 1..=4 {
            history.arrival(1_000_000 * (i % 2 + 1), 8, true);
        }
        assert!(!history.seeky());
        history.arrival(9_000_000, 8, true);
        assert!(history.seeky());
        for i in 0..28 {
            history.arrival(9_000_008 + 8 * i, 8, true);
        }
        assert!(!history.seeky());
    }
}

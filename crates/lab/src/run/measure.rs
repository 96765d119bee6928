//! Measurements of a process.

use extant_cache::CacheError;
use extant_rt::{Nanos, TaskUsage};
use hdrhistogram::Histogram;

/// Latency distribution in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Number of samples.
    pub count: u64,
    /// Shortest; 0 if there are no samples.
    pub min_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Sum of squared distances from the mean.
    squares: f64,
    histogram: Histogram<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        // Two significant digits (1 %) are finer than fio's own buckets.
        let histogram = Histogram::new(2).expect("two digits are possible");
        Self { count: 0, min_ns: 0, max_ns: 0, mean_ns: 0.0, squares: 0.0, histogram }
    }
}

impl Latency {
    pub(super) fn add(&mut self, took: Nanos) {
        self.count += 1;
        self.min_ns = if self.count == 1 { took.0 } else { self.min_ns.min(took.0) };
        self.max_ns = self.max_ns.max(took.0);
        // Welford's algorithm; a plain sum of squares would lose precision.
        let delta = took.0 as f64 - self.mean_ns;
        self.mean_ns += delta / self.count as f64;
        self.squares += delta * (took.0 as f64 - self.mean_ns);
        self.histogram.record(took.0).expect("a histogram that resizes takes all values");
    }

    /// Adds another process's samples.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = other.clone();
            return;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let delta = other.mean_ns - self.mean_ns;
        self.mean_ns += delta * b / (a + b);
        self.squares += other.squares + delta * delta * a * b / (a + b);
        self.count += other.count;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.histogram.add(&other.histogram).expect("histograms that resize take all values");
    }

    /// Sample standard deviation.
    pub fn deviation_ns(&self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.squares / (self.count - 1) as f64).sqrt() }
    }

    /// The latency that `percent` per cent of the samples do not exceed, within 1 %.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent).min(self.max_ns)
    }

    /// Number of samples in `above..=up_to`, with both bounds rounded as in the histogram.
    ///
    /// A latency falls into exactly one of two adjacent spans.
    pub fn between(&self, above_ns: u64, up_to_ns: u64) -> u64 {
        let up_to = |ns: u64| if ns == 0 { 0 } else { self.histogram.count_between(0, ns) };
        if self.count == 0 { 0 } else { up_to(up_to_ns).saturating_sub(up_to(above_ns)) }
    }
}

/// A rate sampled over time: minimum, maximum and mean.
#[derive(Clone, Copy, Debug, Default)]
pub struct Samples {
    /// Number of samples.
    pub count: u64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    /// Mean; for several processes, the sum of their means.
    pub mean: f64,
    squares: f64,
}

impl Samples {
    fn add(&mut self, value: f64) {
        self.count += 1;
        self.min = if self.count == 1 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.squares += delta * (value - self.mean);
    }

    /// Merges the samples of a group as fio does (`sum_stat`, "pure sum"): overall extremes, sum of
    /// means.
    fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.mean += other.mean;
        self.squares += other.squares;
        self.count += other.count;
    }

    /// Sample standard deviation.
    pub fn deviation(&self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.squares / (self.count - 1) as f64).sqrt() }
    }
}

/// Interval between rate samples (fio: `bwavgtime`).
const SAMPLED_EVERY: Nanos = Nanos::from_millis(500);

/// Measurements of one direction of a job.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// I/Os completed.
    pub ios: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// From the decision to the submission; only for asynchronous engines.
    pub submission: Latency,
    /// From submission to completion.
    pub completion: Latency,
    /// From the decision to completion.
    pub total: Latency,
    /// Bytes per second, sampled every half second.
    pub rate: Samples,
    /// I/Os per second, sampled likewise.
    pub io_rate: Samples,
    /// Time of the last sample; `since` counts bytes and I/Os after it.
    sampled_at: Nanos,
    since: [u64; 2],
}

impl Direction {
    /// I/Os per second over a period.
    pub fn iops(&self, over: Nanos) -> f64 {
        if over == Nanos::ZERO { 0.0 } else { self.ios as f64 / over.as_secs_f64() }
    }

    /// Bytes per second over a period.
    pub fn bytes_s(&self, over: Nanos) -> f64 {
        if over == Nanos::ZERO { 0.0 } else { self.bytes as f64 / over.as_secs_f64() }
    }

    /// Records a completed I/O.
    pub(super) fn ended(&mut self, now: Nanos, bytes: u64) {
        self.ios += 1;
        self.bytes += bytes;
        self.since[0] += bytes;
        self.since[1] += 1;
        let span = now.saturating_sub(self.sampled_at);
        if span >= SAMPLED_EVERY {
            let [bytes, ios] = std::mem::take(&mut self.since);
            self.rate.add(bytes as f64 / span.as_secs_f64());
            self.io_rate.add(ios as f64 / span.as_secs_f64());
            self.sampled_at = now;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.rate.merge(&other.rate);
        self.io_rate.merge(&other.io_rate);
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.submission.merge(&other.submission);
        self.completion.merge(&other.completion);
        self.total.merge(&other.total);
    }
}

/// Measurements of one process, or of several combined.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
    /// Flushes.
    pub sync: Latency,
    /// From the start of measurement to the end of the last think time; the longest over all
    /// processes.
    pub runtime: Nanos,
    /// I/Os by the queue depth at submission, which includes the new I/O: 1, from 2, 4, 8, 16, 32,
    /// and from 64.
    pub depths: [u64; 7],
    /// Processor use of the processes; `None` in the real world, where it is not counted.
    pub used: Option<TaskUsage>,
    /// Sum of the processes' runtimes.
    pub run_total: Nanos,
    /// Why a process stopped early.
    pub error: Option<CacheError>,
}

impl Measured {
    /// Starts measuring at `at`.
    pub(super) fn from(at: Nanos) -> Self {
        let side = || Direction { sampled_at: at, ..Direction::default() };
        Self { read: side(), write: side(), ..Self::default() }
    }

    /// Adds what a task used.
    pub(super) fn used(&mut self, used: Option<TaskUsage>) {
        if let Some(used) = used {
            *self.used.get_or_insert_default() += used;
        }
    }

    /// Share of their runtime that the processes spent on a processor, in per cent.
    pub fn cpu_percent(&self) -> f64 {
        match self.used {
            Some(used) if self.run_total > Nanos::ZERO => {
                100.0 * used.cpu.as_secs_f64() / self.run_total.as_secs_f64()
            }
            _ => 0.0,
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.sync.merge(&other.sync);
        self.used(other.used);
        self.runtime = self.runtime.max(other.runtime);
        self.run_total += other.runtime;
        self.depths.iter_mut().zip(other.depths).for_each(|(own, theirs)| *own += theirs);
        self.error = self.error.take().or_else(|| other.error.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_is_the_same_as_all_at_once() {
        let mut rng = extant_rt::Rng::new(9);
        let (mut all, mut one, mut two) = (Latency::default(), Latency::default(), Latency::default());
        for n in 0..1000 {
            let bits = rng.below(40);
            let took = Nanos(1 + rng.below(1 << bits));
            all.add(took);
            if n % 3 == 0 { &mut one } else { &mut two }.add(took);
        }
        one.merge(&two);
        assert_eq!((one.count, one.min_ns, one.max_ns), (all.count, all.min_ns, all.max_ns));
        assert!((one.mean_ns / all.mean_ns - 1.0).abs() < 1e-12);
        assert!((one.deviation_ns() / all.deviation_ns() - 1.0).abs() < 1e-9);
        assert_eq!(one.percentile_ns(50.0), all.percentile_ns(50.0));
        assert_eq!(one.percentile_ns(100.0), all.max_ns);
    }

    #[test]
    fn percentiles_and_counts_are_within_a_hundredth() {
        let mut latency = Latency::default();
        (1..=100_000).for_each(|n| latency.add(Nanos(n * 1_000)));
        for percent in [1.0, 50.0, 99.0, 99.9] {
            let got = latency.percentile_ns(percent) as f64 / (percent * 1e6);
            assert!((got - 1.0).abs() < 0.01, "{percent}: {got}");
        }
        let counted = latency.between(20_000_000, 50_000_000) as f64;
        assert!((counted / 30_000.0 - 1.0).abs() < 0.02, "{counted}");
    }

    #[test]
    fn spans_that_meet_share_nothing_and_leave_nothing_out() {
        let mut rng = extant_rt::Rng::new(3);
        let mut latency = Latency::default();
        (0..10_000).for_each(|_| latency.add(Nanos(rng.below(1 << 33))));
        let bounds = [0, 2, 1_000, 2_000_000, 999_999_999, 2_000_000_000, u64::MAX - 1];
        let parts: u64 = bounds.windows(2).map(|pair| latency.between(pair[0], pair[1])).sum();
        assert_eq!(parts, latency.count);
    }
}

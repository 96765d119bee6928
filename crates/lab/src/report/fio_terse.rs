//! fio's semicolon-separated line (`--minimal`, terse version 3), one per result.

use super::{PERCENTILES, classes};
use crate::run::{Direction, JobResult, JobsOutcome, Latency};
use extant_rt::Nanos;
use std::fmt::Write;

/// Formats the outcome as `fio --minimal` prints it. Fields that are not measured here are zero.
pub fn fio_terse(outcome: &JobsOutcome) -> String {
    outcome.results.iter().map(|result| line(result) + "\n").collect()
}

fn line(result: &JobResult) -> String {
    let JobResult { job, group, measured, .. } = result;
    let error = if measured.error.is_some() { 5 } else { 0 };
    // A semicolon would end the field.
    let name = job.name.replace(';', "_");
    let mut out = format!("3;fio-3.33;{name};{group};{error}");
    for side in [&measured.read, &measured.write] {
        direction(&mut out, side, measured.runtime);
    }
    let context_switches = measured.used.map_or(0, |used| used.turns);
    // Writing to a string cannot fail.
    let _ = write!(out, ";0.000000%;{:.6}%;{context_switches};0;0", measured.cpu_percent());
    let ios = (measured.read.ios + measured.write.ios).max(1) as f64;
    let percent = |count: u64| count as f64 * 100.0 / ios;
    for depth in measured.depths {
        let _ = write!(out, ";{:.1}%", percent(depth));
    }
    let both = [&measured.read.completion, &measured.write.completion];
    let within = |above, bound| both.iter().map(|latency| latency.between(above, bound)).sum::<u64>();
    for unit_ns in [1_000, 1_000_000] {
        for (above, bound, _) in classes(unit_ns) {
            let _ = write!(out, ";{:.2}%", percent(within(above, bound)));
        }
    }
    for (above, bound) in [(1_000_000_000, 2_000_000_000), (2_000_000_000, u64::MAX - 1)] {
        let _ = write!(out, ";{:.2}%", percent(within(above, bound)));
    }
    out
}

fn direction(out: &mut String, direction: &Direction, over: Nanos) {
    let bytes_s = direction.bytes_s(over);
    let runtime_ms = if direction.ios == 0 { 0 } else { over.0 / 1_000_000 };
    let _ = write!(
        out,
        ";{};{};{};{runtime_ms}",
        direction.bytes / 1024,
        (bytes_s / 1024.0) as u64,
        direction.iops(over) as u64
    );
    latency(out, &direction.submission);
    latency(out, &direction.completion);
    for percentile in PERCENTILES {
        let ns =
            if direction.completion.count == 0 { 0 } else { direction.completion.percentile_ns(percentile) };
        let _ = write!(out, ";{percentile:.6}%={}", ns / 1_000);
    }
    // fio's format has twenty percentile fields.
    (PERCENTILES.len()..20).for_each(|_| out.push_str(";0%=0"));
    latency(out, &direction.total);
    let rate = &direction.rate;
    let share = if bytes_s > 0.0 { (rate.mean * 100.0 / bytes_s).min(100.0) } else { 0.0 };
    let _ = write!(
        out,
        ";{};{};{share:.6}%;{:.6};{:.6}",
        (rate.min / 1024.0) as u64,
        (rate.max / 1024.0) as u64,
        rate.mean / 1024.0,
        rate.deviation() / 1024.0
    );
}

/// Appends minimum, maximum, mean and deviation in microseconds.
fn latency(out: &mut String, latency: &Latency) {
    let [mean, deviation] = [latency.mean_ns, latency.deviation_ns()].map(|ns| ns / 1e3);
    let _ = write!(out, ";{};{};{mean:.6};{deviation:.6}", latency.min_ns / 1_000, latency.max_ns / 1_000);
}

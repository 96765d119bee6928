//! Pauses of writers, summarized and listed as text.

use super::{Levels, Pause, Trace};
use extant_rt::Nanos;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Upper bounds of the histogram's bins in milliseconds; the last bin has none.
const BOUNDS_MS: [u64; 11] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, u64::MAX];

/// Length of the histogram's longest bar in characters.
const BAR: u64 = 40;

fn ms(span: Nanos) -> f64 {
    span.0 as f64 / 1e6
}

/// Summarizes the number and lengths of writers' pauses by cause and device.
pub fn summary(trace: &Trace) -> String {
    let mut out = String::new();
    let end_s = trace.end().as_secs_f64();
    let _ = writeln!(out, "{}\n{end_s:.3} s", trace.about);
    let most = trace.levels.iter().map(Levels::total).max();
    if let (Some(most), Some(last)) = (most, trace.levels.last()) {
        let mib = |pages: u64| pages as f64 / 256.0;
        let _ = writeln!(
            out,
            "dirty and under write-back: {:.1} MiB at most; limit {:.1} MiB, background {:.1} MiB",
            mib(most),
            mib(last.limit),
            mib(last.background)
        );
    }
    if trace.pauses.is_empty() {
        out.push_str("no writer waited\n");
        return out;
    }
    let mut groups: BTreeMap<(&str, u32), Vec<Nanos>> = BTreeMap::new();
    for pause in &trace.pauses {
        groups.entry((&pause.rule, pause.device)).or_default().push(pause.took);
    }
    let _ = writeln!(
        out,
        "\n{:<28}{:<12}{:>9}{:>11}{:>10}{:>10}{:>10}{:>10}",
        "cause", "device", "pauses", "total s", "mean ms", "p50 ms", "p99 ms", "max ms"
    );
    for ((rule, device), lengths) in &groups {
        let mut histogram = Histogram::<u64>::new(2).expect("two digits are possible");
        let mut total = 0_u64;
        for took in lengths {
            total = total.saturating_add(took.0);
            histogram.record(took.0).expect("a histogram that resizes takes all values");
        }
        let longest = lengths.iter().max().copied().unwrap_or(Nanos::ZERO);
        let percentile = |p| ms(Nanos(histogram.value_at_percentile(p)).min(longest));
        let _ = writeln!(
            out,
            "{rule:<28}{:<12}{:>9}{:>11.3}{:>10.2}{:>10.2}{:>10.2}{:>10.2}",
            trace.device(*device),
            lengths.len(),
            total as f64 / 1e9,
            total as f64 / lengths.len() as f64 / 1e6,
            percentile(50.0),
            percentile(99.0),
            ms(longest)
        );
    }
    out.push('\n');
    let mut counts = [0_u64; BOUNDS_MS.len()];
    for pause in &trace.pauses {
        let class = BOUNDS_MS.iter().position(|bound| pause.took.0 <= bound.saturating_mul(1_000_000));
        counts[class.unwrap_or(BOUNDS_MS.len() - 1)] += 1;
    }
    let most = counts.iter().max().copied().unwrap_or(1).max(1);
    for (bound, count) in BOUNDS_MS.iter().zip(counts) {
        let label = if *bound == u64::MAX { "longer".to_owned() } else { format!("<= {bound} ms") };
        let bar = "#".repeat((count * BAR).div_ceil(most) as usize);
        let _ = writeln!(out, "{label:>10}{count:>9} {bar}");
    }
    out
}

/// Lists every pause on a line: start, duration, device, rule, and the state of the controller that
/// decided it.
pub fn list(trace: &Trace) -> String {
    let mut out = String::new();
    for Pause { at, took, rule, device, state } in &trace.pauses {
        let _ = write!(
            out,
            "{:>12.6} s {:>10.3} ms  {}  {rule}:",
            at.as_secs_f64(),
            ms(*took),
            trace.device(*device)
        );
        for (name, value) in state {
            let _ = write!(out, " {name}={value}");
        }
        out.push('\n');
    }
    out
}

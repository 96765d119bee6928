//! fio's human-readable report.

use super::{PERCENTILES, classes};
use crate::run::{Chosen, Direction, JobResult, JobsOutcome, Latency, Measured, QueueBounds, Samples};
use crate::workload::fio::Job;
use extant_rt::Nanos;
use std::fmt::Write;

/// Formats the outcome as `fio` prints it, without the parts that are not measured here.
pub fn fio_text(outcome: &JobsOutcome) -> String {
    let mut out = String::new();
    for result in &outcome.results {
        // Writing to a string cannot fail.
        let _ = job(&mut out, result);
    }
    let groups = outcome.results.iter().map(|result| result.group).max().map_or(0, |last| last + 1);
    for group in 0..groups {
        let of_group: Vec<&JobResult> =
            outcome.results.iter().filter(|result| result.group == group).collect();
        let _ = status(&mut out, group, &of_group);
    }
    let mut without: Vec<&str> =
        outcome.results.iter().flat_map(|result| &result.job.without_effect).map(String::as_str).collect();
    without.sort_unstable();
    without.dedup();
    if !without.is_empty() {
        let _ = writeln!(out, "Options without effect here: {}", without.join(", "));
    }
    for bounds in &outcome.queues {
        let _ = queue(&mut out, bounds);
    }
    out
}

/// Prints the bounds of a queue, since the result depends on them.
fn queue(out: &mut String, bounds: &QueueBounds) -> std::fmt::Result {
    let QueueBounds { disk, elevator, requests, chosen, tags } = bounds;
    let kinds = if extant_history::uses_tags(elevator.name()) { "in all" } else { "of each kind" };
    let chosen = match chosen {
        Chosen::Default => "the default",
        Chosen::Machine => "set for the machine",
        Chosen::Tags => "the disk's tags, fewer than the machine sets",
        Chosen::Policy => "as asked for",
    };
    writeln!(
        out,
        "Queue of {disk}: elevator {elevator}, {requests} requests {kinds} ({chosen}), {tags} commands in the disk"
    )
}

fn job(out: &mut String, result: &JobResult) -> std::fmt::Result {
    let JobResult { job, group, processes, measured } = result;
    let error = measured.error.as_ref();
    write!(out, "{}: (groupid={group}, jobs={processes}): err= ", job.name)?;
    match error {
        None => writeln!(out, "0: rw={}, {}", job.pattern.name(), engine(job))?,
        Some(error) => writeln!(out, "1: {error}")?,
    }
    direction(out, "read", &measured.read, measured.runtime)?;
    direction(out, "write", &measured.write, measured.runtime)?;
    lat_classes(out, measured)?;
    if let Some(used) = measured.used {
        writeln!(
            out,
            "  cpu          : usr=0.00%, sys={:.2}%, ctx={}, majf=0, minf=0",
            measured.cpu_percent(),
            used.turns
        )?;
    }
    if measured.sync.count > 0 {
        writeln!(out, "  fsync/fdatasync/sync_file_range:")?;
        latency(out, "  sync", &measured.sync)?;
        percentiles(out, "sync", &measured.sync)?;
    }
    let total = (measured.read.ios + measured.write.ios).max(1) as f64;
    let depth = |n: usize| measured.depths[n] as f64 * 100.0 / total;
    writeln!(
        out,
        "  IO depths    : 1={:.1}%, 2={:.1}%, 4={:.1}%, 8={:.1}%, 16={:.1}%, 32={:.1}%, >=64={:.1}%",
        depth(0),
        depth(1),
        depth(2),
        depth(3),
        depth(4),
        depth(5),
        depth(6)
    )?;
    writeln!(
        out,
        "     issued rwts: total={},{},0,{} short=0,0,0,0 dropped=0,0,0,0\n",
        measured.read.ios, measured.write.ios, measured.sync.count
    )
}

fn engine(job: &Job) -> String {
    format!("bs={}, ioengine={}, iodepth={}", job.block_bytes, job.engine.name(), job.effective_depth())
}

fn direction(out: &mut String, name: &str, direction: &Direction, over: Nanos) -> std::fmt::Result {
    if direction.ios == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  {name}: IOPS={}, BW={} ({})({}/{}msec)",
        rate(direction.iops(over)),
        binary_rate(direction.bytes_s(over)),
        decimal_rate(direction.bytes_s(over)),
        binary(direction.bytes as f64),
        over.0 / 1_000_000
    )?;
    if direction.submission.count > 0 {
        latency(out, "  slat", &direction.submission)?;
    }
    latency(out, "  clat", &direction.completion)?;
    latency(out, "   lat", &direction.total)?;
    percentiles(out, "clat", &direction.completion)?;
    samples(out, "bw (  KiB/s)", &direction.rate, 1024.0)?;
    samples(out, "iops       ", &direction.io_rate, 1.0)
}

fn samples(out: &mut String, name: &str, samples: &Samples, unit: f64) -> std::fmt::Result {
    if samples.count == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "   {name}: min={:.0}, max={:.0}, avg={:.2}, stdev={:.2}, samples={}",
        samples.min / unit,
        samples.max / unit,
        samples.mean / unit,
        samples.deviation() / unit,
        samples.count
    )
}

/// The unit in which fio prints a range of latencies: its name and length in nanoseconds.
fn unit(latency: &Latency) -> (&'static str, u64) {
    let spread = latency.deviation_ns() > 1_000.0;
    match (latency.min_ns, latency.max_ns) {
        (2_000_001.., 100_000_000..) if spread => ("msec", 1_000_000),
        (2_001.., 100_000..) if spread => ("usec", 1_000),
        _ => ("nsec", 1),
    }
}

fn latency(out: &mut String, name: &str, latency: &Latency) -> std::fmt::Result {
    let (unit, ns) = unit(latency);
    writeln!(
        out,
        "  {name} ({unit}): min={}, max={}, avg={:.2}, stdev={:.2}",
        count((latency.min_ns / ns) as f64),
        count((latency.max_ns / ns) as f64),
        latency.mean_ns / ns as f64,
        latency.deviation_ns() / ns as f64
    )
}

fn percentiles(out: &mut String, name: &str, latency: &Latency) -> std::fmt::Result {
    let (unit, ns) = match latency.max_ns {
        1_000_000_000.. => ("msec", 1_000_000),
        1_000_000.. => ("usec", 1_000),
        _ => ("nsec", 1),
    };
    let width = (latency.max_ns / ns).to_string().len();
    writeln!(out, "    {name} percentiles ({unit}):")?;
    for row in PERCENTILES.chunks(3) {
        let cells: Vec<String> =
            row.iter().map(|p| format!("{p:5.2}th=[{:>width$}]", latency.percentile_ns(*p) / ns)).collect();
        let end = if row.last() == PERCENTILES.last() { "" } else { "," };
        writeln!(out, "     | {}{end}", cells.join(", "))?;
    }
    Ok(())
}

fn lat_classes(out: &mut String, measured: &Measured) -> std::fmt::Result {
    let both = [&measured.read.completion, &measured.write.completion];
    let total = both.iter().map(|latency| latency.count).sum::<u64>().max(1) as f64;
    let share = |above, bound| {
        both.iter().map(|latency| latency.between(above, bound)).sum::<u64>() as f64 * 100.0 / total
    };
    for (name, unit_ns) in [("nsec", 1), ("usec", 1_000), ("msec", 1_000_000)] {
        let mut cells: Vec<String> = classes(unit_ns)
            .map(|(above, bound, label)| (label, share(above, bound)))
            .filter(|(_, share)| *share > 0.0)
            .map(|(label, share)| format!("{label}={share:.2}%"))
            .collect();
        if unit_ns == 1_000_000 {
            let (two, more) = (share(1_000_000_000, 2_000_000_000), share(2_000_000_000, u64::MAX - 1));
            cells.extend((two > 0.0).then(|| format!("2000={two:.2}%")));
            cells.extend((more > 0.0).then(|| format!(">=2000={more:.2}%")));
        }
        for line in cells.chunks(5) {
            writeln!(out, "  lat ({name})   : {}", line.join(", "))?;
        }
    }
    Ok(())
}

fn status<'a>(out: &mut String, group: usize, reports: &[&'a JobResult]) -> std::fmt::Result {
    writeln!(out, "Run status group {group} (all jobs):")?;
    for name in ["READ", "WRITE"] {
        let side = |measured: &'a Measured| if name == "READ" { &measured.read } else { &measured.write };
        let active: Vec<(&Direction, Nanos)> = reports
            .iter()
            .map(|result| (side(&result.measured), result.measured.runtime))
            .filter(|(direction, _)| direction.ios > 0)
            .collect();
        let Some(longest) = active.iter().map(|(_, over)| *over).max() else { continue };
        let shortest = active.iter().map(|(_, over)| *over).min().unwrap_or(longest);
        let bytes: u64 = active.iter().map(|(direction, _)| direction.bytes).sum();
        let rates = active.iter().map(|(direction, over)| direction.bytes_s(*over));
        let (least, most) = (rates.clone().fold(f64::INFINITY, f64::min), rates.fold(0.0, f64::max));
        let all = bytes as f64 / longest.as_secs_f64().max(1e-9);
        writeln!(
            out,
            "  {name:>5}: bw={} ({}), {}-{} ({}-{}), io={} ({}), run={}-{}msec",
            binary_rate(all),
            decimal_rate(all),
            binary_rate(least),
            binary_rate(most),
            decimal_rate(least),
            decimal_rate(most),
            binary(bytes as f64),
            decimal(bytes as f64),
            shortest.0 / 1_000_000,
            longest.0 / 1_000_000
        )?;
    }
    writeln!(out)
}

/// Formats a number like fio (`num2str` in its lib/num2str.c): scaled until at most `digits` digits
/// precede the point, with decimals to fill the width.
fn scaled(value: f64, digits: usize, base: f64, units: &[&str]) -> String {
    let too_long = 10_f64.powi(digits as i32);
    let (mut value, mut unit) = (value, 0);
    while value >= too_long && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let whole = format!("{value:.0}").len();
    let decimals = if unit == 0 { 0 } else { (digits - 1).saturating_sub(whole) };
    format!("{value:.decimals$}{}", units[unit])
}

/// Formats a minimum or maximum latency, given in its unit.
fn count(value: f64) -> String {
    scaled(value, 6, 1000.0, &["", "k", "M", "G"])
}

fn rate(iops: f64) -> String {
    scaled(iops, 4, 1000.0, &["", "k", "M", "G"])
}

fn binary(bytes: f64) -> String {
    scaled(bytes, 4, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

fn decimal(bytes: f64) -> String {
    scaled(bytes, 4, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

fn binary_rate(bytes_s: f64) -> String {
    binary(bytes_s) + "/s"
}

fn decimal_rate(bytes_s: f64) -> String {
    decimal(bytes_s) + "/s"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the output of fio 3.33.
    #[test]
    fn numbers_are_as_wide_as_fio_s() {
        for (ours, fio) in [
            (binary_rate(20_477.0), "20.0KiB/s"),
            (decimal_rate(20_477.0), "20.5kB/s"),
            (binary(102_400.0), "100KiB"),
            (decimal(102_400.0), "102kB"),
            (binary(8_192.0), "8192B"),
            (binary(16_777_216.0), "16.0MiB"),
            (decimal_rate(99_300_000.0), "99.3MB/s"),
            (rate(4.99), "5"),
            (rate(206_417.0), "206k"),
            (rate(24_233.0), "24.2k"),
            (count(9_999.0), "9999"),
            (count(43_848_000.0), "43848k"),
        ] {
            assert_eq!(ours, fio);
        }
    }
}

//! fio's JSON (`--output-format=json`, version 3.33), so that tools which read that read this.

use super::{PERCENTILES, classes};
use crate::run::{Direction, Latency, Outcome, Report};
use extant_rt::Nanos;
use serde_json::{Map, Value, json};

/// The outcome as fio would print it. What is not measured here (context switches, faults, bandwidth samples) is zero,
/// as in a run of fio that was too short for it.
pub fn json(outcome: &Outcome) -> Value {
    let jobs: Vec<Value> = outcome.reports.iter().map(job).collect();
    json!({
        "fio version": "fio-3.33",
        "extant version": env!("CARGO_PKG_VERSION"),
        "timestamp": outcome.wall_clock,
        "timestamp_ms": outcome.wall_clock * 1000,
        "jobs": jobs,
        "disk_util": [],
    })
}

fn job(report: &Report) -> Value {
    let Report { job, group, measured, .. } = report;
    let options: Map<String, Value> =
        job.given.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))).collect();
    let runtime = measured.runtime;
    let ios = (measured.read.ios + measured.write.ios).max(1) as f64;
    let share = |count: u64| json!(rounded(count as f64 * 100.0 / ios));
    let latency = |unit_ns: u64| -> Map<String, Value> {
        let both = [&measured.read.completion, &measured.write.completion];
        let count = |above, bound| both.iter().map(|latency| latency.between(above, bound)).sum::<u64>();
        let first = |above: u64, bound: u64| if above == bound / 2 { 0 } else { above };
        classes(unit_ns)
            .map(|(above, bound, label)| {
                let above = if unit_ns == 1 { first(above, bound) } else { above };
                (label.to_string(), share(count(above, bound)))
            })
            .collect()
    };
    let mut milliseconds = latency(1_000_000);
    let beyond = |above, bound| {
        share(
            measured.read.completion.between(above, bound) + measured.write.completion.between(above, bound),
        )
    };
    milliseconds.insert("2000".into(), beyond(1_000_000_000, 2_000_000_000));
    milliseconds.insert(">=2000".into(), beyond(2_000_000_000, u64::MAX - 1));
    let depths: Map<String, Value> = ["1", "2", "4", "8", "16", "32", ">=64"]
        .into_iter()
        .zip(measured.depths)
        .map(|(depth, count)| (depth.to_owned(), share(count)))
        .collect();
    json!({
        "jobname": job.name,
        "groupid": group,
        "error": measured.error.as_ref().map_or(0, errno),
        "eta": 0,
        "elapsed": runtime.0.div_ceil(1_000_000_000),
        "job options": options,
        "read": direction(&measured.read, runtime),
        "write": direction(&measured.write, runtime),
        "trim": direction(&Direction::default(), Nanos::ZERO),
        "sync": {
            "total_ios": measured.sync.count,
            "lat_ns": with_percentiles(&measured.sync),
        },
        "job_runtime": runtime.0 / 1_000_000 * u64::from(report.processes),
        "usr_cpu": 0.0,
        "sys_cpu": 0.0,
        "ctx": 0,
        "majf": 0,
        "minf": 0,
        "iodepth_level": depths,
        "iodepth_submit": one_by_one(),
        "iodepth_complete": one_by_one(),
        "latency_ns": latency(1),
        "latency_us": latency(1_000),
        "latency_ms": milliseconds,
        "latency_depth": job.effective_depth(),
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
    })
}

/// How many were submitted, or picked up, at once: all of them one by one, which fio counts as "up to 4".
fn one_by_one() -> Value {
    json!({"0": 0.0, "4": 100.0, "8": 0.0, "16": 0.0, "32": 0.0, "64": 0.0, ">=64": 0.0})
}

/// The error number that fio would have seen.
fn errno(error: &extant_block::IoError) -> i32 {
    match error.kind {
        extant_block::IoErrorKind::Os(number) => number,
        _ => 5,
    }
}

fn direction(direction: &Direction, over: Nanos) -> Value {
    let bytes_s = direction.bytes_s(over);
    json!({
        "io_bytes": direction.bytes,
        "io_kbytes": direction.bytes / 1024,
        "bw_bytes": bytes_s as u64,
        "bw": (bytes_s / 1024.0) as u64,
        "iops": rounded(direction.iops(over)),
        "runtime": if direction.ios == 0 { 0 } else { over.0 / 1_000_000 },
        "total_ios": direction.ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": plain(&direction.submission),
        "clat_ns": with_percentiles(&direction.completion),
        "lat_ns": plain(&direction.total),
        "bw_min": 0,
        "bw_max": 0,
        "bw_agg": 0.0,
        "bw_mean": 0.0,
        "bw_dev": 0.0,
        "bw_samples": 0,
        "iops_min": 0,
        "iops_max": 0,
        "iops_mean": 0.0,
        "iops_stddev": 0.0,
        "iops_samples": 0,
    })
}

fn plain(latency: &Latency) -> Value {
    json!({
        "min": latency.min_ns,
        "max": latency.max_ns,
        "mean": rounded(latency.mean_ns),
        "stddev": rounded(latency.deviation_ns()),
        "N": latency.count,
    })
}

fn with_percentiles(latency: &Latency) -> Value {
    let mut value = plain(latency);
    if latency.count > 0 {
        let percentiles: Map<String, Value> =
            PERCENTILES.iter().map(|p| (format!("{p:.6}"), json!(latency.percentile_ns(*p)))).collect();
        value["percentile"] = Value::Object(percentiles);
    }
    value
}

/// Six decimals, as fio prints.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

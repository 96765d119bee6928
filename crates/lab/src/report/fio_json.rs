//! fio's JSON (`--output-format=json`, version 3.33), readable by tools for fio.

use super::{PERCENTILES, classes};
use crate::run::{Direction, JobResult, JobsOutcome, Latency, QueueBounds};
use extant_block::{IoError, IoErrorKind};
use extant_rt::Nanos;
use serde_json::{Map, Value, json};

/// Formats the outcome as fio's JSON.
///
/// Fields that are not measured here are zero: page faults; user time, which a model does not have;
/// and on real files processor time and context switches, because processes are tasks that share
/// threads.
pub fn fio_json(outcome: &JobsOutcome) -> Value {
    let jobs: Vec<Value> = outcome.results.iter().map(job).collect();
    let queue = |bounds: &QueueBounds| {
        json!({
            "disk": bounds.disk,
            "elevator": bounds.elevator.name(),
            "nr_requests": bounds.requests,
            "queue_depth": bounds.tags,
        })
    };
    let queues: Vec<Value> = outcome.queues.iter().map(queue).collect();
    json!({
        "fio version": "fio-3.33",
        "extant version": env!("CARGO_PKG_VERSION"),
        "timestamp": outcome.wall_clock,
        "timestamp_ms": outcome.wall_clock * 1000,
        "jobs": jobs,
        "extant queues": queues,
        "disk_util": [],
    })
}

fn job(result: &JobResult) -> Value {
    let JobResult { job, group, measured, .. } = result;
    let options: Map<String, Value> =
        job.given.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))).collect();
    let runtime = measured.runtime;
    let all_bytes_s = |direction: &Direction| direction.bytes_s(runtime);
    let ios = (measured.read.ios + measured.write.ios).max(1) as f64;
    let share = |count: u64| json!(rounded(count as f64 * 100.0 / ios));
    let latency = |unit_ns: u64| -> Map<String, Value> {
        let both = [&measured.read.completion, &measured.write.completion];
        let count = |above, bound| both.iter().map(|latency| latency.between(above, bound)).sum::<u64>();
        classes(unit_ns)
            .map(|(above, bound, label)| (label.to_string(), share(count(above, bound))))
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
        "read": direction(&measured.read, runtime, all_bytes_s(&measured.read)),
        "write": direction(&measured.write, runtime, all_bytes_s(&measured.write)),
        "trim": direction(&Direction::default(), Nanos::ZERO, 0.0),
        "sync": {
            "total_ios": measured.sync.count,
            "lat_ns": with_percentiles(&measured.sync),
        },
        "job_runtime": runtime.0 / 1_000_000 * u64::from(result.processes),
        "usr_cpu": 0.0,
        "sys_cpu": rounded(measured.cpu_percent()),
        "ctx": measured.used.map_or(0, |used| used.turns),
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

/// Distribution of requests submitted or completed at once: all one at a time, which fio counts as
/// "up to 4".
fn one_by_one() -> Value {
    json!({"0": 0.0, "4": 100.0, "8": 0.0, "16": 0.0, "32": 0.0, "64": 0.0, ">=64": 0.0})
}

/// The errno that fio would have reported.
fn errno(error: &extant_cache::CacheError) -> i32 {
    match error {
        extant_cache::CacheError::Io(IoError { kind: IoErrorKind::Os(number), .. }) => *number,
        _ => 5,
    }
}

fn direction(direction: &Direction, over: Nanos, all_bytes_s: f64) -> Value {
    let (rate, io_rate) = (&direction.rate, &direction.io_rate);
    let share = if all_bytes_s > 0.0 { rate.mean * 100.0 / all_bytes_s } else { 0.0 };
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
        "bw_min": (rate.min / 1024.0) as u64,
        "bw_max": (rate.max / 1024.0) as u64,
        "bw_agg": rounded(share.min(100.0)),
        "bw_mean": rounded(rate.mean / 1024.0),
        "bw_dev": rounded(rate.deviation() / 1024.0),
        "bw_samples": rate.count,
        "iops_min": io_rate.min as u64,
        "iops_max": io_rate.max as u64,
        "iops_mean": rounded(io_rate.mean),
        "iops_stddev": rounded(io_rate.deviation()),
        "iops_samples": io_rate.count,
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

/// Rounds to six decimals, like fio.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

//! A job on a range of a file with the io_uring engine, run by fio or by `extant lab run`.

use super::Result;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// The result of one run, of fio or ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) iops: f64,
    pub(super) latency_us: f64,
    /// In user and in kernel mode.
    pub(super) cpu_us_per_io: [f64; 2],
}

/// A single-threaded workload with `O_DIRECT`.
pub(super) struct Job<'a> {
    pub(super) path: &'a Path,
    /// fio's `rw`: `randread`, `write` or `randwrite`.
    pub(super) rw: &'a str,
    /// Length of a request in bytes.
    pub(super) bytes: u64,
    pub(super) depth: usize,
    /// Byte range of the file.
    pub(super) range: Range<u64>,
    pub(super) seconds: u64,
}

pub(super) fn run(job: &Job<'_>) -> Result<Outcome> {
    run_by(Command::new("fio"), job)
}

/// Runs the job by a program that takes fio's options and prints its JSON.
pub(super) fn run_by(mut program: Command, job: &Job<'_>) -> Result<Outcome> {
    let key = if job.rw == "randread" { "read" } else { "write" };
    let output = program
        .args(["--name=bench", "--ioengine=io_uring", "--direct=1", "--time_based", "--norandommap"])
        .args(["--randrepeat=0", "--output-format=json", "--fallocate=none", "--overwrite=1"])
        .arg(format!("--filename={}", job.path.display()))
        .arg(format!("--rw={}", job.rw))
        .arg(format!("--bs={}", job.bytes))
        .arg(format!("--iodepth={}", job.depth))
        .arg(format!("--offset={}", job.range.start))
        .arg(format!("--size={}", job.range.end - job.range.start))
        .arg(format!("--runtime={}", job.seconds))
        .output()?;
    if !output.status.success() {
        return Err(format!("{program:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let results = &json["jobs"][0];
    let number = |value: &serde_json::Value| value.as_f64().ok_or("the JSON lacks a number");
    let side = &results[key];
    let ios = number(&side["total_ios"])?;
    let runtime_us = number(&results["job_runtime"])? * 1e3;
    Ok(Outcome {
        iops: number(&side["iops"])?,
        latency_us: number(&side["lat_ns"]["mean"])? / 1e3,
        cpu_us_per_io: [
            number(&results["usr_cpu"])? / 100.0 * runtime_us / ios,
            number(&results["sys_cpu"])? / 100.0 * runtime_us / ios,
        ],
    })
}

//! Measured runs. Each is started by a small process of its own, because the peak memory of a child
//! is never less than that of its parent.

use super::Result;
use crate::bench::watched::Watched;
use extant_block::{FileDevice, FileOptions, Sector};
use extant_check::{Options, check};
use extant_rt::Rt;
use futures_util::{StreamExt, stream};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The raw run's reads: their length, and the number in flight.
const RAW_BYTES: u64 = 256 << 10;
const RAW_DEPTH: usize = 32;

/// The measurements of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) seconds: f64,
    /// Processor time in seconds, user and system.
    pub(super) processor: f64,
    pub(super) peak_kib: i64,
    /// Bytes that a raw run has read.
    pub(super) bytes: u64,
}

/// Runs the rest of a command line in another process of this program, and returns what it
/// measured.
pub(super) fn measured(args: &[&str]) -> Result<Run> {
    let output = Command::new(std::env::current_exe()?)
        .args(["bench", "check"])
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace();
    let mut next = || words.next().ok_or_else(|| format!("{} failed", args.join(" ")));
    Ok(Run {
        seconds: next()?.parse()?,
        processor: next()?.parse()?,
        peak_kib: next()?.parse()?,
        bytes: next()?.parse()?,
    })
}

fn print(run: Run) {
    println!("{} {} {} {}", run.seconds, run.processor, run.peak_kib, run.bytes);
}

/// Runs a program that must find nothing wrong.
pub(super) fn one(program: &str, args: &[&str]) -> Result<()> {
    on_two_processors()?;
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.args(args).env("PATH", path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = now();
    let status = command.status().map_err(|error| format!("{program}: {error}"))?;
    let seconds = now() - start;
    if !status.success() {
        return Err(format!("{program} {} ended with {status}", args.join(" ")).into());
    }
    let used = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = used.user_time().num_microseconds() + used.system_time().num_microseconds();
    print(Run { seconds, processor: micros as f64 / 1e6, peak_kib: used.max_rss(), bytes: 0 });
    Ok(())
}

/// Records which bytes of an image a check reads.
pub(super) fn places(image: &str, output: &str) -> Result<()> {
    let rt = Rt::real(Default::default());
    let file = FileDevice::open(Path::new(image), FileOptions::default())?.driven_by(&rt);
    let device = Watched::new(Arc::new(file));
    let checked = rt.block_on(check(&rt, device.clone(), Options::default()))??;
    if !checked.is_clean() {
        return Err(format!("{image}: {} findings", checked.findings.len()).into());
    }
    let reads = united(device.take().reads);
    let bytes = reads.iter().map(|range| range.end - range.start).sum();
    let lines: String = reads.iter().map(|range| format!("{} {}\n", range.start, range.end)).collect();
    fs::write(output, lines)?;
    print(Run { seconds: 0.0, processor: 0.0, peak_kib: 0, bytes });
    Ok(())
}

fn united(mut reads: Vec<Range<u64>>) -> Vec<Range<u64>> {
    reads.sort_unstable_by_key(|range| (range.start, range.end));
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in reads {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// Reads the recorded places as pieces: the start and length of each.
fn pieces(places: &str) -> Result<Vec<(u64, u64)>> {
    let mut pieces = Vec::new();
    for line in fs::read_to_string(places)?.lines() {
        let (start, end) = line.split_once(' ').ok_or("a line without two numbers")?;
        let (mut start, end) = (start.parse::<u64>()?, end.parse::<u64>()?);
        while start < end {
            let bytes = RAW_BYTES.min(end - start);
            pieces.push((start, bytes));
            start += bytes;
        }
    }
    Ok(pieces)
}

/// Loads those bytes into the host's page cache.
pub(super) fn warm(places: &str, image: &str) -> Result<()> {
    let file = fs::File::open(image)?;
    let mut buffer = vec![0; RAW_BYTES as usize];
    let mut sum = 0;
    for (start, bytes) in pieces(places)? {
        file.read_exact_at(&mut buffer[..bytes as usize], start)?;
        sum += bytes;
    }
    print(Run { seconds: 0.0, processor: 0.0, peak_kib: 0, bytes: sum });
    Ok(())
}

/// Reads those bytes with direct I/O, and discards them.
pub(super) fn raw(places: &str, image: &str) -> Result<()> {
    on_two_processors()?;
    let pieces = pieces(places)?;
    let rt = Rt::real(Default::default());
    let start = now();
    let options = FileOptions { write: false, direct: true };
    let device = FileDevice::open(Path::new(image), options)?.driven_by(&rt);
    let bytes = rt.block_on(async {
        let reads = stream::iter(&pieces).map(|&(start, bytes)| {
            let bytes = usize::try_from(bytes).expect("at most 256 KiB");
            extant_block::read(&device, Sector::containing(start), bytes)
        });
        let mut reads = reads.buffered(RAW_DEPTH);
        let mut sum = 0;
        while let Some(read) = reads.next().await {
            sum += read?.len() as u64;
        }
        Ok::<_, extant_block::IoError>(sum)
    })??;
    print(Run { seconds: now() - start, processor: 0.0, peak_kib: 0, bytes });
    Ok(())
}

/// Restricts this process and its children to two processors.
fn on_two_processors() -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut two = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|&n| allowed.is_set(n)).take(2).for_each(|n| two.set(n));
    Ok(sched_setaffinity(None, &two)?)
}

/// Seconds of a clock that never goes back.
fn now() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

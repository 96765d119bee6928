//! `extant top`: what a mounted volume is doing.

use crate::failure::Failure;
use crate::json;
use crate::mount_args::TopArgs;
use crate::mount_sync::ours;
use crate::output::{Output, outln};
use crate::session::Session;
use crate::top_sample::{Operation, Sample};
use crate::values::human;
use extant_fs::quote;
use extant_fuse::{METRICS_ATTRIBUTE, Mounted};
use extant_rt::Nanos;
use serde::Serialize;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Room for the counters: the maximum size of an attribute's value (limits.h, `XATTR_SIZE_MAX`).
const TEXT_MAX: usize = 65_536;
/// Goes to the first column of the first line and clears from there.
const CLEAR: &str = "\x1b[H\x1b[J";

/// `extant top`.
pub(crate) fn run(session: &mut Session, args: &TopArgs) -> Result<(), Failure> {
    let mounted = ours(&args.directory)?;
    let first = sample(&mounted.point)?;
    if args.json {
        return json::print(&mut session.out, &Told::of(&mounted, &first));
    }
    if args.once {
        return show(&mut session.out, &mounted, &first, Nanos::ZERO);
    }
    let (interval, clears) = (Nanos::from_secs(args.interval), std::io::stdout().is_terminal());
    let (mut before, mut at) = (first, session.rt.now());
    loop {
        session.rt.block_on(session.rt.sleep(interval))?;
        // The volume was unmounted.
        let Ok(now) = sample(&mounted.point) else { return Ok(()) };
        let taken = session.rt.now();
        if clears {
            session.out.write(CLEAR.as_bytes())?;
        }
        show(&mut session.out, &mounted, &now.since(&before), taken.saturating_sub(at))?;
        session.out.flush()?;
        (before, at) = (now, taken);
    }
}

fn sample(point: &Path) -> Result<Sample, Failure> {
    let mut text = vec![0; TEXT_MAX];
    let read = rustix::fs::getxattr(point, METRICS_ATTRIBUTE, &mut text)
        .map_err(|error| Failure::host(point, std::io::Error::from(error)))?;
    Ok(Sample::parse(&String::from_utf8_lossy(&text[..read])))
}

/// Prints the counts of one interval, or all counts if `over` is zero.
fn show(out: &mut Output, mounted: &Mounted, sample: &Sample, over: Nanos) -> Result<(), Failure> {
    let path = |path: &Path| quote(path.as_os_str().as_bytes());
    let gauge = |name: &str| sample.gauges.get(name).copied().unwrap_or(0);
    outln!(out, "{}: {}", path(&mounted.point), path(&mounted.source))?;
    outln!(
        out,
        "cache {} of {}, dirty {}, being written {}, limit of both {}; {} known inodes, {} open",
        human(gauge("cache_used_bytes")),
        human(gauge("cache_budget_bytes")),
        human(gauge("dirty_bytes")),
        human(gauge("writeback_bytes")),
        human(gauge("dirty_limit_bytes")),
        gauge("known_inodes"),
        gauge("open_handles")
    )?;
    let per = |count: u64| match over.0 {
        0 => count.to_string(),
        nanos => {
            ((u128::from(count) * 1_000_000_000 + u128::from(nanos) / 2) / u128::from(nanos)).to_string()
        }
    };
    let each = if over == Nanos::ZERO { "" } else { "/s" };
    let (requests, errors) = sample.totals();
    let commits = gauge("journal_commits_total");
    outln!(
        out,
        "requests{each} {}, errors{each} {}, commits{each} {}",
        per(requests),
        per(errors),
        per(commits)
    )?;
    outln!(out, "")?;
    let head = ["operation", "requests", "errors", "mean us", "median us", "99 % us"];
    outln!(
        out,
        "{:<20}{:>12}{:>10}{:>12}{:>12}{:>12}",
        head[0],
        format!("{}{each}", head[1]),
        format!("{}{each}", head[2]),
        head[3],
        head[4],
        head[5]
    )?;
    for (name, operation) in sample.by_count() {
        let (median, tail) = (operation.quantile(50), operation.quantile(99));
        outln!(
            out,
            "{name:<20}{:>12}{:>10}{:>12.1}{:>12}{:>12}",
            per(operation.count),
            per(operation.errors),
            operation.mean() * 1e6,
            micros(median),
            micros(tail)
        )?;
    }
    Ok(())
}

/// The upper bound of a bucket, in microseconds.
fn micros(seconds: Option<f64>) -> String {
    seconds.map_or("> 16777216".into(), |seconds| format!("<= {:.0}", seconds * 1e6))
}

/// All counts since the volume was mounted.
#[derive(Serialize)]
struct Told<'a> {
    directory: json::Bytes<'a>,
    image: json::Bytes<'a>,
    cache_budget_bytes: u64,
    cache_used_bytes: u64,
    dirty_bytes: u64,
    writeback_bytes: u64,
    dirty_limit_bytes: u64,
    known_inodes: u64,
    known_inodes_bytes: u64,
    open_handles: u64,
    journal_commits: u64,
    operations: Vec<ToldOperation<'a>>,
}

#[derive(Serialize)]
struct ToldOperation<'a> {
    operation: &'a str,
    requests: u64,
    errors: u64,
    mean_seconds: f64,
    /// Half of the requests took at most this long; null if that is beyond the last bucket.
    median_at_most_seconds: Option<f64>,
    p99_at_most_seconds: Option<f64>,
}

impl<'a> Told<'a> {
    fn of(mounted: &'a Mounted, sample: &'a Sample) -> Self {
        let gauge = |name: &str| sample.gauges.get(name).copied().unwrap_or(0);
        let operation = |(name, operation): (&'a str, &Operation)| ToldOperation {
            operation: name,
            requests: operation.count,
            errors: operation.errors,
            mean_seconds: operation.mean(),
            median_at_most_seconds: operation.quantile(50),
            p99_at_most_seconds: operation.quantile(99),
        };
        Self {
            directory: json::Bytes(mounted.point.as_os_str().as_bytes()),
            image: json::Bytes(mounted.source.as_os_str().as_bytes()),
            cache_budget_bytes: gauge("cache_budget_bytes"),
            cache_used_bytes: gauge("cache_used_bytes"),
            dirty_bytes: gauge("dirty_bytes"),
            writeback_bytes: gauge("writeback_bytes"),
            dirty_limit_bytes: gauge("dirty_limit_bytes"),
            known_inodes: gauge("known_inodes"),
            known_inodes_bytes: gauge("known_inodes_bytes"),
            open_handles: gauge("open_handles"),
            journal_commits: gauge("journal_commits_total"),
            operations: sample.by_count().map(operation).collect(),
        }
    }
}

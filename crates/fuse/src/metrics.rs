//! Counters of a server, in the text format that Prometheus reads.

use crate::errno::Failure;
use crate::wire::opcode;
use extant_format::UintExt;
use extant_rt::Nanos;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Extended attribute of a mounted root directory that contains these counters. Does not appear in
/// listings of attributes.
pub const METRICS_ATTRIBUTE: &str = "system.extant.metrics";

/// The operations that the server answers, with their names in the text.
const NAMES: [(u32, &str); 41] = [
    (opcode::LOOKUP, "lookup"),
    (opcode::GETATTR, "getattr"),
    (opcode::SETATTR, "setattr"),
    (opcode::READLINK, "readlink"),
    (opcode::SYMLINK, "symlink"),
    (opcode::MKNOD, "mknod"),
    (opcode::MKDIR, "mkdir"),
    (opcode::UNLINK, "unlink"),
    (opcode::RMDIR, "rmdir"),
    (opcode::RENAME, "rename"),
    (opcode::LINK, "link"),
    (opcode::OPEN, "open"),
    (opcode::READ, "read"),
    (opcode::WRITE, "write"),
    (opcode::STATFS, "statfs"),
    (opcode::RELEASE, "release"),
    (opcode::FSYNC, "fsync"),
    (opcode::SETXATTR, "setxattr"),
    (opcode::GETXATTR, "getxattr"),
    (opcode::LISTXATTR, "listxattr"),
    (opcode::REMOVEXATTR, "removexattr"),
    (opcode::FLUSH, "flush"),
    (opcode::INIT, "init"),
    (opcode::OPENDIR, "opendir"),
    (opcode::READDIR, "readdir"),
    (opcode::RELEASEDIR, "releasedir"),
    (opcode::FSYNCDIR, "fsyncdir"),
    (opcode::ACCESS, "access"),
    (opcode::CREATE, "create"),
    (opcode::DESTROY, "destroy"),
    (opcode::IOCTL, "ioctl"),
    (opcode::FALLOCATE, "fallocate"),
    (opcode::READDIRPLUS, "readdirplus"),
    (opcode::RENAME2, "rename2"),
    (opcode::LSEEK, "lseek"),
    (opcode::COPY_FILE_RANGE, "copy_file_range"),
    (opcode::SYNCFS, "syncfs"),
    (opcode::TMPFILE, "tmpfile"),
    (opcode::STATX, "statx"),
    (opcode::COPY_FILE_RANGE_64, "copy_file_range_64"),
    (UNKNOWN, "unknown"),
];
/// Stands for all operations that the server does not know.
pub(crate) const UNKNOWN: u32 = 0;
/// One more than the largest operation number.
const OPERATIONS: usize = 54;

/// The name of an operation.
pub(crate) fn name_of(operation: u32) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == operation).map_or("unknown", |(_, name)| name)
}

/// Number of latency buckets with a bound. Bounds are 1 us and four times the one before, up to
/// 17 s. One more bucket has no bound.
const BOUNDS: usize = 13;

fn bound(bucket: usize) -> Nanos {
    Nanos::from_micros(1 << (2 * bucket))
}

fn seconds(time: Nanos) -> String {
    format!("{}.{:09}", time.0 / 1_000_000_000, time.0 % 1_000_000_000)
}

#[derive(Debug, Default)]
struct Latency {
    buckets: [AtomicU64; BOUNDS + 1],
    nanos: AtomicU64,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Metrics {
    operations: [Latency; OPERATIONS],
    /// Errors, by operation and error number.
    errors: Mutex<BTreeMap<(u32, i32), u64>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { operations: std::array::from_fn(|_| Latency::default()), errors: Mutex::default() }
    }
}

impl Metrics {
    /// Counts an answered request.
    pub(crate) fn count(&self, operation: u32, failure: Option<&Failure>, took: Nanos) {
        let at = operation.to_usize();
        let latency = self.operations.get(at).unwrap_or(&self.operations[UNKNOWN.to_usize()]);
        let bucket = (0..BOUNDS).find(|bucket| took <= bound(*bucket)).unwrap_or(BOUNDS);
        latency.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        latency.nanos.fetch_add(took.0, Ordering::Relaxed);
        if let Some(failure) = failure {
            *self.errors.lock().entry((operation, failure.errno())).or_default() += 1;
        }
    }

    pub(crate) fn write_requests(&self, text: &mut String) -> std::fmt::Result {
        let name = "extant_request_seconds";
        writeln!(text, "# HELP {name} Time from reading a request to its reply, by operation.")?;
        writeln!(text, "# TYPE {name} histogram")?;
        for (operation, op) in NAMES {
            let Latency { buckets, nanos } = &self.operations[operation.to_usize()];
            let buckets = buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
            let all: u64 = buckets.iter().sum();
            if all == 0 {
                continue;
            }
            let mut below = 0;
            for (bucket, count) in buckets[..BOUNDS].iter().enumerate() {
                below += count;
                let le = seconds(bound(bucket));
                let le = le.trim_end_matches('0').trim_end_matches('.');
                writeln!(text, "{name}_bucket{{op=\"{op}\",le=\"{le}\"}} {below}")?;
            }
            let sum = seconds(Nanos(nanos.load(Ordering::Relaxed)));
            writeln!(text, "{name}_bucket{{op=\"{op}\",le=\"+Inf\"}} {all}")?;
            writeln!(text, "{name}_sum{{op=\"{op}\"}} {sum}\n{name}_count{{op=\"{op}\"}} {all}")?;
        }
        let name = "extant_request_errors_total";
        writeln!(text, "# HELP {name} Requests answered with an error, by operation and error number.")?;
        writeln!(text, "# TYPE {name} counter")?;
        for ((operation, errno), count) in &*self.errors.lock() {
            writeln!(text, "{name}{{op=\"{}\",errno=\"{errno}\"}} {count}", name_of(*operation))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;

    #[test]
    fn requests_are_counted_by_operation_and_time() {
        let metrics = Metrics::default();
        metrics.count(opcode::LOOKUP, None, Nanos::from_micros(3));
        metrics.count(opcode::LOOKUP, Some(&Errno::STALE.into()), Nanos::from_millis(20));
        metrics.count(4711, Some(&Errno::NOSYS.into()), Nanos::from_secs(60));
        let mut text = String::new();
        metrics.write_requests(&mut text).unwrap();
        for line in [
            "extant_request_seconds_bucket{op=\"lookup\",le=\"0.000001\"} 0",
            "extant_request_seconds_bucket{op=\"lookup\",le=\"0.000004\"} 1",
            "extant_request_seconds_bucket{op=\"lookup\",le=\"0.065536\"} 2",
            "extant_request_seconds_bucket{op=\"lookup\",le=\"+Inf\"} 2",
            "extant_request_seconds_sum{op=\"lookup\"} 0.020003000",
            "extant_request_seconds_bucket{op=\"unknown\",le=\"16.777216\"} 0",
            "extant_request_seconds_count{op=\"unknown\"} 1",
            "extant_request_errors_total{op=\"lookup\",errno=\"116\"} 1",
            "extant_request_errors_total{op=\"unknown\",errno=\"38\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    /// The kernel does not pass on attributes larger than 64 KiB.
    #[test]
    fn all_operations_fit_an_attribute() {
        let metrics = Metrics::default();
        for (operation, _) in NAMES {
            let latency = &metrics.operations[operation.to_usize()];
            latency.buckets.iter().for_each(|bucket| bucket.store(10_000_000_000, Ordering::Relaxed));
            latency.nanos.store(1 << 53, Ordering::Relaxed);
        }
        let mut text = String::new();
        metrics.write_requests(&mut text).unwrap();
        assert!(text.len() < 62_000, "{} bytes", text.len());
    }
}

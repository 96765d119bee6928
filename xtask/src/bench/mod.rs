//! Benchmarks: ours and another program's, alternating in one run, as ratios of medians.

mod bed;
mod block;
mod build;
mod cache;
mod check;
mod data;
mod edits;
mod fio;
mod meta;
mod mount;
mod peers;
mod read;
mod report;
mod rt;
mod sim;
mod watched;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

type Bench = fn(&[&str]) -> Result<()>;

/// All benchmarks by name.
const BENCHES: &[(&str, Bench)] = &[
    ("block", block::run),
    ("build", build::run),
    ("cache", cache::run),
    ("check", check::run),
    ("data", data::run),
    ("edits", edits::run),
    ("meta", meta::run),
    ("mount", mount::run),
    ("peers", peers::run),
    ("read", read::run),
    ("rt", rt::run),
    ("sim", sim::run),
];

/// Runs one benchmark with the rest of the command line.
pub(crate) fn run(what: &str, args: &[&str]) -> Result<()> {
    match BENCHES.iter().find(|(name, _)| *name == what) {
        Some((_, bench)) => bench(args),
        None => {
            let names: Vec<_> = BENCHES.iter().map(|(name, _)| *name).collect();
            Err(format!("no bench is called {what}; there are: {}", names.join(", ")).into())
        }
    }
}

/// The median of some measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time of this process, in nanoseconds.
pub(crate) fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

//! Changes of names and small files, through the library and through the kernel's loop mount,
//! compared in one run.
// A benchmark reads the clock and starts threads itself.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod fsync;
mod modelled;
mod names;
mod recovery;
mod scale;
mod untar;

use super::{Result, bed, report, watched};
use std::path::PathBuf;
use std::time::Duration;

/// Command line settings of a run.
struct Options {
    rounds: usize,
    slice: Duration,
    dir: PathBuf,
    /// Whether our side goes through the host's page cache as well.
    buffered: bool,
    /// Number of files in the largest directory.
    growth: usize,
}

type Part = fn(&Options) -> Result<()>;

/// All parts by name, in the order in which they run.
const PARTS: &[(&str, Part)] = &[
    ("names", names::one_directory),
    ("threads", names::two_threads),
    ("virtual", modelled::two_tasks),
    ("fsync", fsync::run),
    ("untar", untar::run),
    ("recover", recovery::run),
    ("open", scale::open_large),
    ("growth", scale::growth),
];

fn usage() -> String {
    let names: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
    format!(
        "usage: cargo xtask bench meta [--quick] [--rounds N] [--slice-ms N] [--dir DIRECTORY] [--buffered] \
         [--growth FILES] [--only {}]",
        names.join("|")
    )
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let mut options = Options {
        rounds: 5,
        slice: Duration::from_secs(2),
        dir: PathBuf::from("target/bench-meta"),
        buffered: false,
        growth: 1_000_000,
    };
    let mut only = Vec::new();
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(usage);
        match arg {
            "--quick" => {
                (options.rounds, options.slice, options.growth) = (1, Duration::from_millis(500), 100_000);
            }
            "--rounds" => options.rounds = value()?.parse()?,
            "--slice-ms" => options.slice = Duration::from_millis(value()?.parse()?),
            "--buffered" => options.buffered = true,
            "--dir" => options.dir = value()?.into(),
            "--growth" => options.growth = value()?.parse()?,
            "--only" => only.push(value()?.to_string()),
            _ => return Err(usage().into()),
        }
    }
    if only.iter().any(|name| PARTS.iter().all(|(part, _)| part != name)) {
        return Err(usage().into());
    }
    std::fs::create_dir_all(&options.dir)?;
    report::head();
    for (name, part) in PARTS {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            part(&options)?;
        }
    }
    Ok(())
}

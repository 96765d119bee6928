//! Extant, other crates for ext4, and the kernel on a loop device, doing the same ten steps.
//!
//! `cargo xtask bench peers` runs it. The rules of counting are in `docs/measurements.md`.
#![forbid(unsafe_code)]
// A benchmark reads the clock and starts processes itself.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod bed;
mod judge;
mod miss;
mod peer;
mod steps;
mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use table::Results;

/// Any error of a peer or of the bench itself.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: cargo xtask bench peers [--rounds N] [--peers NAME,NAME...] [--dir DIRECTORY] \
                     [--limit SECONDS] [--slow SECONDS] [--only steps|miss]";

/// The settings of a run.
struct Options {
    rounds: usize,
    peers: Vec<&'static peer::Kind>,
    dir: PathBuf,
    /// A step that takes longer is ended.
    limit: Duration,
    /// A peer whose round took longer has no second one.
    slow: Duration,
    steps: bool,
    miss: bool,
}

fn options(args: &[&str]) -> Result<Options> {
    let mut options = Options {
        rounds: 5,
        peers: peer::ALL.iter().collect(),
        dir: PathBuf::from("target/bench-peers"),
        limit: Duration::from_secs(300),
        slow: Duration::from_secs(60),
        steps: true,
        miss: true,
    };
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(USAGE);
        match arg {
            "--rounds" => options.rounds = value()?.parse()?,
            "--dir" => options.dir = value()?.into(),
            "--limit" => options.limit = Duration::from_secs(value()?.parse()?),
            "--slow" => options.slow = Duration::from_secs(value()?.parse()?),
            "--only" => match value()? {
                "steps" => options.miss = false,
                "miss" => options.steps = false,
                _ => return Err(USAGE.into()),
            },
            "--peers" => {
                options.peers = value()?.split(',').map(peer::Kind::named).collect::<Result<_>>()?;
            }
            _ => return Err(USAGE.into()),
        }
    }
    if options.rounds == 0 || options.peers.is_empty() {
        return Err(USAGE.into());
    }
    Ok(options)
}

/// One round of one peer: a fresh volume, and all steps on it.
fn round(kind: &'static peer::Kind, options: &Options, results: &mut Results) -> Result<()> {
    let image = bed::fresh_image(&options.dir, kind)?;
    for step in steps::ALL {
        if !kind.writes && step.writes {
            if !step.is_kill() {
                // Its volume is written by ours, which is not counted.
                steps::run(step, peer::Kind::named(peer::OURS)?, &image, options.limit)?;
            }
            continue;
        }
        let done = if step.is_kill() {
            match kind.outlives_kill {
                true => continue,
                false => judge::killed(kind, &image, &options.dir),
            }
        } else {
            steps::run(step, kind, &image, options.limit).map(|measured| {
                results.add(kind, measured);
                None
            })
        };
        match done {
            Ok(Some(verdict)) => results.verdict(kind, step.name, verdict),
            Ok(None) => results.verdict(kind, step.name, judge::e2fsck(&image)?),
            Err(error) => results.verdict(kind, step.name, format!("failed: {error}")),
        }
    }
    Ok(())
}

fn bench(args: &[&str]) -> Result<()> {
    let options = options(args)?;
    std::fs::create_dir_all(&options.dir)?;
    bed::say_machine("begin");
    if options.steps {
        rounds(&options)?;
    }
    if options.miss {
        miss::run(&options)?;
    }
    bed::say_machine("end");
    Ok(())
}

/// All rounds of all peers, and their tables.
fn rounds(options: &Options) -> Result<()> {
    let mut results = Results::default();
    let mut slow = Vec::new();
    for n in 0..options.rounds {
        for &kind in &options.peers {
            if slow.contains(&kind.name) || (kind.is_kernel && !bed::may_mount()) {
                continue;
            }
            let start = Instant::now();
            round(kind, options, &mut results)?;
            let took = start.elapsed();
            eprintln!("round {} of {}: {}: {:.1} s", n + 1, options.rounds, kind.name, took.as_secs_f64());
            if took > options.slow {
                slow.push(kind.name);
            }
        }
    }
    results.print(&options.peers);
    Ok(())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        // What this program starts itself: one step, in a process of its own.
        ["step", step, peer, image] => steps::child(step, peer, Path::new(image)),
        _ => bench(&args),
    };
    if let Err(error) = done {
        eprintln!("peers: {error}");
        std::process::exit(2);
    }
}

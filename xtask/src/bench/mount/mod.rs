//! Programs on a mounted volume: `extant mount`, a FUSE server that does no work, the kernel's ext4
//! on a loop device, fuse2fs, and the host's file without any of them.
//!
//! The rules of measurement, fixed before any result:
//!
//! - In each round, each side in turn gets a fresh volume (mke2fs' defaults) in an image of its own
//!   and does all steps of a part on it. The order of the sides rotates by one from round to round.
//! - A figure is the median of the rounds, and a ratio the median of the rounds' ratios. Every
//!   round counts; there are no trial rounds.
//! - The bench ends without a table of the part if a step fails, if e2fsck finds an error on our or
//!   the kernel's volume, or if a volume cannot be unmounted.
//! - Time is the step's wall time, including the start of its program. Steps that are loops of
//!   system calls time themselves, so their start does not count.
//! - Processor time is that of the step's programs and of the server. It leaves out kernel threads,
//!   such as those of a loop device, so it is compared with the null server only.
//! - "Cold" is after unmounting, dropping the image from the host's cache, and mounting again. The
//!   null server keeps its files in memory meanwhile.
//! - In a virtual machine, waking a halted processor can take longer than a request. A program and
//!   its server wake each other for each request, so all FUSE figures then measure the hypervisor.
//!   The bench prints how long idle processors poll before they halt. With 200,000 ns they rarely
//!   halt.
//! - fuse2fs is measured in the first rounds only, as `--fuse2fs-rounds` says: it takes as long as
//!   all others.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a bench reads the clock itself

mod data;
mod large;
mod many_files;
mod null;
mod postgres;
mod side;
mod steps;
mod tree;

use super::report::{Target, compared};
use super::{Result, bed, read, report};
use side::{Kind, Side, Took};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Command line settings of a run.
struct Options {
    rounds: usize,
    fuse2fs_rounds: usize,
    sides: Vec<Kind>,
    /// Sizes of the steps, in per cent of the full ones.
    scale: u64,
    dir: PathBuf,
    extant: PathBuf,
}

impl Options {
    /// A size of a step, scaled.
    fn scaled(&self, count: u64) -> u64 {
        (count * self.scale / 100).max(1)
    }
}

/// One line of the table.
struct Row {
    name: &'static str,
    unit: &'static str,
    targets: &'static [(Kind, Target)],
}

/// A side's value in a row, in one round.
#[derive(Clone, Copy, Debug)]
struct Figure {
    value: f64,
    processor: Option<f64>,
}

impl Figure {
    /// The time of a step.
    fn time(took: Took) -> Option<Self> {
        Some(Self { value: took.seconds, processor: Some(took.processor) })
    }

    /// The rate of a step that did `count` of something.
    fn rate((figures, processor): (Vec<f64>, f64), count: f64) -> Option<Self> {
        Some(Self { value: count / figures.first()?, processor: Some(processor) })
    }

    fn value(value: f64) -> Option<Self> {
        Some(Self { value, processor: None })
    }
}

/// The figures of one side in one round, one for each row; `None` where the side has no figure.
type Figures = Vec<Option<Figure>>;

/// Steps that run on one volume.
struct Part {
    name: &'static str,
    sides: &'static [Kind],
    rows: &'static [Row],
    /// Whether users other than root may enter.
    allow_other: bool,
    run: fn(&Options, &mut Side) -> Result<Figures>,
}

/// How long an idle processor of a virtual machine polls for work before it halts.
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
/// Set once the bench runs in a mount namespace of its own.
const OWN_MOUNTS: &str = "EXTANT_BENCH_OWN_MOUNTS";

const PARTS: [&Part; 6] =
    [&many_files::OWNER, &many_files::OTHER, &tree::PART, &data::PART, &data::SYNCS, &postgres::PART];

fn usage() -> String {
    let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
    let sides: Vec<_> = Kind::ALL.iter().map(|side| side.name()).collect();
    format!(
        "usage: cargo xtask bench mount [--rounds N] [--fuse2fs-rounds N] [--scale PERCENT] [--dir DIRECTORY] \
         [--extant PROGRAM] [--sides {}]... [--only {}|large]...",
        sides.join("|"),
        names.join("|")
    )
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    match *args {
        // Commands with which this program starts itself.
        ["null", at, ref rest @ ..] => return null::program(at.as_ref(), !rest.is_empty()),
        ["step", step, path, count] => return steps::program(step, path.as_ref(), count.parse()?),
        _ => {}
    }
    let (mut rounds, mut fuse2fs_rounds, mut scale) = (5, 1, 100);
    let (mut dir, mut extant) = (PathBuf::from("target/bench-mount"), None);
    let (mut only, mut sides) = (Vec::new(), Vec::new());
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(usage);
        match arg {
            "--rounds" => rounds = value()?.parse::<usize>()?.max(1),
            "--fuse2fs-rounds" => fuse2fs_rounds = value()?.parse()?,
            "--scale" => scale = value()?.parse()?,
            "--dir" => dir = value()?.into(),
            "--extant" => extant = Some(PathBuf::from(value()?)),
            "--sides" => {
                let name = value()?;
                sides.push(*Kind::ALL.iter().find(|side| side.name() == name).ok_or_else(usage)?);
            }
            "--only" => only.push(value()?),
            _ => return Err(usage().into()),
        }
    }
    if only.iter().any(|name| *name != "large" && PARTS.iter().all(|part| part.name != *name)) {
        return Err(usage().into());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("this bench mounts images: run it as root".into());
    }
    if sides.is_empty() {
        sides = Kind::ALL.to_vec();
    }
    sides.retain(|side| side.is_there());
    if std::env::var_os(OWN_MOUNTS).is_none() {
        return in_own_namespace();
    }
    std::fs::create_dir_all(&dir)?;
    let extant = match extant {
        Some(extant) => extant,
        None => read::build()?,
    };
    let (dir, extant) = (dir.canonicalize()?, extant.canonicalize()?);
    let options = Options { rounds, fuse2fs_rounds, sides, scale, dir, extant };
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    eprint!("load at the beginning: {}", load());
    if let Ok(polls) = std::fs::read_to_string(HALT_POLL) {
        eprint!("an idle processor polls before it halts, ns: {polls}");
    }
    report::head();
    for part in PARTS {
        if only.is_empty() || only.contains(&part.name) {
            measure(&options, part)?;
        }
    }
    if only.is_empty() || only.contains(&"large") {
        large::run(&options)?;
    }
    eprint!("load at the end: {}", load());
    Ok(())
}

/// Runs the same command in a mount namespace of its own. Otherwise another program's namespace may
/// hold a copy of a mount: unmounting it here does not end it, and its server waits for that
/// program.
fn in_own_namespace() -> Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]).arg(std::env::current_exe()?);
    Err(command.args(std::env::args_os().skip(1)).env(OWN_MOUNTS, "1").exec().into())
}

/// Runs all rounds of a part, and prints its rows.
fn measure(options: &Options, part: &Part) -> Result<()> {
    let sides: Vec<Kind> = part.sides.iter().copied().filter(|side| options.sides.contains(side)).collect();
    let mut rounds: Vec<(Kind, Figures)> = Vec::new();
    for round in 0..options.rounds {
        for at in 0..sides.len() {
            let kind = sides[(round + at) % sides.len()];
            if kind == Kind::Fuse2fs && round >= options.fuse2fs_rounds {
                continue;
            }
            let mut side = Side::fresh(kind, &options.dir, &options.extant, part.allow_other)?;
            let figures = (part.run)(options, &mut side)?;
            side.finish()?;
            eprintln!("{}, round {}, {}: {}", part.name, round + 1, kind.name(), briefly(&figures));
            rounds.push((kind, figures));
        }
    }
    for (at, row) in part.rows.iter().enumerate() {
        let of = |side: Kind| -> Vec<Figure> {
            rounds.iter().filter(|(kind, _)| *kind == side).filter_map(|(_, figures)| figures[at]).collect()
        };
        let ours = of(Kind::Ours);
        for &(side, target) in row.targets {
            let mut theirs = of(side);
            let rounds = ours.len().min(theirs.len());
            theirs.truncate(rounds);
            if rounds == 0 {
                continue;
            }
            let values = |figures: &[Figure]| figures.iter().map(|figure| figure.value).collect::<Vec<_>>();
            let what = format!("{}: {}, against {}", part.name, row.name, side.name());
            compared(&what, row.unit, &values(&ours[..rounds]), &values(&theirs), target);
            let processor =
                |figures: &[Figure]| figures.iter().filter_map(|figure| figure.processor).collect::<Vec<_>>();
            if side == Kind::Null && processor(&theirs).len() == rounds {
                let what = "the same: processor time";
                compared(what, "s", &processor(&ours[..rounds]), &processor(&theirs), Target::None);
            }
        }
    }
    Ok(())
}

fn briefly(figures: &Figures) -> String {
    let words = figures.iter().map(|figure| match figure {
        Some(Figure { value, processor: Some(processor) }) => format!("{value:.3} ({processor:.2} s)"),
        Some(Figure { value, processor: None }) => format!("{value:.3}"),
        None => "-".into(),
    });
    words.collect::<Vec<_>>().join(", ")
}

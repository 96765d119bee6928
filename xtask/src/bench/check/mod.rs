//! `extant check` against `e2fsck -fn`: time, processor time and memory, with warm and cold caches.

mod images;
mod measure;
mod on_models;
mod pattern;

use super::{Result, median};
use measure::{Run, measured};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const USAGE: &str = "usage: cargo xtask bench check [--rounds N] [--scale N] [--dir DIRECTORY] [--keep] \
    [--images a,a2,b,c,d] [--tree DIRECTORY] [--extant PROGRAM] [--modelled]";

/// The rules of measurement, printed before any figure.
const RULES: &str = "\
Rules:
- A run is a whole process, from its start to its exit, on two processors; output is discarded.
- A round runs both programs on an image, once warm and once cold; the other one begins in the next
  round. Warm: e2fsck has run before, uncounted, and what our check reads has been read, so the host
  has it in memory. Cold: after sync and a drop of the host's caches.
- Times are medians of all rounds; a ratio is the median of the rounds' ratios, e2fsck's / ours. The
  processor time is user + system of the warm runs, the memory the peak of all runs.
- No run is left out. A program that finds something on an image ends the bench.
- Raw: all bytes that our check reads, each once, in order, by direct reads of up to 256 KiB, 32 of
  them in flight, cold. The time to collect their places does not count.
- With --scale N, images have 1/N of the files; the goals are for N = 1.
";

/// Minimum ratios of e2fsck's time to ours, with warm caches.
const WARM: &[(&str, f64)] = &[("a", 4.0), ("a2", 8.0), ("b", 10.0), ("c", 15.0), ("d", 4.0)];
/// Minimum ratio with cold caches. Reading at this share of the raw speed is enough as well.
const COLD: f64 = 3.0;
const COLD_OF_RAW: f64 = 0.85;
/// Minimum ratio of e2fsck's processor time to ours.
const PROCESSOR: f64 = 2.0;
/// This much memory is always allowed.
const MEMORY_MIB: f64 = 32.0;

struct Args {
    rounds: usize,
    scale: u32,
    dir: PathBuf,
    keep: bool,
    images: Vec<String>,
    tree: PathBuf,
    extant: Option<PathBuf>,
    modelled: bool,
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    match *args {
        ["--one", program, ref rest @ ..] => return measure::one(program, rest),
        ["--places", image, output] => return measure::places(image, output),
        ["--raw", places, image] => return measure::raw(places, image),
        ["--warm", places, image] => return measure::warm(places, image),
        _ => {}
    }
    let args = parse(args)?;
    if !rustix::process::geteuid().is_root() {
        return Err("this bench drops the host's caches and mounts images: run it as root".into());
    }
    fs::create_dir_all(&args.dir)?;
    let folder = images::Folder { dir: args.dir.canonicalize()?, scale: args.scale, tree: args.tree.clone() };
    let images = args
        .images
        .iter()
        .map(|name| Ok((name.as_str(), folder.image(name)?)))
        .collect::<Result<Vec<_>>>()?;
    match args.modelled {
        true => on_models::run(&images)?,
        false => on_this_machine(&args, &images)?,
    }
    if !args.keep {
        for (_, image) in images {
            fs::remove_file(image)?;
        }
        // The folder stays if it holds anything else.
        let _ = fs::remove_dir(&args.dir);
    }
    Ok(())
}

fn on_this_machine(args: &Args, images: &[(&str, PathBuf)]) -> Result<()> {
    let extant = match &args.extant {
        Some(extant) => extant.clone(),
        None => build()?,
    };
    println!("{RULES}");
    println!("| image, what | extant | e2fsck | e2fsck / extant | target | |");
    println!("|---|--:|--:|--:|---|---|");
    for (name, image) in images {
        Bench { name, image, extant: &extant, rounds: args.rounds }.run()?;
    }
    Ok(())
}

fn parse(args: &[&str]) -> Result<Args> {
    let mut parsed = Args {
        rounds: 5,
        scale: 1,
        dir: std::env::temp_dir().join(format!("extant-bench-check-{}", std::process::id())),
        keep: false,
        images: WARM.iter().map(|(name, _)| (*name).to_owned()).collect(),
        tree: "/usr".into(),
        extant: None,
        modelled: false,
    };
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        match arg {
            "--keep" => parsed.keep = true,
            "--modelled" => parsed.modelled = true,
            _ => parsed.take(arg, args.next().ok_or(USAGE)?)?,
        }
    }
    match parsed.images.iter().find(|image| !WARM.iter().any(|(name, _)| name == image)) {
        Some(unknown) => Err(format!("no image is called {unknown}\n{USAGE}").into()),
        None => Ok(parsed),
    }
}

impl Args {
    /// Takes an option and its value.
    fn take(&mut self, option: &str, value: &str) -> Result<()> {
        match option {
            "--rounds" => self.rounds = value.parse::<usize>()?.max(1),
            "--scale" => self.scale = value.parse::<u32>()?.clamp(1, 1000),
            "--dir" => self.dir = value.into(),
            "--images" => self.images = value.split(',').map(str::to_owned).collect(),
            "--tree" => self.tree = value.into(),
            "--extant" => self.extant = Some(fs::canonicalize(value)?),
            _ => return Err(USAGE.into()),
        }
        Ok(())
    }
}

/// The command as it is distributed.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(["build", "--release", "--locked", "-p", "extant-cli"]).status()?;
    if !status.success() {
        return Err("the command could not be built".into());
    }
    let this = std::env::current_exe()?;
    let target = this.ancestors().nth(2).ok_or("where is the target directory?")?;
    Ok(target.join("release/extant"))
}

struct Bench<'a> {
    name: &'a str,
    image: &'a Path,
    extant: &'a Path,
    rounds: usize,
}

/// The runs of both programs: in each round, one run of each.
#[derive(Default)]
struct Rounds {
    ours: Vec<Run>,
    theirs: Vec<Run>,
}

impl Bench<'_> {
    fn run(&self) -> Result<()> {
        let places = self.image.with_extension("places");
        measured(&["--places", text(self.image)?, text(&places)?])?;
        let (mut warm, mut cold, mut raw) = (Rounds::default(), Rounds::default(), Vec::new());
        for round in 0..self.rounds {
            drop_caches()?;
            raw.push(measured(&["--raw", text(&places)?, text(self.image)?])?);
            self.both(round, &mut cold, drop_caches)?;
            measured(&["--one", "e2fsck", "-fn", text(self.image)?])?;
            measured(&["--warm", text(&places)?, text(self.image)?])?;
            self.both(round, &mut warm, || Ok(()))?;
        }
        fs::remove_file(&places)?;
        self.print(&warm, &cold, &raw);
        Ok(())
    }

    fn both(&self, round: usize, rounds: &mut Rounds, before: impl Fn() -> Result<()>) -> Result<()> {
        let image = text(self.image)?;
        let ours = ["--one", text(self.extant)?, "-q", "check", image];
        let theirs = ["--one", "e2fsck", "-fn", image];
        for turn in 0..2 {
            before()?;
            if (round + turn).is_multiple_of(2) {
                rounds.ours.push(measured(&ours)?);
            } else {
                rounds.theirs.push(measured(&theirs)?);
            }
        }
        Ok(())
    }

    fn print(&self, warm: &Rounds, cold: &Rounds, raw: &[Run]) {
        let name = self.name;
        let line = |what: &str, (ours, theirs, ratio): (String, String, f64), target: String, met: bool| {
            let verdict = if met { "met" } else { "missed" };
            println!("| {name}, {what} | {ours} | {theirs} | {ratio:.2} | {target} | {verdict} |");
        };
        let least = WARM.iter().find(|(image, _)| *image == name).map_or(0.0, |(_, least)| *least);
        let ratio = warm.ratio(|run| run.seconds);
        line("warm", warm.seconds(|run| run.seconds), format!(">= {least}"), ratio >= least);
        let ratio = warm.ratio(|run| run.processor);
        line("processor", warm.seconds(|run| run.processor), format!(">= {PROCESSOR}"), ratio >= PROCESSOR);
        let ratio = cold.ratio(|run| run.seconds);
        let bytes = raw.first().map_or(0, |run| run.bytes);
        let of_raw: Vec<f64> =
            raw.iter().zip(&cold.ours).map(|(raw, ours)| raw.seconds / ours.seconds).collect();
        let of_raw = median(of_raw);
        let raw = median(raw.iter().map(|run| run.seconds).collect());
        let what = format!("cold (raw {raw:.2} s for {} MB: {:.0} %)", bytes / 1_000_000, of_raw * 100.0);
        let target = format!(">= {COLD}, or {:.0} % of raw", COLD_OF_RAW * 100.0);
        let met = ratio >= COLD || of_raw >= COLD_OF_RAW;
        line(&what, cold.seconds(|run| run.seconds), target, met);
        let peak = |of: fn(&Rounds) -> &Vec<Run>| {
            of(warm).iter().chain(of(cold)).map(|run| run.peak_kib as f64 / 1024.0).fold(0.0, f64::max)
        };
        let (ours, theirs) = (peak(|rounds| &rounds.ours), peak(|rounds| &rounds.theirs));
        let figures = (format!("{ours:.1} MiB"), format!("{theirs:.1} MiB"), theirs / ours);
        let target = format!("e2fsck's or {MEMORY_MIB} MiB");
        line("memory", figures, target, ours <= theirs.max(MEMORY_MIB));
    }
}

impl Rounds {
    fn ratio(&self, of: impl Fn(&Run) -> f64) -> f64 {
        median(self.ours.iter().zip(&self.theirs).map(|(ours, theirs)| of(theirs) / of(ours)).collect())
    }

    fn seconds(&self, of: impl Fn(&Run) -> f64) -> (String, String, f64) {
        let middle = |runs: &[Run]| format!("{:.3} s", median(runs.iter().map(&of).collect()));
        (middle(&self.ours), middle(&self.theirs), self.ratio(&of))
    }
}

fn text(path: &Path) -> Result<&str> {
    Ok(path.to_str().ok_or("a path that is no UTF-8")?)
}

fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

//! The arguments of `extant lab`.

use crate::values;
use clap::ValueHint;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use extant_history::{Choice, Kind, MakeDirtyControl, MakeElevator, MakePass, Named};
use extant_lab::command::Selection;
use extant_lab::report::Format;
use extant_lab::setup::Axis;
use extant_lab::{FileSystem, Memory, Setting, VolumeSpec};
use extant_rt::Nanos;
use std::path::{Path, PathBuf};

/// `extant lab`: its subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum LabCommand {
    /// Run fio jobs on a modelled machine or on files, or run an experiment
    Run(Box<RunArgs>),
    /// List machines, I/O schedulers, controllers of dirty memory, and all keys and options with
    /// their ranges and defaults
    List(ListArgs),
    /// Print the file of a machine, or what an I/O scheduler, a controller or a key means
    Show(ShowArgs),
    /// Run experiments and compare each table with the expected one
    Check(CheckArgs),
    /// Run an experiment, or jobs, at every combination of values, policies and seeds; here, in
    /// parts, or on a cluster
    Sweep(Box<SweepArgs>),
    /// Fit the constants of an experiment's machine to the rows before the change, and report how
    /// well each is determined
    Calibrate(CalibrateArgs),
    /// Run all experiments and print each published figure next to the reproduced one
    Reproduce(ReproduceArgs),
    /// Compare two or more results: a table of changes in per cent
    Compare(CompareArgs),
    /// Summarise and draw a recorded run of the page cache: dirty memory over time, and each
    /// writer's pauses with their cause
    Report(ReportArgs),
}

/// The part of an experiment to run.
#[derive(Debug, clap::Args)]
pub(crate) struct PartArgs {
    /// Run only this workload of an experiment; may be given several times
    #[arg(long = "workload", value_name = "NAME")]
    pub(crate) workloads: Vec<String>,
    /// Run only this row of an experiment; may be given several times
    #[arg(long = "row", value_name = "NAME")]
    pub(crate) rows: Vec<String>,
    /// Run each workload of an experiment for this many seconds, without warm-up
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) seconds: Option<u64>,
}

impl PartArgs {
    /// Whether these options select less than the whole experiment, or shorten it.
    pub(crate) fn is_given(&self) -> bool {
        !self.workloads.is_empty() || !self.rows.is_empty() || self.seconds.is_some()
    }

    /// Returns this part of the experiment at `path`, without other changes.
    pub(crate) fn of(&self, path: &str) -> Selection {
        Selection {
            path: path.into(),
            workloads: self.workloads.clone(),
            rows: self.rows.clone(),
            span: self.seconds.map(Nanos::from_secs),
            settings: Vec::new(),
            report: None,
            blktrace: None,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = extant_lab::command::keys())]
pub(crate) struct RunArgs {
    /// Machine to run on: a name of `lab list` or a model's file (TOML); without it, jobs run on
    /// real files
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// I/O scheduler of the modelled machine's disks [default: none]
    #[arg(long, value_name = "NAME", requires = "machine", value_parser = policy::<MakeElevator>())]
    pub(crate) elevator: Option<Choice<MakeElevator>>,
    /// Number of requests in the queue (nr_requests) [default: Linux's for the disk and the I/O
    /// scheduler; the report shows it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000), requires = "machine")]
    pub(crate) requests: Option<u64>,
    /// Seed of the modelled world [default: 1]
    #[arg(long, value_name = "N", requires = "machine")]
    pub(crate) seed: Option<u64>,
    /// Set a key of the machine's file, such as hz=250, disk.queue_depth=1 or
    /// dirty_expire_centisecs=500; may be given several times; `lab list` has all keys
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,
    /// Record the page cache's events for `lab report`; as .json, all events for ui.perfetto.dev
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Write a blktrace of each modelled disk to BASE.DISK.blktrace.0, for blkparse and btt; with
    /// several runs, only that of the last is kept
    #[arg(long, value_name = "BASE", value_hint = ValueHint::FilePath)]
    pub(crate) blktrace: Option<PathBuf>,
    /// Make an ext2, ext3 or ext4 volume on each modelled disk for the jobs' files, as large as the
    /// disk, or of a given size such as ext4:64G; without this option, each file is one contiguous
    /// range of its disk
    #[arg(long, value_name = "FS[:SIZE]", value_parser = volume, requires = "machine")]
    pub(crate) volume: Option<VolumeSpec>,
    /// Write a report of an experiment into this folder: its tables, and a drawing (SVG) for each
    /// workload
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) report: Option<PathBuf>,
    /// An experiment (its folder or .toml file), or job files and options as for fio
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "JOB")]
    pub(crate) words: Vec<String>,
}

/// The page cache of jobs without direct=1.
#[derive(Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// Memory for cached pages, such as 256m [default: the machine's, or 256m]
    #[arg(long = "cache", value_name = "SIZE", value_parser = values::size)]
    pub(crate) cache_bytes: Option<u64>,
    /// Hard limit on dirty memory, write-back included [default: the machine's, or a fifth of the
    /// cache]
    #[arg(long = "dirty-limit", value_name = "SIZE", value_parser = values::size)]
    pub(crate) dirty_limit_bytes: Option<u64>,
    /// Amount of dirty memory above which flushers work [default: the machine's, or half of the
    /// limit]
    #[arg(long = "dirty-background", value_name = "SIZE", value_parser = values::size)]
    pub(crate) dirty_background_bytes: Option<u64>,
    /// Controller of dirty memory [default: extant]
    #[arg(long = "dirty-control", value_name = "NAME", value_parser = policy::<MakeDirtyControl>())]
    pub(crate) dirty_control: Option<Choice<MakeDirtyControl>>,
    /// How a pass of write-back visits a file's dirty pages [default: extant]
    #[arg(long = "write-back-pass", value_name = "NAME", value_parser = policy::<MakePass>())]
    pub(crate) pass: Option<Choice<MakePass>>,
}

impl MemoryArgs {
    pub(crate) fn memory(&self) -> Memory {
        Memory {
            cache_bytes: self.cache_bytes,
            dirty_limit_bytes: self.dirty_limit_bytes,
            dirty_background_bytes: self.dirty_background_bytes,
            run_bytes: None,
            control: self.dirty_control,
            pass: self.pass,
        }
    }
}

/// A parser for a policy by name; help lists all of them.
fn policy<F: Kind + Copy + Send + Sync>() -> ValueParser {
    let shown = |policy: &'static Named<F>| PossibleValue::new(policy.name).help(policy.about);
    let unlisted = F::UNLISTED.iter().map(|policy| PossibleValue::new(policy.name).hide(true));
    let values: Vec<PossibleValue> = F::TABLE.iter().map(shown).chain(unlisted).collect();
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Choice<F>>()).into()
}

/// Minimum size of a volume: room for a journal and some groups.
const LEAST_VOLUME_BYTES: u64 = 16 << 20;

fn volume(text: &str) -> Result<VolumeSpec, String> {
    let (fs, size) = text.split_once(':').map_or((text, None), |(fs, size)| (fs, Some(size)));
    let fs = match fs {
        "ext2" => FileSystem::Ext2,
        "ext3" => FileSystem::Ext3,
        "ext4" => FileSystem::Ext4,
        _ => return Err(format!("\"{fs}\" is not ext2, ext3 or ext4")),
    };
    let bytes = size.map(values::size).transpose().map_err(|error| error.to_string())?;
    match bytes.filter(|bytes| *bytes < LEAST_VOLUME_BYTES) {
        Some(bytes) => Err(format!("{bytes} bytes are less than {LEAST_VOLUME_BYTES}, 16M")),
        None => Ok(VolumeSpec::for_jobs(fs, bytes)),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Folder with your own machines [default: list the built-in machines]
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// A name of `lab list`, such as cfq-2013
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Folders of experiments, each with experiment.toml and expected.txt
    #[arg(required = true, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) folders: Vec<PathBuf>,
    /// Write expected.txt instead of comparing
    #[arg(long)]
    pub(crate) update: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Values for a key of the machine's file, such as hz=100,250,1000; with several keys, every
    /// combination is run
    #[arg(long = "set", value_name = "KEY=VALUE,VALUE")]
    pub(crate) axes: Vec<Axis>,
    /// Seeds, such as 1,2,3 or 1-10 [default: the experiment's, or 1]
    #[arg(long, value_name = "SEEDS", value_parser = seeds)]
    pub(crate) seeds: Option<Seeds>,
    /// Machine that jobs run on: a name of `lab list` or a model's file (TOML)
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// I/O schedulers for jobs, such as none,mq-deadline
    #[arg(long = "elevator", value_name = "NAME,NAME", value_delimiter = ',', value_parser = policy::<MakeElevator>())]
    pub(crate) elevators: Vec<Choice<MakeElevator>>,
    /// Number of requests in the queue (nr_requests), for jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) requests: Option<u64>,
    /// Controllers of dirty memory for jobs, such as linux-3.1,extant
    #[arg(long = "dirty-control", value_name = "NAME,NAME", value_delimiter = ',', value_parser = policy::<MakeDirtyControl>())]
    pub(crate) controls: Vec<Choice<MakeDirtyControl>>,
    /// Make a volume on each modelled disk for the jobs' files, as `lab run` does
    #[arg(long, value_name = "FS[:SIZE]", value_parser = volume, requires = "machine")]
    pub(crate) volume: Option<VolumeSpec>,
    /// Values for an option of the jobs, such as iodepth=1,4,32; may be given several times
    #[arg(long = "job", value_name = "KEY=VALUE,VALUE", value_parser = option_values)]
    pub(crate) options: Vec<(String, Vec<String>)>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Keep each result in this folder, and use those that are there: a sweep that was stopped
    /// continues, and several sweeps can share the folder
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) results: Option<PathBuf>,
    /// Number of runs to make at the same time [default: one per processor]
    #[arg(long, value_name = "N", value_parser = at_a_time)]
    pub(crate) at_a_time: Option<usize>,
    /// Make only this part of the runs, such as 2/8
    #[arg(long, value_name = "K/N", value_parser = shard)]
    pub(crate) shard: Option<(usize, usize)>,
    /// Make the runs on this Ray cluster, such as auto or ray://head:10001, and collect their
    /// results
    #[arg(long, value_name = "ADDRESS", requires = "results")]
    pub(crate) on: Option<String>,
    /// Print a job array for a scheduler to make the runs, and make none here
    #[arg(long, value_name = "SCHEDULER", value_enum)]
    pub(crate) emit: Option<Emit>,
    /// Print how many runs there are, and make none
    #[arg(long)]
    pub(crate) count: bool,
    /// Print one JSON object with all figures
    #[arg(long)]
    pub(crate) json: bool,
    /// An experiment (its folder or .toml file), or job files and options as for fio
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "JOB")]
    pub(crate) words: Vec<String>,
}

impl SweepArgs {
    /// The given seeds.
    pub(crate) fn seeds(&self) -> Vec<u64> {
        self.seeds.clone().map(|seeds| seeds.0).unwrap_or_default()
    }

    /// Whether an option is given that applies only to jobs.
    pub(crate) fn is_of_jobs(&self) -> bool {
        !(self.elevators.is_empty() && self.controls.is_empty() && self.options.is_empty())
            || self.requests.is_some()
            || self.volume.is_some()
    }

    /// Whether something other than an experiment's table at each point is requested.
    pub(crate) fn is_new(&self) -> bool {
        let asked =
            [self.json, self.count, self.results.is_some(), self.shard.is_some(), self.emit.is_some()];
        asked.contains(&true) || self.seeds.is_some() || self.axes.is_empty()
    }
}

/// A scheduler of job arrays.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Emit {
    /// A script for sbatch
    Slurm,
    /// An indexed Job for kubectl apply
    Kubernetes,
}

/// Seeds of a sweep.
#[derive(Clone, Debug)]
pub(crate) struct Seeds(pub(crate) Vec<u64>);

fn seeds(text: &str) -> Result<Seeds, String> {
    let wrong = || format!("\"{text}\" is not a list such as 1,2,3 or 1-10");
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last]: [u64; 2] =
            [first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?];
        if first > last || last - first >= 1_000_000 {
            return Err(wrong());
        }
        all.extend(first..=last);
    }
    Ok(Seeds(all))
}

fn at_a_time(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1024).contains(n)).ok_or_else(|| format!("\"{text}\" is not 1 to 1024"))
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('/').and_then(|(which, of)| Some((which.parse().ok()?, of.parse().ok()?)));
    parsed
        .filter(|(which, of)| (1..=*of).contains(which))
        .ok_or_else(|| format!("\"{text}\" is not K/N with K from 1 to N, such as 2/8"))
}

fn option_values(text: &str) -> Result<(String, Vec<String>), String> {
    let (key, values) = text
        .split_once('=')
        .ok_or_else(|| format!("\"{text}\" is not KEY=VALUE,VALUE, such as iodepth=1,4,32"))?;
    Ok((key.to_owned(), values.split(',').map(str::to_owned).collect()))
}

#[derive(Debug, clap::Args)]
pub(crate) struct CalibrateArgs {
    /// Write the values into the machine's file, each with its range and the data that it was
    /// fitted to
    #[arg(long)]
    pub(crate) write: bool,
    /// The experiment: its folder or .toml file
    #[arg(value_name = "EXPERIMENT", value_hint = ValueHint::AnyPath)]
    pub(crate) experiment: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReproduceArgs {
    /// Folder with the experiments, each in a folder of its own
    #[arg(default_value = "experiments", value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) folder: PathBuf,
    /// Run only this experiment, by the name of its folder; may be given several times
    #[arg(long = "only", value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Run each experiment over its ranges, and print intervals. This may take two hours; if
    /// stopped, it continues where it was
    #[arg(long)]
    pub(crate) bands: bool,
    /// Folder that keeps the results of --bands
    #[arg(long, value_name = "FOLDER", default_value = "lab-results", requires = "bands", value_hint = ValueHint::DirPath)]
    pub(crate) results: PathBuf,
    /// Write a report of each experiment into a folder of its name in this one: its tables and
    /// drawings (SVG)
    #[arg(long, value_name = "FOLDER", conflicts_with = "bands", value_hint = ValueHint::DirPath)]
    pub(crate) report: Option<PathBuf>,
    /// Shape of the report
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub(crate) format: ReportFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ReportFormat {
    /// Aligned columns
    Text,
    /// Markdown tables
    Markdown,
    /// One JSON object, with all digits
    Json,
}

impl From<ReportFormat> for Format {
    fn from(format: ReportFormat) -> Self {
        match format {
            ReportFormat::Text => Self::Text,
            ReportFormat::Markdown => Self::Markdown,
            ReportFormat::Json => Self::Json,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Results as fio's JSON, or several runs of the same jobs as A.json,B.json; the first one is
    /// the base
    #[arg(required = true, num_args = 2.., value_name = "RESULT")]
    pub(crate) results: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// A trace, recorded with `lab run --trace`
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: PathBuf,
    /// Draw dirty memory of each device over time, and the pauses, into this file (SVG)
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// List every pause: when, how long, where and why, and the state of the controller that caused
    /// it
    #[arg(long)]
    pub(crate) pauses: bool,
}

/// Whether a word names an experiment (a `.toml` file or a folder) rather than a job file.
pub(crate) fn names_experiment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml") || path.is_dir()
}

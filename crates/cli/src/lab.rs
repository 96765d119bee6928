//! `extant lab`.

use crate::failure::Failure;
use crate::session::Session;
use crate::values;
use clap::ValueHint;
use extant_history::Host;
use extant_lab::command::{self, Jobs, Selection, TraceReport};
use extant_lab::{Memory, Policy};
use extant_rt::Nanos;
use std::path::{Path, PathBuf};

/// `extant lab`: its subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum LabCommand {
    /// Run fio jobs on a modelled machine or on files, or run an experiment
    Run(Box<RunArgs>),
    /// Compare two or more results: a table of changes in per cent
    Compare(CompareArgs),
    /// Summarise and draw a recorded run of the page cache: dirty memory over time, and each writer's pauses with their cause
    Report(ReportArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Machine model (TOML) to run on; without it, jobs run on real files
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// I/O scheduler of the modelled machine's disks [default: none]
    #[arg(long, value_name = "NAME", value_parser = elevator, requires = "machine")]
    elevator: Option<String>,
    /// Requests of each kind that the I/O scheduler sees [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000), requires = "machine")]
    requests: Option<u64>,
    /// Seed of the modelled world [default: 1]
    #[arg(long, value_name = "N", requires = "machine")]
    seed: Option<u64>,
    /// Record the page cache's events for `lab report`; as .json, all events for ui.perfetto.dev
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Run only this workload of an experiment; may be given several times
    #[arg(long = "workload", value_name = "NAME")]
    workloads: Vec<String>,
    /// Run only this row of an experiment; may be given several times
    #[arg(long = "row", value_name = "NAME")]
    rows: Vec<String>,
    /// Run each workload of an experiment for this many seconds, without warm-up
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: Option<u64>,
    /// An experiment (its folder or .toml file), or job files and options as fio takes them
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "JOB")]
    words: Vec<String>,
}

/// The page cache of jobs without direct=1.
#[derive(Debug, clap::Args)]
struct MemoryArgs {
    /// Memory for cached pages, such as 256m [default: the machine's, or 256m]
    #[arg(long = "cache", value_name = "SIZE", value_parser = values::size)]
    cache_bytes: Option<u64>,
    /// Hard limit on dirty memory, write-back included [default: the machine's, or a fifth of the cache]
    #[arg(long = "dirty-limit", value_name = "SIZE", value_parser = values::size)]
    dirty_limit_bytes: Option<u64>,
    /// Amount of dirty memory above which flushers work [default: the machine's, or half of the limit]
    #[arg(long = "dirty-background", value_name = "SIZE", value_parser = values::size)]
    dirty_background_bytes: Option<u64>,
    /// Controller of dirty memory [default: extant]
    #[arg(long = "dirty-control", value_name = "NAME", value_parser = dirty_control)]
    dirty_control: Option<String>,
}

impl MemoryArgs {
    fn memory(&self) -> Memory {
        Memory {
            cache_bytes: self.cache_bytes,
            dirty_limit_bytes: self.dirty_limit_bytes,
            dirty_background_bytes: self.dirty_background_bytes,
            control: self.dirty_control.clone(),
        }
    }
}

fn dirty_control(name: &str) -> Result<String, String> {
    let any = Host { cpus: 1, memory_bytes: 1 << 30 };
    extant_history::dirty_control(name, &any).map(|_| name.to_owned()).map_err(|error| error.to_string())
}

fn elevator(name: &str) -> Result<String, String> {
    extant_history::elevator(name).map(|_| name.to_owned()).map_err(|error| error.to_string())
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Results: fio's JSON, or several runs of the same as A.json,B.json; the first is the base
    #[arg(required = true, num_args = 2.., value_name = "RESULT")]
    results: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// A trace, recorded with `lab run --trace`
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    trace: PathBuf,
    /// Draw dirty memory of each device over time, and the pauses, into this file (SVG)
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// List every pause: when, how long, where, why, and the state of the controller that decided it
    #[arg(long)]
    pauses: bool,
}

pub(crate) fn run(session: &mut Session, command: &LabCommand) -> Result<(), Failure> {
    let out = session.out.as_write()?;
    match command {
        LabCommand::Run(args) => match &args.words[..] {
            [path] if names_experiment(Path::new(path)) => {
                if args.machine.is_some() || args.memory.memory() != Memory::default() || args.trace.is_some()
                {
                    return Err(Failure::Usage(format!(
                        "{path}: an experiment names its machine and policies itself; leave options like --machine out"
                    )));
                }
                let selection = Selection {
                    path: path.into(),
                    workloads: args.workloads.clone(),
                    rows: args.rows.clone(),
                    span: args.seconds.map(Nanos::from_secs),
                };
                Ok(command::experiment(&selection, out)?)
            }
            words if args.workloads.is_empty() && args.rows.is_empty() && args.seconds.is_none() => {
                let default = Policy::default();
                let policy = Policy {
                    elevator: args.elevator.clone().unwrap_or(default.elevator),
                    requests: args.requests.map_or(default.requests, |requests| requests as usize),
                    memory: args.memory.memory(),
                };
                let jobs = Jobs {
                    words: words.to_vec(),
                    machine: args.machine.clone(),
                    policy,
                    seed: args.seed.unwrap_or(1),
                    trace: args.trace.clone(),
                };
                Ok(command::jobs(&jobs, out)?)
            }
            words => Err(Failure::Usage(format!(
                "{}: --workload, --row and --seconds choose from an experiment; name its folder or .toml file",
                words.join(" ")
            ))),
        },
        LabCommand::Compare(args) => Ok(command::compare(&args.results, out)?),
        LabCommand::Report(args) => {
            let request =
                TraceReport { trace: args.trace.clone(), drawing: args.output.clone(), pauses: args.pauses };
            Ok(command::report(&request, out)?)
        }
    }
}

/// Whether a word is an experiment and no job file: a `.toml` file, or a folder.
fn names_experiment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml") || path.is_dir()
}

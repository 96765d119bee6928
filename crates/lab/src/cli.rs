//! `extant lab`: what the command's arguments mean. The `extant` command embeds [`LabCommand`] and calls [`run`].

use crate::compare::{Column, CompareError, Figure, compare};
use crate::experiment::{Experiment, ExperimentError};
use crate::fio::{self, JobError, OutputFormat, units};
use crate::history;
use crate::report;
use crate::run::{Memory, Policy, RunError, on_files, on_machine};
use crate::text::{self, Kind};
use crate::trace::{self, Trace, TraceError, TraceFile};
use extant_rt::trace::ChromeSink;
use extant_rt::{Nanos, Sink};
use extant_sim::{Machine, ModelError};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the lab does.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum LabCommand {
    /// Run fio jobs on a modelled machine or on files, or run an experiment
    Run(Box<RunArgs>),
    /// Compare two or more results: a table of changes in per cent
    Compare(CompareArgs),
    /// Say and draw what a recorded run's page cache did: dirty memory over time, and who waited, why and how long
    Report(ReportArgs),
}

/// `extant lab run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// Machine model (TOML) to run on; without it, jobs run on real files
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Elevator of the modelled machine's disks [default: none]
    #[arg(long, value_name = "NAME", value_parser = elevator, requires = "machine")]
    pub elevator: Option<String>,
    /// Requests of each kind that the elevator sees [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000), requires = "machine")]
    pub requests: Option<u64>,
    /// Seed of the modelled world [default: 1]
    #[arg(long, value_name = "N", requires = "machine")]
    pub seed: Option<u64>,
    /// Record the page cache's events for `lab report`; as .json, all events for ui.perfetto.dev
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub trace: Option<PathBuf>,
    /// The page cache.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Run only this workload of an experiment; may be given several times
    #[arg(long = "workload", value_name = "NAME")]
    pub workloads: Vec<String>,
    /// Run only this row of an experiment; may be given several times
    #[arg(long = "row", value_name = "NAME")]
    pub rows: Vec<String>,
    /// Run each workload of an experiment for so long only, and without warm-up
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub seconds: Option<u64>,
    /// An experiment (.toml), or job files and options as fio takes them
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "JOB")]
    pub words: Vec<String>,
}

/// The page cache of jobs without direct=1.
#[derive(Clone, Debug, clap::Args)]
pub struct MemoryArgs {
    /// Memory for cached pages, such as 256m [default: the machine's, or 256m]
    #[arg(long = "cache", value_name = "SIZE", value_parser = units::own_bytes)]
    pub cache_bytes: Option<u64>,
    /// Most that may be dirty or under write-back [default: the machine's, or a fifth of the cache]
    #[arg(long = "dirty-limit", value_name = "SIZE", value_parser = units::own_bytes)]
    pub dirty_limit_bytes: Option<u64>,
    /// Flushers work while more than this is dirty [default: the machine's, or half of the limit]
    #[arg(long = "dirty-background", value_name = "SIZE", value_parser = units::own_bytes)]
    pub dirty_background_bytes: Option<u64>,
    /// Controller of dirty memory [default: extant]
    #[arg(long = "dirty-control", value_name = "NAME", value_parser = dirty_control)]
    pub dirty_control: Option<String>,
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
    let anywhere = history::Host { cpus: 1, memory_bytes: 1 << 30 };
    history::dirty_control(name, &anywhere).map(|_| name.to_owned()).map_err(|error| error.to_string())
}

fn elevator(name: &str) -> Result<String, String> {
    history::elevator(name).map(|_| name.to_owned()).map_err(|error| error.to_string())
}

/// `extant lab compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct CompareArgs {
    /// Results: fio's JSON, or several runs of the same as A.json,B.json; the first is the base
    #[arg(required = true, num_args = 2.., value_name = "RESULT")]
    pub results: Vec<String>,
}

/// `extant lab report`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReportArgs {
    /// A trace, recorded with `lab run --trace`
    #[arg(value_name = "TRACE", value_hint = clap::ValueHint::FilePath)]
    pub trace: PathBuf,
    /// Draw dirty memory of each device over time, and the pauses, into this file (SVG)
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// List every pause: when, how long, where, why, and the state of the controller that decided it
    #[arg(long)]
    pub pauses: bool,
}

/// Why a command did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Jobs were refused.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A machine was refused.
    #[error(transparent)]
    Machine(#[from] ModelError),
    /// A run did not come to its end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An experiment did not.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// A trace was refused.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Results cannot be compared.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// I/O errors in a run; the report has been printed.
    #[error("{0} of the jobs stopped at an I/O error")]
    Failed(usize),
    /// What there is to say could not be said.
    #[error("output: {0}")]
    Output(std::io::Error),
    /// A file could not be read or written.
    #[error("{0}: {1}")]
    File(String, String),
}

/// Does it, and prints to `out`.
///
/// # Errors
/// Says in a sentence what went wrong, and where.
pub fn run(command: &LabCommand, out: &mut dyn Write) -> Result<(), LabError> {
    match command {
        LabCommand::Run(args) => match &args.words[..] {
            [file] if Path::new(file).extension().is_some_and(|extension| extension == "toml") => {
                if args.machine.is_some() || args.memory.memory() != Memory::default() || args.trace.is_some()
                {
                    let problem = "an experiment names its machine and policies itself; leave options like --machine out";
                    return Err(JobError { place: file.clone(), problem: problem.into() }.into());
                }
                let mut experiment = Experiment::load(Path::new(file))?.only(&args.workloads, &args.rows)?;
                if let Some(seconds) = args.seconds {
                    experiment = experiment.for_only(Nanos::from_secs(seconds));
                }
                let cells = experiment.run()?;
                print(out, &experiment.table(&cells))
            }
            words if args.workloads.is_empty() && args.rows.is_empty() => jobs(args, words, out),
            words => {
                let problem =
                    "--workload and --row choose from an experiment; name its .toml file".to_owned();
                Err(JobError { place: words.join(" "), problem }.into())
            }
        },
        LabCommand::Report(args) => drawn(args, out),
        LabCommand::Compare(args) => {
            let columns: Vec<Column> =
                args.results.iter().map(|word| column(word)).collect::<Result<_, _>>()?;
            print(out, &compare(&columns, &Figure::ALL)?)
        }
    }
}

fn drawn(args: &ReportArgs, out: &mut dyn Write) -> Result<(), LabError> {
    let trace = Trace::load(&args.trace)?;
    if let Some(path) = &args.output {
        if let (Ok(to), Ok(from)) = (path.canonicalize(), args.trace.canonicalize())
            && to == from
        {
            let problem = "is the trace itself; give the drawing another name".to_owned();
            return Err(LabError::File(path.display().to_string(), problem));
        }
        if trace.levels.is_empty() && trace.pauses.is_empty() {
            let problem = "nothing in it to draw: no job wrote through the page cache (direct=0)".to_owned();
            return Err(LabError::File(args.trace.display().to_string(), problem));
        }
        std::fs::write(path, trace::draw(&trace)).map_err(|error| in_file(path, &error))?;
    }
    if args.pauses {
        print(out, &trace::list(&trace))?;
        print(out, "\n")?;
    }
    print(out, &trace::summary(&trace))
}

fn in_file(path: &Path, error: &std::io::Error) -> LabError {
    LabError::File(path.display().to_string(), error.to_string())
}

/// Where a run's events go.
enum Recorder {
    Nowhere,
    Events(Arc<TraceFile<BufWriter<File>>>),
    Chrome(Arc<ChromeSink<BufWriter<File>>>),
}

impl Recorder {
    fn new(path: Option<&Path>, about: &str) -> Result<Self, LabError> {
        let Some(path) = path else { return Ok(Self::Nowhere) };
        if !is_ours(path).map_err(|error| in_file(path, &error))? {
            let problem =
                "is there already and is no trace; give another name, or remove it first".to_owned();
            return Err(LabError::File(path.display().to_string(), problem));
        }
        let out = BufWriter::new(File::create(path).map_err(|error| in_file(path, &error))?);
        Ok(match path.extension().is_some_and(|extension| extension == "json") {
            true => Self::Chrome(Arc::new(ChromeSink::new(out))),
            false => Self::Events(Arc::new(TraceFile::new(out, about))),
        })
    }

    fn sink(&self) -> Option<Arc<dyn Sink>> {
        match self {
            Self::Nowhere => None,
            Self::Events(file) => Some(file.clone()),
            Self::Chrome(file) => Some(file.clone()),
        }
    }

    fn finish(&self) -> std::io::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Events(file) => file.finish(),
            Self::Chrome(file) => file.finish(),
        }
    }
}

/// Whether a recording may go to `path`: over an older one, but not over what a slip in a name would cost, such as the disk
/// image of a job. Devices like `/dev/null` take everything.
fn is_ours(path: &Path) -> std::io::Result<bool> {
    if !path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) {
        return Ok(true);
    }
    let mut head = Vec::new();
    File::open(path)?.take(trace::MAGIC.len() as u64).read_to_end(&mut head)?;
    Ok(head == trace::MAGIC.as_bytes() || head.starts_with(b"["))
}

fn jobs(args: &RunArgs, words: &[String], out: &mut dyn Write) -> Result<(), LabError> {
    let line = fio::command_line(words, |path| text::read(path, Kind::Jobs))?;
    let control = args.memory.dirty_control.as_deref().unwrap_or(history::OUR_DIRTY_CONTROL);
    let (outcome, recorder) = match &args.machine {
        Some(path) => {
            let mut policy = Policy { memory: args.memory.memory(), ..Policy::default() };
            if let Some(name) = &args.elevator {
                policy.elevator.clone_from(name);
            }
            if let Some(requests) = args.requests {
                policy.requests = requests as usize;
            }
            let machine = Machine::load(path)?;
            let about = format!("{}; elevator {}; dirty control {control}", machine.name, policy.elevator);
            let recorder = Recorder::new(args.trace.as_deref(), &about)?;
            let seed = args.seed.unwrap_or(1);
            (on_machine(&line.jobs, machine, &policy, seed, recorder.sink())?, recorder)
        }
        None => {
            let recorder = Recorder::new(args.trace.as_deref(), &format!("files; dirty control {control}"))?;
            (on_files(&line.jobs, &args.memory.memory(), recorder.sink())?, recorder)
        }
    };
    let recorded = recorder.finish();
    let text = match line.format {
        OutputFormat::Normal => report::human(&outcome),
        OutputFormat::Json => format!("{:#}\n", report::json(&outcome)),
    };
    match &line.output {
        None => print(out, &text)?,
        Some(path) => {
            let problem =
                |error: std::io::Error| LabError::File(path.display().to_string(), error.to_string());
            std::fs::write(path, text).map_err(problem)?;
        }
    }
    // The results of a long run are not lost to a full disk.
    if let (Some(path), Err(error)) = (&args.trace, recorded) {
        return Err(in_file(path, &error));
    }
    match outcome.reports.iter().filter(|report| report.measured.error.is_some()).count() {
        0 => Ok(()),
        failed => Err(LabError::Failed(failed)),
    }
}

fn column(word: &str) -> Result<Column, LabError> {
    let mut runs = Vec::new();
    for file in word.split(',') {
        let problem = |problem: String| LabError::File(file.to_owned(), problem);
        let text = text::read(Path::new(file), Kind::Result).map_err(problem)?;
        // fio prints its warnings before its result.
        let json = text.find("\n{").filter(|_| text.starts_with("fio: ")).map_or(0, |newline| newline + 1);
        let (warnings, json) = text.split_at(json);
        let run = serde_json::from_str(json).map_err(|error| {
            problem(format!(
                "line {}: not fio's JSON; make it with --output-format=json --output=FILE",
                warnings.lines().count() + error.line()
            ))
        })?;
        runs.push(run);
    }
    let first = Path::new(word.split(',').next().unwrap_or(word));
    let title = first.file_stem().map_or(word.into(), |stem| stem.to_string_lossy().into_owned());
    Ok(Column { title, runs })
}

fn print(out: &mut dyn Write, text: &str) -> Result<(), LabError> {
    out.write_all(text.as_bytes()).map_err(LabError::Output)
}

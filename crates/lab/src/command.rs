//! The commands of `extant lab`, taking plain values: runs what the command line asks for and
//! prints the result.

use crate::experiment::run_experiment;
use crate::report::{
    Column, CompareError, Format, JobFigure, compare as compare_columns, draw_trace, experiment_table,
    fio_json, fio_terse, fio_text, write_folder,
};
use crate::reproduce::{intervals, reproduce as reproduce_nominal};
use crate::run::{Policy, RunError, on_files, on_machine};
use crate::setup::input_file::{self, InputKind};
use crate::setup::{Axis, ExperimentError, Setup, machine};
use crate::sweep::{SweepError, grid_table};
use crate::trace::{self, Trace, TraceError, TraceFile};
use crate::workload::fio::{self, JobError, OutputFormat};
use extant_block::{FileDevice, ForeignLocks};
use extant_rt::trace::ChromeSink;
use extant_rt::{Nanos, Sink};
use extant_sim::{ModelError, Setting};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// fio jobs to run.
#[derive(Clone, Debug)]
pub struct Jobs {
    /// Job files and options, in fio's syntax.
    pub words: Vec<String>,
    /// The file of the modelled machine; if `None`, the jobs run on real files.
    pub machine: Option<PathBuf>,
    /// Elevator and request limit (modelled machines only), and page cache settings.
    pub policy: Policy,
    /// Seed of the modelled world.
    pub seed: u64,
    /// Values that override keys of the machine's file.
    pub settings: Vec<Setting>,
    /// Where to write the trace. A name ending in `.json` gets all events as Chrome's JSON; any
    /// other name gets the page cache's events in our own format.
    pub trace: Option<PathBuf>,
}

/// An experiment to run, in whole or in part.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The experiment's folder, or its file.
    pub path: PathBuf,
    /// Names of the workloads to run; empty for all.
    pub workloads: Vec<String>,
    /// Names of the rows to run; empty for all.
    pub rows: Vec<String>,
    /// How long each workload runs, without warm-up; overrides its jobs.
    pub span: Option<Nanos>,
    /// Values that override keys of the machine's file.
    pub settings: Vec<Setting>,
    /// The folder for a report with drawings.
    pub report: Option<PathBuf>,
    /// Base name of each disk's blktrace: `BASE.DISK.blktrace.0`.
    pub blktrace: Option<PathBuf>,
}

/// Experiments to reproduce, and the format of the report.
#[derive(Clone, Debug)]
pub struct ReproduceRequest {
    /// The folder of the experiments.
    pub root: PathBuf,
    /// Names of the experiments to run; empty for all.
    pub only: Vec<String>,
    /// The format of the report.
    pub format: Format,
    /// The folder that stores results of runs over the ranges; if `None`, only the nominal point
    /// runs.
    pub results: Option<PathBuf>,
    /// The folder for reports with drawings, one per experiment.
    pub report: Option<PathBuf>,
}

/// A report of a recorded trace.
#[derive(Clone, Debug)]
pub struct TraceReport {
    /// The trace.
    pub trace: PathBuf,
    /// The SVG file to draw it into.
    pub drawing: Option<PathBuf>,
    /// Whether to list every pause.
    pub pauses: bool,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Jobs were refused.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A machine was refused.
    #[error(transparent)]
    Machine(#[from] ModelError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An experiment failed.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// A sweep was refused.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// A trace was refused.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Results cannot be compared.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// A time limit for an experiment that ends when its work is done.
    #[error(
        "{file}: {program} ends when its work is done; leave --seconds out, or change its options in the file"
    )]
    EndsByItself {
        /// The experiment.
        file: String,
        /// The program that it runs.
        program: &'static str,
    },
    /// I/O errors in a run; the report has been printed.
    #[error("{0} of the jobs stopped at an I/O error")]
    Failed(usize),
    /// The output could not be written.
    #[error("output: {0}")]
    Output(std::io::Error),
    /// A file could not be read or written.
    #[error("{0}: {1}")]
    File(String, String),
    /// Nothing has this name.
    #[error("no machine, policy or key is named {0}; extant lab list shows all")]
    Unknown(String),
    /// An experiment's table differs from the expected one.
    #[error(
        "{file}:{line}: expected \"{expected}\", got \"{got}\"; if that is intended, run it again with --update and commit it"
    )]
    Differs {
        /// The file that holds the expected table.
        file: String,
        /// The first line that differs.
        line: usize,
        /// The expected line.
        expected: String,
        /// The line that was produced instead.
        got: String,
    },
}

/// Runs an experiment and prints its table.
///
/// # Errors
/// Names the file, row or workload, and the problem.
pub fn experiment(selection: &Selection, out: &mut dyn Write) -> Result<(), LabError> {
    let setup = select(selection)?;
    let cells = match &selection.report {
        Some(folder) => write_folder(&setup, &selection.path, folder)?,
        None => run_experiment(&setup, selection.blktrace.as_deref())?,
    };
    print(out, &experiment_table(&setup, &cells))?;
    print(out, &grid_table(&setup)?)
}

/// Loads the selected experiment, or the selected part of it.
///
/// # Errors
/// Names the file, row or workload, and the problem.
pub fn select(selection: &Selection) -> Result<Setup, LabError> {
    let Selection { path, workloads, rows, span, settings, .. } = selection;
    let setup = Setup::load_with(path, settings)?.only(workloads, rows)?;
    match (span, &setup.program) {
        (None, _) => Ok(setup),
        (Some(span), None) => Ok(setup.for_only(*span)),
        (Some(_), Some(program)) => {
            let (file, program) = (path.display().to_string(), program.name());
            Err(LabError::EndsByItself { file, program })
        }
    }
}

/// Runs an experiment, or part of it, over other values of the machine's keys and prints the
/// results.
///
/// Runs its first seed at every combination of values, and prints the least and greatest of each
/// figure.
///
/// # Errors
/// As [`experiment`], or names a setting that the machine rejects.
pub fn sweep(selection: &Selection, axes: &[Axis], out: &mut dyn Write) -> Result<(), LabError> {
    let setup = select(selection)?.over(axes)?;
    print(out, &format!("{}\n{}", setup.name, grid_table(&setup)?))
}

/// Parses the jobs of a fio command line.
///
/// # Errors
/// Names the word that was not understood.
pub fn jobs_of(words: &[String]) -> Result<Vec<fio::Job>, LabError> {
    Ok(fio::command_line(words, |path| input_file::read(path, InputKind::Jobs))?.jobs)
}

/// Reproduces the experiments of a folder and prints each published figure next to the model's.
///
/// The experiments run at their nominal points, or over their ranges. The model's side is a figure
/// in the first case and an interval in the second.
///
/// # Errors
/// As [`reproduce()`](crate::reproduce::reproduce) and
/// [`intervals()`](crate::reproduce::intervals).
pub fn reproduce(request: &ReproduceRequest, out: &mut dyn Write) -> Result<(), LabError> {
    let ReproduceRequest { root, only, format, results, report } = request;
    match results {
        Some(results) => {
            let intervals = intervals(root, only, results)?;
            let (runs, found) = intervals.runs();
            print(out, &intervals.text(*format))?;
            if *format == Format::Text {
                print(out, &format!("  {runs} runs, {found} of them kept in {}.\n", results.display()))?;
            }
            Ok(())
        }
        None => {
            let reproduced = reproduce_nominal(root, only, report.as_deref())?;
            print(out, &reproduced.text(*format))
        }
    }
}

/// Fits the constants of an experiment's machine to the rows before the change.
///
/// Prints how well they fit; with `write`, stores them in the machine's file.
///
/// # Errors
/// As [`calibrate()`](crate::fit::calibrate).
pub fn calibrate(path: &Path, write: bool, out: &mut dyn Write) -> Result<(), LabError> {
    print(out, &crate::fit::calibrate(path, write)?)
}

/// Runs the checked part of each experiment and compares its table with `expected.txt`.
///
/// `folders` are the experiments' folders. With `update`, writes `expected.txt` instead of
/// comparing.
///
/// # Errors
/// [`LabError::Differs`] for the first table that differs; otherwise names the file, row or
/// workload, and the problem.
pub fn check(folders: &[PathBuf], update: bool, out: &mut dyn Write) -> Result<(), LabError> {
    for folder in folders {
        let setup = Setup::load(folder)?.checked_part()?;
        let table = experiment_table(&setup, &run_experiment(&setup, None)?) + &grid_table(&setup)?;
        let file = folder.join("expected.txt");
        if update {
            std::fs::write(&file, &table).map_err(|error| in_file(&file, &error))?;
        } else {
            let expected = std::fs::read_to_string(&file).map_err(|error| in_file(&file, &error))?;
            same_lines(&file, &expected, &table)?;
        }
        print(out, &format!("{}: {}\n", folder.display(), if update { "written" } else { "as expected" }))?;
    }
    Ok(())
}

fn same_lines(file: &Path, expected: &str, got: &str) -> Result<(), LabError> {
    let (mut expected, mut got) = (expected.lines(), got.lines());
    for line in 1.. {
        match (expected.next(), got.next()) {
            (None, None) => break,
            (expected, got) if expected == got => {}
            (expected, got) => {
                let [expected, got] = [expected, got].map(|line| line.unwrap_or("the end").to_owned());
                return Err(LabError::Differs { file: file.display().to_string(), line, expected, got });
            }
        }
    }
    Ok(())
}

/// Compares results and prints a table of changes in per cent.
///
/// The first result is the base. Each is a file of fio's JSON, or several runs of the same jobs as
/// `A.json,B.json`.
///
/// # Errors
/// Names the file that could not be read, or says why the results cannot be compared.
pub fn compare(results: &[String], out: &mut dyn Write) -> Result<(), LabError> {
    let columns: Vec<Column> = results.iter().map(|word| column(word)).collect::<Result<_, _>>()?;
    print(out, &compare_columns(&columns, &JobFigure::ALL)?)
}

/// Prints the machines in a folder, or the built-in ones, and all policies, keys and options.
///
/// # Errors
/// A machine in the folder was refused.
pub fn list(machines: Option<&Path>, out: &mut dyn Write) -> Result<(), LabError> {
    print(out, &crate::report::list(machines)?)
}

/// Prints what a name stands for: the file of a built-in machine, or the meaning of a policy or
/// key.
///
/// # Errors
/// Nothing has this name.
pub fn show(name: &str, out: &mut dyn Write) -> Result<(), LabError> {
    match crate::report::show(name) {
        Some(shown) => print(out, &shown),
        None => Err(LabError::Unknown(name.escape_debug().to_string())),
    }
}

/// The keys of a machine's file, each with its unit, range, default and meaning.
pub fn keys() -> String {
    crate::report::keys()
}

/// Prints a summary of a trace, and draws it if asked.
///
/// # Errors
/// Names the trace and the bad line in it, or the file that could not be written.
pub fn trace_report(request: &TraceReport, out: &mut dyn Write) -> Result<(), LabError> {
    let trace = Trace::load(&request.trace)?;
    if let Some(path) = &request.drawing {
        if let (Ok(to), Ok(from)) = (path.canonicalize(), request.trace.canonicalize())
            && to == from
        {
            let problem = "is the trace itself; give the drawing another name".to_owned();
            return Err(LabError::File(path.display().to_string(), problem));
        }
        if trace.levels.is_empty() && trace.pauses.is_empty() {
            let problem = "nothing in it to draw: no job wrote through the page cache (direct=0)".to_owned();
            return Err(LabError::File(request.trace.display().to_string(), problem));
        }
        std::fs::write(path, draw_trace(&trace)).map_err(|error| in_file(path, &error))?;
    }
    if request.pauses {
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

/// Whether a recording may overwrite `path`.
///
/// An older recording may be replaced, but not a file named by mistake, such as a job's disk image.
/// Devices such as `/dev/null` accept anything.
fn is_ours(path: &Path) -> std::io::Result<bool> {
    if !path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) {
        return Ok(true);
    }
    let mut head = Vec::new();
    File::open(path)?.take(trace::MAGIC.len() as u64).read_to_end(&mut head)?;
    Ok(head == trace::MAGIC.as_bytes() || head.starts_with(b"["))
}

/// Runs fio jobs and prints the report.
///
/// # Errors
/// Names the job, option or file, and the problem. Returns [`LabError::Failed`] after printing the
/// report if jobs met I/O errors.
pub fn jobs(request: &Jobs, out: &mut dyn Write) -> Result<(), LabError> {
    let Jobs { words, machine, policy, seed, settings, trace } = request;
    let line = fio::command_line(words, |path| input_file::read(path, InputKind::Jobs))?;
    let control = policy.memory.control();
    let (outcome, recorder) = match machine {
        Some(path) => {
            let machine = machine::load(path, settings)?;
            let about = format!("{}; elevator {}; dirty control {control}", machine.name, policy.elevator);
            let recorder = Recorder::new(trace.as_deref(), &about)?;
            (on_machine(&line.jobs, machine, policy, *seed, recorder.sink())?, recorder)
        }
        None => {
            let recorder = Recorder::new(trace.as_deref(), &format!("files; dirty control {control}"))?;
            (on_files(&line.jobs, &policy.memory, recorder.sink())?, recorder)
        }
    };
    let recorded = recorder.finish();
    let text = match line.format {
        OutputFormat::Normal => fio_text(&outcome),
        OutputFormat::Json => format!("{:#}\n", fio_json(&outcome)),
        OutputFormat::Terse => fio_terse(&outcome),
    };
    match &line.output {
        None => print(out, &text)?,
        Some(path) => {
            let problem =
                |error: std::io::Error| LabError::File(path.display().to_string(), error.to_string());
            let _claim = FileDevice::claim_to_replace(path, ForeignLocks::Honour).map_err(problem)?;
            std::fs::write(path, text).map_err(problem)?;
        }
    }
    // Report this only now, so that a full disk does not lose the results of a long run.
    if let (Some(path), Err(error)) = (trace, recorded) {
        return Err(in_file(path, &error));
    }
    match outcome.results.iter().filter(|result| result.measured.error.is_some()).count() {
        0 => Ok(()),
        failed => Err(LabError::Failed(failed)),
    }
}

fn column(word: &str) -> Result<Column, LabError> {
    let mut runs = Vec::new();
    for file in word.split(',') {
        let problem = |problem: String| LabError::File(file.to_owned(), problem);
        let text = input_file::read(Path::new(file), InputKind::Result).map_err(problem)?;
        // fio prints warnings before its result.
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

//! `extant lab`: what the command's arguments mean. The `extant` command embeds [`LabCommand`] and calls [`run`].

use crate::compare::{Column, CompareError, Figure, compare};
use crate::experiment::{Experiment, ExperimentError};
use crate::fio::{self, JobError, OutputFormat};
use crate::history;
use crate::report;
use crate::run::{Policy, RunError, on_files, on_machine};
use crate::text::{self, MOST_JOB_FILE_BYTES, MOST_RESULT_BYTES};
use extant_sim::{Machine, ModelError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What the lab does.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum LabCommand {
    /// Run fio jobs on a modelled machine or on files, or run an experiment
    Run(RunArgs),
    /// Compare two or more results: a table of changes in per cent
    Compare(CompareArgs),
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
    /// An experiment (.toml), or job files and options as fio takes them
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "JOB")]
    pub words: Vec<String>,
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
    /// Results cannot be compared.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// I/O errors in a run; the report has been printed.
    #[error("{0} of the jobs stopped at an I/O error")]
    Failed(usize),
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
                if args.machine.is_some() {
                    let problem = "an experiment names its machine and policies itself; leave --machine out";
                    return Err(JobError { place: file.clone(), problem: problem.into() }.into());
                }
                let experiment = Experiment::load(Path::new(file))?;
                let cells = experiment.run()?;
                print(out, &experiment.table(&cells))
            }
            words => jobs(args, words, out),
        },
        LabCommand::Compare(args) => {
            let columns: Vec<Column> =
                args.results.iter().map(|word| column(word)).collect::<Result<_, _>>()?;
            print(out, &compare(&columns, &Figure::ALL)?)
        }
    }
}

fn jobs(args: &RunArgs, words: &[String], out: &mut dyn Write) -> Result<(), LabError> {
    let line = fio::command_line(words, |path| text::read(path, MOST_JOB_FILE_BYTES))?;
    let outcome = match &args.machine {
        Some(path) => {
            let mut policy = Policy::default();
            if let Some(name) = &args.elevator {
                policy.elevator.clone_from(name);
            }
            if let Some(requests) = args.requests {
                policy.requests = requests as usize;
            }
            on_machine(&line.jobs, Machine::load(path)?, &policy, args.seed.unwrap_or(1))?
        }
        None => on_files(&line.jobs)?,
    };
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
    match outcome.reports.iter().filter(|report| report.measured.error.is_some()).count() {
        0 => Ok(()),
        failed => Err(LabError::Failed(failed)),
    }
}

fn column(word: &str) -> Result<Column, LabError> {
    let mut runs = Vec::new();
    for file in word.split(',') {
        let problem = |error: &dyn std::fmt::Display| LabError::File(file.to_owned(), error.to_string());
        let text = text::read(Path::new(file), MOST_RESULT_BYTES).map_err(|error| problem(&error))?;
        // fio prints its warnings before its result.
        let json = text.find("\n{").filter(|_| text.starts_with("fio: ")).map_or(0, |newline| newline + 1);
        runs.push(serde_json::from_str(&text[json..]).map_err(|error| problem(&error))?);
    }
    let first = Path::new(word.split(',').next().unwrap_or(word));
    let title = first.file_stem().map_or(word.into(), |stem| stem.to_string_lossy().into_owned());
    Ok(Column { title, runs })
}

fn print(out: &mut dyn Write, text: &str) -> Result<(), LabError> {
    out.write_all(text.as_bytes()).map_err(|error| LabError::File("output".into(), error.to_string()))
}

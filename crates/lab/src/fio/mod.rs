//! fio's job files and command lines: a subset, read strictly.
//!
//! Every key that is understood has the meaning of `fio(1)` 3.33; any other is refused by name and place, because a key
//! that is silently ignored makes another experiment of a job.

mod options;
mod parse;
mod units;

pub use options::{Engine, Job, Pattern, SyncCall};
pub use parse::{CommandLine, OutputFormat, command_line, job_file};

/// Why a job was refused: where it stands, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct JobError {
    /// File and line, or the word of the command line.
    pub place: String,
    /// The mistake, and the expected form.
    pub problem: String,
}

//! fio's job files and command lines: a subset, read strictly.
//!
//! Every key that is understood has the meaning of `fio(1)` 3.33. Those that cannot change a result here are taken and named in the
//! report ([`WITHOUT_EFFECT`]); any other is refused by name and place, because a key that is silently ignored makes another
//! experiment of a job.

mod known;
mod options;
mod parse;
mod units;

pub use known::WITHOUT_EFFECT;
pub use options::{Durability, Engine, Job, KEYS, Pattern, Size, SyncCall};
pub use parse::{CommandLine, OutputFormat, command_line, job_file};

/// Jobs with other values for some options.
///
/// # Errors
/// Names the option that is not understood.
pub fn changed(jobs: &[Job], options: &[(String, String)]) -> Result<Vec<Job>, JobError> {
    let with = |job: &Job| {
        let mut job = job.clone();
        for (key, value) in options {
            job.change(key, value)
                .map_err(|problem| JobError { place: format!("--job {key}={value}"), problem })?;
        }
        Ok(job)
    };
    jobs.iter().map(with).collect()
}

/// Why a job was refused: where it stands, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct JobError {
    /// File and line, or the word of the command line.
    pub place: String,
    /// The mistake, and the expected form.
    pub problem: String,
}

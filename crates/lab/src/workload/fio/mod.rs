//! Reads a subset of fio's job files and command lines, strictly.
//!
//! Every supported key has the meaning of `fio(1)` 3.33. Keys that cannot change a result here are
//! accepted and listed in the report ([`WITHOUT_EFFECT`]). Any other key is refused with its name
//! and place, because silently ignoring a key would turn a job into a different experiment.

mod options;
mod parse;
mod units;
mod without_effect;

pub use options::{Advice, Durability, Engine, Job, KEYS, Pattern, Size, SyncCall};
pub use parse::{CommandLine, OutputFormat, command_line, job_file};
pub use without_effect::WITHOUT_EFFECT;

/// Returns the jobs with other values for some options.
///
/// # Errors
/// Names the option that was not understood.
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

/// Why a job was refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct JobError {
    /// File and line, or the word on the command line.
    pub place: String,
    /// The mistake, and what is expected instead.
    pub problem: String,
}

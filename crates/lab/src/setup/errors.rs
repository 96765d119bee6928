//! Why an experiment failed.

use crate::run::RunError;
use crate::workload::fio::JobError;
use extant_sim::ModelError;

/// Why an experiment failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    /// A file could not be read.
    #[error("{0}: {1}")]
    File(String, String),
    /// The experiment file is malformed.
    #[error("{file}: {problem}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, key and problem.
        problem: String,
    },
    /// The machine's file was refused.
    #[error(transparent)]
    Machine(#[from] ModelError),
    /// A job file was refused.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The experiment has no row or workload of the requested name.
    #[error("the experiment has no {kind} \"{name}\"; it has: {known}")]
    Unknown {
        /// "row" or "workload".
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// A run failed.
    #[error("row \"{row}\", workload \"{workload}\": {error}")]
    Run {
        /// The row.
        row: String,
        /// The workload.
        workload: String,
        /// The error.
        error: RunError,
    },
}

//! Why jobs were not run.

use extant_rt::RtError;

/// Why jobs were not run, or did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The machine has no `[[disk]]`.
    #[error("the machine \"{0}\" has no disks; add a [[disk]] to its file")]
    NoDisks(String),
    /// The page cache's settings are invalid.
    #[error("{key}: {problem}")]
    Memory {
        /// The setting's name in a machine's file.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Without an elevator, a queue cannot have more requests than the disk has tags.
    #[error(
        "{disk}: \"none\" has one request for each of the disk's {tags} tags and cannot have {requests} (Linux \
         refuses this since 5.0); leave --requests out, or choose \"noop\", which has its own requests"
    )]
    BeyondTags {
        /// The disk.
        disk: String,
        /// The number requested.
        requests: usize,
        /// The disk's number of tags.
        tags: usize,
    },
    /// Pages that the jobs left dirty could not be written back.
    #[error("writing back what the jobs left in the page cache: {0}")]
    WriteBack(String),
    /// A job on a modelled machine gives no file size.
    #[error("[{0}]: size= is missing, and a modelled disk has no file to take it from")]
    NoSize(String),
    /// A file does not fit on the disk.
    #[error("[{job}]: {file} of {length} bytes does not fit on the disk")]
    Full {
        /// The job.
        job: String,
        /// The file.
        file: String,
        /// Its length in bytes.
        length: u64,
    },
    /// The job's span contains no whole block of the file.
    #[error("[{job}]: {file} has {length} bytes, less than a block from where the job begins")]
    TooSmall {
        /// The job.
        job: String,
        /// The file.
        file: String,
        /// Its length in bytes.
        length: u64,
    },
    /// A key takes effect only on a modelled machine.
    #[error("[{job}]: {key}= has no effect on real files here; leave it out, or give a machine to run on")]
    NotOnFiles {
        /// The job.
        job: String,
        /// The key.
        key: String,
    },
    /// A host file could not be used.
    #[error("{0}: {1}")]
    File(String, String),
    /// The jobs' volume could not be made or used.
    #[error("the volume: {0}")]
    Volume(String),
    /// A program that runs in phases failed.
    #[error("{program}: {problem}")]
    Program {
        /// The program.
        program: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The world stopped early.
    #[error("{0}")]
    World(String),
}

impl RunError {
    pub(super) fn file(file: &str, error: &std::io::Error) -> Self {
        Self::File(file.to_owned(), error.to_string())
    }
}

impl From<RtError> for RunError {
    fn from(error: RtError) -> Self {
        Self::World(error.to_string())
    }
}

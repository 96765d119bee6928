//! Finds what is wrong with an ext2, ext3 or ext4 volume, and repairs it ([`repair`]). A check
//! writes nothing.
//!
//! [`check`] reads inode tables, maps and directories in disk order with many reads in flight. It
//! keeps one bit for each cluster and three bytes for each inode, both only where something is in
//! use. Memory and repeated reads are limited, so that a hostile image ends the check early
//! ([`Incomplete`]) rather than the program. If the journal is dirty, its newer copies of blocks
//! are read instead of the old ones. All structures are parsed by `extant-format`; a damaged one is
//! reported, and what follows from it is left out.
//!
//! Each [`Finding`] has a [`Code`] with a stable name, says where and what was found and expected,
//! and has the same place in the result whatever the number of tasks.
//!
//! ```
//! use extant_block::MemDevice;
//! use extant_check::{CheckError, Options, check};
//! # use std::sync::Arc;
//! let rt = extant_rt::Rt::real(Default::default());
//! let device = Arc::new(MemDevice::new(1 << 20));
//! let checked = rt.block_on(check(&rt, device, Options::default())).unwrap();
//! assert!(matches!(checked, Err(CheckError::NoVolume(_))));
//! ```
#![forbid(unsafe_code)]

mod backups;
mod code;
mod connectivity;
mod contents;
mod context;
mod cost;
mod dir_block;
mod dir_sweep;
mod fields;
mod file;
mod finding;
mod found;
mod groups;
mod htree;
mod inode_sweep;
mod layout;
mod limits;
mod listing;
mod map;
mod open;
mod own_files;
mod own_inodes;
mod owners;
mod paths;
mod quota_files;
pub mod repair;
mod shared;
mod source;
mod state;
mod stored_sums;
mod sweeps;
mod tables;
mod usage;
mod xattr_checks;

pub use code::{Code, Severity};
pub use cost::Cost;
pub use finding::{Finding, Spot};
pub use limits::{Cancel, Incomplete};
pub use sweeps::check;

use extant_block::Device;
use extant_format::Corrupt;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Progress of a check: work done so far, and work in total.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Receives findings as they are made.
pub type OnFinding = Arc<dyn Fn(&Finding) + Send + Sync>;

/// How to check.
#[derive(Clone)]
pub struct Options {
    /// Offset of the superblock in bytes; by default that of the primary one, 1,024.
    pub superblock_offset: Option<u64>,
    /// Do not use newer blocks in the journal, even if it is dirty.
    pub ignore_journal: bool,
    /// The time, in seconds since 1970; without it, times in the future are not found.
    pub now: Option<i64>,
    /// The volume may change while it is read, so contradictions between structures are only
    /// suspected.
    pub in_use: bool,
    /// Maximum number of findings of each code to keep; all are counted.
    pub most_per_code: usize,
    /// Maximum number of findings to keep in all.
    pub most_findings: usize,
    /// Memory that the check may use, in bytes; by default what a healthy volume of the same size
    /// needs. 24 MiB of it are for buffers.
    pub memory_bytes: Option<u64>,
    /// Ends the check early.
    pub cancel: Cancel,
    /// Called for findings as they are made, each once, in no particular order and without paths.
    /// At most 100,000 are reported here, which may be more of one code than are kept.
    pub on_finding: Option<OnFinding>,
    /// Number of tasks that work at the same time.
    pub tasks: usize,
    /// Number of reads that each task keeps in flight, at most 64; of short ones, four times as
    /// many.
    pub depth: usize,
    /// The same device, opened past the host's page cache. Blocks that are not cached are read from
    /// it. Leave it out for a volume in use: its newest blocks may be in the page cache only.
    pub uncached: Option<Arc<dyn Device>>,
    /// Called from time to time with the progress.
    pub progress: Option<Progress>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            superblock_offset: None,
            ignore_journal: false,
            now: None,
            in_use: false,
            most_per_code: 1000,
            most_findings: 20_000,
            memory_bytes: None,
            cancel: Cancel::default(),
            on_finding: None,
            tasks: 4,
            depth: 8,
            uncached: None,
            progress: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("in_use", &self.in_use).field("tasks", &self.tasks).finish()
    }
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What is wrong, by code and place.
    pub findings: Vec<Finding>,
    /// How often each code was found, including findings that are not in the list.
    pub counts: BTreeMap<Code, u64>,
    /// Why the check ended early. What it found until then is true.
    pub incomplete: Option<Incomplete>,
    /// Remarks for the reader that are not damage.
    pub notes: Vec<String>,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Blocks in use.
    pub blocks: u64,
    /// Files that were deleted or truncated while open, which the next mount will finish.
    pub orphans: u64,
    /// The journal contains changes that could not be read, though nothing shows that it is
    /// damaged.
    pub is_stale: bool,
}

impl Checked {
    /// Whether everything was seen and nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty() && self.incomplete.is_none()
    }
}

/// Why a volume could not be checked.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// There is no superblock, and no backup either.
    #[error("no superblock, nor a backup of it: {0}")]
    NoVolume(Corrupt),
    /// The volume has a feature that this program does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// [`Cancel::cancel`] was called.
    #[error("the check was cancelled")]
    Cancelled,
    /// A volume that is open for writing could not be written out.
    #[error("before the check: {0}")]
    Sync(extant_fs::Error),
    /// The device failed while a repair was planned.
    #[error(transparent)]
    Device(extant_block::IoError),
    /// A repair would change more blocks than can be kept in memory.
    #[error("the repair would change more than fits into 1 GiB of memory; e2fsck may make it")]
    TooMuch,
    /// A task failed.
    #[error(transparent)]
    World(#[from] extant_rt::RtError),
}

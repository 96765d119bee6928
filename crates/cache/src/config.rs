//! Settings of a cache, and their defaults.

use crate::dirty::TurnControl;
use crate::dirty::control_interface::{DirtyControl, DirtyLimits};
use crate::page::PAGE;
use crate::pass_policy::{ByRuns, WriteBackPass};
use crate::pool::evict::{Eviction, SPARE_FRAMES};
use extant_rt::{Nanos, WaitConfig};

/// Settings of a [`PageCache`](crate::PageCache).
#[derive(Debug)]
pub struct CacheConfig {
    /// Memory for pages, in bytes. Their descriptors add less than 2 %.
    pub budget_bytes: u64,
    /// Flushers work while more than this is dirty; default: a quarter of the budget.
    pub background_bytes: Option<u64>,
    /// Limit on dirty plus write-back pages; default: half of the budget; at most three quarters.
    pub dirty_bytes: Option<u64>,
    /// Longest read-ahead; 0 turns it off.
    pub read_ahead_bytes: u64,
    /// Largest bio.
    pub bio_bytes: u64,
    /// Longest run of dirty pages the backing is asked to place at once; default: `bio_bytes`.
    pub run_bytes: Option<u64>,
    /// Time between periodic passes (kernel: `dirty_writeback_centisecs`).
    pub periodic: Nanos,
    /// Age at which a periodic pass writes a file back (kernel: `dirty_expire_centisecs`).
    pub expire: Nanos,
    /// Whether each file that becomes dirty wakes the flusher, which then sets a timer (as Linux
    /// does for each inode). By default the first ones wake no one while a timer is set: a wake of
    /// another thread takes longer than the write of a small file.
    pub wake_for_each_file: bool,
    /// Whether the pages of a long run become free once they are written back. For a cache below
    /// another one that keeps what is written, such as the kernel's above a FUSE server.
    pub frees_long_runs: bool,
    /// What happens to pages that cannot be written.
    pub on_write_error: OnWriteError,
    /// Frames without memory, for virtual worlds.
    ///
    /// A write copies nothing and a read returns zeros; the device receives
    /// [zeroes](extant_block::Segment::zeroes), and the data it returns is dropped. Everything else
    /// works as usual, including costs. An hour of streaming then needs neither memory nor copies.
    pub phantom_frames: bool,
    /// The dirty controller, which decides how much each writer may dirty, and when flushers work.
    /// [`TurnControl`] by default.
    pub control: Box<dyn DirtyControl>,
    /// How a write-back pass walks a file's dirty pages. [`ByRuns`] by default.
    pub pass: Box<dyn WriteBackPass>,
    /// The table in which tasks wait for pages; the lab substitutes older ones.
    pub page_waits: WaitConfig,
    /// The eviction policy, sized for the frames of the budget plus [`SPARE_FRAMES`];
    /// [`S3Fifo`](crate::evict::S3Fifo) if `None`.
    pub eviction: Option<Box<dyn Eviction>>,
}

impl CacheConfig {
    /// The defaults for a given budget.
    pub fn with_budget(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            background_bytes: None,
            dirty_bytes: None,
            read_ahead_bytes: (budget_bytes / 32).clamp(PAGE, 1 << 20),
            bio_bytes: (budget_bytes / 32).clamp(PAGE, 1 << 20),
            run_bytes: None,
            periodic: Nanos::from_secs(5),
            expire: Nanos::from_secs(30),
            wake_for_each_file: false,
            frees_long_runs: false,
            on_write_error: OnWriteError::default(),
            phantom_frames: false,
            control: Box::new(TurnControl::new()),
            pass: Box::new(ByRuns),
            page_waits: WaitConfig::new("pages"),
            eviction: None,
        }
    }

    /// The number of frames of the budget.
    pub(crate) fn frames(&self) -> u32 {
        let most_frames = u64::from(u32::MAX - 1 - SPARE_FRAMES);
        (self.budget_bytes / PAGE).clamp(16, most_frames) as u32
    }

    pub(crate) fn limits(&self, frames: u64) -> DirtyLimits {
        let most = most_dirty(frames);
        let limit_pages = self.dirty_bytes.map_or(frames / 2, |bytes| bytes / PAGE);
        let background_pages = self.background_bytes.map_or(frames / 4, |bytes| bytes / PAGE);
        DirtyLimits { background_pages, limit_pages }.within(most)
    }

    /// The settings for a cache with this number of frames.
    pub(crate) fn settings(&self, frames: u64) -> Settings {
        Settings {
            on_write_error: self.on_write_error,
            read_ahead_pages: self.read_ahead_bytes / PAGE,
            run_pages: (self.run_bytes.unwrap_or(self.bio_bytes) / PAGE).max(1),
            bio_pages: (self.bio_bytes / PAGE).max(1),
            periodic: self.periodic,
            expire: self.expire,
            wake_for_each_file: self.wake_for_each_file,
            frees_long_runs: self.frees_long_runs,
            phantom: self.phantom_frames,
            page_waits: self.page_waits,
            most_dirty_pages: most_dirty(frames),
        }
    }
}

/// Upper bound on dirty pages, even if the limits are higher: reads need frames too.
fn most_dirty(frames: u64) -> u64 {
    (frames * 3 / 4).max(1)
}

/// What happens to a page that could not be written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnWriteError {
    /// The page stays dirty, and is retried by the next periodic pass and on demand.
    ///
    /// A writer that would have to wait for room on a device that keeps failing gets the device's
    /// error. Writers of other devices may exceed the limit by what the failing device holds, up to
    /// three quarters of the frames. If a file's backing has no place for its pages, only that file
    /// is affected: its pages stay in memory until a sync succeeds or they are cut off, and writers
    /// that would dirty more of the file get its error.
    #[default]
    KeepDirty,
    /// The page counts as clean and may be evicted, which loses its contents, as on Linux.
    MarkClean,
}

/// Settings; they never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) on_write_error: OnWriteError,
    pub(crate) read_ahead_pages: u64,
    pub(crate) run_pages: u64,
    pub(crate) bio_pages: u64,
    pub(crate) periodic: Nanos,
    pub(crate) expire: Nanos,
    pub(crate) wake_for_each_file: bool,
    pub(crate) frees_long_runs: bool,
    pub(crate) phantom: bool,
    pub(crate) page_waits: WaitConfig,
    /// Upper bound on dirty plus write-back pages, even if the limits are higher.
    pub(crate) most_dirty_pages: u64,
}

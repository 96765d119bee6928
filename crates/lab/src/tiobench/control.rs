//! How much of which files a task is to write back.

use super::disks::Submitter;

/// A task's orders to write back (kernel: `struct writeback_control`).
#[derive(Debug)]
pub(super) struct Control {
    pub(super) submitter: Submitter,
    /// Pages to write still; the last look-up may go past it.
    pub(super) left: i64,
    /// The task passes a congested queue by, instead of waiting for requests.
    pub(super) nonblocking: bool,
    pub(super) encountered_congestion: bool,
    /// Only inodes that were dirtied up to this tick.
    pub(super) older_than: Option<u64>,
    /// Pages under write-back already are waited for, and written again (kernel: `WB_SYNC_ALL`).
    pub(super) waits: bool,
}

impl Control {
    /// Of a writer that is held up. Linux 2.6.6 does not make it `nonblocking`: it waits for requests.
    pub(super) fn throttled(submitter: Submitter, left: i64) -> Self {
        Self {
            submitter,
            left,
            nonblocking: false,
            encountered_congestion: false,
            older_than: None,
            waits: false,
        }
    }

    pub(super) fn background(left: i64) -> Self {
        Self { nonblocking: true, ..Self::throttled(Submitter::PDFLUSH, left) }
    }

    pub(super) fn kupdate(left: i64, older_than: u64) -> Self {
        Self { older_than: Some(older_than), ..Self::background(left) }
    }

    /// Of an fsync.
    pub(super) fn integrity(file: u32) -> Self {
        Self { waits: true, ..Self::throttled(Submitter::waiting(file), i64::MAX) }
    }

    pub(super) fn for_kupdate(&self) -> bool {
        self.older_than.is_some()
    }

    pub(super) fn is_pdflush(&self) -> bool {
        self.submitter == Submitter::PDFLUSH
    }
}

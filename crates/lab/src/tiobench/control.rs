//! Which files a task writes back, and how much of them.

use super::disks::Submitter;

/// Parameters of a write-back (kernel: `struct writeback_control`).
#[derive(Debug)]
pub(super) struct Control {
    pub(super) submitter: Submitter,
    /// Pages left to write; the last lookup may exceed it.
    pub(super) left: i64,
    /// Skip a congested queue instead of waiting for requests.
    pub(super) nonblocking: bool,
    pub(super) encountered_congestion: bool,
    /// Only inodes that were dirty by this tick.
    pub(super) older_than: Option<u64>,
    /// Wait for pages already under write-back and write them again (kernel: `WB_SYNC_ALL`).
    pub(super) waits: bool,
}

impl Control {
    /// For a throttled writer. Linux 2.6.6 does not set `nonblocking`, so it waits for requests.
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

    /// For an fsync.
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

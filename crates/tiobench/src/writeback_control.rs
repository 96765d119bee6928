//! Which files a task writes back, and how much of them.

use crate::disks::Submitter;

/// Parameters of a write-back (kernel: `struct writeback_control`).
#[derive(Debug)]
pub(crate) struct WritebackControl {
    pub(crate) submitter: Submitter,
    /// Pages left to write; the last lookup may exceed it.
    pub(crate) left: i64,
    /// Whether to skip a congested queue instead of waiting for requests.
    pub(crate) nonblocking: bool,
    pub(crate) encountered_congestion: bool,
    /// If set, write back only inodes that were dirty by this tick.
    pub(crate) older_than: Option<u64>,
    /// Whether to wait for pages already under write-back, and write them again (kernel:
    /// `WB_SYNC_ALL`).
    pub(crate) waits: bool,
}

impl WritebackControl {
    /// For a throttled writer. Linux 2.6.6 does not set `nonblocking`, so it waits for requests.
    pub(crate) fn throttled(submitter: Submitter, left: i64) -> Self {
        Self {
            submitter,
            left,
            nonblocking: false,
            encountered_congestion: false,
            older_than: None,
            waits: false,
        }
    }

    pub(crate) fn background(left: i64) -> Self {
        Self { nonblocking: true, ..Self::throttled(Submitter::PDFLUSH, left) }
    }

    pub(crate) fn kupdate(left: i64, older_than: u64) -> Self {
        Self { older_than: Some(older_than), ..Self::background(left) }
    }

    /// For an fsync.
    pub(crate) fn integrity(file: u32) -> Self {
        Self { waits: true, ..Self::throttled(Submitter::waiting(file), i64::MAX) }
    }

    pub(crate) fn for_kupdate(&self) -> bool {
        self.older_than.is_some()
    }

    pub(crate) fn is_pdflush(&self) -> bool {
        self.submitter == Submitter::PDFLUSH
    }
}

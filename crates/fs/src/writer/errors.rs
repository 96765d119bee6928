//! The policy for errors (kernel documents: *Super Block*, `s_errors`; *ext4 General Information*, mount option `errors`),
//! and what has been done about them. See `guard` for what follows from an error.

use crate::Error;
use extant_format::Superblock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The answer of a volume that is open for writing to a damaged structure that an operation meets. Each time, the superblock
/// records the error, so that the next e2fsck looks at everything. A failure of the journal ends writing under each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// The operation fails, and others go on; nothing is allocated from a group whose bitmap is damaged.
    Continue,
    /// Writing ends: later changes fail with [`Error::ReadOnly`], reading goes on (`remount-ro`).
    ReadOnly,
    /// Every later operation fails with [`Error::Halted`], and so do those after a failure of the journal (`panic`, which
    /// stops the whole machine).
    Panic,
}

impl ErrorPolicy {
    /// The policy that the superblock names (`s_errors`).
    pub(crate) fn of(sb: &Superblock) -> Self {
        match sb.raw().s_errors.get() {
            1 => Self::Continue,
            3 => Self::Panic,
            _ => Self::ReadOnly,
        }
    }
}

/// The policy of a volume that is open for writing, and what has been recorded.
#[derive(Debug)]
pub(crate) struct Errors {
    pub(super) policy: ErrorPolicy,
    /// Errors that were met where nothing may wait.
    pub(super) noted: Mutex<Vec<Error>>,
    pub(super) has_noted: AtomicBool,
    /// Problems of the allocator that are recorded.
    pub(super) problems: AtomicUsize,
    pub(super) end_is_recorded: AtomicBool,
}

impl Errors {
    pub(crate) fn new(policy: ErrorPolicy) -> Self {
        Self {
            policy,
            noted: Mutex::default(),
            has_noted: AtomicBool::new(false),
            problems: AtomicUsize::new(0),
            end_is_recorded: AtomicBool::new(false),
        }
    }

    /// Notes an error for the next operation to record.
    pub(crate) fn note(&self, error: &Error) {
        self.noted.lock().push(error.clone());
        self.has_noted.store(true, Ordering::Release);
    }
}

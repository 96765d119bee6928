//! The error policy (kernel documents: *Super Block*, `s_errors`; *ext4 General Information*, mount
//! option `errors`), and which errors have been handled. `guard` implements the consequences.

use crate::Error;
use extant_format::Superblock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How a volume open for writing responds when an operation finds a damaged structure. Each time,
/// the superblock records the error, so that the next e2fsck checks everything. A journal failure
/// ends writing under every policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// The operation fails and others continue. Groups with a damaged bitmap are no longer used for
    /// allocation.
    Continue,
    /// Writing ends: later changes fail with [`Error::ReadOnly`], while reads continue
    /// (`remount-ro`).
    ReadOnly,
    /// Every later operation fails with [`Error::Halted`]. A journal failure has the same effect.
    /// (Linux's `panic` stops the whole machine.)
    Panic,
}

impl ErrorPolicy {
    /// The policy named by the superblock (`s_errors`).
    pub(crate) fn of(sb: &Superblock) -> Self {
        match sb.raw().s_errors.get() {
            1 => Self::Continue,
            3 => Self::Panic,
            _ => Self::ReadOnly,
        }
    }
}

/// The policy of a volume open for writing, and which errors have been recorded.
#[derive(Debug)]
pub(crate) struct Errors {
    pub(super) policy: ErrorPolicy,
    /// Errors found where waiting is not allowed.
    pub(super) noted: Mutex<Vec<Error>>,
    pub(super) has_noted: AtomicBool,
    /// Number of allocator problems recorded so far.
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

    /// Notes an error, to be recorded by the next operation.
    pub(crate) fn note(&self, error: &Error) {
        self.noted.lock().push(error.clone());
        self.has_noted.store(true, Ordering::Release);
    }
}

//! Counts removals of many pages, for audits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts removals of pages that have begun and ended. During one, a frame may be neither in a file
/// nor free.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A removal in progress.
pub(crate) struct Removal<'a>(&'a Removals);

impl Removals {
    pub(crate) fn begin(&self) -> Removal<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Removal(self)
    }

    /// The number of removals so far; `None` while one is in progress. If two calls return the same
    /// number, no removal happened in between.
    pub(crate) fn at_rest(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

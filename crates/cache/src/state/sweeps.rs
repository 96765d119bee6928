//! Removals of many pages, as far as an audit has to know of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts removals of pages that have begun and ended. Between the two a frame may be neither in a file nor free.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A removal that is under way.
pub(crate) struct Sweeping<'a>(&'a Sweeps);

impl Sweeps {
    pub(crate) fn begin(&self) -> Sweeping<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Sweeping(self)
    }

    /// How many there were; `None` while one is under way. The same answer twice: there was none in between.
    pub(crate) fn at_rest(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }
}

impl Drop for Sweeping<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

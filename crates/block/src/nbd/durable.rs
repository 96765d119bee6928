//! Tracks whether acknowledged writes may have been lost along with a connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts acknowledged writes, and flushes that covered them, over all connections to an export.
#[derive(Debug, Default)]
pub(super) struct Durability {
    acknowledged: AtomicU64,
    flushed: AtomicU64,
    /// A connection was lost while writes were unflushed, and no flush has reported it yet.
    doubtful: AtomicBool,
}

impl Durability {
    /// A write without FUA was acknowledged.
    pub(super) fn written(&self) {
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// A flush is being sent; returns the value to pass to [`Durability::flushed`] when it is
    /// acknowledged.
    pub(super) fn flush_sent(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// A flush was acknowledged. Returns false if earlier writes may have been lost with an earlier
    /// connection; only the first flush reports this.
    pub(super) fn flushed(&self, covered: u64) -> bool {
        self.flushed.fetch_max(covered, Ordering::SeqCst);
        !self.doubtful.swap(false, Ordering::SeqCst)
    }

    /// The connection was lost, perhaps along with the server and its cache.
    pub(super) fn connection_lost(&self) {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        if acknowledged > self.flushed.fetch_max(acknowledged, Ordering::SeqCst) {
            self.doubtful.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_that_no_flush_covered_are_in_doubt_and_only_once() {
        let d = Durability::default();
        d.connection_lost();
        assert!(d.flushed(d.flush_sent()), "nothing was written");
        d.written();
        assert!(d.flushed(d.flush_sent()));
        d.connection_lost();
        assert!(d.flushed(d.flush_sent()), "the write was flushed");
        let sent = d.flush_sent();
        d.written();
        assert!(d.flushed(sent));
        d.connection_lost();
        assert!(!d.flushed(d.flush_sent()), "the write came after the flush was sent");
        assert!(d.flushed(d.flush_sent()), "told once");
    }
}

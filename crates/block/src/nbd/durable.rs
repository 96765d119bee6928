//! Whether what a server acknowledged can have been lost with the connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts writes that were acknowledged and flushes that covered them, over all connections to an export.
#[derive(Debug, Default)]
pub(super) struct Durability {
    acknowledged: AtomicU64,
    flushed: AtomicU64,
    /// A connection was lost while writes were not flushed, and no flush has told so yet.
    doubtful: AtomicBool,
}

impl Durability {
    /// A write without FUA was acknowledged.
    pub(super) fn written(&self) {
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// A flush is sent; what to give to [`Durability::flushed`] when it is acknowledged.
    pub(super) fn flush_sent(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// A flush was acknowledged. False if writes before it may have been lost with an earlier connection: this is told
    /// once, to the first flush.
    pub(super) fn flushed(&self, covered: u64) -> bool {
        self.flushed.fetch_max(covered, Ordering::SeqCst);
        !self.doubtful.swap(false, Ordering::SeqCst)
    }

    /// The connection was lost, perhaps with the server and its cache.
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

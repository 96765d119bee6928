//! Limits background write-back while a sync waits for the device.
//!
//! A sync's writes and flushes wait behind everything the device was given before. So while syncs
//! are in progress, and for a moment after, flushers keep the queue short, like the kernel's
//! write-back throttling (block/blk-wbt.c). A short queue hardly slows the device, so it hardly
//! slows the flushers' own writes.

use extant_rt::Nanos;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of background write-back in flight during a sync: 1 MiB.
const BESIDE_SYNC_PAGES: u64 = 256;
/// How long the queue stays short after a sync, for a sync that follows soon.
const LINGER: Nanos = Nanos::from_millis(10);

/// The syncs of a device.
#[derive(Debug, Default)]
pub(crate) struct SyncPriority {
    running: AtomicU64,
    /// When the last one ended, plus [`LINGER`].
    until: AtomicU64,
}

impl SyncPriority {
    pub(crate) fn begin(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, now: Nanos) {
        self.until.fetch_max(now.saturating_add(LINGER).0, Ordering::Relaxed);
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Pages that flushers may have in flight at `now`, at most `allowed`.
    pub(crate) fn limit(&self, now: Nanos, allowed: u64) -> u64 {
        let beside_sync =
            self.running.load(Ordering::Relaxed) > 0 || now.0 < self.until.load(Ordering::Relaxed);
        if beside_sync { allowed.min(BESIDE_SYNC_PAGES) } else { allowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_short_during_a_sync_and_a_moment_after() {
        let urgent = SyncPriority::default();
        let at = Nanos::from_millis;
        assert_eq!(urgent.limit(at(0), 4096), 4096);
        urgent.begin();
        urgent.begin();
        assert_eq!(urgent.limit(at(1), 4096), BESIDE_SYNC_PAGES);
        assert_eq!(urgent.limit(at(1), 16), 16, "never more than the controller allows");
        urgent.end(at(2));
        assert_eq!(urgent.limit(at(500), 4096), BESIDE_SYNC_PAGES, "another is under way");
        urgent.end(at(501));
        assert_eq!(urgent.limit(at(505), 4096), BESIDE_SYNC_PAGES);
        assert_eq!(urgent.limit(at(511), 4096), 4096);
    }
}

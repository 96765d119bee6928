//! The patch that opened the thread "cfq-iosched: limit slice_idle when many busy queues are in idle window"
//! (T. Sekiyama, linux-kernel, 30 July 2013).

use super::{IdleRule, Lull};

/// As [`Linux`](super::Linux), but all idle queues together may idle at most one group slice in a round. With more of
/// them than ticks in the slice the wait rounds to none, and the timer fires at the next tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limited;

impl IdleRule for Limited {
    fn name(&self) -> &'static str {
        "limited"
    }

    fn wait_ticks(&self, lull: &Lull) -> i64 {
        if lull.busy_idle_queues > 0 {
            lull.slice_idle.min(lull.group_slice / lull.busy_idle_queues)
        } else {
            lull.slice_idle
        }
    }
}

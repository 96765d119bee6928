//! The patch that opened the thread "cfq-iosched: limit slice_idle when many busy queues are in
//! idle window" (T. Sekiyama, linux-kernel, 30 July 2013).

use super::Linux310;
use extant_iosched::elevator::ProgramId;
use extant_iosched::elevator::cfq::IdleRule;
use extant_iosched::elevator::cfq::idle_rule::{Arrival, Lull};

/// Like [`Linux310`], but all idle queues together may idle for at most one group slice per round.
/// With more queues than ticks in the slice the wait rounds to zero, and the timer fires at the
/// next tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limited;

impl IdleRule for Limited {
    fn name(&self) -> &'static str {
        "limited"
    }

    fn opens_at_birth(&self, program: ProgramId) -> bool {
        Linux310.opens_at_birth(program)
    }

    fn window_after(&mut self, arrival: &Arrival) -> bool {
        Linux310.window_after(arrival)
    }

    fn should_idle(&self, lull: &Lull) -> bool {
        Linux310.should_idle(lull)
    }

    fn wait_ticks(&self, lull: &Lull) -> i64 {
        if lull.busy_idle_queues > 0 {
            lull.slice_idle.min(lull.group_slice / lull.busy_idle_queues)
        } else {
            lull.slice_idle
        }
    }
}

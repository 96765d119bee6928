//! The rule of Linux 3.10 (block/cfq-iosched.c: `cfq_update_idle_window`, `cfq_should_idle`,
//! `cfq_arm_slice_timer`).

use extant_iosched::elevator::ProgramId;
use extant_iosched::elevator::cfq::IdleRule;
use extant_iosched::elevator::cfq::idle_rule::{Arrival, Lull};

/// A new queue is expected to follow up within `slice_idle`, until its third request shows
/// otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux310;

impl IdleRule for Linux310 {
    fn name(&self) -> &'static str {
        "linux-3.10"
    }

    fn opens_at_birth(&self, _program: ProgramId) -> bool {
        true
    }

    fn window_after(&mut self, arrival: &Arrival) -> bool {
        if !arrival.deep && arrival.seeky {
            return false;
        }
        arrival.think_ticks.map_or(arrival.open, |mean| mean <= arrival.slice_idle)
    }

    fn should_idle(&self, lull: &Lull) -> bool {
        lull.open || lull.last_of_tree
    }

    fn wait_ticks(&self, lull: &Lull) -> i64 {
        lull.slice_idle
    }
}

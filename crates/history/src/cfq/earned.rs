//! The alternative from the same thread (S. Li, 30 July 2013; as a patch, T. Sekiyama, 1 August
//! 2013).

use super::Linux310;
use extant_iosched::elevator::ProgramId;
use extant_iosched::elevator::cfq::IdleRule;
use extant_iosched::elevator::cfq::idle_rule::{Arrival, Lull};

/// Like [`Linux310`], but a new queue starts without an idle window and earns it by short think
/// times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Earned;

impl IdleRule for Earned {
    fn name(&self) -> &'static str {
        "earned"
    }

    fn opens_at_birth(&self, _program: ProgramId) -> bool {
        false
    }

    fn window_after(&mut self, arrival: &Arrival) -> bool {
        Linux310.window_after(arrival)
    }

    fn should_idle(&self, lull: &Lull) -> bool {
        Linux310.should_idle(lull)
    }

    fn wait_ticks(&self, lull: &Lull) -> i64 {
        Linux310.wait_ticks(lull)
    }
}

//! Pages dirtied on each processor since one of its writers was last checked (kernel:
//! `bdp_ratelimits`).

use extant_cache::control::WriterId;

/// The counters. Each writer is assigned to a fixed processor by its number, since the controller
/// does not know where it runs.
#[derive(Clone, Debug)]
pub(super) struct Processors(Vec<u64>);

impl Processors {
    pub(super) fn new(count: u32) -> Self {
        Self(vec![0; count.max(1) as usize])
    }

    /// The counter of a writer's processor.
    pub(super) fn of(&mut self, writer: WriterId) -> &mut u64 {
        let count = self.0.len() as u64;
        &mut self.0[(writer.0 % count) as usize]
    }
}

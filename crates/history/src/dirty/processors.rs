//! Pages dirtied on each processor, since one of its writers was last looked at (kernel: `bdp_ratelimits`).

use extant_cache::control::WriterId;

/// The counts. A writer stays on one processor, which its number chooses: the controller is not told where a writer runs.
#[derive(Clone, Debug)]
pub(super) struct Processors(Vec<u64>);

impl Processors {
    pub(super) fn new(count: u32) -> Self {
        Self(vec![0; count.max(1) as usize])
    }

    /// The count of a writer's processor.
    pub(super) fn of(&mut self, writer: WriterId) -> &mut u64 {
        let count = self.0.len() as u64;
        &mut self.0[(writer.0 % count) as usize]
    }
}

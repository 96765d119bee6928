//! The limit as it changes.

/// The limit that pauses aim at: follows the stated one up at once, and down slowly, so that lowering it does not stop
/// every writer at once (kernel: `global_dirty_limit`, `update_dirty_limit()`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HardLimit {
    pages: u64,
}

impl HardLimit {
    /// Called every 200 ms with the stated limit and what is dirty.
    pub(super) fn update(&mut self, limit: u64, dirty: u64) {
        if self.pages < limit {
            self.pages = limit;
        } else {
            self.pages -= (self.pages - limit.max(dirty).min(self.pages)) >> 5;
        }
    }

    /// The limit in force.
    pub(super) fn pages(&self, limit: u64) -> u64 {
        self.pages.max(limit)
    }
}

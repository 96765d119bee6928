//! The dirty limit as it changes.

/// The limit that pauses aim at. It follows the configured limit up at once but down slowly, so
/// that lowering the limit does not stop every writer (kernel: `global_dirty_limit`,
/// `update_dirty_limit()`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HardLimit {
    pages: u64,
}

impl HardLimit {
    /// Updates the limit; called every 200 ms with the configured limit and the dirty pages.
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

//! Trace events for the amount of dirty memory.

use crate::Event;
use crate::dirty::control_interface::Numbers;
use crate::file::{CacheCore, CachedDevice};
use extant_rt::Nanos;
use std::sync::atomic::Ordering;

/// Minimum time between two such events per device.
const LEVELS_APART: Nanos = Nanos::from_millis(10);

/// Clamps to the trace's 32 bits: page counts up to 16 TiB.
pub(crate) fn short(n: u64) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

impl CacheCore {
    /// Traces how much is dirty, unless that was done a moment ago.
    #[inline]
    pub(crate) fn trace_levels(&self, disk: &CachedDevice) {
        if self.rt.is_tracing() {
            self.trace_levels_now(disk);
        }
    }

    fn trace_levels_now(&self, disk: &CachedDevice) {
        let now = self.rt.now();
        let last = disk.traced_at.load(Ordering::Relaxed);
        if last != CachedDevice::NEVER && now.0 < last.saturating_add(LEVELS_APART.0) {
            return;
        }
        disk.traced_at.store(now.0, Ordering::Relaxed);
        let Numbers { limits, global, on_device, device, .. } = disk.ledger.numbers();
        self.rt.trace(Event::DirtyLevels {
            device: device.0,
            device_reclaimable: short(on_device.dirty_pages),
            device_writeback: short(on_device.writeback_pages),
            device_limit: short(disk.ledger.limit_pages().min(limits.limit_pages)),
            reclaimable: short(global.dirty_pages),
            writeback: short(global.writeback_pages),
            background: short(limits.background_pages),
            limit: short(limits.limit_pages),
        });
    }
}

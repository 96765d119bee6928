//! Trace events of dirty memory: writers that wait, and levels.

use crate::Event;
use crate::dirty::control::{ControlState, Numbers};
use crate::mapping::Inner;
use crate::shared::Shared;
use crate::writeback::disk::DiskState;
use extant_rt::Nanos;
use std::sync::atomic::Ordering;

/// Levels of dirty memory are traced no more often than this for each device.
const LEVELS_APART: Nanos = Nanos::from_millis(10);

/// A writer that waits. Its end goes to the trace, also where the caller leaves.
#[derive(Debug)]
pub(crate) struct Pause<'a> {
    inner: &'a Inner,
    rule: &'static str,
    began: Nanos,
    dirtied: u64,
    numbers: Numbers,
    device_limit: u64,
    state: ControlState,
}

impl<'a> Pause<'a> {
    /// Begins now; `None` where nobody traces.
    pub(crate) fn begin(inner: &'a Inner, rule: &'static str, dirtied: u64) -> Option<Self> {
        let (shared, disk) = (&inner.shared, &inner.disk);
        shared.rt.is_tracing().then(|| {
            let (began, numbers) = (shared.rt.now(), disk.ledger.numbers());
            let state = shared.control.lock().state(began, &numbers);
            let device_limit = disk.ledger.limit_pages();
            Self { inner, rule, began, dirtied, numbers, device_limit, state }
        })
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let rt = &self.inner.shared.rt;
        let Numbers { limits, global, on_device, device, .. } = self.numbers;
        rt.trace(Event::WriterPaused {
            rule: self.rule,
            device: device.0,
            inode: self.inner.inode,
            dirtied: short(self.dirtied),
            limit: short(limits.limit_pages),
            background: short(limits.background_pages),
            reclaimable: short(global.dirty_pages),
            writeback: short(global.writeback_pages),
            device_limit: short(self.device_limit.min(limits.limit_pages)),
            device_reclaimable: short(on_device.dirty_pages),
            device_writeback: short(on_device.writeback_pages),
            setpoint: short(self.state.setpoint_pages),
            device_setpoint: short(self.state.device_setpoint_pages),
            position_ratio: short(self.state.position_ratio),
            write_rate: short(self.state.write_rate),
            rate_limit: short(self.state.rate_limit),
            task_rate: short(self.state.task_rate),
            turn: short(self.state.turn_pages),
            writers: short(self.state.writers),
            took: rt.now().saturating_sub(self.began),
        });
    }
}

/// The trace counts in 32 bits: pages of up to 16 TiB.
fn short(n: u64) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

impl Shared {
    /// Tells the trace how much is dirty, if that was not done a moment ago.
    #[inline]
    pub(crate) fn trace_levels(&self, disk: &DiskState) {
        if self.rt.is_tracing() {
            self.trace_levels_now(disk);
        }
    }

    fn trace_levels_now(&self, disk: &DiskState) {
        let now = self.rt.now();
        let last = disk.traced_at.load(Ordering::Relaxed);
        if last != DiskState::NEVER && now.0 < last.saturating_add(LEVELS_APART.0) {
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

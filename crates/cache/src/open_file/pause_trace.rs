//! Trace events of writers that wait.

use crate::Event;
use crate::dirty::control_interface::{ControlState, Numbers};
use crate::file::CachedFile;
use crate::file::dirty_levels::short;
use extant_rt::Nanos;

/// A writer that waits. The end of the wait is traced even if the caller goes away.
#[derive(Debug)]
pub(crate) struct Pause<'a> {
    file: &'a CachedFile,
    rule: &'static str,
    began: Nanos,
    dirtied: u64,
    numbers: Numbers,
    device_limit: u64,
    state: ControlState,
}

impl<'a> Pause<'a> {
    /// Begins the wait now; `None` if no trace is being recorded.
    pub(crate) fn begin(file: &'a CachedFile, rule: &'static str, dirtied: u64) -> Option<Self> {
        let (core, disk) = (&file.core, &file.disk);
        core.rt.is_tracing().then(|| {
            let (began, numbers) = (core.rt.now(), disk.ledger.numbers());
            let state = core.control.lock().state(began, &numbers);
            let device_limit = disk.ledger.limit_pages();
            Self { file, rule, began, dirtied, numbers, device_limit, state }
        })
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let rt = &self.file.core.rt;
        let Numbers { limits, global, on_device, device, .. } = self.numbers;
        rt.trace(Event::WriterPaused {
            rule: self.rule,
            device: device.0,
            inode: self.file.inode,
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

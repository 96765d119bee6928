//! Writers that wait because too much is dirty, and what the trace hears of it.

use crate::Event;
use crate::dirty::control::{ControlState, Numbers, Verdict};
use crate::mapping::open::OpenFile;
use crate::shared::Shared;
use crate::writeback::disk::DiskState;
use crate::writeback::flusher;
use extant_rt::Nanos;
use std::sync::atomic::Ordering;

/// Levels of dirty memory are traced no more often than this for each device.
const LEVELS_APART: Nanos = Nanos::from_millis(10);

/// A writer that waits. Its end goes to the trace, also where the caller leaves.
#[derive(Debug)]
pub(crate) struct Pause<'a> {
    file: &'a OpenFile,
    rule: &'static str,
    began: Nanos,
    dirtied: u64,
    numbers: Numbers,
    device_limit: u64,
    state: ControlState,
}

impl<'a> Pause<'a> {
    /// Begins now; `None` where nobody traces.
    pub(crate) fn begin(file: &'a OpenFile, rule: &'static str, dirtied: u64) -> Option<Self> {
        let (shared, disk) = (&file.inner.shared, &file.inner.disk);
        shared.rt.is_tracing().then(|| {
            let (began, numbers) = (shared.rt.now(), shared.numbers(disk));
            let state = shared.control.lock().state(began, &numbers);
            let device_limit = disk.limit_pages.load(Ordering::Relaxed);
            Self { file, rule, began, dirtied, numbers, device_limit, state }
        })
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let rt = &self.file.inner.shared.rt;
        let Numbers { limits, global, on_device, device, .. } = self.numbers;
        rt.trace(Event::WriterPaused {
            rule: self.rule,
            device: device.0,
            inode: self.file.inner.inode,
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
        let Numbers { limits, global, on_device, device, .. } = self.numbers(disk);
        self.rt.trace(Event::DirtyLevels {
            device: device.0,
            device_reclaimable: short(on_device.dirty_pages),
            device_writeback: short(on_device.writeback_pages),
            device_limit: short(disk.limit_pages.load(Ordering::Relaxed).min(limits.limit_pages)),
            reclaimable: short(global.dirty_pages),
            writeback: short(global.writeback_pages),
            background: short(limits.background_pages),
            limit: short(limits.limit_pages),
        });
    }
}

/// A writer between two questions to the controller: if the caller leaves, the controller hears of it.
#[derive(Debug)]
struct Asking<'a>(Option<&'a OpenFile>);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            file.leave();
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.writer.get_mut().ticket != 0 {
            self.leave();
        }
    }
}

impl OpenFile {
    fn leave(&self) {
        let mut writer = self.writer.lock();
        self.inner.shared.control.lock().leave(self.inner.disk.index, &mut writer);
    }

    /// Asks the controller once; says whether the writer goes on without waiting.
    pub(crate) fn try_balance(&self) -> bool {
        let (shared, disk) = (&self.inner.shared, &self.inner.disk);
        disk.kick_if_due(shared);
        let (now, numbers) = (shared.rt.now(), shared.numbers(disk));
        let verdict = {
            let mut writer = self.writer.lock();
            let verdict = shared.control.lock().balance(now, &numbers, &mut writer);
            self.note_allowance(&writer);
            verdict
        };
        let goes_on = verdict == Verdict::Go;
        if !goes_on {
            self.leave();
        }
        goes_on
    }

    /// Follows the controller's verdicts until the writer may go on. A writer that is cancelled in a pause is examined again at
    /// its next write.
    pub(crate) async fn balance(&self) {
        let shared = &self.inner.shared;
        let disk = &self.inner.disk;
        let mut asking = Asking(Some(self));
        loop {
            disk.kick_if_due(shared);
            let now = shared.rt.now();
            let numbers = shared.numbers(disk);
            let (verdict, dirtied) = {
                let mut writer = self.writer.lock();
                if writer.dirtied_pages < writer.ask_after_pages {
                    break;
                }
                let dirtied = writer.dirtied_pages;
                let verdict = shared.control.lock().balance(now, &numbers, &mut writer);
                self.note_allowance(&writer);
                (verdict, dirtied)
            };
            match verdict {
                Verdict::Go => break,
                // Nothing comes back from a device that fails: its writers leave, meet the limit, and hear there of its error.
                Verdict::Pause { .. } if disk.is_failing() => return,
                Verdict::Pause { until, rule } => {
                    let _pause = Pause::begin(self, rule, dirtied);
                    // A waiting writer may be a reason to write back.
                    disk.kick_if_due(shared);
                    shared.rt.sleep_until(until).await;
                }
                Verdict::WriteBack { pages, chunk_pages, in_flight_pages, rule } => {
                    let _pause = Pause::begin(self, rule, dirtied);
                    let written = flusher::write_back_some(shared, disk, pages, chunk_pages, in_flight_pages);
                    let written = written.await;
                    self.writer.lock().written_pages += written;
                }
            }
        }
        asking.0 = None;
    }
}

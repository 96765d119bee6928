//! Writers that wait because too much is dirty, and what the trace hears of it.

use crate::Event;
use crate::dirty::control::{Asking, Background, ControlState, Numbers, Verdict, WriterId};
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
            let (began, numbers) = (shared.rt.now(), disk.ledger.numbers());
            let state = shared.control.lock().state(began, &numbers);
            let device_limit = disk.ledger.limit_pages();
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

/// A writer as the cache sees it: what it may still dirty, and what it is to report.
#[derive(Debug)]
pub(crate) struct Writer {
    id: WriterId,
    /// Pages that it may dirty before it asks; a new one asks at once.
    allowed_pages: u64,
    dirtied_pages: u64,
    written_pages: u64,
    has_asked: bool,
}

impl Writer {
    pub(crate) fn new(id: WriterId) -> Self {
        Self { id, allowed_pages: 0, dirtied_pages: 0, written_pages: 0, has_asked: false }
    }

    /// Pages dirtied since it last asked.
    pub(crate) fn dirtied_pages(&self) -> u64 {
        self.dirtied_pages
    }

    /// Pages that it may dirty in one go.
    pub(crate) fn allowance(&self) -> u64 {
        self.allowed_pages.saturating_sub(self.dirtied_pages).max(1)
    }

    /// Takes note of pages that it dirtied; says whether it is to ask.
    pub(crate) fn dirtied(&mut self, pages: u64) -> bool {
        self.dirtied_pages += pages;
        self.is_to_ask()
    }

    /// Whether it has used up what it may dirty.
    pub(crate) fn is_to_ask(&self) -> bool {
        self.dirtied_pages >= self.allowed_pages
    }

    /// Its question.
    fn ask(&mut self) -> Asking {
        self.has_asked = true;
        self.allowed_pages = 0;
        Asking {
            writer: self.id,
            dirtied_pages: std::mem::take(&mut self.dirtied_pages),
            written_pages: std::mem::take(&mut self.written_pages),
        }
    }
}

/// A writer between two questions to the controller: if the caller leaves, the controller hears of it.
#[derive(Debug)]
struct Waiter<'a>(Option<&'a OpenFile>);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            file.leave();
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let writer = self.writer.get_mut();
        if writer.has_asked {
            self.inner.shared.control.lock().forget(self.inner.disk.index, writer.id);
        }
    }
}

impl OpenFile {
    fn leave(&self) {
        let writer = self.writer.lock();
        self.inner.shared.control.lock().leave(self.inner.disk.index, writer.id);
    }

    /// Asks the controller, if the writer has used up its allowance, and has the orders carried out. Says how many pages the
    /// writer had dirtied.
    fn ask(&self) -> Option<(Verdict, u64)> {
        let (shared, disk) = (&self.inner.shared, &self.inner.disk);
        let mut writer = self.writer.lock();
        if !writer.is_to_ask() {
            return None;
        }
        let asking = writer.ask();
        let orders = disk.orders(shared, Some(asking));
        writer.allowed_pages = match orders.writer {
            Verdict::Go { pages } => pages.max(1),
            Verdict::Pause { pages, .. } => pages,
            Verdict::WriteBack { .. } => 0,
        };
        self.note_allowance(&writer);
        drop(writer);
        if orders.flusher != Background::Stop {
            disk.kick(shared);
        }
        Some((orders.writer, asking.dirtied_pages))
    }

    /// Asks the controller once; says whether the writer goes on without waiting.
    pub(crate) fn try_balance(&self) -> bool {
        match self.ask() {
            None | Some((Verdict::Go { .. }, _)) => true,
            Some(_) => {
                let mut writer = self.writer.lock();
                writer.allowed_pages = 0;
                drop(writer);
                self.leave();
                false
            }
        }
    }

    /// Follows the controller's verdicts until the writer may go on. A writer that is cancelled in a pause asks again at its
    /// next write.
    pub(crate) async fn balance(&self) {
        let (shared, disk) = (&self.inner.shared, &self.inner.disk);
        let mut waiter = Waiter(Some(self));
        while let Some((verdict, dirtied)) = self.ask() {
            match verdict {
                Verdict::Go { .. } => break,
                // Nothing comes back from a device that fails: its writers leave, meet the limit, and hear there of its error.
                Verdict::Pause { .. } if disk.is_failing() => return,
                Verdict::Pause { until, rule, .. } => {
                    let _pause = Pause::begin(self, rule, dirtied);
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
        waiter.0 = None;
    }
}

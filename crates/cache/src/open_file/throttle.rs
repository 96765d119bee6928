//! Throttles writers while too much is dirty.

use crate::dirty::control_interface::{Background, Verdict};
use crate::open_file::CachedOpenFile;
use crate::open_file::pause_trace::Pause;
use crate::writeback::flusher;

/// Pages that an unpaced writer dirties between two looks at what the flusher should do.
const UNPACED_PAGES: u64 = 256;

/// A writer that follows the controller's orders. If the caller goes away, dropping this notifies
/// the controller.
#[derive(Debug)]
struct Waiter<'a>(Option<&'a CachedOpenFile>);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            file.leave();
        }
    }
}

impl Drop for CachedOpenFile {
    fn drop(&mut self) {
        let writer = self.writer.get_mut();
        if writer.has_asked {
            self.file.core.control.lock().forget(self.file.disk.index, writer.id);
        }
    }
}

impl CachedOpenFile {
    fn leave(&self) {
        let writer = self.writer.lock();
        self.file.core.control.lock().leave(self.file.disk.index, writer.id);
    }

    /// Asks the controller, if the writer has used up its allowance, and carries out the orders.
    /// Also returns how many pages the writer had dirtied.
    fn ask(&self) -> Option<(Verdict, u64)> {
        let (core, disk) = (&self.file.core, &self.file.disk);
        let mut writer = self.writer.lock();
        if !writer.is_to_ask() {
            return None;
        }
        let asking = writer.ask();
        let orders = disk.orders(core, Some(asking));
        writer.allowed_pages = match orders.writer {
            Verdict::Go { pages } => pages.max(1),
            Verdict::Pause { pages, .. } => pages,
            Verdict::WriteBack { .. } => 0,
        };
        self.note_allowance(&writer);
        drop(writer);
        if orders.flusher != Background::Stop {
            disk.kick(core);
        }
        Some((orders.writer, asking.dirtied_pages))
    }

    /// Asks the controller once; returns whether the writer may go on without waiting.
    pub(super) fn try_balance(&self) -> bool {
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

    /// Follows the controller's verdicts until the writer may go on. A writer cancelled during a
    /// pause asks again at its next write.
    pub(super) async fn balance(&self) {
        if self.unpaced {
            // The question has started the flusher.
            if !self.try_balance() {
                let mut writer = self.writer.lock();
                writer.allowed_pages = UNPACED_PAGES;
                self.note_allowance(&writer);
            }
            return;
        }
        let (core, disk) = (&self.file.core, &self.file.disk);
        let mut waiter = Waiter(Some(self));
        while let Some((verdict, dirtied)) = self.ask() {
            match verdict {
                Verdict::Go { .. } => break,
                // A failing device, or one without a flusher, frees nothing. The writer leaves,
                // hits the limit, and gets the error there.
                Verdict::Pause { .. } | Verdict::WriteBack { .. }
                    if disk.health.is_failing() || core.is_closed() =>
                {
                    return;
                }
                Verdict::Pause { until, rule, .. } => {
                    let _pause = Pause::begin(&self.file, rule, dirtied);
                    Box::pin(core.rt.sleep_until(until)).await;
                }
                Verdict::WriteBack { pages, chunk_pages, in_flight_pages, rule } => {
                    let _pause = Pause::begin(&self.file, rule, dirtied);
                    let written = flusher::write_back_some(core, disk, pages, chunk_pages, in_flight_pages);
                    let written = Box::pin(written).await;
                    self.writer.lock().written_pages += written;
                }
            }
        }
        waiter.0 = None;
    }
}

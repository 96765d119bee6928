//! Collects the events of a run that drawings need.

use extant_rt::trace::Record;
use extant_rt::{Nanos, Sink};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Interval between samples of amounts, and period over which bytes are summed.
pub(crate) const STEP: Nanos = Nanos::from_millis(10);

/// Events seen in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunEvents {
    /// Pages dirty or under write-back, over time.
    pub(crate) dirty_pages: Vec<(Nanos, u64)>,
    /// Bytes that the disks moved, by the number of the step in which the transfer completed.
    pub(crate) moved_bytes: BTreeMap<u64, u64>,
    /// Commands by their size in bytes, rounded up to a power of two.
    pub(crate) commands: BTreeMap<u64, u64>,
}

/// Collects events of a run.
#[derive(Debug, Default)]
pub(crate) struct EventWatch(Mutex<RunEvents>);

impl EventWatch {
    /// Returns what was seen so far, and starts over.
    pub(crate) fn take(&self) -> RunEvents {
        std::mem::take(&mut self.0.lock())
    }
}

impl Sink for EventWatch {
    fn record(&self, record: &Record) {
        if let Some(extant_cache::Event::DirtyLevels { reclaimable, writeback, .. }) =
            record.event.of::<extant_cache::Event>()
        {
            let seen = &mut *self.0.lock();
            if seen.dirty_pages.last().is_none_or(|(at, _)| record.at.saturating_sub(*at) >= STEP) {
                seen.dirty_pages.push((record.at, u64::from(*reclaimable) + u64::from(*writeback)));
            }
        }
        match record.event.of::<extant_iosched::Event>() {
            Some(extant_iosched::Event::BioDispatched { op: "read" | "write", bytes, .. }) => {
                *self.0.lock().commands.entry(bytes.next_power_of_two()).or_default() += 1;
            }
            Some(extant_iosched::Event::BioCompleted { op: "read" | "write", bytes, .. }) => {
                *self.0.lock().moved_bytes.entry(record.at.0 / STEP.0).or_default() += bytes;
            }
            _ => {}
        }
    }
}

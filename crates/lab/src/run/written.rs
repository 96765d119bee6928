//! Measures how much a modelled machine's disks write while its jobs are measured (kernel:
//! `nr_written`).

use super::modelled::Modelled;
use crate::workload::fio::Job;
use extant_iosched::Queue;
use extant_rt::Nanos;
use extant_sim::Machine;
use extant_sim::disk::{DiskKind, DiskModel};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes whose write completed within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The bytes written; a disk's volatile cache counts as the disk.
    ///
    /// On a volume, metadata and journal count too, although Linux's `nr_written` covers only pages
    /// that leave write-back. With large files the two differed by 0.2 % (two disks, measured once;
    /// a test allows 2 %).
    pub bytes: u64,
    /// Length of the period.
    pub over: Nanos,
}

impl Written {
    /// Bytes per second.
    pub fn bytes_s(&self) -> f64 {
        if self.over == Nanos::ZERO { 0.0 } else { self.bytes as f64 / self.over.as_secs_f64() }
    }
}

/// Totals at the start and end of the measured interval, taken in interrupts so that counting costs
/// the machine nothing.
pub(super) struct WrittenCounter {
    from: Nanos,
    until: Nanos,
    totals: Arc<Mutex<[Option<u64>; 2]>>,
}

/// Bytes written so far, including those of the streams that have ended.
fn total(queues: &[Arc<Queue>], before: &AtomicU64) -> u64 {
    let now: u64 = queues.iter().flat_map(|queue| queue.stats()).map(|(_, stats)| stats.written_bytes).sum();
    now + before.load(Ordering::Relaxed)
}

impl WrittenCounter {
    /// Starts counting if all jobs are measured over the same interval and one of them writes
    /// through the page cache.
    pub(super) fn start(target: &Modelled, jobs: &[Job]) -> Option<Self> {
        let first = jobs.first()?;
        let alike = |job: &Job| {
            (job.start_delay, job.ramp, job.runtime, job.stonewall)
                == (first.start_delay, first.ramp, first.runtime, first.stonewall)
        };
        if !jobs.iter().all(alike) || !jobs.iter().any(|job| job.pattern.writes && !job.direct) {
            return None;
        }
        let clock = target.sim.devices();
        let from = clock.now().saturating_add(first.start_delay).saturating_add(first.ramp);
        let until = from.saturating_add(first.runtime?);
        let totals = Arc::new(Mutex::new([None; 2]));
        for (nth, at) in [from, until].into_iter().enumerate() {
            let queues: Vec<_> = target.queues().iter().map(Arc::downgrade).collect();
            let (totals, before) = (totals.clone(), target.written_before().clone());
            clock.call_at(at, move || {
                let queues: Vec<Arc<Queue>> = queues.iter().filter_map(std::sync::Weak::upgrade).collect();
                totals.lock()[nth] = Some(total(&queues, &before));
            });
        }
        Some(Self { from, until, totals })
    }

    /// Ends the count.
    ///
    /// # Panics
    /// If more was written than the link and the disks can carry: the model would be wrong.
    pub(super) fn end(self, target: &Modelled) -> Option<Written> {
        let [before, after] = *self.totals.lock();
        let now = target.sim.rt().now();
        let (after, until) = match after {
            Some(after) => (after, self.until),
            // The jobs ended early.
            None => (total(target.queues(), target.written_before()), now.min(self.until)),
        };
        let bytes = after.saturating_sub(before?);
        let written = Written { bytes, over: until.saturating_sub(self.from) };
        let most = most_bytes(target.sim.machine(), written.over);
        assert!(written.bytes <= most, "{written:?}, and the disks and their link carry {most} bytes");
        Some(written)
    }
}

/// Maximum number of bytes that a machine's disks can acknowledge within a period: what the link,
/// the interfaces and media without a cache can carry, plus the contents of the queues at its
/// start.
fn most_bytes(machine: &Machine, over: Nanos) -> u64 {
    let carried = |bytes_s: u64| (u128::from(bytes_s) * u128::from(over.0) / 1_000_000_000) as u64;
    let of_one = |model: &DiskModel| {
        let held = model.queue_depth() as u64 * model.max_command_bytes;
        held + match &model.kind {
            // A sector rewritten while in the disk's cache reaches the medium once, so only the
            // interface is a limit.
            DiskKind::Rotating(spec) if spec.write_cache_bytes > 0 => carried(spec.interface_bytes_s),
            DiskKind::Rotating(spec) => carried(spec.interface_bytes_s).min(carried(spec.outer_bytes_s)),
            DiskKind::Ssd(spec) => carried(spec.interface_bytes_s),
            DiskKind::Ram(spec) => carried(spec.bytes_s),
        }
    };
    let sum = |on_bus: bool| -> u64 {
        let disks = machine.disks.iter().filter(|model| model.on_bus == on_bus);
        disks.map(|model| u64::from(model.count) * of_one(model)).sum()
    };
    let held: u64 = machine
        .disks
        .iter()
        .filter(|model| model.on_bus)
        .map(|model| u64::from(model.count) * model.queue_depth() as u64 * model.max_command_bytes)
        .sum();
    let link = machine.bus.as_ref().map_or(u64::MAX, |bus| carried(bus.bytes_s) + held);
    sum(true).min(link) + sum(false)
}

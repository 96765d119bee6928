//! Writers over the limit write back pages themselves: Linux 3.1 (mm/page-writeback.c:
//! `balance_dirty_pages()`, `balance_dirty_pages_ratelimited_nr()`; as of 3.1-rc3, after "squeeze
//! max-pause area and drop pass-good area").

use super::bandwidth::WriteBandwidth;
use super::hard_limit::HardLimit;
use super::processors::Processors;
use super::share::Proportions;
use super::ticks::Ticks;
use super::{ASK_PAGES, CHUNK_UNIT, QUEUE_PAGES};
use crate::Host;
use extant_cache::control::{
    Asking, Background, ControlState, DeviceIndex, DirtyControl, Numbers, Orders, Verdict, WriterId,
};
use extant_rt::Nanos;
use std::collections::BTreeMap;

/// Interval in pages at which a processor's writers are checked on a device over its share.
const WHEN_EXCEEDED: u64 = 8;
/// A task's limit is at most this fraction below its device's (kernel: `TASK_LIMIT_FRACTION`).
const TASK_FRACTION: u64 = 8;

/// The foreground throttle. A writer over the limit writes back one and a half times the pages that
/// its processor's writers dirtied, from whichever of the device's files comes first and is not
/// under writeback. If it finds fewer, it sleeps 1, 2, 4 … ticks, up to 100 ms.
///
/// The rule of [`Verdict::WriteBack`] is `linux-3.1: foreground`, that of [`Verdict::Pause`]
/// `linux-3.1: sleep`. The model assigns each writer to a fixed processor by its number. The
/// kernel's per-processor counters are exact here.
#[derive(Debug)]
pub struct Linux31 {
    ticks: Ticks,
    /// Pages that a processor's writers dirty before one of them is checked (kernel:
    /// `ratelimit_pages`).
    ratelimit: u64,
    processors: Processors,
    completions: Proportions<DeviceIndex>,
    dirtyings: Proportions<WriterId>,
    hard: HardLimit,
    devices: Vec<Device>,
    writers: BTreeMap<WriterId, Writer>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Device {
    /// Set when a writer is found over the limit, cleared when no task can be over it (kernel:
    /// `dirty_exceeded`).
    exceeded: bool,
    bandwidth: WriteBandwidth,
    /// Tick of the last estimate, and the total at that time.
    at: u64,
    written: u64,
}

/// A task in `balance_dirty_pages()`.
#[derive(Clone, Copy, Debug)]
struct Writer {
    /// Pages that it must write back.
    chunk: u64,
    written: u64,
    /// Tick at which it entered.
    came: u64,
    /// Length of its next sleep in ticks.
    pause: u64,
    /// State at its last check.
    seen: Seen,
    at: Place,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    dirty: u64,
    on_device: u64,
    share: u64,
    task_share: u64,
    /// Whether no task of the device can be over the limit.
    clear: bool,
}

/// Position in the kernel's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Head,
    Wrote,
    Slept,
}

impl Linux31 {
    /// A controller for a host. Memory and processors determine how often a writer is checked:
    /// memory / (32 × processors), from 16 pages to 4 MiB.
    pub fn new(host: &Host) -> Self {
        let ratelimit = (host.memory_bytes >> 12) / (32 * u64::from(host.cpus.max(1)));
        Self {
            ticks: Ticks::new(host.hz),
            ratelimit: ratelimit.clamp(16, 1024),
            processors: Processors::new(host.cpus),
            completions: Proportions::default(),
            dirtyings: Proportions::default(),
            hard: HardLimit::default(),
            devices: Vec::new(),
            writers: BTreeMap::new(),
        }
    }

    fn device(&mut self, numbers: &Numbers) -> &mut Device {
        let at = numbers.device.0 as usize;
        if self.devices.len() <= at {
            self.devices.resize(at + 1, Device::default());
        }
        &mut self.devices[at]
    }

    /// Updates the estimates if they are due (kernel: `__bdi_update_bandwidth()`).
    fn estimate(&mut self, now: Nanos, numbers: &Numbers) {
        let (ticks, tick) = (self.ticks, self.ticks.at(now));
        let device = self.device(numbers);
        let elapsed = tick.saturating_sub(device.at);
        if elapsed < ticks.most_pause() {
            return;
        }
        let written = numbers.written_total.saturating_sub(device.written);
        (device.at, device.written) = (tick, numbers.written_total);
        // After more than a second without calls, the device was idle for an unknown part of it: no
        // sample.
        if elapsed <= ticks.hz() {
            device.bandwidth.update(ticks, elapsed, written);
            self.hard.update(numbers.limits.limit_pages, numbers.global.total());
        }
    }

    /// Counts a writer's dirtied pages. If it must balance now, returns how many pages to write
    /// back.
    fn ratelimited(&mut self, numbers: &Numbers, id: WriterId, pages: u64) -> Option<u64> {
        self.dirtyings.add(id, pages, numbers.limits.limit_pages);
        let limit = if self.device(numbers).exceeded { WHEN_EXCEEDED } else { self.ratelimit };
        let dirtied = self.processors.of(id);
        *dirtied += pages;
        if *dirtied < limit {
            return None;
        }
        Some(std::mem::take(dirtied).max(self.ratelimit) * 3 / 2)
    }

    fn look(&self, numbers: &Numbers, id: WriterId) -> Seen {
        let (limit, on_device) = (numbers.limits.limit_pages, numbers.on_device.total());
        let dirty = numbers.global.total();
        let share = self.completions.share(numbers.device, limit);
        let least = share - share / TASK_FRACTION;
        let task_share = (share - self.dirtyings.share(id, share / TASK_FRACTION)).max(least);
        Seen { dirty, on_device, share, task_share, clear: on_device <= least && dirty <= limit }
    }

    /// Continues in the loop; `None` when the writer leaves it.
    fn step(&mut self, now: Nanos, numbers: &Numbers, id: WriterId, writer: &mut Writer) -> Option<Verdict> {
        let limit = numbers.limits.limit_pages;
        let tick = self.ticks.at(now);
        match writer.at {
            Place::Wrote if writer.written >= writer.chunk => return None,
            Place::Wrote => return Some(self.sleep(now, writer)),
            Place::Slept => {
                let Seen { dirty, on_device, share, task_share, .. } = writer.seen;
                let long = tick > writer.came + self.ticks.most_pause();
                if long && dirty < self.hard.pages(limit) && on_device < (task_share + share) / 2 {
                    return None;
                }
                writer.pause = (2 * writer.pause).min((self.ticks.hz() / 10).max(1));
            }
            Place::Head => {}
        }
        if numbers.global.total() <= (numbers.limits.background_pages + limit) / 2 {
            return None;
        }
        let seen = self.look(numbers, id);
        writer.seen = seen;
        if seen.on_device <= seen.task_share && seen.dirty <= limit {
            return None;
        }
        self.device(numbers).exceeded = true;
        self.estimate(now, numbers);
        if numbers.on_device.dirty_pages <= seen.task_share {
            return Some(self.sleep(now, writer));
        }
        writer.at = Place::Wrote;
        let chunk_pages = self.device(numbers).bandwidth.chunk_pages(limit, writer.chunk);
        Some(Verdict::WriteBack {
            // The last file's chunk is rounded up, too.
            pages: writer.chunk.max(chunk_pages),
            chunk_pages,
            in_flight_pages: QUEUE_PAGES,
            rule: "linux-3.1: foreground",
        })
    }

    fn sleep(&self, now: Nanos, writer: &mut Writer) -> Verdict {
        writer.at = Place::Slept;
        // The writer is checked again after the sleep.
        Verdict::Pause { until: self.ticks.sleep(now, writer.pause), pages: 0, rule: "linux-3.1: sleep" }
    }

    /// A writer's orders, and whether it has finished balancing, after which the kernel starts the
    /// flusher.
    fn balance(&mut self, now: Nanos, numbers: &Numbers, asking: Asking) -> (Verdict, bool) {
        let Asking { writer: id, dirtied_pages, written_pages } = asking;
        // The writer asks every few pages. So the flag and the processor's count are checked nearly
        // as often as in the kernel, which checks them at every dirtied page.
        let go = Verdict::Go { pages: ASK_PAGES };
        let mut writer = match self.writers.remove(&id) {
            Some(writer) => Writer { written: writer.written + written_pages, ..writer },
            None => {
                let Some(chunk) = self.ratelimited(numbers, id, dirtied_pages) else { return (go, false) };
                Writer {
                    chunk,
                    written: 0,
                    came: self.ticks.at(now),
                    pause: 1,
                    seen: Seen { clear: true, ..Seen::default() },
                    at: Place::Head,
                }
            }
        };
        if let Some(verdict) = self.step(now, numbers, id, &mut writer) {
            self.writers.insert(id, writer);
            return (verdict, false);
        }
        if writer.seen.clear {
            self.device(numbers).exceeded = false;
        }
        (go, true)
    }
}

impl DirtyControl for Linux31 {
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders {
        // No hard pool limit: a writer that has waited long enough continues past the dirty limit.
        let mut orders = Orders { pool_limit_pages: u64::MAX, ..Orders::none(numbers) };
        let mut starts = true;
        if let Some(asking) = asking {
            (orders.writer, starts) = self.balance(now, numbers, asking);
        }
        if starts && numbers.global.dirty_pages > numbers.limits.background_pages {
            self.estimate(now, numbers);
            let chunk_pages =
                self.device(numbers).bandwidth.chunk_pages(numbers.limits.limit_pages, u64::MAX - CHUNK_UNIT);
            orders.flusher = Background::Run { chunk_pages, in_flight_pages: QUEUE_PAGES, least_pages: 1 };
        }
        orders
    }

    fn leave(&mut self, _device: DeviceIndex, writer: WriterId) {
        // The kernel's task stays in the loop; a writer that comes back here is checked again.
        if let Some(writer) = self.writers.get_mut(&writer) {
            writer.at = Place::Head;
        }
    }

    fn forget(&mut self, _device: DeviceIndex, writer: WriterId) {
        self.writers.remove(&writer);
        self.dirtyings.forget(writer);
    }

    fn detach(&mut self, device: DeviceIndex) {
        self.completions.forget(device);
        if let Some(device) = self.devices.get_mut(device.0 as usize) {
            *device = Device::default();
        }
    }

    fn written(&mut self, _now: Nanos, numbers: &Numbers, pages: u64, _took: Nanos) {
        self.completions.add(numbers.device, pages, numbers.limits.limit_pages);
    }

    fn state(&self, _now: Nanos, numbers: &Numbers) -> ControlState {
        let device_setpoint_pages = self.completions.share(numbers.device, numbers.limits.limit_pages);
        ControlState { device_setpoint_pages, ..ControlState::default() }
    }
}

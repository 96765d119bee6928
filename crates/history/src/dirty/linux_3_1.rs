//! Writers over the limit write back themselves: Linux 3.1 (mm/page-writeback.c: `balance_dirty_pages()`,
//! `balance_dirty_pages_ratelimited_nr()`; as of 3.1-rc3, after "squeeze max-pause area and drop pass-good area").

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

/// On a device over its part a processor's writers are looked at every so many pages.
const WHEN_EXCEEDED: u64 = 8;
/// A task's limit is lower than its device's by up to this part (kernel: `TASK_LIMIT_FRACTION`).
const TASK_FRACTION: u64 = 8;

/// The foreground throttle: over the limit a writer writes back half as much again as its processor's writers dirtied, whichever
/// of its device's files comes first and is not being written back, and sleeps 1, 2, 4 … ticks, up to 100 ms, if it found less.
///
/// The rule of [`Verdict::WriteBack`] is `linux-3.1: foreground`, that of [`Verdict::Pause`] `linux-3.1: sleep`. A writer stays
/// on one processor, which the model chooses by its number. Each processor's part of the kernel's counters is exact here.
#[derive(Debug)]
pub struct Linux31 {
    ticks: Ticks,
    /// Pages that the writers of a processor dirty before one of them is looked at (kernel: `ratelimit_pages`).
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
    /// A writer was found over the limit since none could be (kernel: `dirty_exceeded`).
    exceeded: bool,
    bandwidth: WriteBandwidth,
    /// The tick of the last estimate, and the total then.
    at: u64,
    written: u64,
}

/// A task in `balance_dirty_pages()`.
#[derive(Clone, Copy, Debug)]
struct Writer {
    /// Pages that it is to write back.
    chunk: u64,
    written: u64,
    /// The tick at which it came.
    came: u64,
    /// Ticks of its next sleep.
    pause: u64,
    /// As of its last look.
    seen: Seen,
    at: Place,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    dirty: u64,
    on_device: u64,
    share: u64,
    task_share: u64,
    /// No task of the device can be over the limit.
    clear: bool,
}

/// Where in the kernel's loop it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Head,
    Wrote,
    Slept,
}

impl Linux31 {
    /// On a host whose memory and processors say how often a writer is looked at: memory / (32 × processors), from 16 pages to
    /// 4 MiB.
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

    /// Makes the estimates that are due (kernel: `__bdi_update_bandwidth()`).
    fn estimate(&mut self, now: Nanos, numbers: &Numbers) {
        let (ticks, tick) = (self.ticks, self.ticks.at(now));
        let device = self.device(numbers);
        let elapsed = tick.saturating_sub(device.at);
        if elapsed < ticks.most_pause() {
            return;
        }
        let written = numbers.written_total.saturating_sub(device.written);
        (device.at, device.written) = (tick, numbers.written_total);
        // Over more than a second without a question the device was idle for a part that is not known: no sample.
        if elapsed <= ticks.hz() {
            device.bandwidth.update(ticks, elapsed, written);
            self.hard.update(numbers.limits.limit_pages, numbers.global.total());
        }
    }

    /// A writer has dirtied pages: whether it is to balance them, and how many it is then to write back.
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

    /// Goes on in the loop; `None` when it is left.
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
        // It looks again after the sleep.
        Verdict::Pause { until: self.ticks.sleep(now, writer.pause), pages: 0, rule: "linux-3.1: sleep" }
    }

    /// The orders to a writer, and whether it has balanced, at the end of which the kernel starts the flusher.
    fn balance(&mut self, now: Nanos, numbers: &Numbers, asking: Asking) -> (Verdict, bool) {
        let Asking { writer: id, dirtied_pages, written_pages } = asking;
        // It asks every few pages, so that the flag and its processor's count are seen about as often as at each dirtying.
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
        // No wall: a writer that had to wait long enough goes on past the limit.
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
        // A task of the kernel stays; one that comes back looks again.
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

//! Writers pause, flushers write: Linux since 3.2.

use super::bandwidth::{INTERVAL, WriteBandwidth};
use super::hard_limit::HardLimit;
use super::position::{Position, RATIO_ONE};
use super::rate::{PausePlan, RateLimit, max_pause, poll_interval};
use super::share::Completions;
use super::{CHUNK_UNIT, QUEUE_PAGES};
use extant_cache::control::{
    Amounts, Asking, Background, ControlState, DeviceIndex, DirtyControl, Numbers, Orders, Verdict, WriterId,
};
use extant_rt::Nanos;
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;

/// The IO-less controller (kernel: `balance_dirty_pages()`): each device's writers get a rate that feedback brings to the
/// device's bandwidth, times a ratio that keeps the dirty pages at their setpoint; they sleep for the rest of the time.
///
/// The rules of [`Verdict::Pause`]: `ioless: rate`, and `ioless: limit` where nothing more may be dirtied.
#[derive(Debug)]
pub struct Ioless {
    per_device_background: bool,
    cpus: u32,
    hard: HardLimit,
    completions: Completions,
    devices: Vec<Device>,
    writers: BTreeMap<WriterId, Writer>,
}

/// The state of one task.
#[derive(Clone, Copy, Debug, Default)]
struct Writer {
    /// Pages dirtied since it was last paused or let off (kernel: `nr_dirtied`).
    dirtied_pages: u64,
    /// It asks when it has dirtied so many (kernel: `nr_dirtied_pause`).
    ask_after_pages: u64,
    /// When the last pause ended or would have ended (kernel: `dirty_paused_when`).
    paused_at: Nanos,
}

impl Writer {
    /// It goes on until it has dirtied as much as it may.
    fn go(&self) -> Verdict {
        Verdict::Go { pages: self.ask_after_pages.saturating_sub(self.dirtied_pages) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Device {
    bandwidth: WriteBandwidth,
    rate: RateLimit,
    /// When the estimates were last made, and the totals then.
    at: Nanos,
    dirtied: u64,
    written: u64,
}

impl Ioless {
    /// As of Linux 3.2, on a machine with `cpus` processors.
    pub fn new(cpus: u32) -> Self {
        Self {
            per_device_background: false,
            cpus: cpus.max(1),
            hard: HardLimit::default(),
            completions: Completions::default(),
            devices: Vec::new(),
            writers: BTreeMap::new(),
        }
    }

    /// The same, with the patch of the thread "writeback: dirty position control - bdi reserve area": a flusher works also
    /// while its device holds more than its part of the background threshold.
    pub fn with_device_background(cpus: u32) -> Self {
        Self { per_device_background: true, ..Self::new(cpus) }
    }

    fn device(&mut self, numbers: &Numbers) -> &mut Device {
        let at = numbers.device.0 as usize;
        if self.devices.len() <= at {
            self.devices.resize(at + 1, Device::default());
        }
        &mut self.devices[at]
    }

    fn position(&self, numbers: &Numbers) -> Position {
        let threshold = numbers.limits.limit_pages;
        Position {
            freerun: freerun(numbers),
            limit: self.hard.pages(threshold),
            threshold,
            dirty: numbers.global.total(),
            device_threshold: self.completions.share(numbers.device, threshold),
            device_dirty: numbers.on_device.total(),
            write_rate: self.known(numbers).bandwidth.average(),
        }
    }

    /// The device's measurements so far.
    fn known(&self, numbers: &Numbers) -> Device {
        self.devices.get(numbers.device.0 as usize).copied().unwrap_or_default()
    }

    /// Makes the estimates that are due (kernel: `__bdi_update_bandwidth()`).
    fn estimate(&mut self, now: Nanos, numbers: &Numbers) {
        let elapsed = now.saturating_sub(self.device(numbers).at);
        if elapsed < INTERVAL {
            return;
        }
        let position = self.position(numbers);
        let device = self.device(numbers);
        let elapsed_ms = elapsed.0 / MS;
        let dirtied = numbers.dirtied_total.saturating_sub(device.dirtied);
        let written = numbers.written_total.saturating_sub(device.written);
        // Nobody asked for a second: the device had nothing to do, which says nothing about it.
        if elapsed <= Nanos::from_secs(1) {
            let below = position.dirty < position.setpoint();
            let dirty_rate = dirtied * 1000 / elapsed_ms;
            device.rate.update(position.ratio(), position.write_rate, dirty_rate, below);
            device.bandwidth.update(elapsed_ms, written);
        }
        (device.at, device.dirtied, device.written) = (now, numbers.dirtied_total, numbers.written_total);
        self.hard.update(numbers.limits.limit_pages, numbers.global.total());
    }

    /// A writer asks after so many pages at the latest, however fast it may go (kernel: `ratelimit_pages`, there counted
    /// for each processor).
    fn ask_at_most(&self, numbers: &Numbers) -> u64 {
        (numbers.limits.limit_pages / (32 * u64::from(self.cpus))).max(16)
    }

    fn balance(&mut self, now: Nanos, numbers: &Numbers, writer: &mut Writer) -> Verdict {
        let most = self.ask_at_most(numbers);
        if numbers.global.total() <= freerun(numbers) {
            writer.paused_at = now;
            writer.dirtied_pages = 0;
            let interval = poll_interval(numbers.global.total(), numbers.limits.limit_pages);
            writer.ask_after_pages = interval.min(most);
            return writer.go();
        }
        self.estimate(now, numbers);
        let position = self.position(numbers);
        let device = *self.device(numbers);
        let task = device.rate.base() * position.ratio() / RATIO_ONE;
        let max_ms = max_pause(position.device_dirty, position.write_rate);
        if task == 0 {
            // It looks again after the pause, and still owes what it dirtied.
            let until = now.saturating_add(Nanos::from_millis(max_ms));
            return Verdict::Pause { until, pages: 0, rule: "ioless: limit" };
        }
        let plan = PausePlan::new(max_ms, device.rate.base(), position.write_rate);
        let pages = writer.dirtied_pages;
        let period_ms = 1000 * pages / task;
        let began = if writer.paused_at == Nanos::ZERO { now } else { writer.paused_at };
        // Time that it spent elsewhere since comes off, time that it was let off before is added.
        let (thought_ms, owed_ms) = (now.saturating_sub(began).0 / MS, began.saturating_sub(now).0 / MS);
        let pause_ms = (period_ms + owed_ms).saturating_sub(thought_ms);
        if pause_ms < plan.min_ms {
            if thought_ms > period_ms + 1000 {
                // It has been slow for so long that it starts afresh.
                (writer.paused_at, writer.dirtied_pages) = (now, 0);
            } else if period_ms > 0 {
                writer.paused_at = began.saturating_add(Nanos::from_millis(period_ms));
                writer.dirtied_pages = 0;
            } else if writer.ask_after_pages <= pages {
                writer.ask_after_pages += pages;
            }
            writer.ask_after_pages = writer.ask_after_pages.clamp(1, most);
            return writer.go();
        }
        let (mut from, mut pause_ms) = (now, pause_ms);
        if pause_ms > max_ms {
            // The rate fell for a moment: the rest is forgiven, but for as much again.
            from = from.saturating_add(Nanos::from_millis((pause_ms - max_ms).min(max_ms)));
            pause_ms = max_ms;
        }
        writer.paused_at = from.saturating_add(Nanos::from_millis(pause_ms));
        writer.dirtied_pages = 0;
        writer.ask_after_pages = plan.pages.clamp(1, most);
        // Past its own part and past the limit, a device's writers are looked at every few pages.
        if position.device_dirty > position.device_floor() && position.dirty > position.threshold {
            writer.ask_after_pages = writer.ask_after_pages.min(8);
        }
        let until = now.saturating_add(Nanos::from_millis(pause_ms));
        Verdict::Pause { until, pages: writer.ask_after_pages, rule: "ioless: rate" }
    }

    fn background(&mut self, now: Nanos, numbers: &Numbers) -> Background {
        self.estimate(now, numbers);
        let threshold = numbers.limits.background_pages;
        let Amounts { dirty_pages, .. } = numbers.on_device;
        let over = numbers.global.dirty_pages > threshold
            || self.per_device_background && dirty_pages > self.completions.share(numbers.device, threshold);
        if !over {
            return Background::Stop;
        }
        let limit = self.hard.pages(numbers.limits.limit_pages);
        let half_second = self.device(numbers).bandwidth.average() / 2;
        let chunk = (half_second.min(limit / 8) + CHUNK_UNIT) / CHUNK_UNIT * CHUNK_UNIT;
        Background::Run { chunk_pages: chunk, in_flight_pages: QUEUE_PAGES, least_pages: 1 }
    }
}

/// Up to here writers are not held back (kernel: `dirty_freerun_ceiling()`).
fn freerun(numbers: &Numbers) -> u64 {
    (numbers.limits.limit_pages + numbers.limits.background_pages) / 2
}

impl DirtyControl for Ioless {
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders {
        let mut orders = Orders::none(numbers);
        if let Some(Asking { writer: id, dirtied_pages, .. }) = asking {
            let mut writer = self.writers.remove(&id).unwrap_or_default();
            writer.dirtied_pages += dirtied_pages;
            orders.writer = self.balance(now, numbers, &mut writer);
            self.writers.insert(id, writer);
        }
        orders.flusher = self.background(now, numbers);
        orders
    }

    fn forget(&mut self, _device: DeviceIndex, writer: WriterId) {
        self.writers.remove(&writer);
    }

    fn written(&mut self, now: Nanos, numbers: &Numbers, pages: u64, _took: Nanos) {
        self.completions.add(numbers.device, pages, numbers.limits.limit_pages);
        self.estimate(now, numbers);
    }

    fn state(&self, _now: Nanos, numbers: &Numbers) -> ControlState {
        let position = self.position(numbers);
        let (ratio, base) = (position.ratio(), self.known(numbers).rate.base());
        ControlState {
            setpoint_pages: position.setpoint(),
            device_setpoint_pages: position.device_setpoint(),
            position_ratio: ratio,
            write_rate: position.write_rate,
            rate_limit: base,
            task_rate: base * ratio / RATIO_ONE,
            ..ControlState::default()
        }
    }
}

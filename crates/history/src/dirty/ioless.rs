//! Writers pause, flushers write: Linux since 3.2, in the form of 3.7 (mm/page-writeback.c:
//! `balance_dirty_pages()`, `balance_dirty_pages_ratelimited()`) or of the patches posted in 2011.
//! Device shares are counted by events, as up to 3.5.

use super::bandwidth::WriteBandwidth;
use super::hard_limit::HardLimit;
use super::position::{Position, RATIO_ONE, Reserve};
use super::processors::Processors;
use super::rate::{PausePlan, RateLimit, max_pause, poll_interval, posted};
use super::share::Proportions;
use super::ticks::Ticks;
use super::{ASK_PAGES, CHUNK_UNIT, QUEUE_PAGES};
use crate::Host;
use extant_cache::control::{
    Amounts, Asking, Background, ControlState, DeviceIndex, DirtyControl, Numbers, Orders, Verdict, WriterId,
};
use extant_rt::Nanos;
use std::collections::BTreeMap;

/// Interval in pages at which writers are checked on a device over its share: 32 KiB.
const WHEN_EXCEEDED: u64 = 8;

/// The IO-less controller (kernel: `balance_dirty_pages()`). Feedback sets a rate limit for each
/// writer of a device so that together they match the device's bandwidth; a factor on it keeps the
/// dirty pages at their setpoint. Writers sleep for the rest of the time.
///
/// The rules of [`Verdict::Pause`] are `ioless: rate`, and `ioless: limit` when nothing more may be
/// dirtied.
#[derive(Debug)]
pub struct Ioless {
    form: Form,
    per_device_background: bool,
    reserve: Reserve,
    ticks: Ticks,
    cpus: u32,
    processors: Processors,
    hard: HardLimit,
    completions: Proportions<DeviceIndex>,
    devices: Vec<Device>,
    writers: BTreeMap<WriterId, Writer>,
}

/// Which version of the patches decides pauses, and when a device counts as over its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The version posted in September and October 2011, up to version 12, and merged in 3.2. A
    /// device counts as over its share if its dirty pages exceed the share or the total exceeds the
    /// limit. A pause is as long as the dirtied pages require, up to a maximum that grows with the
    /// number of writers.
    Posted,
    /// The version of 3.7: both must be exceeded. Pauses have a target, a minimum and a maximum,
    /// and think time is subtracted.
    Linux37,
}

/// The state of one task.
#[derive(Clone, Copy, Debug)]
struct Writer {
    /// Pages dirtied since its last pause or since it was last let through (kernel: `nr_dirtied`).
    dirtied_pages: u64,
    /// Number of dirtied pages at which it is checked again (kernel: `nr_dirtied_pause`).
    pause_pages: u64,
    /// Tick at which the last pause ended or would have ended (kernel: `dirty_paused_when`); 0
    /// means never.
    paused_at: u64,
    /// Pages it still owes while it pauses because nothing more may be dirtied.
    stopped: Option<u64>,
    /// Whether it left during a pause; if so, it is checked when it comes back.
    has_left: bool,
}

impl Default for Writer {
    /// A new task is first checked after 128 KiB.
    fn default() -> Self {
        Self { dirtied_pages: 0, pause_pages: 32, paused_at: 0, stopped: None, has_left: false }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Device {
    bandwidth: WriteBandwidth,
    rate: RateLimit,
    /// Set when a writer finds the device over its share, cleared when one does not (kernel:
    /// `dirty_exceeded`).
    exceeded: bool,
    /// Tick of the last estimates, and the totals at that time.
    at: u64,
    dirtied: u64,
    written: u64,
}

impl Ioless {
    /// The controller of Linux 3.7.
    pub fn new(host: &Host) -> Self {
        Self {
            form: Form::Linux37,
            per_device_background: false,
            reserve: Reserve::Half,
            ticks: Ticks::new(host.hz),
            cpus: host.cpus.max(1),
            processors: Processors::new(host.cpus),
            hard: HardLimit::default(),
            completions: Proportions::default(),
            devices: Vec::new(),
            writers: BTreeMap::new(),
        }
    }

    /// The version with the reserve of the patch "writeback: dirty position control - bdi reserve
    /// area", as first posted; its thread has the same name.
    pub fn as_first_posted(host: &Host) -> Self {
        Self { form: Form::Posted, reserve: Reserve::Second, ..Self::new(host) }
    }

    /// Version 12 of the patches (3 October 2011), whose last patch adds a background threshold per
    /// device.
    pub fn version_12(host: &Host) -> Self {
        Self { form: Form::Posted, per_device_background: true, ..Self::new(host) }
    }

    /// The version of that thread's mail of 28 September 2011. It has the mail's reserve, and a
    /// flusher that also works while its device exceeds its share of the background threshold.
    pub fn with_device_background(host: &Host) -> Self {
        let (form, reserve) = (Form::Posted, Reserve::HalfAndChunk);
        Self { form, per_device_background: true, reserve, ..Self::new(host) }
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
            reserve: self.reserve,
        }
    }

    /// The device's measurements so far.
    fn known(&self, numbers: &Numbers) -> Device {
        self.devices.get(numbers.device.0 as usize).copied().unwrap_or_default()
    }

    /// Updates the estimates if they are due (kernel: `__bdi_update_bandwidth()`).
    fn estimate(&mut self, now: Nanos, numbers: &Numbers) {
        let (ticks, tick) = (self.ticks, self.ticks.at(now));
        let elapsed = tick.saturating_sub(self.device(numbers).at);
        if elapsed < ticks.most_pause() {
            return;
        }
        let position = self.position(numbers);
        let device = self.device(numbers);
        let dirtied = numbers.dirtied_total.saturating_sub(device.dirtied);
        let written = numbers.written_total.saturating_sub(device.written);
        // After more than a second without calls, the device was idle for an unknown part of it: no
        // sample.
        if elapsed <= ticks.hz() {
            let below = position.dirty < position.setpoint();
            let dirty_rate = dirtied * ticks.hz() / elapsed;
            device.rate.update(position.ratio(), position.write_rate, dirty_rate, below);
            device.bandwidth.update(ticks, elapsed, written);
        }
        (device.at, device.dirtied, device.written) = (tick, numbers.dirtied_total, numbers.written_total);
        self.hard.update(numbers.limits.limit_pages, numbers.global.total());
    }

    /// Pages that the writers of a processor may dirty before one of them is checked, at any rate
    /// (kernel: `ratelimit_pages`).
    fn ratelimit(&self, numbers: &Numbers) -> u64 {
        (numbers.limits.limit_pages / (32 * u64::from(self.cpus))).max(16)
    }

    /// Counts a writer's dirtied pages. Returns how many more it may dirty before asking again, or
    /// `None` if it must balance now.
    fn ratelimited(
        &mut self,
        numbers: &Numbers,
        id: WriterId,
        pages: u64,
        writer: &mut Writer,
    ) -> Option<u64> {
        writer.dirtied_pages += pages;
        if std::mem::take(&mut writer.has_left) {
            return None;
        }
        let mut limit = writer.pause_pages;
        if self.device(numbers).exceeded {
            limit = limit.min(WHEN_EXCEEDED);
        }
        let most = self.ratelimit(numbers);
        let on_processor = self.processors.of(id);
        if writer.dirtied_pages >= limit {
            *on_processor = 0;
            return None;
        }
        *on_processor += pages;
        if *on_processor >= most {
            *on_processor = 0;
            return None;
        }
        Some((limit - writer.dirtied_pages).min(ASK_PAGES))
    }

    /// Balances a writer; `None` if it may continue.
    fn balance(&mut self, now: Nanos, numbers: &Numbers, writer: &mut Writer) -> Option<Verdict> {
        if numbers.global.total() <= freerun(numbers) {
            (writer.paused_at, writer.dirtied_pages) = (self.ticks.at(now), 0);
            writer.pause_pages = poll_interval(numbers.global.total(), numbers.limits.limit_pages);
            writer.stopped = None;
            self.device(numbers).exceeded = false;
            return None;
        }
        match self.form {
            Form::Posted => self.balance_as_posted(now, numbers, writer),
            Form::Linux37 => self.balance_as_in_3_7(now, numbers, writer),
        }
    }

    fn balance_as_posted(&mut self, now: Nanos, numbers: &Numbers, writer: &mut Writer) -> Option<Verdict> {
        let position = self.position(numbers);
        let over = position.device_dirty > position.device_threshold || position.dirty > position.threshold;
        self.device(numbers).exceeded |= over;
        self.estimate(now, numbers);
        let (ticks, position) = (self.ticks, self.position(numbers));
        let base = self.device(numbers).rate.base();
        let most = posted::max_pause(ticks, position.device_dirty, position.write_rate, base);
        let pages = writer.stopped.take().unwrap_or(writer.dirtied_pages);
        let ratio = position.ratio();
        if ratio == 0 {
            // The writer stays in the loop and still owes what it dirtied.
            (writer.dirtied_pages, writer.stopped) = (0, Some(pages));
            return Some(Verdict::Pause { until: ticks.sleep(now, most), pages: 0, rule: "ioless: limit" });
        }
        self.device(numbers).exceeded = over;
        let task = base * ratio / RATIO_ONE;
        let due = ticks.hz() * pages / (task | 1);
        writer.dirtied_pages = 0;
        writer.pause_pages = posted::pause_pages(ticks, due, most, pages, writer.pause_pages, base);
        (due > 0).then(|| Verdict::Pause {
            until: ticks.sleep(now, due.min(most)),
            pages: writer.pause_pages.clamp(1, ASK_PAGES),
            rule: "ioless: rate",
        })
    }

    fn balance_as_in_3_7(&mut self, now: Nanos, numbers: &Numbers, writer: &mut Writer) -> Option<Verdict> {
        let tick = self.ticks.at(now);
        let over = {
            let position = self.position(numbers);
            position.device_dirty > position.device_threshold && position.dirty > position.threshold
        };
        self.device(numbers).exceeded |= over;
        self.estimate(now, numbers);
        let (ticks, position) = (self.ticks, self.position(numbers));
        let device = *self.device(numbers);
        let task = device.rate.base() * position.ratio() / RATIO_ONE;
        let most = max_pause(ticks, position.device_dirty, position.write_rate);
        let plan = PausePlan::new(ticks, most, task, device.rate.base(), position.write_rate);
        let pages = writer.stopped.take().unwrap_or(writer.dirtied_pages);
        let pause =
            |long: u64, pages, rule| Some(Verdict::Pause { until: ticks.sleep(now, long), pages, rule });
        if task == 0 {
            // The writer is checked again after the pause, and still owes what it dirtied.
            *writer = Writer {
                dirtied_pages: 0,
                pause_pages: plan.pages,
                paused_at: tick + most,
                stopped: Some(pages),
                ..*writer
            };
            return pause(most, 0, "ioless: limit");
        }
        self.device(numbers).exceeded = over;
        let period = ticks.hz() * pages / task;
        let began = if writer.paused_at == 0 { tick } else { writer.paused_at };
        // Subtract the time spent elsewhere since then; add pauses skipped before.
        let (thought, owed) = (tick.saturating_sub(began), began.saturating_sub(tick));
        let due = (period + owed).saturating_sub(thought);
        if due < plan.least {
            if thought > period + ticks.hz() {
                // The writer was slow for so long that its accounting starts afresh.
                (writer.paused_at, writer.dirtied_pages) = (tick, 0);
            } else if period > 0 {
                writer.paused_at = began + period;
                writer.dirtied_pages = 0;
            } else if writer.pause_pages <= pages {
                writer.pause_pages += pages;
            }
            return None;
        }
        // The rate dropped briefly. Of the time beyond the longest pause, carry over at most
        // another longest pause, and forgive the rest.
        let forgiven = due.saturating_sub(most).min(most);
        writer.paused_at = tick + forgiven + due.min(most);
        (writer.dirtied_pages, writer.pause_pages) = (0, plan.pages);
        pause(due.min(most), plan.pages.clamp(1, ASK_PAGES), "ioless: rate")
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
        let chunk_pages = self.device(numbers).bandwidth.chunk_pages(limit, u64::MAX - CHUNK_UNIT);
        Background::Run { chunk_pages, in_flight_pages: QUEUE_PAGES, least_pages: 1 }
    }

    /// How far the kernel's page count of a device may be off: each processor has this many pages
    /// not yet added to it (kernel: `bdi_stat_error()`). The counts here are exact, but the
    /// kernel's loop compares with this.
    fn counter_error(&self) -> u64 {
        u64::from(self.cpus) * 8 * (1 + u64::from(self.cpus.ilog2()))
    }
}

/// Writers are not throttled up to here (kernel: `dirty_freerun_ceiling()`).
fn freerun(numbers: &Numbers) -> u64 {
    (numbers.limits.limit_pages + numbers.limits.background_pages) / 2
}

impl DirtyControl for Ioless {
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders {
        // No hard pool limit: at the dirty limit the writers' rate is zero, which stops them.
        let mut orders = Orders { pool_limit_pages: u64::MAX, ..Orders::none(numbers) };
        let mut balances = true;
        if let Some(Asking { writer: id, dirtied_pages, .. }) = asking {
            let mut writer = self.writers.remove(&id).unwrap_or_default();
            let more = match writer.stopped {
                // The writer is still in the kernel's loop. It leaves once the device has next to
                // nothing dirty.
                Some(_) if self.form == Form::Linux37 && numbers.on_device.total() < self.counter_error() => {
                    writer.stopped = None;
                    Some(ASK_PAGES)
                }
                Some(_) => None,
                None => self.ratelimited(numbers, id, dirtied_pages, &mut writer),
            };
            balances = more.is_none();
            let verdict = if balances { self.balance(now, numbers, &mut writer) } else { None };
            let pages = more.unwrap_or(writer.pause_pages).clamp(1, ASK_PAGES);
            orders.writer = verdict.unwrap_or(Verdict::Go { pages });
            self.writers.insert(id, writer);
        }
        if balances {
            orders.flusher = self.background(now, numbers);
        }
        orders
    }

    fn leave(&mut self, _device: DeviceIndex, writer: WriterId) {
        if let Some(writer) = self.writers.get_mut(&writer) {
            writer.has_left = true;
        }
    }

    fn forget(&mut self, _device: DeviceIndex, writer: WriterId) {
        self.writers.remove(&writer);
    }

    fn detach(&mut self, device: DeviceIndex) {
        self.completions.forget(device);
        if let Some(device) = self.devices.get_mut(device.0 as usize) {
            *device = Device::default();
        }
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

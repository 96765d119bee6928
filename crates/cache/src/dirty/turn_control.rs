//! Our controller: credits per device, turns per writer, predicted pauses.

use super::turns::{Turn, Turns};
use super::{BusyRate, MAX_PAUSE, pages_in, time_for};
use crate::dirty::control::{
    Amounts, Asking, Background, ControlState, DeviceIndex, DirtyControl, Numbers, Orders, Verdict, WriterId,
};
use extant_rt::Nanos;
use std::collections::BTreeMap;

/// Memory counts as short if each writer has less than this: 4 MiB. Write-back goes file by file,
/// and moving to the next file costs a disk a seek. So when memory is short, writers take turns,
/// with long runs.
const AMPLE_PAGES: u64 = 4 << 20 >> 12;
/// Work kept in flight on a device: as much as it writes in this time.
const IN_FLIGHT: Nanos = Nanos::from_millis(100);
/// When memory is ample, every writer gets a turn within this time.
const ROUND: Nanos = Nanos::from_millis(100);
/// When memory is short, every writer gets a turn within this time. Meanwhile it advances by a page
/// or so each time it wakes up.
const LONG_ROUND: Nanos = Nanos::from_secs(3);
/// On a slow disk with many writers, seeks would take much of such a round. So a turn there has at
/// least this many pages (1.75 MiB) …
const SHORT_TURN_PAGES: u64 = 7 << 18 >> 12;
/// … as long as the round does not exceed this. (The minimum of eight pages per turn may exceed
/// it.)
const LONGEST_ROUND: Nanos = Nanos::from_secs(6);
/// The longest turn when memory is short: 8 MiB.
const LONG_TURN_PAGES: u64 = 8 << 20 >> 12;
/// A device that shares the pool may hold as much as it writes in this time. Its memory then comes
/// back that soon when others want it, and a device that writes nothing holds next to nothing. With
/// a lower value, a disk with a hundred files writes short runs.
const HOLD: Nanos = Nanos::from_secs(10);
/// A device may also hold no more than it has written so far, but at least this: 64 MiB, which is
/// more than the caches of disks; in a smaller pool, at least its share by number. Until a device
/// is known, its rate is a guess, and the first measurement is that of its cache. It might need
/// seconds to give back what it holds then. Meanwhile its writers stall, and it keeps later devices
/// from a link that they share.
const UNPROVEN_PAGES: u64 = 64 << 20 >> 12;
/// If writing back what a device holds over its limit takes longer than this, the device gives back
/// only half of what it writes. Its writers use the other half, so a faster newcomer does not stall
/// them for seconds.
const STANDSTILL: Nanos = Nanos::from_millis(500);
/// The longest time to give back memory, in seconds, however slow the device is. A device that
/// completes nothing must not keep what it holds.
const GIVEN_BACK_S: u64 = 100;
/// A device that had nothing dirty for this long does not count for the shares.
const IDLE: Nanos = Nanos::from_secs(1);
/// The shortest pause worth taking.
const LEAST_PAUSE: Nanos = Nanos::from_millis(1);
/// How often writers are recounted: longer than any pause, so that every active writer is counted.
const CENSUS: Nanos = Nanos::from_millis(500);
/// Any device may hold this much, so that it can start.
const FLOOR_PAGES: u64 = 16;
/// While memory is nearly empty, a writer may take up to this much without a turn.
const SIP_PAGES: u64 = 8;

/// Dirty control by credits and turns.
///
/// Each device has a share of the pool: half of the pool is split by number of devices, half by
/// write rate. What other devices do not use is lent to it at once, as far as it can give it back
/// in time. The flusher keeps 100 ms of the device's work in flight.
///
/// A writer proceeds freely while half of the device's memory is free. Beyond that, writers take
/// turns, in the order of their due times. All turns have equal length, except a writer's first,
/// which may be shorter. With little memory per writer, turns are long and rare, and the flusher
/// writes the files that just had a turn, so that a disk with many small shares still writes long
/// runs. A waiting writer sleeps until its turn is predicted to come, at most 200 ms at a time, and
/// advances a little each time. While less than an eighth is dirty, a few pages need no turn. A
/// turn ends once its writer has had time to use it up, so that writers that stop do not keep
/// memory from others.
///
/// The rules of [`Verdict::Pause`]:
/// - `extant: turn`: it is not the writer's turn yet.
/// - `extant: room`: the writer is next, but the device's memory is full.
/// - `extant: pool`: the writer is next, but the process's memory is full.
#[derive(Debug, Default)]
pub struct TurnControl {
    devices: Vec<Device>,
}

/// The state of one writer.
#[derive(Clone, Copy, Debug, Default)]
struct Writer {
    /// Its place in the queue, or its turn.
    turn: Turn,
    /// When it began to wait, or last dirtied pages while waiting.
    waits_since: Nanos,
    /// The last census that counted it.
    counted: u64,
    /// It has had a turn before. First turns may be shorter: a short file ends within one, and
    /// would leave most of a full turn unused, out of reach for others.
    stays: bool,
}

#[derive(Debug, Default)]
struct Device {
    busy: BusyRate,
    /// The device's amounts when last seen.
    amounts: Amounts,
    /// The last limit it got, and when.
    given: (Nanos, u64),
    /// That limit was on its way down.
    is_easing: bool,
    /// When something was last dirty or in flight.
    active_at: Nanos,
    /// Since when something has been in flight without a break.
    in_flight_since: Nanos,
    turns: Turns,
    writers: BTreeMap<WriterId, Writer>,
    /// The census of writers: its number, its start, the count so far, and the previous count.
    census: u64,
    census_at: Nanos,
    counting: u64,
    counted: u64,
}

impl Device {
    fn rate(&self, now: Nanos) -> u64 {
        self.busy.rate(now, self.amounts.writeback_pages, self.in_flight_since)
    }

    fn is_active(&self, now: Nanos) -> bool {
        self.amounts.total() > 0 || now.saturating_sub(self.active_at) < IDLE && self.active_at > Nanos::ZERO
    }

    fn count(&mut self, now: Nanos, writer: &mut Writer) {
        let elapsed = now.saturating_sub(self.census_at);
        if elapsed >= CENSUS || self.census == 0 {
            self.counted = if elapsed >= CENSUS.saturating_add(CENSUS) { 0 } else { self.counting };
            self.counting = 0;
            self.census += 1;
            self.census_at = now;
        }
        if writer.counted != self.census {
            writer.counted = self.census;
            self.counting += 1;
        }
    }

    /// Current number of writers, at least 1.
    fn active_writers(&self) -> u64 {
        self.counted.max(self.counting).max(1)
    }
}

/// How a device's writers proceed, in pages and pages per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    limit: u64,
    /// The limit is on its way down, because the device holds far too much.
    is_easing: bool,
    /// The write rate of the device.
    rate: u64,
    /// The rate at which work is issued to the device; at least its write rate.
    credit_rate: u64,
    writers: u64,
    /// Whether memory is short.
    short: bool,
    /// Pages of a writer's first turn.
    first_turn: u64,
    /// Pages of each later turn, at least `first_turn`.
    turn: u64,
    /// Turns may begin while at most this much is dirty or promised.
    target: u64,
    /// The rate at which each waiting writer may dirty, in pages per 1000 s.
    drip_milli: u64,
}

impl Plan {
    fn new(limit: u64, rate: u64, credit_rate: u64, writers: u64) -> Self {
        let short = limit / 2 / writers < AMPLE_PAGES;
        let round = if short { LONG_ROUND } else { ROUND };
        let most = (limit / 4).max(1);
        // If turns followed a device's own rate, a device that has fallen behind would get less to
        // write, and stay behind.
        let issued = if short { credit_rate } else { rate };
        let mut turn = (pages_in(issued, round) / writers).clamp(1, most);
        let mut first_turn = turn;
        if short {
            first_turn = turn.min(AMPLE_PAGES).max(8.min(most));
            let least = (pages_in(rate, LONGEST_ROUND) / writers).clamp(8, SHORT_TURN_PAGES);
            turn = turn.min(LONG_TURN_PAGES).max(least.min(most));
        }
        // An eighth of the memory is for what waiting writers dirty. On average a writer has waited
        // half a round (of first turns here, so that short files make progress). The rate is also
        // at most an eighth of the device's rate, and at most a page per pause.
        let took = time_for(first_turn * writers, rate).max(MAX_PAUSE);
        let room = (limit / 4).saturating_mul(1_000_000_000_000) / took.0;
        let drip_milli = (room.min(rate * 125) / writers).min(5000);
        let target = limit - limit / 8;
        let is_easing = false;
        Self { limit, is_easing, rate, credit_rate, writers, short, first_turn, turn, target, drip_milli }
    }

    /// Pages a writer may have dirtied after waiting for `span`.
    fn dripped(&self, span: Nanos) -> u64 {
        pages_in(self.drip_milli, span) / 1000
    }

    fn in_flight(&self) -> u64 {
        let credit = pages_in(self.credit_rate, IN_FLIGHT);
        // When memory is short, half of it is rarely available to be written, so the amount in
        // flight would be whatever happens to be left. Of equal devices on one link, the one with
        // less in flight would then get less of the link for seconds.
        let credit = if self.short {
            credit.max(2 * self.turn).min(self.limit / 4)
        } else {
            credit.min(self.limit / 2)
        };
        credit.max(1)
    }
}

impl TurnControl {
    /// A controller that knows of no devices yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Updates the device's state from `numbers`.
    fn note(&mut self, now: Nanos, numbers: &Numbers) -> &mut Device {
        let at = numbers.device.0 as usize;
        if self.devices.len() <= at {
            self.devices.resize_with(at + 1, Device::default);
        }
        let device = &mut self.devices[at];
        if device.amounts.writeback_pages == 0 {
            device.in_flight_since = now;
        }
        if numbers.on_device.total() > 0 {
            device.active_at = now;
        }
        device.amounts = numbers.on_device;
        device
    }

    /// The sum of the write rates of the devices in use, and their number.
    fn in_use(&self, now: Nanos) -> (u128, u64) {
        let active = self.devices.iter().filter(|device| device.is_active(now));
        active.fold((0, 0), |(rates, count), device| (rates + u128::from(device.rate(now)), count + 1))
    }

    /// Likewise, counting device `at` even if it is not in use.
    fn with(&self, now: Nanos, at: usize, (rates, count): (u128, u64)) -> (u128, u64) {
        let device = &self.devices[at];
        let added = !device.is_active(now);
        (rates + if added { device.rate(now).into() } else { 0 }, count + u64::from(added))
    }

    /// The device's share of `of` pages, without loans: half by number, half by rate, among the
    /// devices in use and itself.
    fn part(&self, now: Nanos, at: usize, of: u64, in_use: (u128, u64)) -> u64 {
        let (rates, count) = self.with(now, at, in_use);
        let by_rate = u128::from(of / 2) * u128::from(self.devices[at].rate(now)) / rates.max(1);
        of / 2 / count + by_rate as u64
    }

    fn limit_of(&self, now: Nanos, numbers: &Numbers) -> u64 {
        let at = numbers.device.0 as usize;
        let limit = numbers.limits.limit_pages;
        if numbers.devices <= 1 {
            return limit.max(1);
        }
        let device = &self.devices[at];
        let in_use = self.in_use(now);
        let mut wanted = 0;
        for (other, device) in self.devices.iter().enumerate() {
            if other != at && device.is_active(now) {
                let credit = pages_in(device.rate(now), IN_FLIGHT).min(self.part(now, other, limit, in_use));
                wanted += credit.saturating_sub(device.amounts.total());
            }
        }
        // Keep an eighth for devices not in use.
        let free = limit.saturating_sub(numbers.global.total()).saturating_sub(wanted.max(limit / 8));
        let lent = numbers.on_device.total() + free;
        let proven = numbers.written_total.max(UNPROVEN_PAGES.min(limit / u64::from(numbers.devices)));
        let hold = pages_in(device.rate(now), HOLD).min(proven);
        self.part(now, at, limit, in_use).max(lent).min(hold).clamp(FLOOR_PAGES.min(limit), limit).max(1)
    }

    /// The limit for a device that may have to give back much memory: it falls gradually. Also
    /// whether it is falling.
    fn eased_limit(&self, now: Nanos, numbers: &Numbers) -> (u64, bool) {
        let limit = self.limit_of(now, numbers);
        let device = &self.devices[numbers.device.0 as usize];
        let (rate, held, (at, before)) = (device.rate(now), numbers.on_device.total(), device.given);
        // Beside others in use, a device gets a share by its rate, which may be far less than it
        // holds once that rate is known.
        let (_, in_use) = self.with(now, numbers.device.0 as usize, self.in_use(now));
        let is_alone = in_use <= 1;
        // Writers resume an eighth below the limit.
        let resumes = if is_alone { limit } else { limit - limit / 8 };
        if held <= resumes.saturating_add(pages_in(rate, STANDSTILL)) {
            return (limit, false);
        }
        let pause = if is_alone { MAX_PAUSE } else { STANDSTILL };
        let most = held.saturating_add(held / 7).saturating_add(pages_in(rate, pause));
        // The fall begins where writers may go on. They may have been waiting at the last limit
        // when the device turned out to be slow, and would wait until it has written an eighth.
        let before = if is_alone || device.is_easing { before } else { before.max(most) };
        let passed = now.saturating_sub(at);
        let given_back = (pages_in(rate, passed) / 2).max(pages_in(before, passed) / GIVEN_BACK_S);
        let eased = limit.max(before.saturating_sub(given_back).min(most));
        (eased.min(numbers.limits.limit_pages), true)
    }

    fn plan(&self, now: Nanos, numbers: &Numbers) -> Plan {
        let device = &self.devices[numbers.device.0 as usize];
        let (limit, is_easing) = self.eased_limit(now, numbers);
        let (rate, credit_rate) = (device.rate(now), self.credit_rate(now, numbers));
        Plan { is_easing, ..Plan::new(limit, rate, credit_rate, device.active_writers()) }
    }

    /// The rate at which work is issued to the device. On a shared link, a device's share is its
    /// share of all work in flight. If that followed each device's past rate, a device that has
    /// fallen behind would stay behind. So a device that writes less than the average gets work for
    /// the average, or for twice its own rate if that is less.
    fn credit_rate(&self, now: Nanos, numbers: &Numbers) -> u64 {
        let at = numbers.device.0 as usize;
        let rate = self.devices[at].rate(now);
        let (sum, count) = self.with(now, at, self.in_use(now));
        rate.max(((sum / u128::from(count)) as u64).min(2 * rate))
    }

    /// Decides a writer's next step.
    fn balance(&mut self, now: Nanos, numbers: &Numbers, plan: &Plan, writer: &mut Writer) -> Verdict {
        let at = numbers.device.0 as usize;
        let device = &mut self.devices[at];
        if !device.turns.waits(writer.turn) {
            device.turns.close(writer.turn);
        }
        let promised: u64 = self.devices.iter().map(|device| device.turns.open_pages()).sum();
        let turns = &mut self.devices[at].turns;
        let used = numbers.on_device.total() + turns.open_pages();
        let limit = numbers.limits.limit_pages;
        let freely = (limit / 2).saturating_sub(numbers.global.total() + promised);
        let freely = (plan.limit / 2).saturating_sub(used).min(freely);
        if freely > 0 && !plan.short && turns.is_idle() {
            // Grant little, and as a promise. If a thousand writers begin together, the first must
            // not get all the memory and then keep later ones from their turns.
            let pages = (freely / (2 * plan.writers)).clamp(1, AMPLE_PAGES);
            turns.begin_at_once(now, &mut writer.turn, pages);
            writer.waits_since = now;
            return Verdict::Go { pages };
        }
        // Turns are promises, and a writer that waits for each of its small writes never uses most
        // of a turn. While next to nothing is dirty, other writers' promises must not hold it up.
        let nearly_empty = plan.limit.min(limit) / 8;
        if plan.short && numbers.on_device.total().max(numbers.global.total()) < nearly_empty {
            return Verdict::Go { pages: (nearly_empty / plan.writers).clamp(1, SIP_PAGES) };
        }
        // Due one round after its last turn was due, so that it loses nothing by spending time
        // elsewhere. While a device's rate is unknown, turns are small and follow each other; a
        // writer that had several of those does not owe a round for each.
        let turn = if writer.stays { plan.turn } else { plan.first_turn };
        let apart = time_for(turn * plan.writers, plan.rate);
        // A new writer is due at most one pause before now. A whole round before now would be
        // unfair: of a thousand writers that begin together, the first ones measure a short round
        // and would have to wait for two. And a process that writes one short file after another
        // would always be ahead of writers that keep their files.
        let earliest = now.saturating_sub(apart.min(MAX_PAUSE));
        // On a slow disk the round is longer than this, but using its full length here made the
        // longest writes of a thousand concurrent writers even longer.
        let latest = now.saturating_add(apart.min(LONG_ROUND));
        let due = writer.turn.due.saturating_add(apart).clamp(earliest, latest);
        let waited = turns.waits(writer.turn);
        // A larger number ahead makes no difference: it already means more than one pause.
        let most = pages_in(plan.rate, MAX_PAUSE).saturating_add(limit) / plan.turn + 1;
        let ahead = turns.wait(now, &mut writer.turn, due, most as usize);
        let room = plan.target.saturating_sub(used);
        let pool = (limit - limit / 16).saturating_sub(numbers.global.total() + promised);
        let needed = turn * (ahead + 1);
        // A writer that is awake takes at most one turn ahead of those still asleep.
        let in_order = writer.turn.due <= turns.first_due().saturating_add(apart).saturating_add(apart);
        if room.min(pool) >= needed && in_order || used == 0 {
            turns.begin(now, writer.turn, turn);
            writer.stays = true;
            // Waiting for other writers' turns earns no claim to an earlier turn next time; too
            // long a pause does. So writers that were due together become due one after the other,
            // in the order of their turns.
            writer.turn.due = writer.turn.due.max(now.saturating_sub(MAX_PAUSE));
            writer.waits_since = now;
            return Verdict::Go { pages: turn };
        }
        if !waited {
            writer.waits_since = now;
        }
        let dripped = plan.dripped(now.saturating_sub(writer.waits_since).min(Nanos::from_secs(1)));
        if dripped > 0 && numbers.on_device.total() < plan.limit - plan.limit / 16 && pool > 0 {
            writer.waits_since = now;
            return Verdict::Go { pages: dripped };
        }
        let until_turn = time_for(needed.saturating_sub(room.min(pool)), plan.rate);
        let pause = until_turn.clamp(LEAST_PAUSE, MAX_PAUSE);
        let rule = match (ahead, room <= pool) {
            (1.., _) => "extant: turn",
            (0, true) => "extant: room",
            (0, false) => "extant: pool",
        };
        Verdict::Pause { until: now.saturating_add(pause), pages: 0, rule }
    }

    fn background(&self, now: Nanos, numbers: &Numbers, plan: &Plan) -> Background {
        let at = numbers.device.0 as usize;
        let threshold = numbers.limits.background_pages;
        // Even if the device may hold less than the threshold, its writers must not wait for a
        // flusher that rests.
        let mine = self.part(now, at, threshold, self.in_use(now)).min(plan.limit / 2);
        // A paused writer wakes when its turn was predicted, even if the device runs out of work
        // earlier. So while writers wait, the device keeps writing what is there; but not when
        // memory is short, because that would cost it its long runs.
        let waited_for =
            !plan.short && !self.devices[at].turns.is_idle() && numbers.on_device.dirty_pages > 0;
        if numbers.global.dirty_pages <= threshold && numbers.on_device.dirty_pages <= mine && !waited_for {
            return Background::Stop;
        }
        let chunk = if plan.short { 2 * plan.turn } else { (plan.rate / 4).min(plan.limit / 8) };
        Background::Run {
            // Whole bios: a short one in the middle of a stream costs a disk with a queue a seek
            // back for what it skipped.
            chunk_pages: chunk.max(1).next_multiple_of(AMPLE_PAGES),
            in_flight_pages: plan.in_flight(),
            least_pages: if plan.short { (plan.first_turn / 2).max(1) } else { 1 },
        }
    }
}

impl DirtyControl for TurnControl {
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders {
        self.note(now, numbers);
        // For all devices: if all writers of one have stopped, nobody asks about it, and its turns
        // would never end.
        self.devices.iter_mut().for_each(|device| device.turns.expire(now));
        let at = numbers.device.0 as usize;
        let mut orders = Orders::none(numbers);
        let plan = match asking {
            Some(Asking { writer: id, .. }) => {
                let mut writer = self.devices[at].writers.get(&id).copied().unwrap_or_default();
                self.devices[at].count(now, &mut writer);
                let plan = self.plan(now, numbers);
                orders.writer = self.balance(now, numbers, &plan, &mut writer);
                self.devices[at].writers.insert(id, writer);
                plan
            }
            None => self.plan(now, numbers),
        };
        self.devices[at].given = (now, plan.limit);
        self.devices[at].is_easing = plan.is_easing;
        orders.flusher = self.background(now, numbers, &plan);
        // Lent memory is returned as it is written. Until then the device is over its limit. A
        // writer that was promised a turn earlier still gets it, as long as the promise lasts.
        orders.device_limit_pages = match self.devices[at].turns.open_pages() {
            0 => plan.limit,
            open => plan.limit.max((numbers.on_device.total() + open).min(numbers.limits.limit_pages)),
        };
        orders
    }

    fn leave(&mut self, device: DeviceIndex, writer: WriterId) {
        let Some(device) = self.devices.get_mut(device.0 as usize) else { return };
        if let Some(writer) = device.writers.get_mut(&writer) {
            device.turns.leave(&mut writer.turn);
        }
    }

    fn forget(&mut self, device: DeviceIndex, writer: WriterId) {
        self.leave(device, writer);
        if let Some(device) = self.devices.get_mut(device.0 as usize) {
            device.writers.remove(&writer);
        }
    }

    fn detach(&mut self, device: DeviceIndex) {
        if let Some(device) = self.devices.get_mut(device.0 as usize) {
            *device = Device::default();
        }
    }

    fn written(&mut self, now: Nanos, numbers: &Numbers, pages: u64, took: Nanos) {
        self.note(now, numbers).busy.written(now, pages, took);
    }

    fn state(&self, now: Nanos, numbers: &Numbers) -> ControlState {
        if self.devices.len() <= numbers.device.0 as usize {
            return ControlState::default();
        }
        let plan = self.plan(now, numbers);
        ControlState {
            device_setpoint_pages: plan.target,
            write_rate: plan.rate,
            task_rate: plan.rate / plan.writers,
            turn_pages: plan.turn,
            writers: plan.writers,
            ..ControlState::default()
        }
    }
}

//! Our controller: credits per device, turns per writer, predicted pauses.

use crate::dirty::control_interface::{
    Asking, Background, ControlState, DeviceIndex, DirtyControl, Numbers, Orders, Verdict, WriterId,
};
use crate::dirty::device_limit::{DeviceLoad, DeviceLoads, IN_FLIGHT};
use crate::dirty::{MAX_PAUSE, pages_in, time_for};
use extant_rt::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// Memory counts as short if each writer has less than this: 4 MiB. Write-back goes file by file,
/// and moving to the next file costs a disk a seek. So when memory is short, writers take turns,
/// with long runs.
const AMPLE_PAGES: u64 = 4 << 20 >> 12;
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
/// While memory is ample, a disk writes one file for this long, if that has so much dirty, before
/// it moves to the next one. The seek there and half a turn take up to 20 ms, so they cost 1 %.
const VISIT: Nanos = Nanos::from_secs(2);
/// The longest turn when memory is short: 8 MiB.
const LONG_TURN_PAGES: u64 = 8 << 20 >> 12;
/// The shortest pause worth taking.
const LEAST_PAUSE: Nanos = Nanos::from_millis(1);
/// How often writers are recounted: longer than any pause, so that every active writer is counted.
const CENSUS: Nanos = Nanos::from_millis(500);
/// While almost nothing is dirty, a writer may take up to this much without a turn.
const SIP_PAGES: u64 = 8;

/// Dirty control by credits and turns.
///
/// Each device has a share of the pool: half of the pool is split by number of devices, half by
/// write rate. Memory that other devices do not use is lent to it at once, as much as it can give
/// back in time. The flusher keeps 100 ms of the device's work in flight.
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
    loads: DeviceLoads,
    /// By device.
    devices: Vec<DeviceWriters>,
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
    /// Whether it has had a turn before. First turns may be shorter: a short file would leave most
    /// of a full turn unused, and other writers could not use it either.
    stays: bool,
}

/// The writers of one device.
#[derive(Debug, Default)]
struct DeviceWriters {
    turns: Turns,
    writers: BTreeMap<WriterId, Writer>,
    /// The census of writers: its number, its start, the count so far, and the previous count.
    census: u64,
    census_at: Nanos,
    counting: u64,
    counted: u64,
}

impl DeviceWriters {
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
    /// Whether the limit is falling, because the device holds far too much.
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
        // When memory is short, there are rarely enough dirty pages to keep half of the device's
        // memory in flight, so the amount in flight would vary by chance. Of equal devices on one
        // link, the one with less in flight would then get less of the link for seconds.
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

    fn plan(&self, now: Nanos, numbers: &Numbers) -> Plan {
        let at = numbers.device.0 as usize;
        let (limit, is_easing) = self.loads.eased_limit(now, numbers);
        let (rate, credit_rate) = (self.loads.0[at].rate(now), self.loads.credit_rate(now, numbers));
        Plan { is_easing, ..Plan::new(limit, rate, credit_rate, self.devices[at].active_writers()) }
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
            // Grant little, and count it as promised. If a thousand writers begin together, the
            // first ones must not get all the memory and so keep later ones from their turns.
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
        // The writer is due one round after its last turn was due, so that it loses nothing by
        // spending time elsewhere. While a device's rate is unknown, turns are small and follow
        // each other at once. A writer that had several such turns need not wait a round for each.
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
        // Counting further makes no difference: this many turns ahead already mean more than one
        // pause.
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
        let mine = self.loads.part(now, at, threshold, self.loads.in_use(now)).min(plan.limit / 2);
        // A paused writer wakes when its turn was predicted, even if the device runs out of work
        // earlier. So while writers wait, the device keeps writing the pages that are dirty. When
        // memory is short it does not, because its runs would be short.
        let waited_for =
            !plan.short && !self.devices[at].turns.is_idle() && numbers.on_device.dirty_pages > 0;
        if numbers.global.dirty_pages <= threshold && numbers.on_device.dirty_pages <= mine && !waited_for {
            return Background::Stop;
        }
        let chunk = if plan.short { 2 * plan.turn } else { pages_in(plan.rate, VISIT).min(plan.limit / 8) };
        Background::Run {
            // Whole bios: a short one in the middle of a stream makes a disk with a queue skip
            // ahead, and later seek back for the part it skipped.
            chunk_pages: chunk.max(1).next_multiple_of(AMPLE_PAGES),
            in_flight_pages: plan.in_flight(),
            least_pages: if plan.short { (plan.first_turn / 2).max(1) } else { 1 },
        }
    }
}

impl DirtyControl for TurnControl {
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders {
        self.loads.note(now, numbers);
        if self.devices.len() < self.loads.0.len() {
            self.devices.resize_with(self.loads.0.len(), DeviceWriters::default);
        }
        // Expire turns of all devices. If all writers of a device have stopped, no call concerns
        // that device any more, and its turns would otherwise never end.
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
        self.loads.0[at].gets(now, plan.limit, plan.is_easing);
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
            *device = DeviceWriters::default();
        }
        if let Some(load) = self.loads.0.get_mut(device.0 as usize) {
            *load = DeviceLoad::default();
        }
    }

    fn written(&mut self, now: Nanos, numbers: &Numbers, pages: u64, took: Nanos) {
        self.loads.note(now, numbers).busy.written(now, pages, took);
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

/// A writer's place in the queue, or its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Turn {
    /// When the turn is due.
    due: Nanos,
    /// 0 means none.
    ticket: u64,
}

impl Turn {
    fn key(self) -> (Nanos, u64) {
        (self.due, self.ticket)
    }
}

/// The writers that wait for a device's memory, in the order in which they are due, and the pages
/// that writers with an open turn may still dirty.
#[derive(Debug, Default)]
struct Turns {
    /// Maps due time and ticket to when the writer was last seen.
    waiting: BTreeMap<(Nanos, u64), Nanos>,
    /// Open turns, in the order they began: ticket, end time, pages.
    open: VecDeque<(u64, Nanos, u64)>,
    /// Sum of the pages of all open turns.
    open_pages: u64,
    tickets: u64,
    swept_at: Nanos,
}

impl Turns {
    /// A writer not seen for this long is gone: no pause is longer than 200 ms.
    const GONE: Nanos = Nanos::from_millis(500);
    /// An unfinished turn ends once a writer that does nothing else would have dirtied its pages,
    /// at 160 MB/s, …
    const PAGE: Nanos = Nanos::from_micros(25);
    /// … but not before a writer has usually been scheduled, …
    const LEAST_TURN: Nanos = Nanos::from_millis(20);
    /// … and in any case after this time.
    const MOST_TURN: Nanos = Nanos::from_millis(200);

    /// Ends a turn, if it had begun.
    fn close(&mut self, turn: Turn) {
        if turn.ticket != 0 {
            self.end(|&(ticket, ..)| ticket == turn.ticket);
        }
    }

    fn end(&mut self, over: impl Fn(&(u64, Nanos, u64)) -> bool) {
        let left = &mut self.open_pages;
        self.open.retain(|turn| {
            let over = over(turn);
            *left -= if over { turn.2 } else { 0 };
            !over
        });
    }

    /// Removes a writer, whether it waits or has its turn.
    fn leave(&mut self, turn: &mut Turn) {
        self.close(*turn);
        self.waiting.remove(&turn.key());
        turn.ticket = 0;
    }

    /// Pages that writers with an open turn may still dirty.
    fn open_pages(&self) -> u64 {
        self.open_pages
    }

    /// Whether no writer waits.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a writer for `turn`, unless it is already queued. Returns how many writers are due
    /// before it, counting up to `most`.
    fn wait(&mut self, now: Nanos, turn: &mut Turn, due: Nanos, most: usize) -> u64 {
        self.sweep(now);
        if !self.waits(*turn) {
            turn.due = due;
            self.give_ticket(turn);
        }
        self.waiting.insert(turn.key(), now);
        self.waiting.range(..turn.key()).take(most).count() as u64
    }

    /// Whether a writer waits for this turn.
    fn waits(&self, turn: Turn) -> bool {
        turn.ticket != 0 && self.waiting.contains_key(&turn.key())
    }

    /// When the first waiting writer is due.
    fn first_due(&self) -> Nanos {
        self.waiting.first_key_value().map_or(Nanos::MAX, |(&(due, _), _)| due)
    }

    /// Starts a turn of `pages` pages.
    fn begin(&mut self, now: Nanos, turn: Turn, pages: u64) {
        self.waiting.remove(&turn.key());
        let takes = Nanos(pages.saturating_mul(Self::PAGE.0)).clamp(Self::LEAST_TURN, Self::MOST_TURN);
        self.open.push_back((turn.ticket, now.saturating_add(takes), pages));
        self.open_pages += pages;
    }

    /// Starts a turn of `pages` pages that was not waited for.
    fn begin_at_once(&mut self, now: Nanos, turn: &mut Turn, pages: u64) {
        self.sweep(now);
        self.give_ticket(turn);
        self.begin(now, *turn, pages);
    }

    fn give_ticket(&mut self, turn: &mut Turn) {
        self.tickets += 1;
        turn.ticket = self.tickets;
    }

    /// Ends turns not used up in time: their writers have stopped or are slow, and at worst hit the
    /// limit.
    fn expire(&mut self, now: Nanos) {
        self.end(|&(_, until, _)| now > until);
    }

    fn sweep(&mut self, now: Nanos) {
        if now.saturating_sub(self.swept_at) >= Self::GONE {
            self.waiting.retain(|_, seen| now.saturating_sub(*seen) <= Self::GONE);
            self.swept_at = now;
        }
    }
}

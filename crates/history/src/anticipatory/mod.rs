//! The anticipatory elevator, Linux's default from 2.6.0 to 2.6.17 (kernel:
//! `drivers/block/as-iosched.c` in 2.6.11; Documentation/block/as-iosched.txt).
//!
//! It sorts requests in one direction, with short seeks back allowed. Batches of synchronous
//! requests (reads) and of others alternate by time. After a read it keeps the disk idle for up to
//! `antic_expire`, waiting for the next request of the same task. It does not wait if the task is
//! known to think longer, or if the task's next request is expected farther away than the nearest
//! queued one.
//!
//! Bios merge only with requests of their own kind; the kernel also merges across kinds.

#[cfg(test)]
mod tests;

use extant_block::{Sector, StreamId};
use extant_iosched::elevator::{Decision, Elevator, Request, RequestId};
use extant_rt::Nanos;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A running mean that weights the past with 7 of 8, in 256ths (kernel: `ttime_samples`,
/// `seek_samples` and their totals).
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    samples: u64,
    total: u64,
}

impl Mean {
    fn add(&mut self, value: u64) {
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * value) / 8;
    }

    fn is_empty(self) -> bool {
        self.samples == 0
    }

    fn value(self) -> u64 {
        (self.total + self.samples / 2).checked_div(self.samples).unwrap_or(0)
    }

    /// Rounds think times as the kernel does: it adds half of 256 even if there are few samples,
    /// which makes the mean of the first ones too long.
    fn value_of_think_time(self) -> u64 {
        (self.total + 128).checked_div(self.samples).unwrap_or(0)
    }
}

/// What is known about a task, over all disks (kernel: `as_io_context`).
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    queued: u64,
    /// Tick at which its last synchronous request completed, if any has.
    ended: Option<u64>,
    /// Sector after its last synchronous request, if any.
    last: Option<Sector>,
    think_ticks: Mean,
    seek_sectors: Mean,
    has_exited: bool,
}

/// The tasks of a machine. The elevators of all disks share them, since a task with a request on
/// one disk is not waited for on another.
#[derive(Clone, Debug, Default)]
pub struct Tasks(Arc<Mutex<BTreeMap<StreamId, Known>>>);

impl Tasks {
    fn with<T>(&self, stream: StreamId, edit: impl FnOnce(&mut Known) -> T) -> T {
        edit(self.0.lock().entry(stream).or_default())
    }

    /// `None` for a task that has exited.
    fn get(&self, stream: StreamId) -> Option<Known> {
        self.0.lock().get(&stream).copied()
    }

    /// Edits a task, unless it has exited and has no more queued requests.
    fn edit(&self, stream: StreamId, edit: impl FnOnce(&mut Known)) {
        let mut tasks = self.0.lock();
        if let Some(known) = tasks.get_mut(&stream) {
            edit(known);
            if known.has_exited && known.queued == 0 {
                tasks.remove(&stream);
            }
        }
    }
}

/// Whether the elevator keeps the disk idle (kernel: `antic_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    No,
    /// Until the request in flight completes; then the wait's time starts.
    ForEnd,
    ForNext,
    /// The wait is over: a request arrived, or the time was up.
    Over,
}

#[derive(Debug, Default)]
struct Lane {
    sorted: BTreeSet<(Sector, RequestId)>,
    fifo: VecDeque<RequestId>,
    /// The next request by position (kernel: `next_arq`).
    next: Option<RequestId>,
    /// Sector after the last dispatched request.
    last: Sector,
    checked: u64,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    request: Request,
    expires: u64,
}

/// Lane of asynchronous requests; synchronous ones use the second.
const ASYNC: usize = 0;
const SYNC: usize = 1;

/// Maximum distance behind the arm at which a request competes with those ahead (kernel:
/// `MAXBACK`).
const MOST_BACK_SECTORS: u64 = 1024 * 1024;

/// See the [module](self).
#[derive(Debug)]
pub struct Anticipatory {
    hz: u64,
    tasks: Tasks,
    lanes: [Lane; 2],
    requests: BTreeMap<RequestId, Queued>,
    in_flight: BTreeMap<RequestId, (StreamId, usize)>,
    batch: usize,
    batch_expires: u64,
    /// The next batch waits for in-flight requests of the last one.
    changed_batch: bool,
    /// The batch's time starts when its first request completes.
    new_batch: bool,
    write_batch: u64,
    writes_left: u64,
    write_batch_idled: bool,
    wait: Wait,
    /// Tick at which the wait started.
    began: u64,
    /// The task of the last dispatched request if that was synchronous, and whether the request has
    /// completed.
    last_task: Option<StreamId>,
    has_ended: bool,
    /// Whether that task had no think time samples when its request was dispatched.
    last_is_new: bool,
    /// Mean frequency, in 256ths, with which tasks exit while waited for.
    exits: u64,
    /// Mean think time and seek distance between the first two requests of a task, in 256ths; used
    /// for tasks without samples of their own.
    new_think_ticks: u64,
    new_seek_sectors: u64,
}

impl Anticipatory {
    /// An elevator with Linux's defaults for `hz` ticks per second; `tasks` are shared by all disks
    /// of the machine.
    pub fn new(hz: u32, tasks: Tasks) -> Self {
        let hz = u64::from(hz);
        Self {
            hz,
            tasks,
            lanes: Default::default(),
            requests: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            batch: ASYNC,
            batch_expires: hz / 2,
            changed_batch: false,
            new_batch: false,
            write_batch: (hz / 8 / 10).max(2),
            writes_left: 0,
            write_batch_idled: false,
            wait: Wait::No,
            began: 0,
            last_task: None,
            has_ended: false,
            last_is_new: false,
            exits: 0,
            new_think_ticks: 0,
            new_seek_sectors: 0,
        }
    }

    fn tick(&self, now: Nanos) -> u64 {
        (u128::from(now.0) * u128::from(self.hz) / 1_000_000_000) as u64
    }

    fn expire(&self, lane: usize) -> u64 {
        if lane == SYNC { self.hz / 8 } else { self.hz / 4 }
    }

    /// How many ticks the disk is kept idle (kernel: `antic_expire`).
    fn patience(&self) -> u64 {
        (self.hz / 150).max(1)
    }

    fn waits(&self) -> bool {
        matches!(self.wait, Wait::ForEnd | Wait::ForNext)
    }

    /// The nearer of two requests of a lane in the scan direction (kernel: `as_choose_req`).
    fn nearer(&self, lane: usize, one: Option<RequestId>, other: Option<RequestId>) -> Option<RequestId> {
        let (Some(a), Some(b)) = (one, other) else { return one.or(other) };
        let last = self.lanes[lane].last.0;
        let distance = |id: RequestId| {
            let start = self.requests[&id].request.start.0;
            match start {
                _ if start >= last => (0, start - last),
                _ if start + MOST_BACK_SECTORS >= last => (0, (last - start) * 2),
                _ => (1, start),
            }
        };
        let start = |id: RequestId| std::cmp::Reverse(self.requests[&id].request.start);
        [a, b].into_iter().min_by_key(|id| (distance(*id), start(*id)))
    }

    /// The nearest request after `id` (kernel: `as_find_next_arq`).
    fn after(&self, lane: usize, id: RequestId) -> Option<RequestId> {
        let sorted = &self.lanes[lane].sorted;
        let key = (self.requests[&id].request.start, id);
        let above = sorted.range((std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded)).next();
        let above = above.or_else(|| sorted.first()).map(|(_, other)| *other).filter(|other| *other != id);
        let below = sorted.range(..key).next_back().map(|(_, other)| *other);
        self.nearer(lane, above, below)
    }

    /// Whether a request is so near to the arm that it probably belongs to the data being read
    /// (kernel: `as_close_req`).
    fn is_close(&self, request: &Request, tick: u64) -> bool {
        let waited =
            if self.wait == Wait::No || !self.has_ended { 0 } else { tick.saturating_sub(self.began) };
        let millis = waited * 1000 / self.hz;
        let reach = match millis {
            0 | 1 => 64,
            _ if millis <= 20 && millis <= self.patience() => 64 << (millis - 1),
            _ => return true,
        };
        let (last, start) = (self.lanes[self.batch].last.0, request.start.0);
        last.saturating_sub(reach / 2) <= start && start <= last + reach
    }

    /// Whether to stop waiting for `task`'s next request; `request` would be dispatched instead
    /// (kernel: `as_can_break_anticipation`).
    fn gives_up(&mut self, task: StreamId, request: Option<&Request>, tick: u64) -> bool {
        if request.is_some_and(|request| request.stream == task) {
            return true;
        }
        if self.has_ended && tick.saturating_sub(self.began) >= self.patience() {
            return true;
        }
        let Some(known) = self.tasks.get(task).filter(|known| !known.has_exited) else {
            if self.last_is_new {
                self.exits = (7 * self.exits + 256) / 8;
            }
            return true;
        };
        if known.queued > 0 {
            return true;
        }
        let sync = request.filter(|request| request.sync);
        if sync.is_some_and(|request| self.is_close(request, tick)) {
            self.tasks.edit(task, |known| known.ended = Some(tick));
            return true;
        }
        let thinks = if known.think_ticks.is_empty() {
            self.new_think_ticks / 256 > self.patience() || self.exits > 128
        } else {
            known.think_ticks.value_of_think_time() > self.patience()
        };
        if thinks {
            return true;
        }
        let Some(request) = request else { return false };
        let distance = self.lanes[SYNC].last.0.abs_diff(request.start.0);
        let expected = if known.seek_sectors.is_empty() {
            self.new_seek_sectors / 256
        } else {
            known.seek_sectors.value()
        };
        expected > distance
    }

    fn stop_waiting(&mut self) {
        if self.waits() {
            self.wait = Wait::Over;
        }
    }

    /// Whether a lane's oldest request is overdue; checked once per expiry interval (kernel:
    /// `as_fifo_expired`).
    fn is_overdue(&mut self, lane: usize, tick: u64) -> bool {
        let every = self.expire(lane);
        let state = &mut self.lanes[lane];
        if tick.saturating_sub(state.checked) < every {
            return false;
        }
        state.checked = tick;
        state.fifo.front().is_some_and(|oldest| tick > self.requests[oldest].expires)
    }

    fn batch_is_over(&self, tick: u64) -> bool {
        let timed = !self.changed_batch && !self.new_batch;
        timed && (tick > self.batch_expires || (self.batch == ASYNC && self.writes_left == 0))
    }

    /// Removes a request from the lists.
    fn unlist(&mut self, id: RequestId) {
        let request = self.requests[&id].request;
        let lane = usize::from(request.sync);
        if self.lanes[lane].next == Some(id) {
            self.lanes[lane].next = self.after(lane, id);
        }
        self.requests.remove(&id);
        self.lanes[lane].sorted.remove(&(request.start, id));
        self.lanes[lane].fifo.retain(|other| *other != id);
        self.tasks.edit(request.stream, |known| known.queued -= 1);
    }

    fn send(&mut self, id: RequestId) -> Decision {
        self.wait = Wait::No;
        let request = self.requests[&id].request;
        let lane = usize::from(request.sync);
        self.lanes[lane].last = request.end();
        self.last_task = request.sync.then_some(request.stream);
        self.last_is_new = self.tasks.get(request.stream).is_some_and(|known| known.think_ticks.is_empty());
        self.has_ended = false;
        if lane == ASYNC {
            self.writes_left = self.writes_left.saturating_sub(1);
        }
        self.lanes[lane].next = self.after(lane, id);
        self.unlist(id);
        self.in_flight.insert(id, (request.stream, lane));
        Decision::Dispatch(id)
    }

    /// The request to dispatch now; `None` if the disk is kept idle or nothing may be dispatched
    /// yet (kernel: `as_dispatch_request`).
    fn choose(&mut self, tick: u64) -> Option<RequestId> {
        let [writes, reads] = [ASYNC, SYNC].map(|lane| !self.lanes[lane].fifo.is_empty());
        if self.batch == ASYNC && !reads && (self.writes_left == 0 || !writes) {
            self.write_batch_idled = true;
        }
        if !(reads || writes) || self.waits() || self.changed_batch {
            return None;
        }
        let mut chosen = None;
        if !(reads && writes && self.batch_is_over(tick)) {
            let next = self.lanes[self.batch].next;
            if self.batch == SYNC {
                if self.is_overdue(SYNC, tick) {
                    return self.begin_batch(self.lanes[SYNC].fifo.front().copied(), tick);
                }
                let request = next.map(|id| self.requests[&id].request);
                if let (Some(task), true) = (self.last_task, self.wait != Wait::Over)
                    && !self.gives_up(task, request.as_ref(), tick)
                {
                    self.wait = if self.has_ended { Wait::ForNext } else { Wait::ForEnd };
                    return None;
                }
            }
            if next.is_some() && reads && !writes {
                self.batch_expires = tick + self.hz / 2;
            }
            chosen = next;
        }
        if chosen.is_none() {
            chosen = if reads && !(writes && self.batch == SYNC) {
                self.changed_batch |= self.batch == ASYNC;
                self.batch = SYNC;
                self.lanes[SYNC].checked = tick;
                self.lanes[SYNC].fifo.front().copied()
            } else {
                if self.batch == SYNC {
                    self.changed_batch = true;
                    self.new_batch = false;
                }
                self.batch = ASYNC;
                self.writes_left = self.write_batch;
                self.write_batch_idled = false;
                self.lanes[ASYNC].next
            };
        }
        if self.is_overdue(self.batch, tick) {
            chosen = self.lanes[self.batch].fifo.front().copied();
        }
        self.begin_batch(chosen, tick)
    }

    /// Holds back the first request of a new batch until those of the last one have completed.
    fn begin_batch(&mut self, chosen: Option<RequestId>, tick: u64) -> Option<RequestId> {
        if self.changed_batch {
            if !self.in_flight.is_empty() {
                return None;
            }
            if self.batch == ASYNC {
                self.batch_expires = tick + self.hz / 8;
            } else {
                self.new_batch = true;
            }
            self.changed_batch = false;
        }
        chosen
    }

    /// Adapts the number of writes in a batch to the batch's time (kernel: `update_write_batch`).
    fn fit_write_batch(&mut self, tick: u64) {
        let batch = self.hz / 8;
        let took = (tick + batch).saturating_sub(self.batch_expires);
        if took > batch && !self.write_batch_idled {
            self.write_batch = if took > batch * 3 { self.write_batch / 2 } else { self.write_batch - 1 };
        } else if took < batch && self.writes_left == 0 {
            self.write_batch = if batch > took * 3 { self.write_batch * 2 } else { self.write_batch + 1 };
        }
        self.write_batch = self.write_batch.max(1);
    }

    /// Updates a task's statistics for a synchronous request (kernel: `as_update_iohist`).
    fn learn(&mut self, request: &Request, tick: u64) {
        // Longer think times are capped just below 20 ms.
        let longest = (self.hz / 50).saturating_sub(1);
        let (think, seek) = self.tasks.with(request.stream, |known| {
            let mut first = (None, None);
            if let Some(last) = known.last {
                let alone = known.ended.filter(|_| known.queued == 0);
                let think = alone.map_or(0, |ended| tick.saturating_sub(ended).min(longest));
                first.0 = known.think_ticks.is_empty().then_some(think);
                known.think_ticks.add(think);
                let seek = last.0.abs_diff(request.start.0);
                first.1 = known.seek_sectors.is_empty().then_some(seek);
                // Limit outliers, more strictly once there are more samples.
                let more = if known.seek_sectors.samples <= 60 { 2 * 1024 * 1024 } else { 2 * 1024 * 64 };
                known.seek_sectors.add(seek.min(known.seek_sectors.value() * 4 + more));
            }
            known.last = Some(request.end());
            first
        });
        if let Some(think) = think {
            self.new_think_ticks = (7 * self.new_think_ticks + 256 * think) / 8;
            self.exits = 7 * self.exits / 8;
        }
        if let Some(seek) = seek {
            self.new_seek_sectors = (7 * self.new_seek_sectors + 256 * seek) / 8;
        }
    }
}

impl Elevator for Anticipatory {
    fn name(&self) -> &'static str {
        "anticipatory"
    }

    fn add(&mut self, request: Request, now: Nanos) {
        let tick = self.tick(now);
        let lane = usize::from(request.sync);
        if request.sync {
            self.learn(&request, tick);
        }
        self.tasks.with(request.stream, |known| known.queued += 1);
        self.requests.insert(request.id, Queued { request, expires: tick + self.expire(lane) });
        self.lanes[lane].sorted.insert((request.start, request.id));
        self.lanes[lane].fifo.push_back(request.id);
        self.lanes[lane].next = self.nearer(lane, Some(request.id), self.lanes[lane].next);
        if let (true, Some(task)) = (self.waits(), self.last_task)
            && self.gives_up(task, Some(&request), tick)
        {
            self.stop_waiting();
        }
    }

    fn next(&mut self, now: Nanos) -> Decision {
        let tick = self.tick(now);
        if self.wait == Wait::ForNext && tick >= self.began + self.patience() {
            self.wait = Wait::Over;
            if self
                .last_task
                .and_then(|task| self.tasks.get(task))
                .is_some_and(|known| known.think_ticks.is_empty())
            {
                self.exits = (7 * self.exits + 256) / 8;
            }
        }
        if let Some(id) = self.choose(tick) {
            return self.send(id);
        }
        if self.wait == Wait::ForNext && !self.requests.is_empty() {
            let until = u128::from(self.began + self.patience()) * 1_000_000_000;
            let until = Nanos(until.div_ceil(u128::from(self.hz)) as u64);
            return Decision::IdleUntil(until.max(now + Nanos(1)));
        }
        Decision::Empty
    }

    fn completed(&mut self, id: RequestId, now: Nanos) {
        let tick = self.tick(now);
        let (stream, lane) = self.in_flight.remove(&id).expect("the request is known");
        if self.changed_batch && self.in_flight.is_empty() {
            self.changed_batch = false;
            self.new_batch |= self.batch == SYNC;
        }
        if self.new_batch && self.batch == lane {
            self.fit_write_batch(tick);
            self.batch_expires = tick + self.hz / 2;
            self.new_batch = false;
        }
        if self.last_task == Some(stream) {
            self.began = tick;
            self.has_ended = true;
            if self.wait == Wait::ForEnd {
                self.wait = Wait::ForNext;
            }
        }
        if lane == SYNC {
            self.tasks.edit(stream, |known| known.ended = Some(tick));
        }
    }

    fn queued(&self) -> usize {
        self.requests.len()
    }

    fn back_merge(&self, candidate: &Request) -> Option<RequestId> {
        let sorted = &self.lanes[usize::from(candidate.sync)].sorted;
        let mut before = sorted.range(..(candidate.start, RequestId(0))).rev();
        let (_, id) = before.next()?;
        let other = &self.requests[id].request;
        (other.end() == candidate.start && is_alike(other, candidate)).then_some(*id)
    }

    fn front_merge(&self, candidate: &Request) -> Option<RequestId> {
        let sorted = &self.lanes[usize::from(candidate.sync)].sorted;
        let end = candidate.end();
        let mut at = sorted.range((end, RequestId(0))..=(end, RequestId(u32::MAX)));
        at.find(|(_, id)| is_alike(&self.requests[id].request, candidate)).map(|(_, id)| *id)
    }

    fn merged(&mut self, id: RequestId, start: Sector, sectors: u64, _now: Nanos) {
        let queued = self.requests.get_mut(&id).expect("the request is known");
        let before = queued.request;
        (queued.request.start, queued.request.sectors) = (start, sectors);
        if before.start != start {
            let sorted = &mut self.lanes[usize::from(before.sync)].sorted;
            sorted.remove(&(before.start, id));
            sorted.insert((start, id));
        }
    }

    fn absorbed(&mut self, kept: RequestId, gone: RequestId, now: Nanos) {
        let (a, b) = (self.requests[&kept], self.requests[&gone]);
        let lane = usize::from(a.request.sync);
        if b.expires < a.expires {
            let fifo = &mut self.lanes[lane].fifo;
            fifo.retain(|id| *id != kept);
            let place = fifo.iter().position(|id| *id == gone).expect("both are queued");
            fifo.insert(place, kept);
            self.requests.get_mut(&kept).expect("it is queued").expires = b.expires;
        }
        self.unlist(gone);
        let (start, sectors) = (a.request.start.min(b.request.start), a.request.sectors + b.request.sectors);
        self.merged(kept, start, sectors, now);
    }

    fn awaits(&mut self, stream: StreamId) -> bool {
        self.waits() && self.last_task == Some(stream)
    }

    fn exited(&mut self, stream: StreamId, _now: Nanos) {
        self.tasks.edit(stream, |known| known.has_exited = true);
    }
}

fn is_alike(a: &Request, b: &Request) -> bool {
    a.op == b.op && a.meta == b.meta
}

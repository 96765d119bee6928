//! mq-deadline: sorted batches, bounded waits, classes in strict order with aging.

use super::table::{Arrivals, Entry, Sorted, Table, mergeable};
use super::{Decision, Elevator, IoClass, Request, RequestId};
use extant_block::{Op, Sector, StreamId};
use extant_rt::Nanos;

/// The settings under `/sys/block/*/queue/iosched`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// A read that has waited this long starts the next batch of reads.
    pub read_expire: Nanos,
    /// The same, for writes.
    pub write_expire: Nanos,
    /// How many batches of reads may run while a write waits.
    pub writes_starved: u32,
    /// Maximum number of requests in a batch.
    pub fifo_batch: u32,
    /// A request of a lower class that has waited this long is served before those of higher
    /// classes.
    pub prio_aging_expire: Nanos,
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            read_expire: Nanos::from_millis(500),
            write_expire: Nanos::from_secs(5),
            writes_starved: 2,
            fifo_batch: 16,
            prio_aging_expire: Nanos::from_secs(10),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read = 0,
    Write = 1,
}

impl Direction {
    fn of(op: Op) -> Self {
        if op == Op::Read { Self::Read } else { Self::Write }
    }
}

/// One direction of one class.
#[derive(Debug, Default)]
struct Lane {
    sorted: Sorted,
    fifo: Arrivals,
    /// First sector of the request dispatched last.
    latest: Sector,
}

#[derive(Debug, Default)]
struct Class {
    lanes: [Lane; 2],
    /// Requests added, and neither completed nor absorbed.
    pending: u32,
}

/// Linux's mq-deadline (Documentation/block/deadline-iosched.rst).
///
/// Reads and writes are sorted by sector. A batch of up to [`Tunables::fifo_batch`] requests runs
/// in one direction. Between batches, reads go first, but starve waiting writes at most
/// [`Tunables::writes_starved`] times. A batch starts at the oldest request if that has expired,
/// otherwise where the last batch in this direction stopped. Each class has its own lists. A lower
/// class is served only when the higher classes have nothing queued or in flight, or when its
/// request has waited for [`Tunables::prio_aging_expire`]. It never idles.
#[derive(Debug)]
pub struct Deadline {
    tunables: Tunables,
    table: Table<Nanos>,
    classes: [Class; 3],
    last: Direction,
    batched: u32,
    starved: u32,
    queued: usize,
}

impl Deadline {
    /// With Linux's defaults.
    pub fn new() -> Self {
        Self::with(Tunables::default())
    }

    /// With the given settings.
    pub fn with(tunables: Tunables) -> Self {
        Self {
            tunables,
            table: Table::default(),
            classes: Default::default(),
            last: Direction::Write,
            batched: 0,
            starved: 0,
            queued: 0,
        }
    }

    fn lane(&mut self, request: &Request) -> &mut Lane {
        &mut self.classes[rank(request)].lanes[Direction::of(request.op) as usize]
    }

    fn expire(&self, direction: Direction) -> Nanos {
        match direction {
            Direction::Read => self.tunables.read_expire,
            Direction::Write => self.tunables.write_expire,
        }
    }

    fn unlist(&mut self, id: RequestId) {
        let request = self.table.get(id).request;
        let lane = &mut self.classes[rank(&request)].lanes[Direction::of(request.op) as usize];
        lane.sorted.remove(request.start, id);
        lane.fifo.remove(&mut self.table, id);
        self.queued -= 1;
    }

    /// Chooses the request of class `rank` to dispatch, if it was added no later than
    /// `latest_added`.
    fn choose(&mut self, rank: usize, now: Nanos, latest_added: Nanos) -> Option<RequestId> {
        let next = |d: Direction| {
            let lane = &self.classes[rank].lanes[d as usize];
            lane.sorted.from(lane.latest)
        };
        let oldest = |d: Direction| self.classes[rank].lanes[d as usize].fifo.oldest();
        let old_enough = |id: RequestId| self.table.get(id).note <= latest_added;

        if let Some(id) = next(self.last)
            && self.batched < self.tunables.fifo_batch
        {
            return old_enough(id).then_some(id);
        }
        let (reads, writes) = (oldest(Direction::Read), oldest(Direction::Write));
        let mut starved = self.starved;
        let direction = match (reads, writes) {
            (None, None) => return None,
            (Some(_), None) => Direction::Read,
            (Some(_), Some(_)) if starved < self.tunables.writes_starved => {
                starved += 1;
                Direction::Read
            }
            (_, Some(_)) => {
                starved = 0;
                Direction::Write
            }
        };
        let head = if direction == Direction::Read { reads } else { writes }.expect("checked above");
        let expired = self.table.get(head).note + self.expire(direction) <= now;
        let id = next(direction).filter(|_| !expired).unwrap_or(head);
        if !old_enough(id) {
            return None;
        }
        self.starved = starved;
        self.last = direction;
        self.batched = 0;
        Some(id)
    }

    fn choose_class(&mut self, now: Nanos) -> Option<RequestId> {
        let contended = self.classes.iter().filter(|c| c.pending > 0).count() > 1;
        if let Some(aged) = now.0.checked_sub(self.tunables.prio_aging_expire.0).filter(|_| contended)
            && let Some(id) = (1..self.classes.len()).find_map(|rank| self.choose(rank, now, Nanos(aged)))
        {
            return Some(id);
        }
        let rank = self.classes.iter().position(|class| class.pending > 0)?;
        self.choose(rank, now, now)
    }
}

impl Default for Deadline {
    fn default() -> Self {
        Self::new()
    }
}

fn rank(request: &Request) -> usize {
    match request.priority.class {
        IoClass::RealTime => 0,
        IoClass::BestEffort => 1,
        IoClass::Idle => 2,
    }
}

impl Elevator for Deadline {
    fn name(&self) -> &'static str {
        "mq-deadline"
    }

    fn add(&mut self, request: Request, now: Nanos) {
        self.table.insert(request, now);
        let class = &mut self.classes[rank(&request)];
        class.pending += 1;
        let lane = &mut class.lanes[Direction::of(request.op) as usize];
        lane.sorted.insert(request.start, request.id);
        lane.fifo.push(&mut self.table, request.id);
        self.queued += 1;
    }

    fn next(&mut self, now: Nanos) -> Decision {
        let Some(id) = self.choose_class(now) else { return Decision::Empty };
        self.batched += 1;
        self.unlist(id);
        let request = self.table.get(id).request;
        self.lane(&request).latest = request.start;
        Decision::Dispatch(id)
    }

    fn completed(&mut self, id: RequestId, _now: Nanos) {
        let Entry { request, .. } = self.table.remove(id);
        self.classes[rank(&request)].pending -= 1;
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn back_merge(&self, candidate: &Request) -> Option<RequestId> {
        let lane = &self.classes[rank(candidate)].lanes[Direction::of(candidate.op) as usize];
        lane.sorted.just_before(candidate.start, |id| {
            let other = &self.table.get(id).request;
            other.end() == candidate.start && mergeable(other, candidate)
        })
    }

    fn front_merge(&self, candidate: &Request) -> Option<RequestId> {
        let lane = &self.classes[rank(candidate)].lanes[Direction::of(candidate.op) as usize];
        lane.sorted.starting_at(candidate.end(), |id| mergeable(&self.table.get(id).request, candidate))
    }

    fn merged(&mut self, id: RequestId, start: Sector, sectors: u64, _now: Nanos) {
        let before = self.table.get(id).request;
        let entry = self.table.get_mut(id);
        entry.request.start = start;
        entry.request.sectors = sectors;
        if before.start != start {
            let lane = self.lane(&before);
            lane.sorted.remove(before.start, id);
            lane.sorted.insert(start, id);
        }
    }

    fn absorbed(&mut self, kept: RequestId, gone: RequestId, now: Nanos) {
        let (kept_entry, gone_entry) = (self.table.get(kept), self.table.get(gone));
        let (a, b) = (kept_entry.request, gone_entry.request);
        let older = gone_entry.note < kept_entry.note;
        let added = gone_entry.note.min(kept_entry.note);
        if older {
            let lane = &mut self.classes[rank(&a)].lanes[Direction::of(a.op) as usize];
            lane.fifo.move_before(&mut self.table, kept, gone);
            self.table.get_mut(kept).note = added;
        }
        self.unlist(gone);
        self.table.remove(gone);
        self.classes[rank(&b)].pending -= 1;
        self.merged(kept, a.start.min(b.start), a.sectors + b.sectors, now);
    }

    fn exited(&mut self, _stream: StreamId, _now: Nanos) {}
}

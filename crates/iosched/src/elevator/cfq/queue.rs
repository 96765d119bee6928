//! A queue of requests: those of one stream, of several cooperating streams, or the asynchronous
//! ones of a level.

use super::Tunables;
use super::ids::{Class, ContextId, QueueId, TreeId, Type};
use super::think::SeekHistory;
use crate::elevator::table::{Arrivals, Sorted, Table};
use crate::elevator::{IoClass, Priority, RequestId};
use extant_block::Sector;
use extant_rt::Nanos;

/// CFQ's notes on a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) queue: QueueId,
    pub(super) context: ContextId,
    /// Tick of arrival.
    pub(super) added: i64,
    /// Tick from which it is served before nearer requests.
    pub(super) expires: i64,
    /// When it was dispatched, how far the head had to move, and how many requests were then in the
    /// device, including itself.
    pub(super) sent: Nanos,
    pub(super) distance: u64,
    pub(super) depth: u32,
}

/// See the [module](self). Times are ticks.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) sync: bool,
    pub(super) class: IoClass,
    pub(super) level: u8,

    pub(super) sorted: Sorted,
    pub(super) arrivals: Arrivals,
    /// The request to serve next, unless the oldest one has expired.
    pub(super) next: Option<RequestId>,
    pub(super) queued: u32,
    /// Queued requests with `prio` set.
    pub(super) prio_pending: u32,
    /// Requests in the device.
    pub(super) dispatched: u32,

    /// Streams that feed this queue, plus those of queues about to be merged into it.
    pub(super) users: u32,
    /// The queue that this queue's streams move to at their next request.
    pub(super) merge_into: Option<QueueId>,
    /// Whether more than one stream feeds it.
    pub(super) shared: bool,
    /// Whether the streams have diverged: give each its own queue again.
    pub(super) split: bool,

    /// Place in a service tree, while it has requests or is active.
    pub(super) place: Option<(TreeId, i64, u64)>,
    /// The tree it left while all its requests were in the device.
    pub(super) away: Option<TreeId>,
    /// Place among the queues of its level, by position.
    pub(super) position: Option<(u8, u64)>,

    /// Whether waiting for its next request may pay off.
    pub(super) idle_window: bool,
    /// Whether it had four or more requests queued at once: worth idling for, even if seeky.
    pub(super) deep: bool,
    pub(super) seeks: SeekHistory,

    /// Requests dispatched since it became active.
    pub(super) slice_dispatch: u32,
    /// No request has completed since it became active, so the slice has not begun.
    pub(super) slice_new: bool,
    pub(super) slice_start: Option<i64>,
    pub(super) slice_end: i64,
    /// What was left of the slice when it was cut short; negative for an overrun.
    pub(super) slice_residual: i64,
    /// Whether the device idles for its next request.
    pub(super) wait_request: bool,
    /// Whether the slice was stretched so that its group stays busy.
    pub(super) wait_busy: bool,
    /// Whether, in this slice, a request was let past the limit on requests because the device
    /// idled for it (kernel: `must_alloc_slice`).
    pub(super) slot_granted: bool,
    /// A request arrived while idling: one dispatch is due even if the slice is over.
    pub(super) must_dispatch: bool,
    /// Whether the oldest request's expiry was checked in this slice.
    pub(super) fifo_checked: bool,
    /// Whether it is served between the slices of others, because it uses little of the disk. No
    /// other queue's requests are sent until it is done.
    pub(super) urgent: bool,
}

impl Queue {
    pub(super) fn new(sync: bool, idle_window: bool, priority: Priority) -> Self {
        let mut queue = Self {
            sync,
            class: priority.class,
            level: priority.level,
            sorted: Sorted::default(),
            arrivals: Arrivals::default(),
            next: None,
            queued: 0,
            prio_pending: 0,
            dispatched: 0,
            users: 0,
            merge_into: None,
            shared: false,
            split: false,
            place: None,
            away: None,
            position: None,
            idle_window: idle_window && sync,
            deep: false,
            seeks: SeekHistory::default(),
            slice_dispatch: 0,
            slice_new: true,
            slice_start: None,
            slice_end: 0,
            slice_residual: 0,
            wait_request: false,
            wait_busy: false,
            slot_granted: false,
            must_dispatch: false,
            fifo_checked: false,
            urgent: false,
        };
        queue.set_priority(priority);
        queue
    }

    /// Takes over a stream's class and level. Returns whether that closed the idle window.
    pub(super) fn set_priority(&mut self, priority: Priority) -> bool {
        self.class = priority.class;
        if priority.class == IoClass::Idle {
            self.level = Priority::LEVELS - 1;
            return std::mem::take(&mut self.idle_window);
        }
        self.level = priority.level;
        false
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    pub(super) fn in_service(&self) -> bool {
        self.place.is_some()
    }

    pub(super) fn idle_class(&self) -> bool {
        self.class == IoClass::Idle
    }

    pub(super) fn real_time(&self) -> bool {
        self.class == IoClass::RealTime
    }

    /// The tree that this queue belongs to now. The queue moves there when it is next sorted in.
    pub(super) fn tree(&self) -> TreeId {
        let kind = match (self.sync, self.idle_window) {
            (false, _) => Type::Async,
            (true, false) => Type::SyncNoIdle,
            (true, true) => Type::Sync,
        };
        match self.class {
            IoClass::RealTime => TreeId::of(Class::RealTime, kind),
            IoClass::BestEffort => TreeId::of(Class::BestEffort, kind),
            IoClass::Idle => TreeId::IDLE,
        }
    }

    pub(super) fn slice_used(&self, tick: i64) -> bool {
        !self.slice_new && tick >= self.slice_end
    }

    /// Prepares for a new slice, which begins when its first request completes.
    pub(super) fn activate(&mut self) {
        self.slice_start = None;
        self.slice_end = 0;
        self.slice_dispatch = 0;
        self.wait_request = false;
        self.slot_granted = false;
        self.must_dispatch = false;
        self.fifo_checked = false;
        self.slice_new = true;
    }

    pub(super) fn insert(&mut self, table: &mut Table<Note>, id: RequestId) {
        let request = table.get(id).request;
        self.arrivals.push(table, id);
        self.sorted.insert(request.start, id);
        self.queued += 1;
        self.prio_pending += u32::from(request.prio);
    }

    /// Removes a request. If it was the next one to serve, the better of its neighbours replaces
    /// it.
    pub(super) fn remove(&mut self, table: &mut Table<Note>, id: RequestId, tunables: &Tunables) {
        let request = table.get(id).request;
        if self.next == Some(id) {
            self.next = self.neighbour(table, id, tunables);
        }
        self.arrivals.remove(table, id);
        self.sorted.remove(request.start, id);
        self.queued -= 1;
        self.prio_pending -= u32::from(request.prio);
    }

    /// The better of the requests before and after `id`; after the last comes the first.
    pub(super) fn neighbour(
        &self,
        table: &Table<Note>,
        id: RequestId,
        tunables: &Tunables,
    ) -> Option<RequestId> {
        let request = &table.get(id).request;
        let (before, after) = self.sorted.around(request.start, id);
        let after = after.or_else(|| self.sorted.first().filter(|first| *first != id));
        better(table, after, before, request.start, tunables)
    }

    /// The oldest request, if it has expired; checked once per slice.
    pub(super) fn expired(&mut self, table: &Table<Note>, tick: i64) -> Option<RequestId> {
        if std::mem::replace(&mut self.fifo_checked, true) {
            return None;
        }
        self.arrivals.oldest().filter(|id| tick >= table.get(*id).note.expires)
    }
}

/// Which of two requests to serve with the head at `head`: synchronous before asynchronous, `prio`
/// before others, then the nearer one. A short way back counts `back_seek_penalty` times; a long
/// one counts as a wrap to the far end.
pub(super) fn better(
    table: &Table<Note>,
    a: Option<RequestId>,
    b: Option<RequestId>,
    head: Sector,
    tunables: &Tunables,
) -> Option<RequestId> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    if a == b {
        return Some(a);
    }
    let (ra, rb) = (&table.get(a).request, &table.get(b).request);
    if ra.sync != rb.sync {
        return Some(if ra.sync { a } else { b });
    }
    if ra.prio != rb.prio {
        return Some(if ra.prio { a } else { b });
    }
    let distance = |start: Sector| {
        if start >= head {
            Some(start.0 - head.0)
        } else if start.0 + tunables.back_seek_max >= head.0 {
            Some((head.0 - start.0) * tunables.back_seek_penalty)
        } else {
            None
        }
    };
    let first = match (distance(ra.start), distance(rb.start)) {
        (Some(da), Some(db)) if da == db => ra.start >= rb.start,
        (Some(da), Some(db)) => da < db,
        (Some(_), None) => true,
        (None, Some(_)) => false,
        // Both are far behind: starting from the lower one needs only one seek back.
        (None, None) => ra.start <= rb.start,
    };
    Some(if first { a } else { b })
}

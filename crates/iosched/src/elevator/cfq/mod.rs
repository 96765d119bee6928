//! CFQ: shares disk time fairly among streams, as in Linux 3.10, with the idling rule as a policy.
//!
//! Every stream has a queue for its synchronous requests; asynchronous ones share a queue per
//! priority level. Queues with requests are in service trees, one for each class and kind of load.
//! The kind whose queue has waited longest has its turn; within it the first queue has its time
//! slice; and within the slice, requests are served by position. A queue that runs dry within its
//! slice may keep the disk idle for a moment, because the next request of a sequential reader is
//! cheap as long as the disk has not moved: the [`IdleRule`] decides that.
//!
//! Facts are from block/cfq-iosched.c and Documentation/block/cfq-iosched.txt of Linux 3.10. Times
//! are counted in ticks ([`Tunables::hz`]), because the kernel's rounding to jiffies is part of its
//! behaviour: with 1000 Hz and 500 idle queues, `300 ms / 500` is no wait at all.
//!
//! | file | what |
//! |---|---|
//! | `context` | streams and the queues they feed |
//! | `queue` | one queue; which of its requests is next |
//! | `tree` | service trees, the group and its shares |
//! | `think` | think time and seek history |
//! | `arrive` | a new request: habits, preemption |
//! | `select` | whose turn it is; idling |
//! | `dispatch` | limits of depth; completion |
//! | `slice` | slices, entering and leaving service |
//! | `cooperate` | close queues, merging and splitting |
//! | `depth` | does the device queue commands |
//! | `idle_rule/` | when to idle |

mod arrive;
mod context;
mod cooperate;
mod depth;
mod dispatch;
pub mod idle_rule;
mod ids;
mod queue;
mod select;
mod slab;
mod slice;
mod think;
mod tree;
mod tunables;

pub use idle_rule::IdleRule;
pub use tunables::Tunables;

use super::table::{Table, mergeable};
use super::{Decision, Elevator, Priority, Request, RequestId};
use context::{ASYNC_QUEUES, Contexts};
use depth::DepthEstimate;
use extant_block::{Sector, StreamId};
use extant_rt::Nanos;
use ids::{Class, ContextId, QueueId, Type};
use queue::{Note, Queue};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use tree::Group;
use tunables::Tick;

/// See the [module](self).
#[derive(Debug)]
pub struct Cfq {
    tunables: Tunables,
    rule: Box<dyn IdleRule>,
    tick_length: Tick,
    now: Nanos,
    tick: i64,

    table: Table<Note>,
    contexts: Contexts,
    queues: Slab<Queue>,
    group: Group,
    async_queues: [Option<QueueId>; ASYNC_QUEUES],
    /// Per level, queues by the sector of their next request, each with a counter that orders the
    /// entries in time.
    positions: [BTreeMap<u64, (QueueId, u64)>; Priority::LEVELS as usize],
    places_given: u64,

    /// Number of queued requests: all of them, and those of synchronous queues.
    queued: usize,
    queued_sync: u32,
    /// Number of queues in service: all of them, synchronous ones, and those with an open idle
    /// window.
    busy_queues: u32,
    busy_sync_queues: u32,
    busy_idle_queues: i64,

    active: Option<QueueId>,
    /// The stream of the first request in the active queue's slice.
    active_context: Option<ContextId>,
    turn: Turn,
    turn_ends: i64,
    idle_timer: Option<i64>,
    /// The queue that preempted last.
    claimant: Option<QueueId>,
    /// Queues that come next, before any slice, because they use little of the disk.
    urgent: VecDeque<QueueId>,
    /// Requests served by position since the oldest one was last checked.
    swept: u32,

    /// Requests in the device: all, and \[async, sync\].
    in_device: u32,
    in_flight: [u32; 2],
    depth: DepthEstimate,
    /// End of the last dispatched request.
    last_position: u64,
    /// When a synchronous request last completed that had waited for its expiry time or longer.
    last_delayed_sync: i64,
    /// When a request last completed.
    last_end: Nanos,
}

/// Which load has its turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    class: Class,
    kind: Type,
}

impl Cfq {
    /// CFQ with Linux's defaults at 1000 Hz.
    pub fn new(rule: impl IdleRule + 'static) -> Self {
        Self::with(Tunables::linux(1000), rule)
    }

    /// CFQ with the given settings. Panics if one is outside its documented bounds.
    pub fn with(tunables: Tunables, rule: impl IdleRule + 'static) -> Self {
        assert!((1..=1_000_000_000).contains(&tunables.hz), "1 to 10^9 ticks a second, not {}", tunables.hz);
        assert!(tunables.slice.iter().all(|slice| *slice > 0), "an empty slice serves no queue");
        Self {
            tick_length: tunables.tick(),
            rule: Box::new(rule),
            now: Nanos::ZERO,
            tick: 0,
            table: Table::default(),
            contexts: Contexts::default(),
            queues: Slab::default(),
            group: Group::root(0),
            async_queues: [None; ASYNC_QUEUES],
            positions: Default::default(),
            places_given: 0,
            queued: 0,
            queued_sync: 0,
            busy_queues: 0,
            busy_sync_queues: 0,
            busy_idle_queues: 0,
            active: None,
            active_context: None,
            turn: Turn { class: Class::BestEffort, kind: Type::Async },
            turn_ends: 0,
            idle_timer: None,
            claimant: None,
            urgent: VecDeque::new(),
            swept: 0,
            in_device: 0,
            in_flight: [0; 2],
            depth: DepthEstimate::default(),
            last_position: 0,
            // Start as if no synchronous request had been slow in the last second.
            last_delayed_sync: -tunables.hz,
            last_end: Nanos::ZERO,
            tunables,
        }
    }

    /// CFQ with our own idling rule and ticks of 100 µs. `rotational` says whether seeks on the
    /// disk cost time.
    pub fn extant(rotational: bool) -> Self {
        Self::with(Tunables { rotational, ..Tunables::linux(10_000) }, idle_rule::ExpectedGain::new())
    }

    /// Name of the idle rule.
    pub fn rule(&self) -> &'static str {
        self.rule.name()
    }

    /// Advances time; if the idle timer was due meanwhile, it fires at its own tick.
    fn advance(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        let tick = self.tick_length.of(self.now);
        if let Some(due) = self.idle_timer
            && due <= tick
        {
            self.idle_timer = None;
            self.tick = self.tick.max(due);
            self.idle_timer_fired();
        }
        self.tick = tick;
    }
}

impl Elevator for Cfq {
    fn name(&self) -> &'static str {
        "cfq"
    }

    fn add(&mut self, request: Request, now: Nanos) {
        self.advance(now);
        self.arrive(request);
    }

    fn next(&mut self, now: Nanos) -> Decision {
        self.advance(now);
        self.dispatch()
    }

    fn completed(&mut self, id: RequestId, now: Nanos) {
        self.advance(now);
        self.complete(id);
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn back_merge(&self, candidate: &Request) -> Option<RequestId> {
        let queue = self.queues.get(self.find_queue(candidate)?.0);
        queue.sorted.just_before(candidate.start, |id| {
            let other = &self.table.get(id).request;
            other.end() == candidate.start && mergeable(other, candidate)
        })
    }

    fn front_merge(&self, candidate: &Request) -> Option<RequestId> {
        let queue = self.queues.get(self.find_queue(candidate)?.0);
        queue.sorted.starting_at(candidate.end(), |id| mergeable(&self.table.get(id).request, candidate))
    }

    fn merged(&mut self, id: RequestId, start: Sector, sectors: u64, now: Nanos) {
        self.advance(now);
        let entry = self.table.get_mut(id);
        let before = std::mem::replace(&mut entry.request.start, start);
        entry.request.sectors = sectors;
        let queue = entry.note.queue;
        if before != start {
            let sorted = &mut self.queues.get_mut(queue.0).sorted;
            sorted.remove(before, id);
            sorted.insert(start, id);
            self.reconsider_next(queue, id);
        }
    }

    fn absorbed(&mut self, kept: RequestId, gone: RequestId, now: Nanos) {
        self.advance(now);
        let (a, b) = (self.table.get(kept), self.table.get(gone));
        let (start, sectors) = (a.request.start.min(b.request.start), a.request.sectors + b.request.sectors);
        let (id, gone_note) = (a.note.queue, b.note);
        assert_eq!(id, gone_note.queue, "only requests of one queue are merged");
        let older = gone_note.expires < a.note.expires;
        let queue = self.queues.get_mut(id.0);
        if older {
            queue.arrivals.move_before(&mut self.table, kept, gone);
            self.table.get_mut(kept).note.expires = gone_note.expires;
        }
        if queue.next == Some(gone) {
            queue.next = Some(kept);
        }
        queue.remove(&mut self.table, gone, &self.tunables);
        self.table.remove(gone);
        self.queued -= 1;
        self.queued_sync -= u32::from(self.queues.get(id.0).sync);
        self.release_context(gone_note.context);
        self.merged(kept, start, sectors, now);
    }

    fn awaits(&mut self, stream: StreamId) -> bool {
        let Some(id) = self.active.filter(|_| self.idle_timer.is_some()) else { return false };
        if !self.queues.get(id.0).wait_request || !self.feeds(stream, id) {
            return false;
        }
        let granted = std::mem::replace(&mut self.queues.get_mut(id.0).slot_granted, true);
        !granted || self.rule.waits_are_bounded()
    }

    fn exited(&mut self, stream: StreamId, now: Nanos) {
        self.advance(now);
        self.rule.exited(stream);
        self.stream_exited(stream);
    }
}

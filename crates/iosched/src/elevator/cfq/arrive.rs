//! A new request updates the habits recorded for its stream, and may change whose turn it is.

use super::Cfq;
use super::idle_rule::Arrival;
use super::ids::ContextId;
use super::ids::{QueueId, Type};
use super::queue::{Note, better};
use crate::elevator::{Request, RequestId};
use extant_block::Sector;
use extant_rt::Nanos;

/// A queue may be served between slices only if at most this many queues without a slice have
/// requests: itself and one more.
const MOST_BETWEEN: i64 = 2;

/// A page: a longer request is not held back to be merged with its successors.
const PAGE_SECTORS: u64 = 8;

impl Cfq {
    pub(super) fn arrive(&mut self, request: Request) {
        let (context, id) = self.admit(&request);
        let tick = self.tick;
        let expires = tick + self.tunables.fifo_expire[usize::from(request.sync)];
        let note =
            Note { queue: id, context, added: tick, expires, sent: Nanos::ZERO, distance: 0, depth: 0 };
        self.table.insert(request, note);
        let queue = self.queues.get_mut(id.0);
        queue.insert(&mut self.table, request.id);
        self.queued += 1;
        self.queued_sync += u32::from(queue.sync);
        if !queue.in_service() {
            self.enter_service(id);
        }
        self.reconsider_next(id, request.id);
        self.note_habits(id, context, &request);

        if self.active == Some(id) {
            let queue = self.queues.get_mut(id.0);
            if queue.wait_request {
                if request.sectors > PAGE_SECTORS || self.busy_queues > 1 {
                    queue.wait_request = false;
                    self.idle_timer = None;
                } else {
                    queue.must_dispatch = true;
                }
            }
        } else if self.is_light(id, &request) {
            self.come_between(id);
        } else {
            match self.claim(id, &request) {
                Claim::None => {}
                Claim::Turn if self.rule.waits_are_bounded() => self.expire_slice(true),
                Claim::Turn | Claim::First => self.preempt(id),
            }
        }
    }

    /// A request joined the queue or grew at its front, so it may be the better one to serve next.
    pub(super) fn reconsider_next(&mut self, id: QueueId, request: RequestId) {
        let queue = self.queues.get_mut(id.0);
        let head = Sector(self.last_position);
        let next = better(&self.table, queue.next, Some(request), head, &self.tunables);
        if next != queue.next || next == Some(request) {
            queue.next = next;
            self.update_position(id);
        }
    }

    fn note_habits(&mut self, id: QueueId, context_id: ContextId, request: &Request) {
        let (tick, idle) = (self.tick, self.tunables.slice_idle);
        self.group.think.arrival(tick, self.tunables.group_idle);
        let queue = self.queues.get_mut(id.0);
        queue.seeks.arrival(request.start.0, request.sectors, self.tunables.rotational);
        if !queue.sync {
            return;
        }
        let context = self.contexts.get_mut(context_id);
        context.think.arrival(tick, idle);
        let (tree, _, _) = queue.place.expect("the queue is in service");
        self.group.tree_mut(tree).think.arrival(tick, idle);
        if queue.idle_class() {
            return;
        }
        queue.deep |= queue.queued >= 4;
        let noidle = queue.next.is_some_and(|next| self.table.get(next).request.noidle);
        let arrival = Arrival {
            stream: request.stream,
            program: request.program,
            thought: context.thought(self.now),
            distance: context.distance(request),
            open: queue.idle_window,
            deep: queue.deep,
            seeky: queue.seeks.seeky(),
            think_ticks: context.think.known().then(|| context.think.mean()),
            slice_idle: idle,
        };
        let open = self.rule.window_after(&arrival) && !noidle && idle > 0;
        self.set_idle_window(id, open);
    }

    /// Whether the request is the first of a stream that uses little of the disk, while the disk
    /// works for streams with slices.
    fn is_light(&mut self, id: QueueId, request: &Request) -> bool {
        let Some(active_id) = self.active else { return false };
        let (queue, active) = (self.queues.get(id.0), self.queues.get(active_id.0));
        let class = active.class == queue.class && !queue.idle_class();
        let works = active.urgent || active.sync && active.idle_window;
        // In a crowd, serving light streams one by one would keep the device from reordering their
        // requests.
        let is_crowd = i64::from(self.busy_queues) - self.busy_idle_queues > MOST_BETWEEN;
        let fits = class && works && queue.sync && queue.queued == 1 && queue.dispatched == 0;
        let served = match (active.urgent, self.active_context) {
            (true, _) => None,
            (false, Some(context)) => Some(self.contexts.get(context).stream),
            (false, None) => return false,
        };
        fits && !is_crowd
            && self.tunables.rotational
            && self.rule.comes_between(request.stream, served, self.now)
    }

    /// Serves the queue at once. The active queue keeps the rest of its slice for afterwards.
    fn come_between(&mut self, id: QueueId) {
        if !self.active.is_some_and(|active| self.queues.get(active.0).urgent) {
            self.expire_slice(true);
        }
        self.urgent.push_back(id);
    }

    /// Whether the request of `id`, which is not the active queue, ends the active queue's slice.
    fn claim(&self, id: QueueId, request: &Request) -> Claim {
        let Some(active_id) = self.active else { return Claim::None };
        let (queue, active) = (self.queues.get(id.0), self.queues.get(active_id.0));
        if queue.idle_class() {
            return Claim::None;
        }
        if active.idle_class() {
            return Claim::First;
        }
        if active.real_time() && !queue.real_time() {
            return Claim::None;
        }
        if request.sync && !active.sync {
            return Claim::First;
        }
        if active.slice_used(self.tick) {
            return Claim::Turn;
        }
        // The active queue idles on behalf of a tree whose queues do not idle by themselves, and
        // `id` is the first other queue in that tree.
        let in_tree = queue.place.map_or(0, |(tree, _, _)| self.group.tree(tree).count());
        if self.turn.kind == Type::SyncNoIdle
            && queue.sync
            && !queue.idle_window
            && in_tree == 2
            && active.is_empty()
        {
            return Claim::Turn;
        }
        if (request.prio && active.prio_pending == 0) || (queue.real_time() && !active.real_time()) {
            return Claim::First;
        }
        if active.is_empty() && !self.should_idle(active_id) {
            return Claim::Turn;
        }
        // A request this close is as good as the one that the disk is waiting for.
        let close = self.active_context.is_some()
            && active.wait_request
            && request.start.0.abs_diff(self.last_position) <= self.rule.close_sectors();
        if close { Claim::First } else { Claim::None }
    }

    /// Cuts the active queue's slice short, keeps the rest for its next turn, and puts `id` first.
    fn preempt(&mut self, id: QueueId) {
        let active_tree = self.active.map(|active| self.queues.get(active.0).tree());
        self.expire_slice(true);
        if active_tree != Some(self.queues.get(id.0).tree()) {
            self.group.saved_turn = 0;
        }
        self.move_to_front(id);
        self.claimant = Some(id);
        let queue = self.queues.get_mut(id.0);
        queue.slice_end = 0;
        queue.slice_new = true;
    }
}

/// A new request's claim against the queue being served.
#[derive(Clone, Copy, Debug)]
enum Claim {
    /// No claim.
    None,
    /// The active slice should end: it is used up, or the disk would have nothing to do in its
    /// rest.
    Turn,
    /// The request should be served at once.
    First,
}

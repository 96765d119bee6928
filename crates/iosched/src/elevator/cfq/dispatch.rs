//! Dispatch from the queue being served to the device, and completion.

use super::Cfq;
use super::idle_rule::Service;
use super::ids::QueueId;
use crate::elevator::{Decision, IoClass, Priority, RequestId};

impl Cfq {
    pub(super) fn dispatch(&mut self) -> Decision {
        if self.busy_queues == 0 {
            return Decision::Empty;
        }
        let Some(id) = self.select_queue() else {
            if let Some((queue, request)) = self.neighbour_of_head() {
                self.send(queue, request);
                if self.queues.get(queue.0).is_empty() {
                    self.leave_service(queue);
                } else {
                    self.update_position(queue);
                }
                return Decision::Dispatch(request);
            }
            return match self.idle_timer {
                Some(tick) if self.queued > 0 => Decision::IdleUntil(self.tick_length.start(tick)),
                _ => Decision::Empty,
            };
        };
        if !self.may_dispatch(id) {
            return Decision::Empty;
        }
        let tick = self.tick;
        let queue = self.queues.get_mut(id.0);
        let request = queue.expired(&self.table, tick).or(queue.next).expect("a selected queue has requests");
        self.send(id, request);

        let queue = self.queues.get_mut(id.0);
        queue.slice_dispatch += 1;
        queue.must_dispatch = false;
        if self.active_context.is_none() {
            let context = self.table.get(request).note.context;
            self.active_context = self.contexts.get(context).alive.then_some(context);
        }
        // An asynchronous queue gives way after its share of requests, an idle-class queue after
        // each request.
        let share = 2 * self.tunables.slice_async_rq * u32::from(Priority::LEVELS - queue.level);
        let done = (!queue.sync && queue.slice_dispatch >= share) || queue.idle_class();
        if done && self.busy_queues > 1 {
            queue.slice_end = tick + 1;
            self.expire_slice(false);
        }
        Decision::Dispatch(request)
    }

    fn send(&mut self, id: QueueId, request: RequestId) {
        let queue = self.queues.get_mut(id.0);
        queue.next = queue.neighbour(&self.table, request, &self.tunables);
        queue.remove(&mut self.table, request, &self.tunables);
        queue.dispatched += 1;
        if queue.is_empty() {
            self.forget_position(id);
            self.urgent.retain(|next| *next != id);
        }
        let sync = self.queues.get(id.0).sync;
        self.queued -= 1;
        self.queued_sync -= u32::from(sync);
        self.group.dispatched += 1;
        self.in_flight[usize::from(sync)] += 1;
        self.in_device += 1;
        let entry = self.table.get_mut(request);
        entry.note.sent = self.now;
        entry.note.depth = self.in_device;
        entry.note.distance = entry.request.start.0.abs_diff(self.last_position);
        self.last_position = entry.request.end().0;
    }

    /// Whether the selected queue may have one more request in the device.
    fn may_dispatch(&self, id: QueueId) -> bool {
        let queue = self.queues.get(id.0);
        // Asynchronous requests drain before the disk idles for synchronous ones, and wait for
        // synchronous ones in flight.
        if self.in_flight[0] > 0 && self.should_idle(id) {
            return false;
        }
        if self.in_flight[1] > 0 && !queue.sync {
            return false;
        }
        let mut most = (self.tunables.quantum / 2).max(1);
        if queue.idle_class() {
            most = 1;
        }
        if queue.dispatched >= most {
            if queue.idle_class() {
                return false;
            }
            // Asynchronous queues do not count against the only synchronous one: it would preempt
            // them anyway.
            let sole = self.busy_queues == 1 || (queue.sync && self.busy_sync_queues == 1);
            if !sole && self.slice_ends_soon(id) {
                return false;
            }
            most = if sole { u32::MAX } else { self.tunables.quantum };
        }
        if !queue.sync && self.tunables.low_latency {
            // After a slow synchronous request, the depth allowed to asynchronous requests is 1. It
            // grows by one per synchronous slice.
            let depth = (self.tick - self.last_delayed_sync) / self.tunables.slice[1];
            let depth = if depth == 0 && queue.dispatched == 0 { 1 } else { depth };
            most = most.min(u32::try_from(depth).unwrap_or(u32::MAX));
        }
        queue.dispatched < most
    }

    fn slice_ends_soon(&self, id: QueueId) -> bool {
        let queue = self.queues.get(id.0);
        queue.slice_new
            || self.tick + self.tunables.slice_idle * i64::from(queue.dispatched) > queue.slice_end
    }

    pub(super) fn complete(&mut self, request: RequestId) {
        self.update_depth_estimate();
        let entry = self.table.remove(request);
        let (id, note, tick) = (entry.note.queue, entry.note, self.tick);
        let queue = self.queues.get_mut(id.0);
        queue.dispatched -= 1;
        let (queue_sync, tree) = (queue.sync, queue.place.map_or(queue.tree(), |(tree, _, _)| tree));
        if queue.dispatched == 0 {
            self.came_back(id);
        }
        self.in_device -= 1;
        self.group.dispatched -= 1;
        self.in_flight[usize::from(queue_sync)] -= 1;
        if queue_sync {
            self.contexts.get_mut(note.context).ended(tick, self.now);
            self.group.tree_mut(tree).think.last_end = tick;
            if note.added + self.tunables.fifo_expire[1] <= tick {
                self.last_delayed_sync = tick;
            }
            self.rule.served(&Service {
                stream: entry.request.stream,
                distance: note.distance,
                interval: self.now.saturating_sub(note.sent.max(self.last_end)),
                depth: note.depth.max(self.in_device + 1),
            });
        }
        self.last_end = self.now;
        self.group.think.last_end = tick;
        if self.active == Some(id) {
            if std::mem::take(&mut self.queues.get_mut(id.0).urgent) {
                self.expire_slice(false);
            } else {
                self.after_active_completed(id, queue_sync);
            }
        }
        self.release_context(note.context);
        self.free_if_unused(id);
    }

    fn after_active_completed(&mut self, id: QueueId, sync: bool) {
        if self.queues.get(id.0).slice_new {
            self.begin_slice(id);
        }
        if self.should_stay_busy(id) {
            let idle = self.tunables.slice_idle;
            let stretch = if idle > 0 { idle } else { self.tunables.group_idle };
            let queue = self.queues.get_mut(id.0);
            queue.slice_end = self.tick + stretch;
            queue.wait_busy = true;
        }
        let queue = self.queues.get(id.0);
        if queue.slice_used(self.tick) || queue.class == IoClass::Idle {
            self.expire_slice(true);
        } else if sync && queue.is_empty() && self.close_cooperator(id).is_none() {
            self.arm_idle_timer(id);
        }
    }

    /// Whether to stretch the slice of the only queue of its group, so that the group does not lose
    /// its place just before its next request arrives.
    fn should_stay_busy(&self, id: QueueId) -> bool {
        let queue = self.queues.get(id.0);
        if !queue.is_empty()
            || self.group.queues > 1
            || self.group.think.longer_than(self.tunables.group_idle)
        {
            return false;
        }
        let left = queue.slice_end - self.tick;
        let think = self.active_context.map(|context| &self.contexts.get(context).think);
        left <= 1 || think.is_some_and(|think| think.known() && left < think.mean())
    }
}

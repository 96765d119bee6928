//! Selection: the class and kind of load whose turn it is, and within it the queue to serve.

use super::idle_rule::Lull;
use super::ids::{Class, QueueId, TreeId, Type};
use super::{Cfq, Turn};
use crate::elevator::{Priority, RequestId};
use extant_rt::Nanos;

/// Requests served by position between checks of the oldest one, like deadline's `fifo_batch`.
const SWEEP_BATCH: u32 = 16;
/// How many queues a sweep examines, to skip those of other trees.
const SWEEP_LOOK: usize = 16;

impl Cfq {
    /// Chooses whose turn it is. A turn lasts until it is over or nothing of its kind is left. Then
    /// the kind whose first queue has waited longest follows. Real time comes before best effort,
    /// and best effort before idle.
    fn choose_turn(&mut self) {
        if self.group.saved_turn == 0 {
            self.turn_ends = self.tick - 1;
        } else if !self.rule.waits_are_bounded() {
            // The time since the last queue expired, while the device was full, is not taken from
            // the turn.
            self.turn_ends = self.tick + self.group.saved_turn;
        }
        let class = if self.group.busy(Class::RealTime) > 0 {
            Class::RealTime
        } else if self.group.busy(Class::BestEffort) > 0 {
            Class::BestEffort
        } else {
            self.turn.class = Class::Idle;
            self.turn_ends = self.tick + 1;
            return;
        };
        let same_class = std::mem::replace(&mut self.turn.class, class) == class;
        if same_class
            && self.group.tree(TreeId::of(class, self.turn.kind)).count() > 0
            && self.tick <= self.turn_ends
        {
            return;
        }
        let first = |kind: &Type| self.group.tree(TreeId::of(class, *kind)).first_key();
        let kind = Type::ALL
            .into_iter()
            .filter(|kind| first(kind).is_some())
            .min_by_key(first)
            .unwrap_or(Type::SyncNoIdle);
        self.turn = Turn { class, kind };
        let (all, count_away) = (i64::from(self.busy_queues), self.rule.waits_are_bounded());
        self.turn_ends = self.tick + self.group.turn(class, kind, all, count_away, &self.tunables);
    }

    /// The queue to dispatch from; `None` to send nothing now.
    pub(super) fn select_queue(&mut self) -> Option<QueueId> {
        if self.queued == 0 {
            return None;
        }
        if let Some(id) = self.active {
            match self.keep_or_leave(id) {
                Verdict::Keep => return Some(id),
                Verdict::Wait => return None,
                Verdict::SwitchTo(close) => {
                    self.expire_slice(false);
                    self.activate(Some(close));
                    return Some(close);
                }
                Verdict::Leave => self.expire_slice(false),
            }
        }
        if let Some(id) = self.urgent.pop_front() {
            self.activate(Some(id));
            self.queues.get_mut(id.0).urgent = true;
            return Some(id);
        }
        self.choose_turn();
        let tree = TreeId::of(self.turn.class, self.turn.kind);
        let mut next = self.group.tree(tree).first();
        if self.turn.kind == Type::SyncNoIdle
            && self.rule.sweeps()
            && let Some(first) = next
        {
            next = Some(self.sweep(first, tree));
        }
        self.activate(next);
        next
    }

    /// Chooses among queues for which the disk does not idle: the next one ahead of the head with
    /// the same level as `first`, which is the first by time. Returns `first` itself if it
    /// preempted, and after each batch if it has waited for its expiry.
    fn sweep(&mut self, first: QueueId, tree: TreeId) -> QueueId {
        let level = self.queues.get(first.0).level;
        if self.claimant.take() == Some(first) {
            return first;
        }
        if self.swept == SWEEP_BATCH {
            self.swept = 0;
            let oldest = self.queues.get(first.0).arrivals.oldest();
            if oldest.is_some_and(|id| self.table.get(id).note.expires <= self.tick) {
                return first;
            }
        }
        self.swept += 1;
        let positions = &self.positions[usize::from(level)];
        let (ahead, behind) = (positions.range(self.last_position..), positions.range(..self.last_position));
        let mut queues = ahead.chain(behind).map(|(_, (id, _))| *id).take(SWEEP_LOOK);
        let here = |id: &QueueId| self.queues.get(id.0).place.is_some_and(|(place, _, _)| place == tree);
        queues.find(here).unwrap_or(first)
    }

    fn keep_or_leave(&mut self, id: QueueId) -> Verdict {
        let tick = self.tick;
        let queue = self.queues.get(id.0);
        let (empty, alone) = (queue.is_empty(), self.group.queues == 1);
        if queue.wait_busy && !empty {
            return Verdict::Leave;
        }
        if queue.urgent {
            // The queue sends one request at a time, and no other queue sends any, since the device
            // might prefer that one.
            return match (queue.dispatched > 0, empty) {
                (true, _) => Verdict::Wait,
                (false, false) => Verdict::Keep,
                (false, true) => Verdict::Leave,
            };
        }
        if queue.slice_used(tick) && !queue.must_dispatch {
            // If a queue is alone in its group and has a request in the device, it keeps the group
            // busy.
            if alone && empty && queue.dispatched > 0 && self.should_idle(id) {
                return Verdict::Wait;
            }
            return self.wait_for_group();
        }
        if !empty {
            return Verdict::Keep;
        }
        if let Some(close) = self.close_cooperator(id) {
            self.plan_merge(id, close);
            return Verdict::SwitchTo(close);
        }
        if self.idle_timer.is_some() {
            if self.rule.keeps_waiting(&self.lull(id)) {
                return Verdict::Wait;
            }
            return Verdict::Leave;
        }
        // A seeky queue that got the idle window for its depth but gives the device little to do.
        let queue = self.queues.get_mut(id.0);
        if queue.seeks.seeky()
            && queue.idle_window
            && (queue.slice_new
                || queue.slice_start.is_some_and(|start| queue.slice_end - tick > tick - start))
        {
            queue.deep = false;
            self.set_idle_window(id, false);
        }
        if self.queues.get(id.0).dispatched > 0 && self.should_idle(id) {
            return Verdict::Wait;
        }
        self.wait_for_group()
    }

    /// With group idling, the last queue of a group stays active until its requests in the device
    /// have completed.
    fn wait_for_group(&self) -> Verdict {
        let idle = self.tunables.group_idle;
        let waits = idle > 0
            && self.group.queues == 1
            && self.group.dispatched > 0
            && !self.group.think.longer_than(idle);
        if waits { Verdict::Wait } else { Verdict::Leave }
    }

    /// Whether to keep the disk for this queue when it runs dry.
    pub(super) fn should_idle(&self, id: QueueId) -> bool {
        let queue = self.queues.get(id.0);
        if self.tunables.slice_idle == 0 || queue.idle_class() {
            return false;
        }
        self.rule.should_idle(&self.lull(id))
    }

    fn lull(&self, id: QueueId) -> Lull {
        let queue = self.queues.get(id.0);
        let context = self.active_context.map(|context| self.contexts.get(context));
        let ended = context.and_then(|c| c.last_end).filter(|_| queue.dispatched == 0);
        let last_of_tree = queue.sync
            && queue.place.is_some_and(|(tree, _, _)| {
                let tree = self.group.tree(tree);
                tree.count() == 1 && !tree.think.longer_than(self.tunables.slice_idle)
            });
        Lull {
            stream: context.map(|c| c.stream),
            program: context.map(|c| c.program).unwrap_or_default(),
            open: queue.idle_window && !self.seekless_depth(),
            last_of_tree,
            waiting: self.queued_sync - if queue.sync { queue.queued } else { 0 },
            waited: ended.map_or(Nanos::ZERO, |end| self.now.saturating_sub(end)),
            slice_idle: self.tunables.slice_idle,
            group_slice: self.group.slice(&self.tunables),
            busy_idle_queues: self.busy_idle_queues,
            tick: self.tick_length.span(),
        }
    }

    /// The active queue's last request has completed and it has nothing queued: starts to wait for
    /// its next one.
    pub(super) fn arm_idle_timer(&mut self, id: QueueId) {
        if self.seekless_depth() {
            return;
        }
        let for_queue = self.should_idle(id);
        if !for_queue && self.tunables.group_idle == 0 {
            return;
        }
        let queue = self.queues.get(id.0);
        let Some(context) = self.active_context else { return };
        if queue.dispatched > 0 {
            return;
        }
        let think = &self.contexts.get(context).think;
        if think.known() && queue.slice_end - self.tick < think.mean() {
            return;
        }
        if !for_queue && self.group.queues > 1 {
            return;
        }
        let mut lull = self.lull(id);
        if !for_queue {
            lull.slice_idle = self.tunables.group_idle;
        }
        let ticks = self.rule.wait_ticks(&lull);
        self.queues.get_mut(id.0).wait_request = true;
        self.idle_timer = Some(self.tick + ticks.max(1));
    }

    /// The idle timer has fired.
    pub(super) fn idle_timer_fired(&mut self) {
        let Some(id) = self.active else { return };
        let tick = self.tick;
        let queue = self.queues.get_mut(id.0);
        if queue.must_dispatch {
            return;
        }
        if !queue.slice_used(tick) {
            if !queue.is_empty() {
                return;
            }
            // The queue loses its `deep` mark only if the wait ended without a request.
            queue.deep = false;
        }
        self.expire_slice(false);
    }

    /// While the disk waits for the active queue: another queue's request near the head.
    pub(super) fn neighbour_of_head(&self) -> Option<(QueueId, RequestId)> {
        let active = self.queues.get(self.active?.0);
        if self.in_device > 0 || self.idle_timer.is_none() || !self.rule.serves_neighbours() {
            return None;
        }
        let nearest = (0..Priority::LEVELS).filter_map(|level| self.nearest(level)).min_by_key(|(_, d)| *d);
        let (id, _) = nearest.filter(|(_, distance)| *distance <= self.rule.close_sectors())?;
        let queue = self.queues.get(id.0);
        let fits = queue.sync && queue.class == active.class;
        queue.next.filter(|_| fits).map(|request| (id, request))
    }
}

enum Verdict {
    /// Continue with the active queue.
    Keep,
    /// Send nothing: the active queue will soon have a request.
    Wait,
    /// Expire the active queue and take this one.
    SwitchTo(QueueId),
    /// Expire the active queue.
    Leave,
}

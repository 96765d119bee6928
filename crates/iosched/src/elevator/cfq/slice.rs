//! Time slices: how long a queue may run, where it stands in its tree, and what happens at the end.

use super::ids::{Class, QueueId, TreeId};
use super::{Cfq, Tunables};

/// Maximum number of other queues that a queue's place depends on, if waits are bounded.
const MOST_OTHERS: i64 = 8;

impl Tunables {
    /// Slice of a level: 100 ms at level 4 if synchronous, and a fifth of that more or less per
    /// level.
    fn slice_of(&self, sync: bool, level: u8) -> i64 {
        let base = self.slice[usize::from(sync)];
        base + base / 5 * (4 - i64::from(level))
    }
}

impl Cfq {
    /// The slice of a queue, shortened so that all busy queues of its class get theirs within the
    /// target latency, but not below twice the idle time (scaled by priority).
    pub(super) fn scaled_slice(&mut self, id: QueueId) -> i64 {
        let queue = self.queues.get(id.0);
        let slice = self.tunables.slice_of(queue.sync, queue.level);
        if !self.tunables.low_latency {
            return slice;
        }
        let only_streams = i64::from(self.busy_queues) == self.busy_idle_queues;
        if only_streams && queue.idle_window && self.rule.has_others_between(self.now) {
            return 2 * slice;
        }
        let class = if queue.real_time() { Class::RealTime } else { Class::BestEffort };
        let sync_slice = self.tunables.slice[1];
        let expected = sync_slice * self.group.sample_busy(class);
        let target = self.group.slice(&self.tunables);
        if expected <= target {
            return slice;
        }
        let low = slice.min(2 * self.tunables.slice_idle * slice / sync_slice);
        (slice * target / expected).max(low)
    }

    /// The first request of the slice has completed: the slice's time starts here.
    pub(super) fn begin_slice(&mut self, id: QueueId) {
        let slice = self.scaled_slice(id);
        let tick = self.tick;
        let queue = self.queues.get_mut(id.0);
        queue.slice_new = false;
        queue.slice_start = Some(tick);
        queue.slice_end = tick + slice;
    }

    /// Expires the active queue. With `keep_rest`, what is left of its slice (or its overrun) moves
    /// its next turn forward (or back).
    pub(super) fn expire_slice(&mut self, keep_rest: bool) {
        let Some(id) = self.active else { return };
        if keep_rest {
            let slice_new = self.queues.get(id.0).slice_new;
            let rest =
                if slice_new { self.scaled_slice(id) } else { self.queues.get(id.0).slice_end - self.tick };
            self.queues.get_mut(id.0).slice_residual = rest;
        }
        let queue = self.queues.get_mut(id.0);
        if queue.wait_request {
            self.idle_timer = None;
        }
        queue.wait_request = false;
        queue.wait_busy = false;
        if queue.shared && queue.seeks.seeky() {
            queue.split = true;
        }
        self.group.saved_turn = (self.turn_ends - self.tick).max(0);
        if queue.in_service() {
            if queue.is_empty() {
                self.leave_service(id);
            } else {
                self.resort(id);
            }
        }
        self.active = None;
        self.active_context = None;
    }

    /// Makes a queue the active one.
    pub(super) fn activate(&mut self, id: Option<QueueId>) {
        if let Some(id) = id {
            self.queues.get_mut(id.0).activate();
            self.idle_timer = None;
        }
        self.active = id;
    }

    /// Adds a queue that has requests to those in service.
    pub(super) fn enter_service(&mut self, id: QueueId) {
        self.came_back(id);
        self.busy_queues += 1;
        let queue = self.queues.get(id.0);
        self.busy_sync_queues += u32::from(queue.sync);
        self.busy_idle_queues += i64::from(queue.idle_window);
        // The kernel counts the queue after computing its key.
        self.resort(id);
        self.group.queues += 1;
    }

    /// Removes a queue without requests from those in service.
    pub(super) fn leave_service(&mut self, id: QueueId) {
        let queue = self.queues.get_mut(id.0);
        let (tree, key, order) = queue.place.take().expect("the queue is in service");
        self.busy_queues -= 1;
        self.busy_sync_queues -= u32::from(queue.sync);
        self.busy_idle_queues -= i64::from(queue.idle_window);
        let away = queue.dispatched > 0;
        queue.away = away.then_some(tree);
        let tree = self.group.tree_mut(tree);
        tree.remove(key, order, id);
        tree.away += i64::from(away);
        self.forget_position(id);
        self.group.queues -= 1;
        if self.group.queues == 0 {
            self.group.saved_turn = 0;
        }
    }

    /// A queue that was away has requests again, or none left in the device.
    pub(super) fn came_back(&mut self, id: QueueId) {
        if let Some(tree) = self.queues.get_mut(id.0).away.take() {
            self.group.tree_mut(tree).away -= 1;
        }
    }

    /// Opens or closes a queue's idle window. The queue moves to its new tree when it is next
    /// sorted in.
    pub(super) fn set_idle_window(&mut self, id: QueueId, open: bool) {
        let queue = self.queues.get_mut(id.0);
        if queue.idle_window != open {
            queue.idle_window = open;
            self.idle_window_changed(id);
        }
    }

    /// Updates the counters after a change of the idle window.
    pub(super) fn idle_window_changed(&mut self, id: QueueId) {
        let queue = self.queues.get(id.0);
        if queue.in_service() {
            self.busy_idle_queues += if queue.idle_window { 1 } else { -1 };
        }
    }

    /// Assigns a queue its place by time and priority, and by position.
    pub(super) fn resort(&mut self, id: QueueId) {
        let queue = self.queues.get_mut(id.0);
        let tree = queue.tree();
        let key = if tree == TreeId::IDLE {
            let last = match queue.place {
                Some((TreeId::IDLE, key, _)) if self.group.tree(tree).last_key() == Some(key) => None,
                _ => self.group.tree(tree).last_key(),
            };
            last.unwrap_or(self.tick) + self.tunables.hz / 5
        } else {
            let most = self.tunables.slice_of(true, 0);
            let own = self.tunables.slice_of(queue.sync, queue.level);
            let mut others = i64::from(self.group.queues) - 1;
            if self.rule.waits_are_bounded() {
                others = others.clamp(0, MOST_OTHERS);
            }
            let offset = others * (most - own);
            self.tick + offset - std::mem::take(&mut queue.slice_residual)
        };
        self.place(id, tree, key);
        self.update_position(id);
    }

    /// Moves a queue before all others of its tree.
    pub(super) fn move_to_front(&mut self, id: QueueId) {
        let tree = self.queues.get(id.0).tree();
        let key = self.group.tree(tree).first_key().unwrap_or(self.tick) - self.tunables.hz;
        self.place(id, tree, key);
    }

    fn place(&mut self, id: QueueId, tree: TreeId, key: i64) {
        let queue = self.queues.get_mut(id.0);
        if let Some((old_tree, old_key, order)) = queue.place {
            if (old_tree, old_key) == (tree, key) {
                return;
            }
            self.group.tree_mut(old_tree).remove(old_key, order, id);
        }
        self.places_given += 1;
        queue.place = Some((tree, key, self.places_given));
        self.group.tree_mut(tree).insert(key, self.places_given, id);
    }
}

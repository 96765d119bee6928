//! The service trees: who is next within a class and a kind of load.

use super::Tunables;
use super::ids::{Class, QueueId, TreeId, Type};
use super::think::ThinkTime;
use std::collections::BTreeSet;

/// Queues in the order in which they are served: by key (a tick, shifted by priority and by the
/// rest of the last slice), then by order of arrival.
#[derive(Debug)]
pub(super) struct ServiceTree {
    order: BTreeSet<(i64, u64, QueueId)>,
    /// Think time of all streams in the tree together.
    pub(super) think: ThinkTime,
    /// Queues that left because all their requests are in the device.
    pub(super) away: i64,
}

impl ServiceTree {
    fn new(tick: i64) -> Self {
        Self { order: BTreeSet::new(), think: ThinkTime::new(tick), away: 0 }
    }

    pub(super) fn count(&self) -> i64 {
        self.order.len() as i64
    }

    pub(super) fn first(&self) -> Option<QueueId> {
        self.order.first().map(|(_, _, queue)| *queue)
    }

    pub(super) fn first_key(&self) -> Option<i64> {
        self.order.first().map(|(key, _, _)| *key)
    }

    pub(super) fn last_key(&self) -> Option<i64> {
        self.order.last().map(|(key, _, _)| *key)
    }

    pub(super) fn insert(&mut self, key: i64, order: u64, queue: QueueId) {
        self.order.insert((key, order, queue));
    }

    pub(super) fn remove(&mut self, key: i64, order: u64, queue: QueueId) {
        let was = self.order.remove(&(key, order, queue));
        debug_assert!(was, "the queue is on its tree");
    }
}

/// Fractional bits of `fraction`: 12.
const FRACTION_SHIFT: u32 = 12;

/// The queues that share one allotment of disk time.
///
/// There is only one group, the root, so its fraction is the whole disk. Weights and virtual time
/// between groups would have nothing to compare.
#[derive(Debug)]
pub(super) struct Group {
    trees: [ServiceTree; 7],
    /// Share of disk time, in units of 1/4096.
    fraction: i64,
    /// Decaying average of busy queues, per class: best effort, real time.
    busy_average: [i64; 2],
    /// Queues in service.
    pub(super) queues: u32,
    /// Requests in the device.
    pub(super) dispatched: u32,
    pub(super) think: ThinkTime,
    /// What was left of the load's turn when the last queue expired.
    pub(super) saved_turn: i64,
}

impl Group {
    pub(super) fn root(tick: i64) -> Self {
        Self {
            trees: std::array::from_fn(|_| ServiceTree::new(tick)),
            fraction: 1 << FRACTION_SHIFT,
            busy_average: [0; 2],
            queues: 0,
            dispatched: 0,
            think: ThinkTime::new(tick),
            saved_turn: 0,
        }
    }

    pub(super) fn tree(&self, id: TreeId) -> &ServiceTree {
        &self.trees[usize::from(id.0)]
    }

    pub(super) fn tree_mut(&mut self, id: TreeId) -> &mut ServiceTree {
        &mut self.trees[usize::from(id.0)]
    }

    /// Queues of a class in service.
    pub(super) fn busy(&self, class: Class) -> i64 {
        match class {
            Class::Idle => self.tree(TreeId::IDLE).count(),
            _ => Type::ALL.iter().map(|kind| self.tree(TreeId::of(class, *kind)).count()).sum(),
        }
    }

    /// Asynchronous queues in service.
    pub(super) fn busy_async(&self) -> i64 {
        self.tree(TreeId::of(Class::RealTime, Type::Async)).count()
            + self.tree(TreeId::of(Class::BestEffort, Type::Async)).count()
    }

    pub(super) fn busy_average(&self, class: Class) -> i64 {
        self.busy_average[class as usize]
    }

    /// Updates the average with the current number of busy queues and returns it. It rises quickly
    /// and falls slowly.
    pub(super) fn sample_busy(&mut self, class: Class) -> i64 {
        let (busy, average) = (self.busy(class), self.busy_average[class as usize]);
        let next = (3 * average.max(busy) + average.min(busy) + 2) / 4;
        self.busy_average[class as usize] = next;
        next
    }

    /// The group's share of the target latency.
    pub(super) fn slice(&self, tunables: &Tunables) -> i64 {
        (tunables.target_latency * self.fraction) >> FRACTION_SHIFT
    }

    /// How long a load of `class` and `kind` may run before another has its turn. `busy_all` counts
    /// the queues of all classes. With `count_away`, queues whose requests are all in the device
    /// count too: a random reader with one request at a time is rarely in its tree when turns are
    /// assigned.
    pub(super) fn turn(
        &self,
        class: Class,
        kind: Type,
        busy_all: i64,
        count_away: bool,
        tunables: &Tunables,
    ) -> i64 {
        let tree = self.tree(TreeId::of(class, kind));
        let mut count = tree.count();
        let mut busy = self.busy_average(class).max(self.busy(class));
        if count_away {
            count += tree.away;
            busy += Type::ALL.iter().map(|kind| self.tree(TreeId::of(class, *kind)).away).sum::<i64>();
        }
        let share = self.slice(tunables) * count / busy.max(1);
        let turn = match kind {
            Type::Async => {
                let of_all = tunables.target_latency * self.busy_async() / busy_all.max(1);
                share.min(of_all) * tunables.slice[0] / tunables.slice[1]
            }
            _ => share.max(2 * tunables.slice_idle),
        };
        turn.max(MIN_TURN)
    }
}

/// The shortest turn, in ticks. Below two ticks, the kernel takes think time for immediate.
const MIN_TURN: i64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_average_rises_quickly_and_falls_slowly() {
        let mut group = Group::root(0);
        let sync = TreeId::of(Class::BestEffort, Type::Sync);
        for i in 0..100 {
            group.tree_mut(sync).insert(i, i as u64, QueueId(i as u32));
        }
        assert_eq!(group.sample_busy(Class::BestEffort), 75);
        for i in 0..100 {
            group.tree_mut(sync).remove(i, i as u64, QueueId(i as u32));
        }
        assert_eq!(group.sample_busy(Class::BestEffort), 56);
    }

    #[test]
    fn a_load_runs_in_proportion_to_its_queues_and_at_least_two_idle_times() {
        let tunables = Tunables::linux(1000);
        let mut group = Group::root(0);
        let (sync, noidle) =
            (TreeId::of(Class::BestEffort, Type::Sync), TreeId::of(Class::BestEffort, Type::SyncNoIdle));
        for i in 0..99 {
            group.tree_mut(noidle).insert(i, i as u64, QueueId(i as u32));
        }
        group.tree_mut(sync).insert(0, 0, QueueId(99));
        assert_eq!(group.turn(Class::BestEffort, Type::SyncNoIdle, 100, false, &tunables), 297);
        assert_eq!(group.turn(Class::BestEffort, Type::Sync, 100, false, &tunables), 16);
    }
}

//! A queue of runnable tasks, for one processor or for all.

use extant_rt::Class;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// A normal task's rank under dynamic priorities: its round of time slices, then its priority;
/// lower runs first (kernel: the active and the expired array, and `p->prio`).
pub(super) type Rank = (u64, u8);

#[derive(Debug, Default)]
pub(super) struct TaskQueue {
    realtime: BTreeMap<(Reverse<u8>, i64), u32>,
    ranked: BTreeMap<(Rank, i64), u32>,
    normal: VecDeque<u32>,
    background: VecDeque<u32>,
    /// Last sequence numbers for ties, at the front (decreasing) and at the back (increasing).
    order: (i64, i64),
    /// The current round of time slices.
    round: u64,
}

impl TaskQueue {
    pub(super) fn len(&self) -> usize {
        self.realtime.len() + self.ranked.len() + self.normal.len() + self.background.len()
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// Queues a task behind its equals, or before them if `front` (it was cut short). `rank` is
    /// `Some` for normal tasks with dynamic priorities.
    pub(super) fn push(&mut self, index: u32, class: Class, rank: Option<Rank>, front: bool) {
        let order = if front {
            self.order.0 -= 1;
            self.order.0
        } else {
            self.order.1 += 1;
            self.order.1
        };
        match (class, rank) {
            (Class::RealTime(priority), _) => {
                self.realtime.insert((Reverse(priority), order), index);
            }
            (Class::Normal, Some(rank)) => {
                self.ranked.insert((rank, order), index);
            }
            (Class::Normal, None) if front => self.normal.push_front(index),
            (Class::Normal, None) => self.normal.push_back(index),
            (Class::Idle, _) if front => self.background.push_front(index),
            (Class::Idle, _) => self.background.push_back(index),
        }
    }

    /// Removes the most urgent task.
    pub(super) fn pop(&mut self) -> Option<u32> {
        if let Some((_, index)) = self.realtime.pop_first() {
            return Some(index);
        }
        if let Some((((round, _), _), index)) = self.ranked.pop_first() {
            self.round = self.round.max(round);
            return Some(index);
        }
        self.normal.pop_front().or_else(|| self.background.pop_front())
    }

    /// The most urgent task, its class, and its rank if it has one.
    pub(super) fn first(&self) -> Option<(u32, Class, Option<Rank>)> {
        if let Some(((Reverse(priority), _), index)) = self.realtime.first_key_value() {
            return Some((*index, Class::RealTime(*priority), None));
        }
        if let Some(((rank, _), index)) = self.ranked.first_key_value() {
            return Some((*index, Class::Normal, Some(*rank)));
        }
        let normal = self.normal.front().map(|index| (*index, Class::Normal, None));
        normal.or_else(|| self.background.front().map(|index| (*index, Class::Idle, None)))
    }

    /// Tasks in the order in which another processor tries to pull them: expired ones first, then
    /// by priority; the last of equals first (kernel: `move_tasks`).
    pub(super) fn to_take(&self) -> impl Iterator<Item = u32> {
        let expired = self.ranked.range(((self.round + 1, 0), i64::MIN)..);
        let active = self.ranked.range(..((self.round + 1, 0), i64::MIN));
        let of_class = last_of_equals(self.realtime.iter().map(|((priority, _), index)| (*priority, *index)));
        let expired = last_of_equals(expired.map(|((rank, _), index)| (*rank, *index)));
        let active = last_of_equals(active.map(|((rank, _), index)| (*rank, *index)));
        let rest = self.normal.iter().rev().chain(self.background.iter().rev()).copied();
        expired.into_iter().chain(of_class).chain(active).chain(rest)
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.realtime.retain(|_, other| *other != index);
        self.ranked.retain(|_, other| *other != index);
        self.normal.retain(|other| *other != index);
        self.background.retain(|other| *other != index);
    }
}

/// Reverses the order of items with equal keys; items are sorted by key.
fn last_of_equals<K: PartialEq>(items: impl Iterator<Item = (K, u32)>) -> Vec<u32> {
    let mut all: Vec<(K, u32)> = items.collect();
    all.chunk_by_mut(|a, b| a.0 == b.0).for_each(<[_]>::reverse);
    all.into_iter().map(|(_, index)| index).collect()
}

//! Future events, in time order.

use extant_rt::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event queue: earliest first, equal times in order of arrival.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    pushed: u64,
}

#[derive(Debug)]
struct Entry<E> {
    /// Time and arrival number in one integer, so that a single comparison orders entries.
    key: u128,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0 }
    }

    pub(crate) fn push(&mut self, at: Nanos, event: E) {
        self.pushed += 1;
        let key = u128::from(at.0) << 64 | u128::from(self.pushed);
        self.heap.push(Reverse(Entry { key, event }));
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|Reverse(Entry { key, event })| (Nanos((key >> 64) as u64), event))
    }

    pub(crate) fn next_time(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(entry)| Nanos((entry.key >> 64) as u64))
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Drops events that will never matter.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.heap.retain(|Reverse(entry)| keep(&entry.event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_and_equals_in_order_of_arrival() {
        let mut queue = EventQueue::new();
        for (at, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b'), (u64::MAX, 'e')] {
            queue.push(Nanos(at), name);
        }
        assert_eq!(queue.next_time(), Some(Nanos(3)));
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, name)| name).collect();
        assert_eq!(order, "abcde");
    }
}

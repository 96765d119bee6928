//! Turns among the streams that wait for a free request.

use extant_block::StreamId;
use std::collections::{BTreeMap, VecDeque};

/// Waiting items: in order within each stream, with the streams taking turns. A stream with a
/// thousand items delays a stream with a single item by only one.
#[derive(Debug)]
pub(super) struct Waiters<T> {
    streams: BTreeMap<StreamId, VecDeque<T>>,
    turns: VecDeque<StreamId>,
    len: usize,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self { streams: BTreeMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<T> Waiters<T> {
    pub(super) fn push(&mut self, stream: StreamId, item: T) {
        let queue = self.streams.entry(stream).or_default();
        if queue.is_empty() {
            self.turns.push_back(stream);
        }
        queue.push_back(item);
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let stream = self.turns.pop_front()?;
        let queue = self.streams.get_mut(&stream).expect("a stream with a turn waits");
        let item = queue.pop_front().expect("a stream with a turn waits");
        if queue.is_empty() {
            self.streams.remove(&stream);
        } else {
            self.turns.push_back(stream);
        }
        self.len -= 1;
        Some(item)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether any item of this stream waits.
    pub(super) fn holds(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// All waiting items of the stream whose turn it is.
    pub(super) fn pop_stream(&mut self) -> Option<(StreamId, VecDeque<T>)> {
        let stream = self.turns.pop_front()?;
        let items = self.streams.remove(&stream).expect("a stream with a turn waits");
        self.len -= items.len();
        Some((stream, items))
    }

    /// Puts the rest of a stream's items back, behind all others.
    pub(super) fn push_stream(&mut self, stream: StreamId, items: VecDeque<T>) {
        if items.is_empty() {
            return;
        }
        self.len += items.len();
        self.turns.push_back(stream);
        let before = self.streams.insert(stream, items);
        debug_assert!(before.is_none(), "a stream waits once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_take_turns() {
        let mut waiters = Waiters::default();
        (0..5).for_each(|i| waiters.push(StreamId(1), ("many", i)));
        waiters.push(StreamId(2), ("one", 0));
        let order: Vec<_> = std::iter::from_fn(|| waiters.pop()).collect();
        assert_eq!(order, [("many", 0), ("one", 0), ("many", 1), ("many", 2), ("many", 3), ("many", 4)]);
        assert_eq!(waiters.len(), 0);
    }
}

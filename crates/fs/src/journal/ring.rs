//! The log as a ring of blocks. Pure arithmetic.

use extant_format::UintExt;
use extant_format::jbd2::JournalLayout;
use std::ops::Range;

/// Space in the log. Blocks from the tail up to `head` are in use, wrapping around at the end.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// Journal blocks that the log may use.
    log: Range<u32>,
    /// Where the next block goes.
    head: u32,
    /// Number of blocks in use before `head`.
    used: u32,
}

impl Ring {
    /// Creates an empty log that continues at `head`, or at the first block if `head` is `None` or
    /// out of range.
    pub(super) fn new(log: Range<u32>, head: Option<u32>) -> Self {
        debug_assert!(log.len() > 1, "a log of {log:?} can never be full");
        let head = head.filter(|head| log.contains(head)).unwrap_or(log.start);
        Self { log, head, used: 0 }
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Total blocks of the log.
    pub(super) fn len(&self) -> u32 {
        self.log.end - self.log.start
    }

    /// Number of free blocks. One block always stays unused, to tell a full log from an empty one.
    pub(super) fn free(&self) -> u32 {
        self.len() - 1 - self.used
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Takes `blocks` and returns the first.
    pub(super) fn take(&mut self, blocks: u32) -> u32 {
        assert!(blocks <= self.free(), "{blocks} blocks of a log that has {}", self.free());
        let start = self.head;
        self.head = self.step(start, blocks);
        self.used += blocks;
        start
    }

    /// The `n`th block after `from`.
    pub(super) fn step(&self, from: u32, n: u32) -> u32 {
        debug_assert!(self.log.contains(&from), "block {from} is outside the log {:?}", self.log);
        let at = u64::from(from - self.log.start) + u64::from(n);
        self.log.start + (at % u64::from(self.len())).fit_u32()
    }

    /// Frees the blocks before `tail`.
    pub(super) fn release_to(&mut self, tail: u32) {
        debug_assert!(self.log.contains(&tail), "the tail {tail} is outside the log {:?}", self.log);
        let used = if tail <= self.head { self.head - tail } else { self.len() - (tail - self.head) };
        assert!(used <= self.used, "the tail moves forward");
        self.used = used;
    }
}

/// Maximum number of log blocks for a transaction with `blocks` copies and `revokes` revoke
/// records.
pub(super) fn log_cost(layout: &JournalLayout, block_bytes: usize, blocks: u32, revokes: u32) -> u32 {
    let (header, uuid) = (12, 16);
    let tags = (block_bytes - header - uuid - layout.tail_bytes()) / layout.tag_bytes();
    let records = (block_bytes - header - 4 - layout.tail_bytes()) / layout.revoke_bytes();
    blocks + blocks.div_ceil(tags.fit_u32()) + revokes.div_ceil(records.fit_u32()) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The blocks in use are the last ones taken, and none is used twice.
        #[test]
        fn in_use_is_what_was_taken_last(
            (first, len) in (1u32..5, 8u32..40),
            steps in prop::collection::vec((1u32..12, 0usize..4), 1..200),
        ) {
            let mut ring = Ring::new(first..first + len, None);
            let mut used: std::collections::VecDeque<u32> = Default::default();
            let mut starts: std::collections::VecDeque<(u32, u32)> = Default::default();
            for (take, release) in steps {
                if take <= ring.free() {
                    let start = ring.take(take);
                    for n in 0..take {
                        let at = ring.step(start, n);
                        prop_assert!((first..first + len).contains(&at));
                        prop_assert!(!used.contains(&at), "block {at} is used twice");
                        used.push_back(at);
                    }
                    starts.push_back((start, take));
                }
                for _ in 0..release {
                    if let Some((_, taken)) = starts.pop_front() {
                        used.drain(..taken as usize);
                        ring.release_to(starts.front().map_or(ring.head(), |&(start, _)| start));
                    }
                }
                prop_assert_eq!(ring.used() as usize, used.len());
                prop_assert_eq!(ring.free() + ring.used() + 1, len);
            }
        }
    }
}

//! The write buffer of a solid-state disk: pages being filled, and pages being programmed.

use extant_rt::Nanos;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

/// The buffer's contents, per flash page.
///
/// A page stays open until it is full or another page needs its slot. Until then, writes to it cost
/// only the transfer into the buffer. The least recently written page is closed first.
#[derive(Debug)]
pub(super) struct Buffer {
    page_sectors: u64,
    /// Maximum number of open pages.
    open_most: usize,
    /// Maximum number of pages, open or being programmed.
    room: usize,
    open: BTreeMap<u64, Open>,
    /// Open pages by the sequence number of their last write.
    by_age: BTreeMap<u64, u64>,
    writes: u64,
    /// When each page being programmed leaves the buffer.
    leaving: BinaryHeap<Reverse<Nanos>>,
}

#[derive(Debug)]
struct Open {
    written: u64,
    /// One bit per sector, set once it is written.
    filled: Vec<u64>,
    left: u64,
    /// When its last data arrived.
    since: Nanos,
}

impl Buffer {
    pub(super) fn new(page_sectors: u64, open_most: usize, room: usize) -> Self {
        assert!(
            room > open_most && open_most > 0,
            "a page that waits for room waits for one that is programmed"
        );
        let (open, by_age) = (BTreeMap::new(), BTreeMap::new());
        Self { page_sectors, open_most, room, open, by_age, writes: 0, leaving: BinaryHeap::new() }
    }

    /// When a write to a page finds room: now, or when the next page leaves.
    pub(super) fn room_at(&mut self, page: u64, now: Nanos) -> Nanos {
        while self.leaving.peek().is_some_and(|left| left.0 <= now) {
            self.leaving.pop();
        }
        if self.open.contains_key(&page) || self.open.len() + self.leaving.len() < self.room {
            return now;
        }
        self.leaving.pop().map_or(now, |left| left.0)
    }

    /// Writes sectors of a page, numbered within the page; the caller has made sure of room. If
    /// that closes a page, which must now be programmed, returns when its last data arrived.
    pub(super) fn write(&mut self, page: u64, sectors: Range<u64>, at: Nanos) -> Option<Nanos> {
        self.writes += 1;
        let words = self.page_sectors.div_ceil(64) as usize;
        let empty = || Open { written: 0, filled: vec![0; words], left: self.page_sectors, since: at };
        let open = self.open.entry(page).or_insert_with(empty);
        if open.written > 0 {
            self.by_age.remove(&open.written);
        }
        open.written = self.writes;
        open.since = open.since.max(at);
        for sector in sectors {
            let (word, bit) = ((sector / 64) as usize, 1 << (sector % 64));
            open.left -= u64::from(open.filled[word] & bit == 0);
            open.filled[word] |= bit;
        }
        let left = open.left;
        self.by_age.insert(self.writes, page);
        match left {
            0 => self.close(page),
            _ if self.open.len() > self.open_most => self.close_oldest(),
            _ => None,
        }
    }

    /// Closes the oldest page for programming. Returns when its last data arrived.
    pub(super) fn close_oldest(&mut self) -> Option<Nanos> {
        let page = *self.by_age.first_key_value()?.1;
        self.close(page)
    }

    /// Closes a page for programming. Returns when its last data arrived.
    pub(super) fn close(&mut self, page: u64) -> Option<Nanos> {
        let open = self.open.remove(&page)?;
        self.by_age.remove(&open.written);
        Some(open.since)
    }

    /// Records that a closed page is programmed and leaves the buffer at `at`.
    pub(super) fn leaves(&mut self, at: Nanos) {
        self.leaving.push(Reverse(at));
    }

    /// Whether an open page holds all of these sectors.
    pub(super) fn holds(&self, page: u64, mut sectors: Range<u64>) -> bool {
        let held = |open: &Open| {
            sectors.all(|sector| open.filled[(sector / 64) as usize] & (1 << (sector % 64)) != 0)
        };
        self.open.get(&page).is_some_and(held)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.by_age.clear();
        self.leaving.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_programmed_once_however_often_it_is_written() {
        let mut buffer = Buffer::new(8, 2, 4);
        for n in 0..100 {
            assert_eq!(buffer.room_at(7, Nanos(n)), Nanos(n));
            assert_eq!(buffer.write(7, 0..4, Nanos(n)), None);
        }
        assert!(buffer.holds(7, 0..4) && !buffer.holds(7, 3..5) && !buffer.holds(8, 0..1));
        assert_eq!(buffer.write(7, 4..8, Nanos(100)), Some(Nanos(100)), "full");
    }

    #[test]
    fn the_page_that_was_written_longest_ago_makes_room() {
        let mut buffer = Buffer::new(8, 2, 4);
        assert_eq!(buffer.write(1, 0..1, Nanos(1)), None);
        assert_eq!(buffer.write(2, 0..1, Nanos(2)), None);
        assert_eq!(buffer.write(1, 1..2, Nanos(3)), None);
        assert_eq!(buffer.write(3, 0..1, Nanos(4)), Some(Nanos(2)), "page 2");
        buffer.leaves(Nanos(50));
        assert_eq!(buffer.write(4, 0..1, Nanos(5)), Some(Nanos(3)), "page 1");
        buffer.leaves(Nanos(60));
        assert_eq!(buffer.room_at(5, Nanos(6)), Nanos(50), "two are open and two under way");
        assert_eq!(buffer.room_at(4, Nanos(6)), Nanos(6), "an open page has room");
    }
}

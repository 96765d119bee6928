//! Doubly linked lists in an array: a frame is on one list or on none.

use crate::page::FrameNo;
use crate::pool::arena::{Table, Zeroable};

/// A frame's neighbours; 0 means none.
#[derive(Debug)]
#[repr(C)]
struct Link {
    next: u32,
    prev: u32,
}

// SAFETY: integers, for which zero is a valid value.
unsafe impl Zeroable for Link {}

#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    first: u32,
    last: u32,
    len: usize,
}

#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    links: Table<Link>,
    /// The list each frame is on, one byte per frame: 0 for none, otherwise the list's number plus
    /// one.
    on: Table<u8>,
    ends: [Ends; N],
}

// SAFETY: integers, for which zero is a valid value.
unsafe impl Zeroable for u8 {}

impl<const N: usize> Lists<N> {
    pub(super) fn new(frames: u32) -> std::io::Result<Self> {
        let slots = frames as usize + 1;
        Ok(Self { links: Table::zeroed(slots)?, on: Table::zeroed(slots)?, ends: [Ends::default(); N] })
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.links.bytes() + self.on.bytes()
    }

    pub(super) fn len(&self, list: usize) -> usize {
        self.ends[list].len
    }

    /// The list a frame is on.
    pub(super) fn list_of(&self, frame: FrameNo) -> Option<usize> {
        usize::from(self.on[frame.slot()]).checked_sub(1)
    }

    pub(super) fn push_back(&mut self, list: usize, frame: FrameNo) {
        debug_assert!(self.list_of(frame).is_none());
        let last = self.ends[list].last;
        self.links[frame.slot()] = Link { next: 0, prev: last };
        match FrameNo::new(last) {
            Some(last) => self.links[last.slot()].next = frame.get(),
            None => self.ends[list].first = frame.get(),
        }
        self.ends[list].last = frame.get();
        self.ends[list].len += 1;
        self.on[frame.slot()] = list as u8 + 1;
    }

    pub(super) fn pop_front(&mut self, list: usize) -> Option<FrameNo> {
        let frame = FrameNo::new(self.ends[list].first)?;
        self.remove(frame);
        Some(frame)
    }

    /// Takes a frame off its list; returns which list that was.
    pub(super) fn remove(&mut self, frame: FrameNo) -> Option<usize> {
        let list = self.list_of(frame)?;
        let &Link { next, prev } = &self.links[frame.slot()];
        match FrameNo::new(prev) {
            Some(prev) => self.links[prev.slot()].next = next,
            None => self.ends[list].first = next,
        }
        match FrameNo::new(next) {
            Some(next) => self.links[next.slot()].prev = prev,
            None => self.ends[list].last = prev,
        }
        self.ends[list].len -= 1;
        self.on[frame.slot()] = 0;
        Some(list)
    }
}

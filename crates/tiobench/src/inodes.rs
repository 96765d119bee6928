//! Dirty inodes of a superblock, and the order in which they are written back (kernel: `s_dirty`,
//! `s_io`, `I_LOCK`).

use crate::writeback_control::WritebackControl;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Waker;

#[derive(Debug, Default)]
struct InodeState {
    /// Whether it was dirtied since the last write-back began (kernel: `I_DIRTY`).
    is_dirty: bool,
    /// Whether the inode itself was changed since then (kernel: `I_DIRTY_SYNC`).
    is_changed: bool,
    /// Whether it is under write-back (kernel: `I_LOCK`).
    is_locked: bool,
    /// When it was dirtied, in ticks.
    dirtied: u64,
    /// Tasks waiting for the write-back to end (kernel: `__wait_on_inode`).
    waiting: Vec<Waker>,
}

/// The inodes of one superblock.
#[derive(Debug)]
pub(crate) struct SuperblockInodes {
    inodes: Vec<InodeState>,
    /// Dirty inodes, most recent first; write-back starts at the back.
    dirty: VecDeque<u32>,
    /// Inodes of the current pass, in the same order.
    io: VecDeque<u32>,
    /// Set while a pdflush writes to the queue; only one does at a time (kernel: `BDI_pdflush`).
    pdflush: Arc<AtomicBool>,
}

/// What a task does next in a write-back pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextInode {
    /// Write back this inode, which is now locked; the flag says whether the inode itself must be
    /// written.
    Write(u32, bool),
    /// Stop: nothing more can be written now.
    End,
}

impl SuperblockInodes {
    pub(crate) fn new(count: u64, pdflush: Arc<AtomicBool>) -> Self {
        Self {
            inodes: (0..count).map(|_| InodeState::default()).collect(),
            dirty: VecDeque::new(),
            io: VecDeque::new(),
            pdflush,
        }
    }

    /// Marks an inode, or pages of it, dirty (kernel: `__mark_inode_dirty`).
    pub(crate) fn dirtied(&mut self, number: u32, tick: u64, is_changed: bool) {
        let inode = &mut self.inodes[number as usize];
        inode.is_changed |= is_changed;
        if !std::mem::replace(&mut inode.is_dirty, true) && !inode.is_locked {
            inode.dirtied = tick;
            self.move_to_dirty(number, false);
        }
    }

    fn move_to_dirty(&mut self, number: u32, first: bool) {
        self.leave(number);
        if first { self.dirty.push_back(number) } else { self.dirty.push_front(number) }
    }

    fn leave(&mut self, number: u32) {
        self.dirty.retain(|other| *other != number);
        self.io.retain(|other| *other != number);
    }

    /// Starts a pass (kernel: the beginning of `sync_sb_inodes`).
    pub(crate) fn begin(&mut self, control: &WritebackControl) {
        if !control.for_kupdate() || self.io.is_empty() {
            self.dirty.drain(..).rev().for_each(|number| self.io.push_front(number));
        }
    }

    /// Next inode to write back, for a pass started at `began` and a queue that may be congested.
    pub(crate) fn next(
        &mut self,
        control: &mut WritebackControl,
        began: u64,
        is_congested: bool,
    ) -> NextInode {
        while let Some(number) = self.io.back().copied() {
            if control.nonblocking && is_congested {
                control.encountered_congestion = true;
                return NextInode::End;
            }
            let inode = &mut self.inodes[number as usize];
            let latest = control.older_than.map_or(began, |older| older.min(began));
            if inode.dirtied > latest || control.is_pdflush() && self.pdflush.load(Relaxed) {
                return NextInode::End;
            }
            if !inode.is_locked {
                inode.is_locked = true;
                inode.is_dirty = false;
                self.pdflush.fetch_or(control.is_pdflush(), Relaxed);
                return NextInode::Write(number, std::mem::take(&mut inode.is_changed));
            }
            self.io.pop_back();
            self.dirty.push_front(number);
        }
        NextInode::End
    }

    /// Ends the write-back of an inode and returns its waiters. `has_dirty_pages` says whether
    /// dirty pages remain.
    #[must_use = "those that wait are to be woken"]
    pub(crate) fn ended(
        &mut self,
        number: u32,
        control: &WritebackControl,
        has_dirty_pages: bool,
        tick: u64,
    ) -> Vec<Waker> {
        self.pdflush.fetch_and(!control.is_pdflush(), Relaxed);
        let inode = &mut self.inodes[number as usize];
        inode.is_locked = false;
        let waiting = std::mem::take(&mut inode.waiting);
        if inode.is_dirty {
            self.move_to_dirty(number, false);
        } else if has_dirty_pages {
            inode.is_dirty = true;
            if !control.for_kupdate() {
                inode.dirtied = tick;
            }
            self.move_to_dirty(number, control.for_kupdate());
        } else {
            self.leave(number);
        }
        waiting
    }

    /// Locks an inode (kernel: `WB_SYNC_ALL`) and returns whether the inode itself must be written.
    ///
    /// `None` if it is locked; the task is woken to try again.
    pub(crate) fn lock(&mut self, number: u32, waker: &Waker) -> Option<bool> {
        let inode = &mut self.inodes[number as usize];
        if inode.is_locked {
            inode.waiting.push(waker.clone());
            return None;
        }
        inode.is_locked = true;
        inode.is_dirty = false;
        Some(std::mem::take(&mut inode.is_changed))
    }

    pub(crate) fn is_dirty(&self, number: u32) -> bool {
        self.inodes[number as usize].is_dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disks::Submitter;

    fn turns(inodes: &mut SuperblockInodes, control: &mut WritebackControl, began: u64) -> Vec<u32> {
        inodes.begin(control);
        let next = |inodes: &mut SuperblockInodes, control: &mut WritebackControl| match inodes
            .next(control, began, false)
        {
            NextInode::Write(number, _) => Some(number),
            NextInode::End => None,
        };
        std::iter::from_fn(|| next(inodes, control)).collect()
    }

    #[test]
    fn the_inode_that_was_dirtied_first_is_written_first_and_one_under_write_back_is_passed_over() {
        let mut inodes = SuperblockInodes::new(4, Arc::default());
        for number in [2, 0, 3] {
            inodes.dirtied(number, 1, false);
        }
        let mut writer = WritebackControl::throttled(Submitter::throttled(9), 100);
        assert_eq!(inodes.next(&mut writer, 1, false), NextInode::End, "the round has not begun");
        inodes.begin(&writer);
        assert_eq!(inodes.next(&mut writer, 1, false), NextInode::Write(2, false));
        // The second writer skips the inode that the first has locked, and the third finds nothing.
        assert_eq!(
            turns(&mut inodes, &mut WritebackControl::throttled(Submitter::throttled(8), 100), 1),
            [0, 3]
        );
        assert_eq!(
            turns(&mut inodes, &mut WritebackControl::throttled(Submitter::throttled(7), 100), 1),
            [0_u32; 0]
        );
        // An inode left dirty goes behind the others, and is not written in the pass that redirtied
        // it.
        assert!(inodes.ended(2, &writer, true, 5).is_empty());
        assert!(inodes.ended(0, &writer, false, 5).is_empty());
        inodes.dirtied(3, 6, false);
        assert!(inodes.ended(3, &writer, true, 6).is_empty());
        assert_eq!(turns(&mut inodes, &mut writer, 4), [0_u32; 0], "the first of them was dirtied since");
        assert_eq!(turns(&mut inodes, &mut writer, 6), [2, 3]);
    }

    #[test]
    fn one_pdflush_writes_at_a_time_and_not_to_a_congested_queue() {
        let mut inodes = SuperblockInodes::new(2, Arc::default());
        inodes.dirtied(0, 1, false);
        inodes.dirtied(1, 1, false);
        let (mut first, mut second) = (WritebackControl::background(100), WritebackControl::background(100));
        inodes.begin(&first);
        assert_eq!(inodes.next(&mut first, 2, true), NextInode::End);
        assert!(first.encountered_congestion);
        assert_eq!(inodes.next(&mut first, 2, false), NextInode::Write(0, false));
        assert_eq!(inodes.next(&mut second, 2, false), NextInode::End);
        assert!(inodes.ended(0, &first, false, 3).is_empty());
        assert_eq!(inodes.next(&mut second, 3, false), NextInode::Write(1, false));
    }
}

//! Bookkeeping for one file's pages.

use crate::backing::Backing;
use crate::caught::shielded;
use crate::dirty::ledger::{DeviceLedger, DirtyPages, Room};
use crate::page::{FrameNo, PAGE, PAGE_SHIFT, PageKey};
use crate::pool::frames::Claimed;
use crate::pool::index::Cursor;
use crate::pool::state::After;
use crate::state::errseq::ErrorLog;
use crate::state::fills::Fills;
use crate::state::stuck::Stuck;
use crate::state::underway::Underway;
use crate::state::{DiskState, Inner, Pages, Shared};
use crate::{CacheError, PageRange};
use extant_rt::sync;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

impl Pages {
    fn new(device: Arc<DeviceLedger>) -> Self {
        Self {
            first: 0,
            is_swept: false,
            cached: 0,
            is_cut: false,
            dirty: DirtyPages::new(device),
            writeback: Underway::default(),
            listed: None,
            fills: Fills::default(),
        }
    }
}

/// Work deferred until the lock is released.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Aftermath {
    freed: Vec<FrameNo>,
    unlisted: Option<Arc<Inner>>,
    /// Room of dirty pages that are gone.
    room: Option<Room>,
    /// Dirty pages that were given up.
    abandoned: Vec<u64>,
}

impl Inner {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        disk: &Arc<DiskState>,
        backing: Arc<dyn Backing>,
        inode: u64,
        size: u64,
    ) -> Arc<Self> {
        disk.hold();
        shared.register(|file| {
            Arc::new(Self {
                shared: shared.clone(),
                disk: disk.clone(),
                backing,
                file,
                inode,
                size: AtomicU64::new(size),
                pages: sync::Mutex::new(Pages::new(disk.ledger.clone())),
                errors: ErrorLog::default(),
                stuck: Stuck::default(),
                ended: Mutex::default(),
                is_visited: AtomicBool::new(false),
                is_remainder: false,
            })
        })
    }

    /// Moves the pages of a file being dropped to a file of their own, with the same number.
    pub(crate) fn remainder(&mut self) -> Arc<Self> {
        self.disk.hold();
        let none = Pages::new(self.disk.ledger.clone());
        let pages = std::mem::replace(&mut *self.pages.lock(), none);
        let remainder = Arc::new(Self {
            shared: self.shared.clone(),
            disk: self.disk.clone(),
            backing: self.backing.clone(),
            file: self.file,
            inode: self.inode,
            size: AtomicU64::new(self.size()),
            pages: sync::Mutex::new(pages),
            errors: ErrorLog::default(),
            stuck: Stuck::default(),
            ended: Mutex::default(),
            is_visited: AtomicBool::new(false),
            is_remainder: true,
        });
        self.shared.replace(self.file, &remainder);
        remainder
    }

    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn store_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Raises the size to at least `size`.
    pub(crate) fn grow_size(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn key(&self, index: u64) -> PageKey {
        PageKey::new(self.file, index)
    }

    /// Which quarters of a page the bytes `range` touch, rounded to whole blocks.
    pub(crate) fn dirty_mask(&self, range: Range<usize>) -> u8 {
        let block = (self.backing.block_bytes() as usize).min(PAGE as usize);
        let start = range.start / block * block;
        let end = range.end.next_multiple_of(block);
        let (first, last) = (start >> (PAGE_SHIFT - 2), end >> (PAGE_SHIFT - 2));
        (0xf_u8 >> (4 - (last - first))) << first
    }

    /// The frame of a page. The answer is certain, because the caller holds the lock.
    pub(crate) fn frame(&self, _pages: &Pages, index: u64) -> Option<FrameNo> {
        self.shared.pool.index.find(&self.shared.pool.frames, self.key(index))
    }

    /// A cursor for looking up pages one after another. The caller holds the lock.
    pub(crate) fn cursor(&self, _pages: &Pages) -> Cursor<'_> {
        self.shared.pool.index.cursor(&self.shared.pool.frames)
    }

    /// Attaches a frame for a page that has none, at the end of the list, which is a ring.
    pub(crate) fn attach(&self, pages: &mut Pages, cursor: &mut Cursor<'_>, frame: FrameNo) {
        let siblings = &self.shared.pool.frames.siblings;
        let links = &siblings[frame.slot()];
        match FrameNo::new(pages.first) {
            None => {
                links.next.store(frame.get(), Ordering::Relaxed);
                links.prev.store(frame.get(), Ordering::Relaxed);
                pages.first = frame.get();
            }
            Some(first) => {
                let last = siblings[first.slot()].prev.swap(frame.get(), Ordering::Relaxed);
                links.next.store(first.get(), Ordering::Relaxed);
                links.prev.store(last, Ordering::Relaxed);
                siblings[last as usize].next.store(frame.get(), Ordering::Relaxed);
            }
        }
        pages.cached += 1;
        cursor.insert(frame);
    }

    fn unlink(&self, pages: &mut Pages, cursor: &mut Cursor<'_>, frame: FrameNo) {
        let siblings = &self.shared.pool.frames.siblings;
        let links = &siblings[frame.slot()];
        let (next, prev) = (links.next.load(Ordering::Relaxed), links.prev.load(Ordering::Relaxed));
        siblings[prev as usize].next.store(next, Ordering::Relaxed);
        siblings[next as usize].prev.store(prev, Ordering::Relaxed);
        if pages.first == frame.get() {
            pages.first = if next == frame.get() { 0 } else { next };
        }
        pages.cached -= 1;
        cursor.remove(frame);
    }

    /// Removes a frame from the mapping. Its dirty bytes are lost.
    pub(crate) fn detach(
        &self,
        pages: &mut Pages,
        cursor: &mut Cursor<'_>,
        frame: FrameNo,
        after: &mut Aftermath,
    ) {
        let index = self.shared.pool.frames.key(frame).index();
        self.unlink(pages, cursor, frame);
        if pages.dirty.contains(index) {
            let room = pages.dirty.remove(index..index + 1);
            match &mut after.room {
                Some(all) => all.join(room),
                none => *none = Some(room),
            }
            after.abandoned.push(index);
        }
        if self.shared.pool.frames.state(frame).detach() == After::Freed {
            after.freed.push(frame);
        }
    }

    /// Removes `old` from the mapping to make way for another frame of the same page. `old` is left
    /// to its current users. The page's dirty mark and charge stay as they are.
    pub(crate) fn replace(&self, pages: &mut Pages, old: FrameNo, after: &mut Aftermath) {
        self.unlink(pages, &mut self.cursor(pages), old);
        if self.shared.pool.frames.state(old).detach() == After::Freed {
            after.freed.push(old);
        }
    }

    /// Records a failure of write-back.
    pub(crate) fn record(&self, error: CacheError) {
        self.disk.errors.record(error.clone());
        self.errors.record(error);
    }

    /// Removes clean frames of this file, which the evictor has claimed, from the mapping.
    pub(crate) fn forget_claimed(&self, run: &[Claimed<'_>]) {
        let mut pages = self.pages.lock();
        let mut cursor = self.cursor(&pages);
        for claimed in run {
            let state = self.shared.pool.frames.state(claimed.frame);
            if state.snapshot().is_detached() {
                continue;
            }
            self.unlink(&mut pages, &mut cursor, claimed.frame);
            // The frame cannot be freed while it is claimed.
            let after = state.detach();
            debug_assert_eq!(after, After::InUse);
        }
    }

    /// Marks pages dirty that were clean.
    pub(crate) fn mark_dirty(self: &Arc<Self>, pages: &mut Pages, range: PageRange, room: Room) {
        pages.dirty.insert(range.indices(), room);
        self.list(pages);
    }

    /// Puts a file with dirty pages on its disk's list.
    pub(crate) fn list(self: &Arc<Self>, pages: &mut Pages) {
        if pages.listed.is_none() {
            pages.listed = Some(self.disk.list(self.shared.rt.now(), self.clone(), pages.dirty.is_stuck()));
            // The flusher sets its timer when there is something to expire.
            self.disk.kick(&self.shared);
        }
    }

    /// Takes the file off its disk's list if nothing is dirty any more.
    pub(crate) fn unlist_if_clean(&self, pages: &mut Pages, after: &mut Aftermath) {
        if !pages.dirty.is_empty() {
            return;
        }
        // No unplaceable page is left.
        self.unstick(pages);
        if let Some(place) = pages.listed.take() {
            after.unlisted = self.disk.unlist(place);
        }
    }

    /// Carries out the work deferred until the lock was released.
    pub(crate) fn settle(&self, after: Aftermath) {
        let Aftermath { mut freed, unlisted, room, abandoned } = after;
        if !freed.is_empty() {
            // Sorted, so that neighbours are taken together later.
            freed.sort_unstable();
            self.shared.pool.free_all(freed);
        }
        drop(room);
        drop(unlisted);
        self.abandon(abandoned);
    }

    /// Tells the backing that these dirty pages will not be written back.
    pub(crate) fn abandon(&self, mut pages: Vec<u64>) {
        pages.sort_unstable();
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let run = PageRange { start: run[0], end: run[run.len() - 1] + 1 };
            shielded(|| self.backing.abandoned(run.bytes()));
        }
    }

    /// All frames, in no particular order, for audits.
    pub(crate) fn frames(&self, pages: &Pages) -> Vec<FrameNo> {
        let mut found = Vec::new();
        let mut at = pages.first;
        while let Some(frame) = FrameNo::new(at) {
            found.push(frame);
            at = self.shared.pool.frames.siblings[frame.slot()].next.load(Ordering::Relaxed);
            if at == pages.first {
                break;
            }
        }
        found
    }
}

//! A file's pages, and the only places where a page becomes dirty, goes under write-back, leaves
//! it, or is removed.

use crate::PageRange;
use crate::caught::shielded;
use crate::device::dirty_file_order::DirtySince;
use crate::dirty::charges::{DirtyPages, Room, WritebackCharge};
use crate::dirty::ledger::DeviceLedger;
use crate::file::fill_control::FillControl;
use crate::file::runs_in_flight::{RunNumber, RunsInFlight};
use crate::file::{CacheCore, CachedFile};
use crate::page::FrameNo;
use crate::pool::frame_word::After;
use crate::pool::frames::{Claimed, Fresh};
use crate::pool::index::Cursor;
use extant_rt::sync::MutexGuard;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The pages of a file.
#[derive(Debug)]
pub(crate) struct PageTable {
    /// The file, which is listed when it becomes dirty.
    file: Weak<CachedFile>,
    /// A frame in the ring of all frames of the file; 0 if none.
    first: u32,
    /// Whether a removal is walking the ring.
    is_walked: bool,
    cached: u64,
    /// Set while a truncation has not removed all pages past the end of the file: it is in
    /// progress, or its caller went away.
    is_cut: bool,
    dirty: DirtyPages,
    /// Pages in flight. New writes to them go to separate frames.
    writeback: RunsInFlight,
    /// The file's place among the dirty files of its device.
    dirty_since: Option<DirtySince>,
    fills: FillControl,
}

impl PageTable {
    pub(super) fn new(file: Weak<CachedFile>, device: Arc<DeviceLedger>) -> Self {
        Self {
            file,
            first: 0,
            is_walked: false,
            cached: 0,
            is_cut: false,
            dirty: DirtyPages::new(device),
            writeback: RunsInFlight::default(),
            dirty_since: None,
            fills: FillControl::default(),
        }
    }
}

/// A file's pages, locked. The lock is held only for bookkeeping: never across an await, and never
/// while waiting for a frame. A task that holds it may only *try* to claim frames; a task that
/// holds a claim may take the lock.
#[derive(Debug)]
pub(crate) struct LockedPages<'a> {
    table: MutexGuard<'a, PageTable>,
    // Fields are dropped in order: the lock first, then this.
    after: AfterUnlock<'a>,
}

/// Work deferred until the lock is released; dropping it does the work.
#[derive(Debug)]
#[must_use]
pub(crate) struct AfterUnlock<'a> {
    file: &'a CachedFile,
    /// Whether the thread was already unwinding when it took the lock.
    was_panicking: bool,
    freed: Vec<FrameNo>,
    unlisted: Option<Arc<CachedFile>>,
    /// Room of dirty pages that are gone, or that was not needed.
    room: Option<Room>,
    /// Dirty pages that were given up.
    abandoned: Vec<u64>,
}

/// Pages taken for write-back, from page `first` on.
#[derive(Debug)]
pub(crate) struct TakenPages {
    pub(crate) first: u64,
    pub(crate) frames: Vec<FrameNo>,
    /// Which quarters of each page to write.
    pub(crate) quarters: Vec<u8>,
    pub(crate) charge: WritebackCharge,
    pub(crate) number: RunNumber,
}

/// Frames of pages that have left write-back.
#[derive(Debug)]
pub(crate) struct LeftWriteback {
    /// Frames of the file's clean pages.
    pub(crate) clean: Vec<FrameNo>,
    /// Frames without users, for the caller to free.
    pub(crate) freed: Vec<FrameNo>,
}

impl CachedFile {
    /// Locks the file's pages.
    pub(crate) fn lock_pages(&self) -> LockedPages<'_> {
        let (freed, unlisted, room, abandoned) = Default::default();
        let was_panicking = std::thread::panicking();
        let after = AfterUnlock { file: self, was_panicking, freed, unlisted, room, abandoned };
        LockedPages { table: self.pages.lock(), after }
    }

    /// Whether the file has this many dirty pages. Returns false while its pages are locked.
    pub(super) fn has_dirty(&self, least: u64) -> bool {
        self.pages.try_lock().is_some_and(|pages| pages.dirty.len() >= least)
    }

    /// Removes clean frames of this file, which the evictor has claimed.
    pub(crate) fn forget_claimed(&self, run: &[Claimed<'_>]) {
        let mut pages = self.lock_pages();
        let mut cursor = pages.cursor();
        for claimed in run {
            let word = self.core.pool.frames.state(claimed.frame);
            if word.snapshot().is_detached() {
                continue;
            }
            pages.unlink(&mut cursor, claimed.frame);
            // The frame cannot be freed while it is claimed.
            let after = word.detach();
            debug_assert_eq!(after, After::InUse);
        }
    }

    /// Tells the backing that these dirty pages will not be written back.
    pub(crate) fn abandon(&self, mut pages: Vec<u64>) {
        pages.sort_unstable();
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let run = PageRange { start: run[0], end: run[run.len() - 1] + 1 };
            shielded(|| self.backing.abandoned(run.bytes()));
        }
    }
}

impl<'a> LockedPages<'a> {
    /// Releases the lock before the deferred work is done.
    pub(crate) fn unlock(self) -> AfterUnlock<'a> {
        let Self { table, after } = self;
        drop(table);
        after
    }

    pub(crate) fn file(&self) -> &'a CachedFile {
        self.after.file
    }

    fn core(&self) -> &'a CacheCore {
        &self.after.file.core
    }

    // Look-ups.

    /// Pages that have a frame.
    pub(crate) fn cached(&self) -> u64 {
        self.table.cached
    }

    /// Pages that are dirty and not under write-back.
    pub(crate) fn dirty(&self) -> &DirtyPages {
        &self.table.dirty
    }

    /// Pages under write-back.
    pub(crate) fn writeback(&self) -> &RunsInFlight {
        &self.table.writeback
    }

    /// The file's place among the dirty files of its device.
    pub(crate) fn dirty_since(&self) -> Option<DirtySince> {
        self.table.dirty_since
    }

    pub(crate) fn fills(&mut self) -> &mut FillControl {
        &mut self.table.fills
    }

    /// Whether pages past the end of the file may be left over from a truncation.
    pub(crate) fn is_cut(&self) -> bool {
        self.table.is_cut
    }

    pub(crate) fn set_cut(&mut self, is_cut: bool) {
        self.table.is_cut = is_cut;
    }

    /// The frame of a page. The answer is certain.
    pub(crate) fn frame(&self, index: u64) -> Option<FrameNo> {
        let pool = &self.core().pool;
        pool.index.find(&pool.frames, self.file().key(index))
    }

    /// The first page of a range that has a frame, or the range's end.
    pub(crate) fn missing_until(&self, range: PageRange) -> u64 {
        if self.cached() == 0 {
            return range.end;
        }
        let mut cursor = self.cursor();
        let mut has_frame = |&index: &u64| cursor.find(self.file().key(index)).is_some();
        range.indices().find(|index| has_frame(index)).unwrap_or(range.end)
    }

    /// A cursor for looking up pages one after another. Its answers are certain while the pages are
    /// locked.
    pub(crate) fn cursor(&self) -> Cursor<'a> {
        let pool = &self.core().pool;
        pool.index.cursor(&pool.frames)
    }

    // Adding and removing pages.

    /// Adds a frame for a page that has none, at the end of the ring.
    pub(crate) fn add_page(&mut self, cursor: &mut Cursor<'_>, frame: FrameNo) {
        let siblings = &self.core().pool.frames.siblings;
        let links = &siblings[frame.slot()];
        match FrameNo::new(self.table.first) {
            None => {
                links.next.store(frame.get(), Ordering::Relaxed);
                links.prev.store(frame.get(), Ordering::Relaxed);
                self.table.first = frame.get();
            }
            Some(first) => {
                let last = siblings[first.slot()].prev.swap(frame.get(), Ordering::Relaxed);
                links.next.store(first.get(), Ordering::Relaxed);
                links.prev.store(last, Ordering::Relaxed);
                siblings[last as usize].next.store(frame.get(), Ordering::Relaxed);
            }
        }
        self.table.cached += 1;
        cursor.insert(frame);
    }

    /// Adds a page with these quarters dirty. The caller then enters this page, and those added
    /// before it, with [`Self::enter_dirty`].
    pub(crate) fn add_dirty_page(&mut self, cursor: &mut Cursor<'_>, page: Fresh<'_>, quarters: u8) {
        let frame = page.frame;
        page.publish(quarters, 1);
        self.add_page(cursor, frame);
    }

    fn unlink(&mut self, cursor: &mut Cursor<'_>, frame: FrameNo) {
        let siblings = &self.core().pool.frames.siblings;
        let links = &siblings[frame.slot()];
        let (next, prev) = (links.next.load(Ordering::Relaxed), links.prev.load(Ordering::Relaxed));
        siblings[prev as usize].next.store(next, Ordering::Relaxed);
        siblings[next as usize].prev.store(prev, Ordering::Relaxed);
        if self.table.first == frame.get() {
            self.table.first = if next == frame.get() { 0 } else { next };
        }
        self.table.cached -= 1;
        cursor.remove(frame);
    }

    /// Detaches a frame from the file. The frame's current users keep it until they are done.
    fn detach(&mut self, frame: FrameNo) {
        if self.core().pool.frames.state(frame).detach() == After::Freed {
            self.after.freed.push(frame);
        }
    }

    /// Removes a page. Its dirty bytes are lost.
    pub(crate) fn drop_page(&mut self, cursor: &mut Cursor<'_>, frame: FrameNo) {
        let index = self.core().pool.frames.key(frame).index();
        self.unlink(cursor, frame);
        if self.table.dirty.contains(index) {
            let room = self.table.dirty.remove(index..index + 1);
            self.give_back(room);
            self.after.abandoned.push(index);
        }
        self.detach(frame);
    }

    /// Returns room once the lock is released, because that wakes writers.
    pub(crate) fn give_back(&mut self, room: Room) {
        match &mut self.after.room {
            Some(all) => all.join(room),
            none => *none = Some(room),
        }
    }

    /// Replaces the frame `old`, which is left to its current users, and marks parts of the page
    /// dirty. `room` is used if the page was clean. Returns whether it was.
    pub(crate) fn replace(&mut self, old: FrameNo, new: Fresh<'_>, quarters: u8, room: Room) -> bool {
        let seen = self.core().pool.frames.state(old).snapshot();
        let index = self.core().pool.frames.key(old).index();
        let mut cursor = self.cursor();
        self.unlink(&mut cursor, old);
        self.detach(old);
        let frame = new.frame;
        new.publish(seen.dirty() | quarters, seen.uses());
        self.add_page(&mut cursor, frame);
        drop(cursor);
        let was_clean = seen.dirty() == 0;
        match was_clean {
            true => self.enter_dirty(PageRange::one(index), room),
            false => self.give_back(room),
        }
        was_clean
    }

    // Dirty pages.

    /// Marks parts of a page dirty whose frame the caller has claimed. `room` is used if the page
    /// was clean. Returns whether the frame was still the page's.
    pub(crate) fn make_dirty(
        &mut self,
        index: u64,
        frame: FrameNo,
        quarters: u8,
        room: Option<Room>,
    ) -> bool {
        let word = self.core().pool.frames.state(frame);
        let is_attached = !word.snapshot().is_detached();
        if is_attached {
            word.set_dirty(quarters);
        }
        match room {
            Some(room) if is_attached => self.enter_dirty(PageRange::one(index), room),
            Some(room) => self.give_back(room),
            None => {}
        }
        is_attached
    }

    /// Records pages as dirty that were clean before. Their frames are dirty already.
    pub(crate) fn enter_dirty(&mut self, pages: PageRange, room: Room) {
        self.table.dirty.insert(pages.indices(), room);
        self.list();
    }

    /// Puts a file with dirty pages in its device's order.
    fn list(&mut self) {
        if self.table.dirty_since.is_some() {
            return;
        }
        let Some(file) = self.table.file.upgrade() else { return };
        let is_skipped = self.table.dirty.is_unplaceable();
        let disk = &self.file().disk;
        self.table.dirty_since = Some(disk.turns.enter(self.core().rt.now(), file, is_skipped));
        disk.note_dirty(self.core());
    }

    /// Takes the file out of its device's order if nothing is dirty any more.
    pub(crate) fn unlist_if_clean(&mut self) {
        if !self.table.dirty.is_empty() {
            return;
        }
        // No unplaceable page is left.
        self.set_placeable();
        if let Some(place) = self.table.dirty_since.take() {
            self.after.unlisted = self.file().disk.turns.remove(place);
        }
    }

    /// Returns the dirty pages' room, for other files to use. Returns whether they had any.
    pub(super) fn release_charges(&mut self) -> bool {
        self.table.dirty.set_unplaceable()
    }

    /// Gives the dirty pages room again, ignoring the limits. Returns whether they had none.
    pub(super) fn charge_again(&mut self) -> bool {
        self.table.dirty.set_placeable()
    }

    // Write-back.

    /// Puts the pages of `range`, which are all dirty, under write-back, up to the first one that a
    /// task is changing. `None` if a task is changing the first page of the range.
    pub(crate) fn begin_writeback(&mut self, range: Range<u64>) -> Option<TakenPages> {
        let (first, most) = (range.start, (range.end - range.start) as usize);
        let (mut frames, mut quarters) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let mut cursor = self.cursor();
        for index in range {
            let frame = cursor.find(self.file().key(index)).expect("a dirty page has a frame");
            let Some(dirty) = self.core().pool.frames.state(frame).start_writeback() else { break };
            frames.push(frame);
            quarters.push(dirty);
        }
        drop(cursor);
        if frames.is_empty() {
            return None;
        }
        let pages = PageRange::new(first, first + frames.len() as u64);
        let charge = self.table.dirty.take(pages.indices());
        let number = self.table.writeback.begin(pages);
        self.unlist_if_clean();
        Some(TakenPages { first, frames, quarters, charge, number })
    }

    /// Takes pages out of write-back: page `first` and the following ones, in these frames. They
    /// become clean; or, with `put_back` (the run's charge, and the quarters of each page to
    /// write), dirty again. The run lasts until [`Self::end_run`].
    pub(crate) fn leave_writeback(
        &mut self,
        first: u64,
        frames: &[FrameNo],
        mut put_back: Option<(&mut WritebackCharge, impl Fn(usize) -> u8)>,
    ) -> LeftWriteback {
        let words = &self.core().pool.frames;
        let mut left = LeftWriteback { clean: Vec::new(), freed: Vec::new() };
        if put_back.is_none() {
            left.clean.reserve(frames.len());
        }
        for (slot, &frame) in frames.iter().enumerate() {
            let index = first + slot as u64;
            let dirty = put_back.as_ref().map_or(0, |(_, quarters)| quarters(slot));
            let (after, before) = words.state(frame).end_writeback(dirty);
            if after == After::Freed {
                left.freed.push(frame);
            }
            match &mut put_back {
                None if before.is_detached() => {}
                None => left.clean.push(frame),
                // The page's newer contents are in another frame; it inherits the dirty parts that
                // were not written.
                Some(_) if before.is_detached() => {
                    if let Some(newer) = self.frame(index)
                        && self.table.dirty.contains(index)
                    {
                        words.state(newer).set_dirty(dirty);
                    }
                }
                Some((charge, _)) => {
                    let charge = charge.split(1);
                    // List the file first: a flusher that finds nothing under write-back must find
                    // the file.
                    self.list();
                    self.table.dirty.put_back(index..index + 1, charge);
                }
            }
        }
        left
    }

    /// Ends a run once its pages have left write-back.
    pub(crate) fn end_run(&mut self, run: RunNumber) {
        self.table.writeback.end(run);
    }

    // Walks.

    /// Begins a walk around the ring, unless there is one.
    pub(crate) fn begin_walk(&mut self) -> bool {
        !std::mem::replace(&mut self.table.is_walked, true)
    }

    pub(crate) fn end_walk(&mut self) {
        self.table.is_walked = false;
    }

    /// The next `count` frames of the ring, filtered to `range`. The ring's head moves past all of
    /// them.
    pub(crate) fn next_frames(&mut self, count: u64, range: PageRange) -> Vec<FrameNo> {
        let words = &self.core().pool.frames;
        let mut found = Vec::new();
        for _ in 0..count {
            let Some(frame) = FrameNo::new(self.table.first) else { break };
            if range.indices().contains(&words.key(frame).index()) {
                found.push(frame);
            }
            self.table.first = words.siblings[frame.slot()].next.load(Ordering::Relaxed);
        }
        found
    }

    /// All frames, in no particular order, for audits.
    pub(crate) fn frames(&self) -> Vec<FrameNo> {
        let siblings = &self.core().pool.frames.siblings;
        let mut found = Vec::new();
        let mut at = self.table.first;
        while let Some(frame) = FrameNo::new(at) {
            found.push(frame);
            at = siblings[frame.slot()].next.load(Ordering::Relaxed);
            if at == self.table.first {
                break;
            }
        }
        found
    }

    /// Moves all pages to another file with the same number.
    pub(super) fn move_to(&mut self, file: Weak<CachedFile>) -> PageTable {
        let none = PageTable::new(Weak::new(), self.file().disk.ledger.clone());
        PageTable { file, ..std::mem::replace(&mut *self.table, none) }
    }
}

impl Drop for AfterUnlock<'_> {
    fn drop(&mut self) {
        // After a panic under the lock, leave the pages as they are.
        if std::thread::panicking() && !self.was_panicking {
            return;
        }
        if !self.freed.is_empty() {
            // Sorted, so that neighbours are taken together later.
            self.freed.sort_unstable();
            self.file.core.pool.free_all(std::mem::take(&mut self.freed));
        }
        drop(self.room.take());
        drop(self.unlisted.take());
        self.file.abandon(std::mem::take(&mut self.abandoned));
    }
}

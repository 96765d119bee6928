//! Pages that are entered before their bytes have been read: the steps shared by all ways of
//! loading.

use crate::file::{CacheCore, CachedFile, loaded};
use crate::page::{FrameNo, PAGE, PAGE_BYTES, neighbours};
use crate::pages::exclude::Lookup;
use crate::{ByteRange, PageRange};
use extant_block::Segment;
use std::any::Any;
use std::sync::Arc;

/// Adjacent pages of a file, being loaded. Their memory belongs to the owner of this, until
/// [`Self::end`].
#[derive(Debug)]
pub(super) struct LoadingPages {
    first: u64,
    frames: Vec<FrameNo>,
    /// How many bytes, counted from page `first`, belong to the file; the rest becomes zeros.
    valid_bytes: u64,
}

impl CachedFile {
    /// Enters frames for the first missing pages of a range, up to the first excluded page. If the
    /// caller has asked the backing where the pages are, it also stops where the answer is no
    /// longer valid. `None` if not even the first page can be entered. Frames that are left over
    /// become free again.
    pub(super) fn enter_loading(
        &self,
        lookup: Option<Lookup<'_>>,
        range: PageRange,
        taken: Vec<FrameNo>,
        mark: Option<u64>,
    ) -> Option<LoadingPages> {
        let PageRange { start, end } = range;
        let pool = &self.core.pool;
        let mut frames = taken;
        let mut entered = 0;
        let (valid_bytes, is_stale) = {
            let mut pages = self.lock_pages();
            let valid_end = match lookup {
                Some(lookup) => lookup.end(&mut pages),
                None => pages.fills().admitted(range).end,
            };
            // A truncation stores the new size before it takes the lock to drop pages.
            let size = self.size();
            if size > start * PAGE {
                let limit = end.min(valid_end).min(size.div_ceil(PAGE));
                let mut cursor = pages.cursor();
                for (index, &frame) in (start..limit).zip(&frames) {
                    if cursor.find(self.key(index)).is_some() {
                        break;
                    }
                    let fresh = pool.frames.take_free(frame, self.key(index));
                    // Pages loaded on demand start as unread too. Otherwise, when memory is short,
                    // the reader's own read-ahead could evict the page before the reader has copied
                    // it, and the reader would load it again, forever.
                    fresh.start_loading(mark == Some(index), true);
                    pages.add_page(&mut cursor, frame);
                    entered += 1;
                }
            }
            (size.saturating_sub(start * PAGE), valid_end <= start)
        };
        if entered < frames.len() {
            pool.return_frames(frames.drain(entered..));
        }
        (!is_stale).then_some(LoadingPages { first: start, frames, valid_bytes })
    }
}

impl LoadingPages {
    pub(super) fn pages(&self) -> PageRange {
        PageRange::new(self.first, self.first + self.frames.len() as u64)
    }

    fn bytes(&self) -> u64 {
        self.frames.len() as u64 * PAGE
    }

    /// Memory for the bytes `skip..skip + len`, for a device to fill: one segment for each run of
    /// adjacent frames. The segments are dropped before [`Self::end`], and do not overlap.
    pub(super) fn segments(
        &self,
        core: &Arc<CacheCore>,
        skip: u64,
        len: u64,
    ) -> impl Iterator<Item = Segment> {
        let owner: Arc<dyn Any + Send + Sync> = core.clone();
        neighbours(&self.frames, skip, len).map(move |(frame, count, skip, len)| {
            // SAFETY: the frames stay loading until all segments are dropped, which do not overlap.
            unsafe { core.pool.frames.to_fill(frame, count, skip, len, owner.clone()) }
        })
    }

    /// The same memory, for the calling thread to fill. Slices are dropped before [`Self::end`],
    /// and do not overlap.
    pub(super) fn memory<'a>(
        &'a self,
        core: &'a CacheCore,
        skip: u64,
        len: u64,
    ) -> impl Iterator<Item = &'a mut [u8]> {
        neighbours(&self.frames, skip, len).map(move |(frame, count, skip, len)| {
            // SAFETY: the frames stay loading until all slices are dropped, which do not overlap.
            unsafe { core.pool.frames.to_fill_here(frame, count, skip, len) }
        })
    }

    /// Zeroes a range of the file within the pages. For parts that no device fills.
    pub(super) fn zero(&self, core: &CacheCore, range: ByteRange) {
        let base = self.first * PAGE;
        for (frame, _, skip, n) in self.pieces(range.start - base, range.end - base) {
            // SAFETY: the frame is loading, and no segment has this part of it.
            unsafe { core.pool.frames.zero_loading(frame, skip, n) };
        }
    }

    /// Copies `bytes` to offset `offset` of the file, within the pages. For parts that no device
    /// fills.
    pub(super) fn fill(&self, core: &CacheCore, offset: u64, bytes: &[u8]) {
        let skipped = offset - self.first * PAGE;
        for (frame, from, skip, n) in self.pieces(skipped, skipped + bytes.len() as u64) {
            // SAFETY: as in `zero`.
            unsafe { core.pool.frames.fill_loading(frame, skip, &bytes[from..from + n]) };
        }
    }

    /// Ends the loading, once: the pages are up to date, or removed if their bytes could not be
    /// read. [`Self::wake`] follows.
    pub(super) fn end(&self, file: &CachedFile, is_read: bool) {
        let core = &file.core;
        if !is_read {
            return self.remove(file);
        }
        for (frame, _, skip, n) in self.pieces(self.valid_bytes.min(self.bytes()), self.bytes()) {
            // SAFETY: the frame is loading, and all segments are dropped.
            unsafe { core.pool.frames.zero_loading(frame, skip, n) };
        }
        // Make the pages eviction candidates before any task can change them: a writer that dirties
        // one withdraws it.
        core.pool.evictable(&self.frames);
        for &frame in &self.frames {
            core.pool.settle(frame, core.pool.frames.state(frame).loaded());
        }
    }

    fn remove(&self, file: &CachedFile) {
        let pool = &file.core.pool;
        let mut pages = file.lock_pages();
        let mut cursor = pages.cursor();
        for &frame in &self.frames {
            if !pool.frames.state(frame).snapshot().is_detached() {
                pages.drop_page(&mut cursor, frame);
            }
        }
        drop(cursor);
        drop(pages);
        for &frame in &self.frames {
            pool.settle(frame, pool.frames.state(frame).load_failed());
        }
    }

    /// Wakes the tasks that wait for the pages.
    pub(super) fn wake(&self, file: &CachedFile) {
        let mut batch = file.core.pages.batch();
        for index in self.pages().indices() {
            batch.wake(loaded(file.key(index)));
        }
    }

    /// Splits the bytes `start..end` of the run at page boundaries. Yields (frame, offset from
    /// `start`, bytes to skip in the frame, length).
    fn pieces(&self, start: u64, end: u64) -> impl Iterator<Item = (FrameNo, usize, usize, usize)> {
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let skip = (at % PAGE) as usize;
            let n = ((end - at) as usize).min(PAGE_BYTES - skip);
            let piece = (self.frames[(at / PAGE) as usize], (at - start) as usize, skip, n);
            at += n as u64;
            Some(piece)
        })
    }
}

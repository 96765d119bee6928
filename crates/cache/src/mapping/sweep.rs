//! Removes many pages of a mapping, a batch at a time.
//!
//! A file may have millions of pages. Each batch takes the mapping's lock once and costs some tens
//! of microseconds. Between batches the task yields if it has used up its time.

use crate::page::FrameNo;
use crate::pass::ByRuns;
use crate::state::inner::Aftermath;
use crate::state::{Inner, Pages, loaded};
use crate::{Cost, PageRange};
use extant_rt::Class;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Frames visited per acquisition of the mapping's lock.
const BATCH: u64 = 64;
/// Most pages that a caller that cannot wait removes itself: less than 100 µs. A task removes more.
const AT_ONCE: u64 = 8 * BATCH;

/// Which pages of a range to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All pages, dirty or not.
    All,
    /// Clean pages. With `and_loading`, also those being loaded, and loaded ones that have not been
    /// read yet.
    Clean { and_loading: bool },
}

/// The position of a sweep.
enum Position {
    /// Looking up pages by index, next this one.
    Page(u64),
    /// Walking the mapping's list, with `left` frames to go.
    List { left: u64 },
    /// Walking the whole list in one batch, because another sweep is walking it and uses the list's
    /// head as its position.
    Whole,
}

/// A sweep that walks a mapping's list, with the list's head as its position.
struct Round<'a>(&'a Inner);

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.pages.lock().is_swept = false;
    }
}

impl Inner {
    /// Removes pages of `range` from the mapping.
    pub(crate) async fn sweep(&self, range: PageRange, which: Which) {
        let (mut position, _round) = self.begin_sweep(range, which);
        let mut budget = self.shared.rt.budget(ByRuns::STINT);
        while self.sweep_some(range, which, &mut position, BATCH) {
            budget.resched().await;
        }
    }

    /// Removes all pages, dirty or not, without waiting: the file is no longer used.
    pub(crate) fn discard(self: &Arc<Self>) {
        if self.pages.lock().cached <= AT_ONCE {
            return self.sweep_now();
        }
        // The flusher must not write back what is being given up.
        self.disk.give_up(self);
        self.clone().sweep_later();
    }

    fn sweep_now(&self) {
        let (range, which) = (PageRange::ALL, Which::All);
        let (mut position, _round) = self.begin_sweep(range, which);
        while self.sweep_some(range, which, &mut position, BATCH) {}
    }

    fn sweep_later(self: Arc<Self>) {
        let rt = self.shared.rt.clone();
        let sweep = async move { self.sweep(PageRange::ALL, Which::All).await };
        drop(rt.spawn("pages of a dropped file", Class::Normal, sweep));
    }

    fn begin_sweep(&self, range: PageRange, which: Which) -> (Position, Option<Round<'_>>) {
        let mut pages = self.pages.lock();
        if which == Which::All {
            pages.fills.remapped(range);
        }
        if range.len() < pages.cached {
            return (Position::Page(range.start), None);
        }
        if std::mem::replace(&mut pages.is_swept, true) {
            return (Position::Whole, None);
        }
        (Position::List { left: pages.cached }, Some(Round(self)))
    }

    /// Removes one batch; returns whether there is more.
    fn sweep_some(&self, range: PageRange, which: Which, position: &mut Position, batch: u64) -> bool {
        let shared = &*self.shared;
        let _sweeping = shared.sweeps.begin();
        let mut after = Aftermath::default();
        let mut loading = Vec::new();
        let mut removed = 0;
        let mut pages = self.pages.lock();
        let (frames, more) = match position {
            Position::Page(at) => {
                let end = range.end.min(*at + batch);
                let mut cursor = self.cursor(&pages);
                let frames: Vec<FrameNo> =
                    (*at..end).filter_map(|index| cursor.find(self.key(index))).collect();
                *at = end;
                (frames, end < range.end)
            }
            Position::List { left } => {
                // Others remove pages between batches. No batch goes round the ring more than once.
                let (cached, visited) = (pages.cached, (*left).min(batch).min(pages.cached));
                *left = if visited == cached { 0 } else { *left - visited };
                (self.next_frames(&mut pages, visited, range), *left > 0)
            }
            Position::Whole => {
                // Visit each frame once, so that the head returns to where the other sweep left it.
                let visited = pages.cached;
                (self.next_frames(&mut pages, visited, range), false)
            }
        };
        let mut cursor = self.cursor(&pages);
        for frame in frames {
            let seen = shared.pool.frames.state(frame).snapshot();
            let page = shared.pool.frames.key(frame);
            if let Which::Clean { and_loading } = which {
                let is_kept =
                    !seen.is_uptodate() || seen.is_writeback() || pages.dirty.contains(page.index());
                let is_awaited = seen.is_loading() || seen.is_unread();
                if if and_loading { is_kept && !seen.is_loading() } else { is_kept || is_awaited } {
                    continue;
                }
            }
            if seen.is_loading() {
                loading.push(page);
            }
            self.detach(&mut pages, &mut cursor, frame, &mut after);
            removed += 1;
        }
        drop(cursor);
        self.unlist_if_clean(&mut pages, &mut after);
        drop(pages);
        shared.rt.charge(Cost::PageInsert(removed));
        self.settle(after);
        // Waiters for removed pages look again.
        let mut wakes = shared.pages.batch();
        loading.into_iter().for_each(|page| wakes.wake(loaded(page)));
        more
    }

    /// The next `count` frames of the list, filtered to `range`. The list's head moves past all of
    /// them.
    fn next_frames(&self, pages: &mut Pages, count: u64, range: PageRange) -> Vec<FrameNo> {
        let mut found = Vec::new();
        for _ in 0..count {
            let Some(frame) = FrameNo::new(pages.first) else { break };
            if range.indices().contains(&self.shared.pool.frames.key(frame).index()) {
                found.push(frame);
            }
            pages.first = self.shared.pool.frames.siblings[frame.slot()].next.load(Ordering::Relaxed);
        }
        found
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        let _sweeping = shared.sweeps.begin();
        // Nothing is dirty or under write-back, because the disk's list and the bios would hold the
        // file, unless its world has ended.
        if !self.is_remainder && self.pages.lock().cached > AT_ONCE {
            self.remainder().sweep_later();
        } else {
            self.sweep_now();
            self.shared.unregister(self.file);
        }
        self.disk.release(&self.shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheConfig, FlatFile, PAGE_BYTES, PageCache};
    use extant_block::{MemDevice, Sector};

    #[test]
    fn a_sweep_of_clean_pages_beside_a_truncation_leaves_it_its_place() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0);
        let write = |page: u64| {
            mapping.open().write_blocking(page * PAGE_BYTES as u64, &[1; PAGE_BYTES]).expect("room");
        };
        (0..20).for_each(write);
        let inner = &mapping.0;
        let cut = PageRange::new(0, u64::MAX);
        let (mut first, _round) = inner.begin_sweep(cut, Which::All);
        assert!(inner.sweep_some(cut, Which::All, &mut first, 5));
        let clean = Which::Clean { and_loading: false };
        let (mut second, none) = inner.begin_sweep(PageRange::ALL, clean);
        assert!(none.is_none(), "the first goes round the list");
        (100..103).for_each(write);
        while inner.sweep_some(PageRange::ALL, clean, &mut second, 5) {}
        while inner.sweep_some(cut, Which::All, &mut first, 5) {}
        let left: Vec<u64> =
            (0..20).filter(|&page| inner.frame(&inner.pages.lock(), page).is_some()).collect();
        assert!(left.is_empty(), "pages {left:?} outlived the truncation");
    }

    #[test]
    fn a_sweep_visits_no_page_twice_when_others_remove_pages_before_it_comes_to_them() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0);
        let write = |page: u64| {
            mapping.open().write_blocking(page * PAGE_BYTES as u64, &[1; PAGE_BYTES]).expect("room");
        };
        let inner = &mapping.0;
        // The batches of a truncation, and how many of them come before others remove pages.
        for (batch, before) in [(64, 0), (5, 0), (5, 1), (5, 3)] {
            (0..20).for_each(write);
            let cut = PageRange::new(0, u64::MAX);
            let (mut sweep, _round) = inner.begin_sweep(cut, Which::All);
            for _ in 0..before {
                assert!(inner.sweep_some(cut, Which::All, &mut sweep, batch));
            }
            // As eviction does it: each page by itself.
            let others = PageRange::new(3, 18);
            while inner.sweep_some(others, Which::All, &mut Position::Page(others.start), 64) {}
            while inner.sweep_some(cut, Which::All, &mut sweep, batch) {}
            assert_eq!((mapping.cached_pages(), mapping.dirty_pages()), (0, 0), "{batch}, {before}");
        }
        cache.audit();
    }
}

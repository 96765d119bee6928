//! Removes many pages of a file, a batch at a time.
//!
//! A file may have millions of pages. Each batch takes the file's lock once and costs some tens of
//! microseconds. Between batches the task yields if it has used up its time.

use crate::file::{CachedFile, loaded};
use crate::page::FrameNo;
use crate::pass_policy::ByRuns;
use crate::{Cost, PageRange};
use extant_rt::Class;
use std::sync::Arc;

/// Frames visited per acquisition of the file's lock.
const BATCH: u64 = 64;
/// A caller that cannot wait removes up to this many pages itself, which takes less than 100 µs. If
/// there are more, a task removes them.
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

/// A removal's position.
enum Position {
    /// Looking up pages by index, next this one.
    Page(u64),
    /// Walking around the ring of the file's frames, with `left` to go.
    Ring { left: u64 },
    /// Walking around the whole ring in one batch, because another removal uses the ring's head as
    /// its own position.
    Whole,
}

/// A removal that walks around a file's ring, with the ring's head as its position.
struct Walk<'a>(&'a CachedFile);

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.0.lock_pages().end_walk();
    }
}

impl CachedFile {
    /// Removes pages of `range`.
    pub(crate) async fn remove_pages(&self, range: PageRange, which: Which) {
        let (mut position, _walk) = self.begin_removal(range, which);
        let mut budget = self.core.rt.budget(ByRuns::STINT);
        while self.remove_some(range, which, &mut position, BATCH) {
            budget.resched().await;
        }
    }

    /// Removes all pages, dirty or not, without waiting: the file is no longer used.
    pub(crate) fn discard(self: &Arc<Self>) {
        if self.lock_pages().cached() <= AT_ONCE {
            return self.remove_all_now();
        }
        // The flusher must not write back what is being given up.
        self.disk.give_up(self);
        self.clone().remove_all_later();
    }

    fn remove_all_now(&self) {
        self.remove_now(PageRange::ALL, Which::All);
    }

    /// Removes the clean pages of a short range.
    pub(crate) fn drop_clean_now(&self, range: PageRange) {
        self.remove_now(range, Which::Clean { and_loading: false });
    }

    fn remove_now(&self, range: PageRange, which: Which) {
        let (mut position, _walk) = self.begin_removal(range, which);
        while self.remove_some(range, which, &mut position, BATCH) {}
    }

    fn remove_all_later(self: Arc<Self>) {
        let rt = self.core.rt.clone();
        let removal = async move { self.remove_pages(PageRange::ALL, Which::All).await };
        drop(rt.spawn("pages of a dropped file", Class::Normal, removal));
    }

    fn begin_removal(&self, range: PageRange, which: Which) -> (Position, Option<Walk<'_>>) {
        let mut pages = self.lock_pages();
        if which == Which::All {
            pages.fills().remapped(range);
        }
        if range.len() < pages.cached() {
            return (Position::Page(range.start), None);
        }
        if !pages.begin_walk() {
            return (Position::Whole, None);
        }
        (Position::Ring { left: pages.cached() }, Some(Walk(self)))
    }

    /// Removes one batch; returns whether there is more.
    fn remove_some(&self, range: PageRange, which: Which, position: &mut Position, batch: u64) -> bool {
        let core = &*self.core;
        let _removal = core.removals.begin();
        let mut loading = Vec::new();
        let mut removed = 0;
        let mut pages = self.lock_pages();
        let (frames, more) = match position {
            Position::Page(at) => {
                let end = range.end.min(*at + batch);
                let mut cursor = pages.cursor();
                let frames: Vec<FrameNo> =
                    (*at..end).filter_map(|index| cursor.find(self.key(index))).collect();
                *at = end;
                (frames, end < range.end)
            }
            Position::Ring { left } => {
                // Others remove pages between batches. No batch goes round the ring more than once.
                let (cached, visited) = (pages.cached(), (*left).min(batch).min(pages.cached()));
                *left = if visited == cached { 0 } else { *left - visited };
                (pages.next_frames(visited, range), *left > 0)
            }
            Position::Whole => {
                // Visit each frame once, so that the head returns to where the other removal left
                // it.
                let visited = pages.cached();
                (pages.next_frames(visited, range), false)
            }
        };
        let mut cursor = pages.cursor();
        for frame in frames {
            let seen = core.pool.frames.state(frame).snapshot();
            let page = core.pool.frames.key(frame);
            if let Which::Clean { and_loading } = which {
                let is_kept =
                    !seen.is_uptodate() || seen.is_writeback() || pages.dirty().contains(page.index());
                let is_awaited = seen.is_loading() || seen.is_unread();
                if if and_loading { is_kept && !seen.is_loading() } else { is_kept || is_awaited } {
                    continue;
                }
            }
            if seen.is_loading() {
                loading.push(page);
            }
            pages.drop_page(&mut cursor, frame);
            removed += 1;
        }
        drop(cursor);
        pages.unlist_if_clean();
        let after = pages.unlock();
        core.rt.charge(Cost::PageInsert(removed));
        drop(after);
        // Waiters for removed pages look again.
        let mut wakes = core.pages.batch();
        loading.into_iter().for_each(|page| wakes.wake(loaded(page)));
        more
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        let core = self.core.clone();
        let _removal = core.removals.begin();
        // Nothing is dirty or under write-back: otherwise the device's order or a bio would hold
        // the file, unless its world has ended.
        if !self.is_remainder && self.lock_pages().cached() > AT_ONCE {
            self.remainder().remove_all_later();
        } else {
            self.remove_all_now();
            core.unregister(self.number);
        }
        self.disk.release(&core);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheConfig, FlatFile, PAGE_BYTES, PageCache};
    use extant_block::{MemDevice, Sector};

    #[test]
    fn a_removal_of_clean_pages_beside_a_truncation_leaves_it_its_place() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0);
        let write = |page: u64| {
            rt.block_on(mapping.open().write(page * PAGE_BYTES as u64, &[1; PAGE_BYTES]))
                .expect("no panic")
                .expect("room");
        };
        (0..20).for_each(write);
        let inner = &mapping.0;
        let cut = PageRange::new(0, u64::MAX);
        let (mut first, _walk) = inner.begin_removal(cut, Which::All);
        assert!(inner.remove_some(cut, Which::All, &mut first, 5));
        let clean = Which::Clean { and_loading: false };
        let (mut second, none) = inner.begin_removal(PageRange::ALL, clean);
        assert!(none.is_none(), "the first walks around the ring");
        (100..103).for_each(write);
        while inner.remove_some(PageRange::ALL, clean, &mut second, 5) {}
        while inner.remove_some(cut, Which::All, &mut first, 5) {}
        let left: Vec<u64> = (0..20).filter(|&page| inner.lock_pages().frame(page).is_some()).collect();
        assert!(left.is_empty(), "pages {left:?} outlived the truncation");
    }

    #[test]
    fn a_removal_visits_no_page_twice_when_others_remove_pages_before_it_comes_to_them() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0);
        let write = |page: u64| {
            rt.block_on(mapping.open().write(page * PAGE_BYTES as u64, &[1; PAGE_BYTES]))
                .expect("no panic")
                .expect("room");
        };
        let inner = &mapping.0;
        // The batch sizes of a truncation, and how many batches run before others remove pages.
        for (batch, before) in [(64, 0), (5, 0), (5, 1), (5, 3)] {
            (0..20).for_each(write);
            let cut = PageRange::new(0, u64::MAX);
            let (mut removal, _walk) = inner.begin_removal(cut, Which::All);
            for _ in 0..before {
                assert!(inner.remove_some(cut, Which::All, &mut removal, batch));
            }
            // Remove pages one by one, as eviction does.
            let others = PageRange::new(3, 18);
            while inner.remove_some(others, Which::All, &mut Position::Page(others.start), 64) {}
            while inner.remove_some(cut, Which::All, &mut removal, batch) {}
            assert_eq!((mapping.cached_pages(), mapping.dirty_pages()), (0, 0), "{batch}, {before}");
        }
        cache.audit();
    }
}

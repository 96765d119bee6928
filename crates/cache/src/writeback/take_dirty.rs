//! Chooses the dirty pages of a run, and takes them.

use crate::file::CachedFile;
use crate::file::page_table::TakenPages;
use crate::file::write_run::WriteRun;
use crate::page::PAGE;
use crate::pass_policy::DirtyAhead;
use crate::writeback::pass_yields::Visiting;
use crate::writeback::window::Window;
use crate::{Cost, PageRange};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Result of a search for dirty pages.
#[derive(Debug)]
pub(super) enum Taken {
    /// A run, now under write-back.
    Run(Arc<WriteRun>),
    /// This page is dirty, but its previous contents are in flight.
    InFlight(u64),
    /// This page is dirty, but a task is changing it.
    Busy(u64),
    /// Nothing is dirty.
    Clean,
}

impl CachedFile {
    /// Takes the next run of `range` for a window, as planned by the visit, which may still write
    /// `left` pages.
    pub(super) async fn take_step(
        self: &Arc<Self>,
        range: PageRange,
        left: u64,
        visiting: &mut Visiting<'_>,
        window: &Window,
    ) -> Taken {
        let most_pages = self.core.settings.run_pages;
        let look_pages = visiting.visit.look_pages(left, most_pages);
        let run_pages = {
            let pages = self.lock_pages();
            let dirty = pages.dirty();
            let Some(first) = dirty.first_in(range.indices()) else { return Taken::Clean };
            dirty.run_end(first..range.end.min(first.saturating_add(look_pages))) - first
        };
        let step = visiting.visit.step(DirtyAhead { run_pages, left_pages: left, most_pages });
        // Take nothing before the last yield: the caller may go away there.
        visiting.before_taking(step).await;
        self.take_dirty(range, step.take_pages, step.bio_pages, window)
    }

    /// Puts the first run of dirty pages in `range` under write-back, at most `max_pages` pages.
    /// With `bio_pages`, its bios have this length and are not merged with others.
    pub(super) fn take_dirty(
        self: &Arc<Self>,
        range: PageRange,
        max_pages: u64,
        bio_pages: Option<u64>,
        window: &Window,
    ) -> Taken {
        let mut pages = self.lock_pages();
        let size = self.size();
        let retries = self.disk.retries.load(Ordering::SeqCst);
        let Some(first) = pages.dirty().first_in(range.indices()) else { return Taken::Clean };
        if pages.writeback().contains(first) {
            return Taken::InFlight(first);
        }
        let end = pages.dirty().run_end(first..range.end.min(first.saturating_add(max_pages.max(1))));
        let end = pages.writeback().first_in(first..end).unwrap_or(end);
        #[cfg(test)]
        tests::before_taking();
        let Some(taken) = pages.begin_writeback(first..end) else { return Taken::Busy(first) };
        let TakenPages { first, frames, mut quarters, charge, number } = taken;
        let count = frames.len() as u64;
        // A write to a dirty page takes no lock. Such a write may have grown the file after the
        // size was read and before its page was taken; then its bytes are in the run. Pages that
        // have been taken do not change any more.
        let size_bytes = size.max(self.size().min((first + count) * PAGE));
        drop(pages);
        if quarters.iter().all(|&dirty| dirty == 0xf) {
            quarters.clear();
        }
        let in_blocks = size_bytes.next_multiple_of(self.backing.block_bytes().into());
        let started = self.core.rt.now();
        let flush_failures = self.disk.flushes.failures();
        self.core.rt.charge(Cost::PageDirty(count));
        Taken::Run(Arc::new(WriteRun {
            file: self.clone(),
            first,
            frames,
            quarters,
            size_bytes,
            end_bytes: in_blocks.min(self.backing.end_bytes().max(size_bytes)),
            bio_pages: bio_pages.map_or(self.core.settings.bio_pages, |pages| pages.max(1)),
            is_whole_bios: bio_pages.is_some(),
            flags: window.flags,
            batch: window.batch.clone(),
            in_flight: window.in_flight.clone(),
            started,
            number,
            flush_failures,
            retries,
            charge: Mutex::new(Some(charge)),
            bios_left: AtomicUsize::new(1),
            progress: Mutex::default(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Answer, Backing, BackingError, BackingErrorKind, ByteRange, CacheConfig, CacheError, DirtyRun,
        FlatFile, OnWriteError, PAGE_BYTES, PageCache, Placed, ReadExtent, ReadFrom, WriteExtent, WriteTo,
        WrittenRun,
    };
    use extant_block::{BioFlags, MemDevice, Sector};
    use std::cell::RefCell;

    /// Places the first `pages` pages of a file, and records the ranges that are given up.
    #[derive(Debug, Default)]
    struct Places {
        pages: u64,
        given_up: Mutex<Vec<ByteRange>>,
    }

    impl Backing for Places {
        fn block_bytes(&self) -> u32 {
            4096
        }
        fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
            Answer::ok(ReadExtent { from: ReadFrom::Hole, bytes: range.len() })
        }
        fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
            let range = run.pieces[0].intersect(ByteRange::new(0, self.pages * PAGE));
            if range.is_empty() {
                return Answer::err(BackingError::new(BackingErrorKind::Other, std::fmt::Error));
            }
            let to = WriteTo::Device(Sector(range.start / Sector::BYTES));
            let extent = WriteExtent { range, to, zero_before: 0, zero_after: 0, note: 0 };
            Answer::ok(Placed { extents: [extent].into_iter().collect(), ..Placed::default() })
        }
        fn finish_write<'a>(&'a self, _run: &'a WrittenRun) -> Answer<'a, ()> {
            Answer::ok(())
        }
        fn abandoned(&self, range: ByteRange) {
            self.given_up.lock().push(range);
        }
    }

    thread_local! {
        /// Run once, by the next search for dirty pages on this thread.
        static BEFORE_TAKING: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn before_taking() {
        if let Some(hook) = BEFORE_TAKING.take() {
            hook();
        }
    }

    #[test]
    fn bytes_that_are_appended_while_their_page_is_taken_are_within_the_runs_size() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0);
        let file = Arc::new(mapping.open());
        rt.block_on(file.write(0, &[1; 3000])).expect("no panic").expect("room");
        let appender = file.clone();
        let hook = move || appender.try_write(3000, &[2; 10]).expect("the page is there and dirty");
        BEFORE_TAKING.set(Some(Box::new(hook)));
        let mut window = Window::new(&mapping.0.core, &mapping.0.disk, BioFlags::SYNC);
        let Taken::Run(run) = mapping.0.take_dirty(PageRange::ALL, 16, None, &window) else {
            panic!("a page is dirty")
        };
        assert_eq!(mapping.dirty_pages(), 0, "no later run has the bytes");
        assert_eq!((run.size_bytes, mapping.size()), (3010, 3010));
        window.push(run);
        drop(window);
        rt.block_on(mapping.write_back(..)).expect("no panic").expect("nothing fails");
    }

    #[test]
    fn pages_that_are_taken_while_the_file_is_cut_off_are_given_up() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let backing = Arc::new(Places::default());
        let mapping = disk.mapping(backing.clone(), 1, 0);
        rt.block_on(mapping.open().write(0, &[1; 3 * PAGE_BYTES])).expect("no panic").expect("room");
        // The first step of a truncation; then the flusher comes.
        mapping.0.store_size(0);
        rt.block_on(mapping.write_back(..)).expect("no panic").expect("nothing fails");
        assert_eq!(*backing.given_up.lock(), [ByteRange::new(0, 3 * PAGE)]);
        assert_eq!(mapping.dirty_pages(), 0);
    }

    #[test]
    fn a_run_without_bios_does_not_say_that_a_failing_device_works_again() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let mapping = disk.mapping(Arc::new(Places { pages: 3, ..Places::default() }), 1, 0);
        rt.block_on(mapping.open().write(0, &[1; PAGE_BYTES])).expect("no panic").expect("room");
        disk.state.health.note(&Err(CacheError::ShutDown));
        mapping.0.store_size(0);
        rt.block_on(mapping.write_back(..)).expect("no panic").expect("nothing fails");
        assert!(disk.state.health.is_failing(), "the page was cut off and not written");
        rt.block_on(mapping.open().write(0, &[1; PAGE_BYTES])).expect("no panic").expect("room");
        rt.block_on(mapping.write_back(..)).expect("no panic").expect("nothing fails");
        assert!(!disk.state.health.is_failing());
    }

    #[test]
    fn a_run_that_was_taken_before_space_came_back_leaves_no_file_without_a_place() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let mapping = disk.mapping(Arc::new(Places::default()), 1, 0);
        rt.block_on(mapping.open().write(0, &[1; PAGE_BYTES])).expect("no panic").expect("room");
        let mut window = Window::new(&mapping.0.core, &mapping.0.disk, BioFlags::SYNC);
        let take = |window: &Window| match mapping.0.take_dirty(PageRange::ALL, 1, None, window) {
            Taken::Run(run) => run,
            other => panic!("expected a run: {other:?}"),
        };
        let run = take(&window);
        // The backing may have looked for space before this retry, but answer after it.
        disk.retry(|_| true);
        window.push(run);
        window.submit();
        assert!(!mapping.0.is_unplaceable(), "the flusher has not tried since");
        let run = take(&window);
        window.push(run);
        window.submit();
        assert!(mapping.0.is_unplaceable());
        disk.retry(|_| false);
        assert!(mapping.0.is_unplaceable(), "for another reason");
        disk.retry(|error| matches!(error, CacheError::Backing(_)));
        assert!(!mapping.0.is_unplaceable());
    }

    #[test]
    fn pages_of_a_run_that_were_placed_are_not_given_up_with_the_rest() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let config =
            CacheConfig { on_write_error: OnWriteError::MarkClean, ..CacheConfig::with_budget(1 << 20) };
        let cache = PageCache::new(&rt, config).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let backing = Arc::new(Places { pages: 2, ..Places::default() });
        let mapping = disk.mapping(backing.clone(), 1, 0);
        rt.block_on(mapping.open().write(0, &[1; 5 * PAGE_BYTES])).expect("no panic").expect("room");
        rt.block_on(mapping.write_back(..)).expect("no panic").expect_err("three have no place");
        assert_eq!(*backing.given_up.lock(), [ByteRange::new(2 * PAGE, 5 * PAGE)]);
    }
}

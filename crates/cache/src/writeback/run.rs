//! Runs of dirty pages: taking them, and ending their write-back.

use crate::page::PAGE;
use crate::pass::{DirtyAhead, Visiting};
use crate::state::inner::Aftermath;
use crate::state::run::{Outcome, WriteRun};
use crate::state::{Inner, written};
use crate::waits::Condition;
use crate::{CacheError, Cost, Event, OnWriteError, PageRange, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Result of a search for dirty pages.
#[derive(Debug)]
pub(crate) enum Taken {
    /// A run, now under write-back.
    Run(WriteRun),
    /// This page is dirty, but its previous contents are in flight.
    InFlight(u64),
    /// This page is dirty, but a task is changing it.
    Busy(u64),
    /// Nothing is dirty.
    Clean,
}

impl Inner {
    /// Takes the next run of `range` as planned by the visit, which may still write `left` pages.
    pub(crate) async fn take_step(
        self: &Arc<Self>,
        range: PageRange,
        left: u64,
        visiting: &mut Visiting<'_>,
    ) -> Taken {
        let most_pages = self.shared.settings.run_pages;
        let look_pages = visiting.visit.look_pages(left, most_pages);
        let run_pages = {
            let pages = self.pages.lock();
            let Some(first) = pages.dirty.first_in(range.indices()) else { return Taken::Clean };
            pages.dirty.run_end(first..range.end.min(first.saturating_add(look_pages))) - first
        };
        let step = visiting.visit.step(DirtyAhead { run_pages, left_pages: left, most_pages });
        // Take nothing before the last yield: the caller may go away there.
        visiting.before_taking(step).await;
        let mut taken = self.take_dirty(range, step.take_pages);
        if let (Taken::Run(run), Some(bio_pages)) = (&mut taken, step.bio_pages) {
            (run.bio_pages, run.is_whole_bios) = (bio_pages.max(1), true);
        }
        taken
    }

    /// Puts the first run of dirty pages in `range` under write-back, at most `max_pages` pages.
    pub(crate) fn take_dirty(self: &Arc<Self>, range: PageRange, max_pages: u64) -> Taken {
        let mut pages = self.pages.lock();
        let size = self.size();
        let retries = self.disk.retries.load(Ordering::SeqCst);
        let Some(first) = pages.dirty.first_in(range.indices()) else { return Taken::Clean };
        if pages.writeback.contains(first) {
            return Taken::InFlight(first);
        }
        let end = pages.dirty.run_end(first..range.end.min(first.saturating_add(max_pages.max(1))));
        let end = pages.writeback.first_in(first..end).unwrap_or(end);
        #[cfg(test)]
        tests::before_taking();
        let (mut frames, mut masks) =
            (Vec::with_capacity((end - first) as usize), Vec::with_capacity((end - first) as usize));
        let mut cursor = self.cursor(&pages);
        for index in first..end {
            let frame = cursor.find(self.key(index)).expect("a dirty page has a frame");
            let Some(mask) = self.shared.pool.frames.state(frame).start_writeback() else { break };
            frames.push(frame);
            masks.push(mask);
        }
        drop(cursor);
        if frames.is_empty() {
            return Taken::Busy(first);
        }
        let count = frames.len() as u64;
        // A write to a dirty page takes no lock. One may have grown the file after the size was
        // read and before its page was taken, so its bytes are in the run. Pages that have been
        // taken no longer change.
        let size = size.max(self.size().min((first + count) * PAGE));
        let charge = Mutex::new(Some(pages.dirty.take(first..first + count)));
        let number = pages.writeback.begin(PageRange::new(first, first + count));
        let mut after = Aftermath::default();
        self.unlist_if_clean(&mut pages, &mut after);
        drop(pages);
        self.settle(after);
        if masks.iter().all(|&mask| mask == 0xf) {
            masks.clear();
        }
        let end_bytes =
            size.next_multiple_of(self.backing.block_bytes().into()).min(self.backing.end_bytes().max(size));
        let started = self.shared.rt.now();
        let flush_failures = self.disk.flushes.failures();
        self.shared.rt.charge(Cost::PageDirty(count));
        let (inner, bio_pages) = (self.clone(), self.shared.settings.bio_pages);
        let size_bytes = size;
        Taken::Run(WriteRun {
            inner,
            first,
            frames,
            masks,
            size_bytes,
            end_bytes,
            bio_pages,
            is_whole_bios: false,
            started,
            number,
            flush_failures,
            retries,
            charge,
        })
    }
}

impl WriteRun {
    /// The device has completed the run.
    pub(super) fn landed(&self) {
        if let Some(charge) = &*self.charge.lock() {
            charge.landed();
        }
    }

    /// Takes the pages out of write-back. They become clean; after an error, the configuration
    /// decides.
    pub(super) fn end(&self, result: &Result<()>, outcome: &Outcome) {
        let inner = &self.inner;
        let shared = &inner.shared;
        let count = self.frames.len() as u64;
        let mut charge = self.charge.lock().take().expect("a run ends once");
        let keep = result.is_err() && shared.settings.on_write_error == OnWriteError::KeepDirty;
        // A run of which nothing went to the device says nothing about the device.
        if outcome.had_bios || result.is_err() {
            inner.disk.note(result);
        }
        let sticks = matches!(result, Err(CacheError::Backing(_))) && keep;
        shared.rt.charge(Cost::PageLookup(count));
        let mut clean = Vec::with_capacity(self.frames.len());
        let mut freed = Vec::new();
        // Pages that were not placed are given up along with their reservation.
        let gives_up = !keep && outcome.not_placed.is_some();
        let not_placed = outcome.placed_end / PAGE;
        // Pages cut off by a concurrent truncation were taken but not written.
        let cut = self.end_bytes.div_ceil(PAGE).clamp(self.first, self.pages().end);
        let mut abandoned: Vec<u64> = if keep { Vec::new() } else { (cut..self.pages().end).collect() };
        {
            let mut pages = inner.pages.lock();
            if outcome.changes_map {
                pages.fills.remapped(self.pages());
            }
            if sticks {
                inner.stick_since(self.retries, &mut pages, result.clone().err());
            } else if result.is_ok() {
                inner.unstick(&mut pages);
            }
            for (slot, &frame) in self.frames.iter().enumerate() {
                let index = self.first + slot as u64;
                let mask = self.masks.get(slot).copied().unwrap_or(0xf);
                let (after, before) =
                    shared.pool.frames.state(frame).end_writeback(if keep { mask } else { 0 });
                if after == crate::pool::state::After::Freed {
                    freed.push(frame);
                }
                if !keep {
                    if !before.is_detached() {
                        clean.push(frame);
                        let is_given_up = gives_up && (not_placed..cut).contains(&index);
                        abandoned.extend(is_given_up.then_some(index));
                    }
                    continue;
                }
                // The page's newer contents are in another frame; it inherits the dirty parts that
                // were not written.
                if before.is_detached() {
                    match inner.frame(&pages, index) {
                        Some(newer) if pages.dirty.contains(index) => {
                            shared.pool.frames.state(newer).set_dirty(mask);
                        }
                        _ => {}
                    }
                } else {
                    // List the file first: a flusher that finds nothing under write-back must find
                    // the file.
                    inner.list(&mut pages);
                    pages.dirty.put_back(index..index + 1, charge.split(1));
                }
            }
            if sticks && pages.dirty.is_empty() {
                // A truncation has overtaken the whole run: no unplaceable page is left.
                inner.unstick(&mut pages);
            }
            // Before anyone can have dirtied a page again.
            shared.pool.enter_evictable(&clean);
        }
        if result.is_ok() {
            charge.written();
        }
        let room = charge.end();
        inner.abandon(abandoned);
        if !freed.is_empty() {
            shared.pool.free_all(freed);
        }
        shared.pool.wake_for(clean.len());
        if result.is_ok() {
            shared.rt.trace(Event::PagesWritten { inode: inner.inode, page: self.first, pages: count });
            let now = shared.rt.now();
            let numbers = inner.disk.ledger.numbers();
            shared.control.lock().written(now, &numbers, count, now.saturating_sub(self.started));
        } else {
            // Waiters for room look again and get the error.
            shared.waits.wake_all(Condition::Room(None));
            shared.waits.wake_all(Condition::Room(Some(inner.disk.index.0)));
            shared.waits.wake_all(Condition::Frames);
        }
        shared.trace_levels(&inner.disk);
        drop(room);
        shared.waits.wake_all(Condition::Written(inner.disk.index.0));
        if inner.disk.is_waited_for(shared) {
            inner.disk.kick(shared);
        }
        {
            // Last, so that waiters for the run find everything settled. The error is recorded in
            // the same step, so that a caller gets the error of each run it waits for.
            let mut pages = inner.pages.lock();
            if let Err(error) = result {
                inner.record(error.clone());
            }
            pages.writeback.end(self.number);
        }
        shared.pages.wake(written(inner.file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::Window;
    use crate::{
        Answer, Backing, BackingError, BackingErrorKind, ByteRange, CacheConfig, DirtyRun, FlatFile,
        PAGE_BYTES, PageCache, Placed, ReadExtent, ReadFrom, WriteExtent, WriteTo, WrittenRun,
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
        file.write_blocking(0, &[1; 3000]).expect("room");
        let appender = file.clone();
        let hook = move || appender.try_write(3000, &[2; 10]).expect("the page is there and dirty");
        BEFORE_TAKING.set(Some(Box::new(hook)));
        let Taken::Run(run) = mapping.0.take_dirty(PageRange::ALL, 16) else { panic!("a page is dirty") };
        assert_eq!(mapping.dirty_pages(), 0, "no later run has the bytes");
        assert_eq!((run.size_bytes, mapping.size()), (3010, 3010));
        Window::new(&mapping.0.shared, &mapping.0.disk).push(run, BioFlags::SYNC);
        rt.block_on(mapping.write_back(..)).expect("no panic").expect("nothing fails");
    }

    #[test]
    fn pages_that_are_taken_while_the_file_is_cut_off_are_given_up() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let backing = Arc::new(Places::default());
        let mapping = disk.mapping(backing.clone(), 1, 0);
        mapping.open().write_blocking(0, &[1; 3 * PAGE_BYTES]).expect("room");
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
        mapping.open().write_blocking(0, &[1; PAGE_BYTES]).expect("room");
        disk.state.note(&Err(CacheError::ShutDown));
        mapping.0.store_size(0);
        rt.block_on(mapping.write_back(..)).expect("no panic").expect("nothing fails");
        assert!(disk.state.is_failing(), "the page was cut off and not written");
        mapping.open().write_blocking(0, &[1; PAGE_BYTES]).expect("room");
        rt.block_on(mapping.write_back(..)).expect("no panic").expect("nothing fails");
        assert!(!disk.state.is_failing());
    }

    #[test]
    fn a_run_that_was_taken_before_space_came_back_has_no_file_stuck() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let mapping = disk.mapping(Arc::new(Places::default()), 1, 0);
        mapping.open().write_blocking(0, &[1; PAGE_BYTES]).expect("room");
        let take = || match mapping.0.take_dirty(PageRange::ALL, 1) {
            Taken::Run(run) => run,
            other => panic!("a page is dirty, and nobody has it: {other:?}"),
        };
        let run = take();
        // The backing may have looked for space before this retry, and answers after it.
        disk.retry(|_| true);
        Window::new(&mapping.0.shared, &mapping.0.disk).push(run, BioFlags::SYNC);
        assert!(!mapping.0.is_stuck(), "the flusher has not tried since");
        Window::new(&mapping.0.shared, &mapping.0.disk).push(take(), BioFlags::SYNC);
        assert!(mapping.0.is_stuck());
        disk.retry(|_| false);
        assert!(mapping.0.is_stuck(), "it is stuck for another reason");
        disk.retry(|error| matches!(error, CacheError::Backing(_)));
        assert!(!mapping.0.is_stuck());
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
        mapping.open().write_blocking(0, &[1; 5 * PAGE_BYTES]).expect("room");
        rt.block_on(mapping.write_back(..)).expect("no panic").expect_err("three have no place");
        assert_eq!(*backing.given_up.lock(), [ByteRange::new(2 * PAGE, 5 * PAGE)]);
    }
}

//! The end of a run: its pages leave write-back, counters are updated, and a failure is reported.

use crate::dirty::charges::WritebackCharge;
use crate::file::page_table::LeftWriteback;
use crate::file::write_run::{RunResult, RunStep, WriteRun};
use crate::file::{CachedFile, written};
use crate::page::PAGE;
use crate::waits::Condition;
use crate::{CacheError, Cost, Event, OnWriteError, PageRange, Result};

/// Runs of this many pages and more are part of a stream, whose pages are not written again soon.
const LONG_RUN: usize = 16;

/// Why a run failed. It is reported twice. The device learns of it before the pages leave
/// write-back, because that wakes waiting writers, which must find the device failing. The file's
/// error log gets it in the step that ends the run, so that a caller sees the error of each run it
/// waits for.
struct WriteFailure {
    error: CacheError,
    /// Whether the pages are dirty again.
    keeps_dirty: bool,
    /// Whether the backing had no place for the pages.
    is_unplaceable: bool,
}

impl WriteFailure {
    fn new(error: &CacheError, on_error: OnWriteError) -> Self {
        let keeps_dirty = on_error == OnWriteError::KeepDirty;
        let is_unplaceable = keeps_dirty && matches!(error, CacheError::Backing(_));
        Self { error: error.clone(), keeps_dirty, is_unplaceable }
    }

    fn record(&self, file: &CachedFile) {
        file.disk.health.record(self.error.clone());
        file.errors.record(self.error.clone());
    }
}

/// What is left to do once the pages have left write-back.
struct SettledPages {
    left: LeftWriteback,
    /// Pages that will not be written.
    abandoned: Vec<u64>,
}

impl WriteRun {
    /// Takes the pages out of write-back. They become clean; after an error, the configuration
    /// decides whether they do. Wakes tasks that wait for the pages, for room, or for the run's
    /// window.
    pub(super) fn settle(&self, outcome: &Result<()>, result: &RunResult) {
        self.progress.lock().advance(RunStep::Settled);
        let (file, core) = (&self.file, &self.file.core);
        let mut charge = self.charge.lock().take().expect("a run ends once");
        let on_error = core.settings.on_write_error;
        let failure = outcome.as_ref().err().map(|error| WriteFailure::new(error, on_error));
        // A run without bios says nothing about the device.
        if result.had_bios || failure.is_some() {
            file.disk.health.note(outcome);
        }
        core.rt.charge(Cost::PageLookup(self.frames.len() as u64));
        let settled = self.settle_pages(failure.as_ref(), result, &mut charge);
        self.account(failure.is_none(), charge, settled);
        {
            // Last, so that waiters for the run find everything settled.
            let mut pages = file.lock_pages();
            if let Some(failure) = failure {
                failure.record(file);
            }
            pages.end_run(self.number);
        }
        core.pages.wake(written(file.number));
        if core.settings.frees_long_runs && outcome.is_ok() && self.frames.len() >= LONG_RUN {
            // The next write may go on in the file's last page, and would have to read it.
            let PageRange { start, end } = self.pages();
            file.drop_clean_now(PageRange { start, end: end.min(self.size_bytes / PAGE).max(start) });
        }
        self.leave_window();
    }

    fn settle_pages(
        &self,
        failure: Option<&WriteFailure>,
        result: &RunResult,
        charge: &mut WritebackCharge,
    ) -> SettledPages {
        let (file, core) = (&self.file, &self.file.core);
        let keeps_dirty = failure.is_some_and(|failure| failure.keeps_dirty);
        let unplaceable = failure.filter(|failure| failure.is_unplaceable);
        // Pages cut off by a concurrent truncation were taken but not written.
        let cut = self.end_bytes.div_ceil(PAGE).clamp(self.first, self.pages().end);
        let mut pages = file.lock_pages();
        match result.changes_map {
            true => pages.fills().remapped(self.pages()),
            false => pages.fills().overwritten(self.pages()),
        }
        if let Some(failure) = unplaceable {
            pages.set_unplaceable(self.retries, failure.error.clone());
        } else if failure.is_none() {
            pages.set_placeable();
        }
        if keeps_dirty {
            let quarters = |slot: usize| self.quarters.get(slot).copied().unwrap_or(0xf);
            let left = pages.leave_writeback(self.first, &self.frames, Some((charge, quarters)));
            if unplaceable.is_some() && pages.dirty().is_empty() {
                // A truncation has removed all pages of the run, so the file has no unplaceable
                // page left.
                pages.set_placeable();
            }
            return SettledPages { left, abandoned: Vec::new() };
        }
        let left = pages.leave_writeback(self.first, &self.frames, None::<(_, fn(usize) -> u8)>);
        let mut abandoned: Vec<u64> = (cut..self.pages().end).collect();
        if result.not_placed.is_some() {
            // Pages that were not placed are lost, and their reservation is released.
            let not_placed = result.placed_end / PAGE..cut;
            let index = |frame| core.pool.frames.key(frame).index();
            abandoned.extend(left.clean.iter().map(|&frame| index(frame)).filter(|n| not_placed.contains(n)));
        }
        // Enter the frames before a page can be dirtied again.
        core.pool.enter_evictable(&left.clean);
        SettledPages { left, abandoned }
    }

    /// Updates the counters, and wakes the tasks that can go on.
    fn account(&self, is_written: bool, charge: WritebackCharge, settled: SettledPages) {
        let (file, core, disk) = (&self.file, &self.file.core, &self.file.disk);
        let SettledPages { left: LeftWriteback { clean, freed }, abandoned } = settled;
        if is_written {
            charge.written();
        }
        let room = charge.end();
        file.abandon(abandoned);
        if !freed.is_empty() {
            core.pool.free_all(freed);
        }
        core.pool.wake_for(clean.len());
        if is_written {
            let (inode, page, pages) = (file.inode, self.first, self.frames.len() as u64);
            core.rt.trace(Event::PagesWritten { inode, page, pages });
            let now = core.rt.now();
            let numbers = disk.ledger.numbers();
            core.control.lock().written(now, &numbers, pages, now.saturating_sub(self.started));
        } else {
            // Waiters for room look again and get the error.
            core.waits.wake_all(Condition::Room(None));
            core.waits.wake_all(Condition::Room(Some(disk.index.0)));
            core.waits.wake_all(Condition::Frames);
        }
        core.trace_levels(disk);
        drop(room);
        core.waits.wake_all(Condition::Written(disk.index.0));
        if disk.is_waited_for(core) {
            disk.kick(core);
        }
    }

    /// Makes room in the run's window.
    fn leave_window(&self) {
        let mut in_flight = self.in_flight.lock();
        in_flight.pages -= self.frames.len() as u64;
        let pages = in_flight.pages;
        let waiter = in_flight.waiter.take_if(|(most, _)| pages <= *most);
        drop(in_flight);
        if let Some((_, waker)) = waiter {
            waker.wake();
        }
    }
}

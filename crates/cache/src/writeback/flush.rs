//! Flushing a device's volatile cache, and what a failure means for the files that were written before.
//!
//! A device reports a failed flush once, and what its cache held may be gone. So every file that was written since the last
//! good flush takes the error into its log, where each of its open files is told once; and the device counts failures, for
//! a file system to latch on.
//!
//! One flush of a device is in flight at a time, and callers that come meanwhile share the next one (as Linux's
//! `block/blk-flush.c` has it). Two in flight could end in one order on the device and be reaped in the other: the good one
//! would vouch for data that the failed one had lost.

use crate::mapping::Inner;
use crate::page::FileId;
use crate::shared::Shared;
use crate::writeback::disk::DiskState;
use crate::{CacheError, Result};
use extant_block::{Bio, IoError, Op, Sector};
use extant_rt::WaitKey;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The writes that a device's flushes are to cover.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Flushes that were begun, and those that have ended: as many, or one less.
    begun: u64,
    ended: u64,
    /// The last that failed.
    failed: Option<(u64, IoError)>,
    /// Files that were written to the device since the last good flush began.
    unflushed: BTreeMap<FileId, Unflushed>,
    failures: u64,
}

#[derive(Debug)]
struct Unflushed {
    file: Weak<Inner>,
    /// Flushes that had begun when it was written last.
    written_at: u64,
}

/// A caller's part in the flushing of a device.
enum Part {
    /// It begins this flush.
    Begins(u64),
    /// A flush that began after the caller had come has ended like this.
    Shares(std::result::Result<(), IoError>),
}

impl Flushes {
    /// Failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    fn begun(&self) -> u64 {
        self.0.lock().begun
    }

    /// The part of a caller that came when `since` flushes had begun; `None` while it is to wait.
    fn part(&self, since: u64) -> Option<Part> {
        let mut state = self.0.lock();
        match &state.failed {
            Some((nth, error)) if *nth > since => return Some(Part::Shares(Err(error.clone()))),
            _ if state.ended > since => return Some(Part::Shares(Ok(()))),
            _ if state.begun > state.ended => return None,
            _ => {}
        }
        state.begun += 1;
        Some(Part::Begins(state.begun))
    }

    /// Flush number `nth` has ended, and its failure has been entered.
    fn end(&self, nth: u64, result: &std::result::Result<(), IoError>) {
        let mut state = self.0.lock();
        state.ended = nth;
        match result {
            Ok(()) => state.unflushed.retain(|_, entry| entry.written_at >= nth),
            Err(error) => state.failed = Some((nth, error.clone())),
        }
    }

    /// A flush failed. Gives the files that may have lost data.
    fn fail(&self) -> Vec<Arc<Inner>> {
        let mut state = self.0.lock();
        state.failures += 1;
        state.unflushed.values().filter_map(|entry| entry.file.upgrade()).collect()
    }
}

/// A flush of a device ended.
fn flushed(disk: &DiskState) -> WaitKey {
    WaitKey { object: disk.index.0.into(), event: 3 }
}

impl DiskState {
    /// A write of `file` has reached the device, though perhaps only its cache.
    pub(crate) fn note_unflushed(&self, file: &Arc<Inner>) {
        if self.device.limits().volatile_cache {
            let mut state = self.flushes.0.lock();
            let written_at = state.begun;
            let fresh = || Unflushed { file: Arc::downgrade(file), written_at };
            let entry = state.unflushed.entry(file.file).or_insert_with(fresh);
            // The number may have been another file's before.
            if entry.file.strong_count() == 0 {
                entry.file = Arc::downgrade(file);
            }
            entry.written_at = written_at;
        }
    }

    /// A flush failed: enters it where it is to be reported.
    pub(crate) fn flush_failed(&self, error: &IoError) {
        self.errors.record(CacheError::Io(error.clone()));
        for file in self.flushes.fail() {
            file.errors.record(CacheError::Io(error.clone()));
        }
    }

    /// Flushes the device's cache, if it has one: a flush that begins after this was called has ended when it returns. Where
    /// the caller leaves, the outcome is entered all the same: the device tells it once.
    pub(crate) async fn flush(self: &Arc<Self>, shared: &Arc<Shared>) -> Result<()> {
        if !self.device.limits().volatile_cache {
            return Ok(());
        }
        let since = self.flushes.begun();
        loop {
            let mut part = None;
            let has_part = || {
                part = self.flushes.part(since);
                part.is_some()
            };
            shared.pages.wait_until(flushed(self), has_part).await;
            match part.expect("the wait is over") {
                Part::Shares(result) => return result.map_err(CacheError::Io),
                Part::Begins(nth) => self.submit_flush(shared, nth),
            }
        }
    }

    /// Its end is entered on the thread that reaps it, whatever becomes of the callers that wait for it.
    fn submit_flush(self: &Arc<Self>, shared: &Arc<Shared>, nth: u64) {
        let (disk, shared) = (self.clone(), shared.clone());
        let mut bio = Bio::range(Op::Flush, Sector(0), 0);
        bio.on_end(Box::new(move |_, result| {
            if let Err(error) = &result {
                disk.flush_failed(error);
            }
            disk.flushes.end(nth, &result);
            shared.pages.wake(flushed(&disk));
        }));
        self.device.submit(bio);
    }
}

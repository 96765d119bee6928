//! Flushing a device's volatile cache, and what a failure means for the files that were written before.
//!
//! A device reports a failed flush once, and what its cache held may be gone. So every file that was written since the last
//! good flush takes the error into its log, where each of its open files is told once; and the device counts failures, for
//! a file system to latch on.

use crate::mapping::Inner;
use crate::page::FileId;
use crate::writeback::complete::Unstoppable;
use crate::writeback::disk::DiskState;
use crate::{CacheError, Result};
use extant_block::IoError;
use extant_rt::Rt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

/// The writes that a device's flushes are to cover.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Flushes that were begun.
    begun: u64,
    /// Those of them that have not ended.
    in_flight: BTreeSet<u64>,
    /// Files that were written to the device, until no flush can lose their data any more.
    unflushed: BTreeMap<FileId, Unflushed>,
    failures: u64,
}

#[derive(Debug)]
struct Unflushed {
    file: Weak<Inner>,
    /// Flushes that had begun when it was written last.
    written_at: u64,
    /// A later flush ended well when so many had begun. One of these that is still in flight may have failed on the device
    /// before, with the file's data.
    covered_at: Option<u64>,
}

impl Flushes {
    /// Failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    fn begin(&self) -> u64 {
        let mut state = self.0.lock();
        state.begun += 1;
        let nth = state.begun;
        state.in_flight.insert(nth);
        nth
    }

    /// Flush number `nth` ended well: it covers what was written before it began.
    fn succeeded(&self, nth: u64) {
        let mut state = self.0.lock();
        let begun = state.begun;
        for entry in state.unflushed.values_mut().filter(|entry| entry.written_at < nth) {
            entry.covered_at.get_or_insert(begun);
        }
        state.ended(nth);
    }

    /// A flush failed, number `nth` if it is one of these. Gives the files that may have lost data.
    fn failed(&self, nth: Option<u64>) -> Vec<Arc<Inner>> {
        let mut state = self.0.lock();
        state.failures += 1;
        let is_lost = |entry: &&Unflushed| match (nth, entry.covered_at) {
            (Some(nth), Some(covered_at)) => nth <= covered_at,
            _ => true,
        };
        let files = state.unflushed.values().filter(is_lost).filter_map(|entry| entry.file.upgrade());
        let files = files.collect();
        if let Some(nth) = nth {
            state.ended(nth);
        }
        files
    }
}

impl State {
    fn ended(&mut self, nth: u64) {
        self.in_flight.remove(&nth);
        let oldest = self.in_flight.first().copied();
        self.unflushed.retain(|_, entry| {
            entry.covered_at.is_none_or(|until| oldest.is_some_and(|oldest| oldest <= until))
        });
    }
}

impl DiskState {
    /// A write of `file` has reached the device, though perhaps only its cache.
    pub(crate) fn note_unflushed(&self, file: &Arc<Inner>) {
        if self.device.limits().volatile_cache {
            let mut state = self.flushes.0.lock();
            let written_at = state.begun;
            let fresh = || Unflushed { file: Arc::downgrade(file), written_at, covered_at: None };
            let entry = state.unflushed.entry(file.file).or_insert_with(fresh);
            // The number may have been another file's before.
            if entry.file.strong_count() == 0 {
                entry.file = Arc::downgrade(file);
            }
            (entry.written_at, entry.covered_at) = (written_at, None);
        }
    }

    /// A flush failed: enters it where it is to be reported.
    pub(crate) fn flush_failed(&self, error: &IoError) {
        self.enter_failure(None, error);
    }

    fn enter_failure(&self, nth: Option<u64>, error: &IoError) {
        self.errors.record(CacheError::Io(error.clone()));
        for file in self.flushes.failed(nth) {
            file.errors.record(CacheError::Io(error.clone()));
        }
    }

    /// Flushes the device's cache, if it has one. Where the caller leaves, the outcome is entered all the same: the device
    /// tells it once.
    pub(crate) async fn flush(self: &Arc<Self>, rt: &Rt) -> Result<()> {
        if !self.device.limits().volatile_cache {
            return Ok(());
        }
        let outcome = Arc::new(Mutex::new(Ok(())));
        let (disk, told) = (self.clone(), outcome.clone());
        let nth = self.flushes.begin();
        let flush = extant_block::flush(&*self.device);
        let work = async move {
            let result = flush.await;
            match &result {
                Ok(()) => disk.flushes.succeeded(nth),
                Err(error) => disk.enter_failure(Some(nth), error),
            }
            *told.lock() = result;
        };
        Unstoppable::new(rt, "flush", work).await;
        let result = std::mem::replace(&mut *outcome.lock(), Ok(()));
        result.map_err(CacheError::Io)
    }
}

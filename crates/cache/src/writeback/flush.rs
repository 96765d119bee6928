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
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The writes that a device's flushes are to cover.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Flushes that were begun.
    begun: u64,
    /// Files that were written to the device since its last good flush, and how many flushes had begun by then.
    unflushed: BTreeMap<FileId, (Weak<Inner>, u64)>,
    failures: u64,
}

impl Flushes {
    /// Failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    fn begin(&self) -> u64 {
        let mut state = self.0.lock();
        state.begun += 1;
        state.begun
    }

    /// Flush number `nth` ended well: it covers what was written before it began.
    fn succeeded(&self, nth: u64) {
        self.0.lock().unflushed.retain(|_, (_, begun)| *begun >= nth);
    }

    /// Files that may have lost data.
    fn failed(&self) -> Vec<Arc<Inner>> {
        let mut state = self.0.lock();
        state.failures += 1;
        state.unflushed.values().filter_map(|(file, _)| file.upgrade()).collect()
    }
}

impl DiskState {
    /// A write of `file` has reached the device, though perhaps only its cache.
    pub(crate) fn note_unflushed(&self, file: &Arc<Inner>) {
        if self.device.limits().volatile_cache {
            let mut state = self.flushes.0.lock();
            let begun = state.begun;
            let entry = state.unflushed.entry(file.file);
            let entry = entry.or_insert_with(|| (Arc::downgrade(file), begun));
            // The number may have been another file's before.
            *entry = (if entry.0.strong_count() > 0 { entry.0.clone() } else { Arc::downgrade(file) }, begun);
        }
    }

    /// A flush failed: enters it where it is to be reported.
    pub(crate) fn flush_failed(&self, error: &IoError) {
        self.errors.record(CacheError::Io(error.clone()));
        for file in self.flushes.failed() {
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
                Err(error) => disk.flush_failed(error),
            }
            *told.lock() = result;
        };
        Unstoppable::new(rt, "flush", work).await;
        let result = std::mem::replace(&mut *outcome.lock(), Ok(()));
        result.map_err(CacheError::Io)
    }
}

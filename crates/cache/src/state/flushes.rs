//! The flushes of a device, and the files whose writes they must cover.

use crate::page::FileId;
use crate::state::Inner;
use extant_block::IoError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The writes that a device's flushes must cover.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Flushes begun, and flushes ended: equal, or `ended` is one less.
    begun: u64,
    ended: u64,
    /// The last flush that failed.
    failed: Option<(u64, IoError)>,
    failures: u64,
    last_failure: Option<IoError>,
    /// Files written to the device since the last successful flush began.
    unflushed: BTreeMap<FileId, Unflushed>,
}

#[derive(Debug)]
struct Unflushed {
    file: Weak<Inner>,
    /// Flushes begun when the file was last written.
    written_at: u64,
    /// Failures up to this number are in the file's log.
    told: u64,
}

/// What a caller does to get the device flushed.
pub(crate) enum Part {
    /// It begins this flush.
    Begins(u64),
    /// A flush that began after the caller arrived has ended with this result.
    Shares(std::result::Result<(), IoError>),
}

impl Flushes {
    /// Number of failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    /// Whether a write has reached the device since the last successful flush began.
    pub(crate) fn are_owed(&self) -> bool {
        !self.0.lock().unflushed.is_empty()
    }

    pub(crate) fn begun(&self) -> u64 {
        self.0.lock().begun
    }

    /// The part of a caller that arrived when `since` flushes had begun; `None` while it must wait.
    pub(crate) fn part(&self, since: u64) -> Option<Part> {
        let mut state = self.0.lock();
        match &state.failed {
            Some((nth, error)) if *nth > since => Some(Part::Shares(Err(error.clone()))),
            _ if state.ended > since => Some(Part::Shares(Ok(()))),
            _ => state.begin().map(Part::Begins),
        }
    }

    /// Begins a flush that its caller cannot share, because it is the first part of a write; `None`
    /// while another is in flight.
    ///
    /// # Errors
    /// The last failure, if more than `failures` flushes have failed: the write relies on data that
    /// may be lost.
    pub(crate) fn begin_behind(&self, failures: u64) -> Option<std::result::Result<u64, IoError>> {
        let mut state = self.0.lock();
        match &state.last_failure {
            Some(error) if state.failures > failures => Some(Err(error.clone())),
            _ => state.begin().map(Ok),
        }
    }

    /// Flush number `nth` has ended, and any failure has been recorded.
    pub(crate) fn end(&self, nth: u64, result: &std::result::Result<(), IoError>) {
        let mut state = self.0.lock();
        state.ended = nth;
        match result {
            Ok(()) => state.unflushed.retain(|_, entry| entry.written_at >= nth),
            Err(error) => state.failed = Some((nth, error.clone())),
        }
    }

    /// A write of `file` has reached the device; `failures` flushes had failed when it was
    /// submitted. If a flush has failed since that the file's log does not include, returns its
    /// error: the device may have dropped the write.
    pub(crate) fn note_write(&self, file: &Arc<Inner>, failures: u64) -> Option<IoError> {
        let mut state = self.0.lock();
        let State { begun, failures: now, last_failure, unflushed, .. } = &mut *state;
        let fresh = || Unflushed { file: Arc::downgrade(file), written_at: *begun, told: failures };
        let entry = unflushed.entry(file.file).or_insert_with(fresh);
        // The file number may have belonged to another file before.
        if entry.file.strong_count() == 0 {
            *entry = fresh();
        }
        entry.written_at = *begun;
        let is_told = entry.told.max(failures) >= *now;
        entry.told = *now;
        if is_told { None } else { last_failure.clone() }
    }

    /// A flush failed. Returns the files that may have lost data.
    pub(crate) fn fail(&self, error: &IoError) -> Vec<Arc<Inner>> {
        let mut state = self.0.lock();
        state.failures += 1;
        state.last_failure = Some(error.clone());
        let failures = state.failures;
        state.unflushed.values_mut().for_each(|entry| entry.told = failures);
        state.unflushed.values().filter_map(|entry| entry.file.upgrade()).collect()
    }
}

impl State {
    fn begin(&mut self) -> Option<u64> {
        if self.begun > self.ended {
            return None;
        }
        self.begun += 1;
        Some(self.begun)
    }
}

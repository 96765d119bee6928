//! A device's dirty files, and the outcome of its write-back.

use crate::CacheError;
use crate::dirty::control::{Asking, Orders};
use crate::dirty::ledger::DeviceLedger;
use crate::state::errseq::ErrorLog;
use crate::state::flushes::Flushes;
use crate::state::urgent::Urgent;
use crate::state::{DiskState, Inner, Shared};
use crate::waits::Condition;
use extant_block::Device;
use extant_rt::Nanos;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most files examined in search of a long enough run.
const LOOKED_AT: usize = 256;

/// Files with dirty pages, in the order in which they became dirty. The list keeps them alive.
#[derive(Debug, Default)]
pub(super) struct DirtyFiles {
    next: u64,
    by_age: BTreeMap<Listed, Arc<Inner>>,
    /// Files the flusher skips.
    stuck: BTreeMap<Listed, Arc<Inner>>,
    /// The flusher has ended: dirty pages are lost with the last handle of their file.
    is_closed: bool,
}

/// Files of a device with ended runs, in the order the runs ended. A file may appear several times.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    pub(crate) files: VecDeque<Arc<Inner>>,
    /// Whether the completion task is running.
    pub(crate) is_running: bool,
}

/// A file's position in the list of dirty files.
pub(crate) type Listed = (Nanos, u64);

impl DiskState {
    /// Marks the absence of a time.
    pub(crate) const NEVER: u64 = u64::MAX;

    pub(crate) fn new(ledger: Arc<DeviceLedger>, device: Arc<dyn Device>) -> Self {
        let errors = ErrorLog::default();
        Self {
            index: ledger.index(),
            holders: AtomicU64::new(0),
            device,
            ledger,
            completions: Mutex::default(),
            wanted: AtomicBool::new(false),
            traced_at: AtomicU64::new(Self::NEVER),
            told: Mutex::new(errors.now()),
            errors,
            flushes: Flushes::default(),
            urgent: Urgent::default(),
            retries: AtomicU64::new(0),
            last_error: Mutex::new(None),
            files: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    /// A handle or a file was created.
    pub(crate) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// A handle or a file was dropped. After the last one, the flusher checks whether to release
    /// the device.
    pub(crate) fn release(&self, shared: &Shared) {
        if self.holders.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.kick(shared);
        }
    }

    /// Whether no handle or file is left, so that only a caller that goes over all devices can
    /// still reach it.
    pub(crate) fn is_left(&self) -> bool {
        self.holders.load(Ordering::SeqCst) == 0
    }

    /// Lists a file as dirty since `now`. The caller holds the file's lock.
    pub(crate) fn list(&self, now: Nanos, file: Arc<Inner>, is_stuck: bool) -> Listed {
        let mut files = self.files.lock();
        let place = (now, files.next);
        files.next += 1;
        if !files.is_closed {
            let list = if is_stuck { &mut files.stuck } else { &mut files.by_age };
            list.insert(place, file);
        }
        place
    }

    /// Makes the flusher skip a file, or stop skipping it. The caller holds the file's lock.
    pub(crate) fn set_stuck(&self, place: Listed, is_stuck: bool) {
        let DirtyFiles { by_age, stuck, .. } = &mut *self.files.lock();
        let (from, to) = if is_stuck { (by_age, stuck) } else { (stuck, by_age) };
        if let Some(file) = from.remove(&place) {
            to.insert(place, file);
        }
    }

    /// The files the flusher skips.
    pub(super) fn stuck_files(&self) -> Vec<Arc<Inner>> {
        self.files.lock().stuck.values().cloned().collect()
    }

    /// All files with dirty pages, oldest first. `None` once the list is closed.
    pub(crate) fn listed(&self) -> Option<Vec<Arc<Inner>>> {
        let files = self.files.lock();
        (!files.is_closed).then(|| files.by_age.values().chain(files.stuck.values()).cloned().collect())
    }

    /// Takes a file off the list, under its lock. The caller drops the result after releasing that
    /// lock.
    pub(crate) fn unlist(&self, place: Listed) -> Option<Arc<Inner>> {
        let mut files = self.files.lock();
        files.by_age.remove(&place).or_else(|| files.stuck.remove(&place))
    }

    /// The first dirty file after `after`, or the first of all if `None`.
    pub(crate) fn next_file(&self, after: Option<Listed>) -> Option<(Listed, Arc<Inner>)> {
        let files = self.files.lock();
        let from = after.map_or((Nanos::ZERO, 0), |(at, n)| (at, n + 1));
        files.by_age.range(from..).next().map(|(place, file)| (*place, file.clone()))
    }

    /// The next file in rotation: the first with `least` dirty pages or, if none of the files
    /// examined has that many, simply the next one.
    pub(crate) fn next_in_turn(&self, least: u64) -> Option<Arc<Inner>> {
        let mut turn = self.turn.lock();
        let files = self.files.lock();
        let from = turn.map_or((Nanos::ZERO, 0), |(at, n)| (at, n + 1));
        let mut round = files.by_age.range(from..).chain(files.by_age.range(..from));
        let mut chosen = round.next()?;
        if least > 1 {
            // Elsewhere the list is locked while a file's lock is held. So here a file's lock is
            // only tried, and a file that is locked is skipped.
            let is_long =
                |file: &Inner| file.pages.try_lock().is_some_and(|pages| pages.dirty.len() >= least);
            let mut looked_at = std::iter::once(chosen).chain(round).take(LOOKED_AT);
            if let Some(long) = looked_at.find(|(_, file)| is_long(file)) {
                chosen = long;
            }
        }
        *turn = Some(*chosen.0);
        Some(chosen.1.clone())
    }

    /// Drops a file from the list: its dirty pages are lost with its last handle.
    pub(crate) fn give_up(&self, file: &Inner) {
        let place = file.pages.lock().listed;
        drop(place.and_then(|place| self.unlist(place)));
    }

    /// Closes the list if it is empty; returns whether it was.
    pub(crate) fn close_if_clean(&self) -> bool {
        let mut files = self.files.lock();
        files.is_closed = files.by_age.is_empty() && files.stuck.is_empty();
        files.is_closed
    }

    /// Closes the list and drops all files on it.
    pub(crate) fn close(&self) {
        let files = {
            let mut files = self.files.lock();
            files.is_closed = true;
            (std::mem::take(&mut files.by_age), std::mem::take(&mut files.stuck))
        };
        // Files take the lock when they are dropped.
        drop(files);
    }

    /// Number of dirty files.
    pub(crate) fn dirty_files(&self) -> usize {
        self.files.lock().by_age.len()
    }

    /// Records the outcome of a write-back. An error of a file's backing is not the device's.
    pub(crate) fn note(&self, result: &Result<(), CacheError>) {
        match result {
            Err(CacheError::Backing(_)) => {}
            Ok(()) if !self.is_failing() => {}
            result => {
                let mut last_error = self.last_error.lock();
                *last_error = result.clone().err();
                self.ledger.set_failing(result.is_err());
            }
        }
    }

    /// Whether the last write-back failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.ledger.is_failing()
    }

    /// The error of the last write-back, if it failed.
    pub(crate) fn failure(&self) -> Option<CacheError> {
        self.last_error.lock().clone()
    }

    pub(crate) fn kick(&self, shared: &Shared) {
        shared.waits.wake_all(Condition::Flusher(self.index.0));
    }

    /// Makes the flusher work even below the background threshold, because a task waits. If
    /// something is in flight, there is no need: its end wakes the tasks it has something for, and
    /// makes the flusher work for the others ([`Self::is_waited_for`]).
    pub(crate) fn want(&self, shared: &Shared) {
        if self.ledger.in_flight() > 0 {
            return;
        }
        self.wanted.store(true, Ordering::SeqCst);
        self.kick(shared);
    }

    /// Whether tasks wait for frames or room while nothing is in flight whose end could wake them.
    pub(crate) fn is_waited_for(&self, shared: &Shared) -> bool {
        let conditions = [Condition::Frames, Condition::Room(None), Condition::Room(Some(self.index.0))];
        self.ledger.in_flight() == 0
            && conditions.into_iter().any(|condition| shared.waits.has_waiters(condition))
    }

    /// Asks the controller, for a writer or for the flusher, and applies the new limits.
    pub(crate) fn orders(&self, shared: &Shared, asking: Option<Asking>) -> Orders {
        let (now, numbers) = (shared.rt.now(), self.ledger.numbers());
        let orders = shared.control.lock().orders(now, &numbers, asking);
        self.ledger.set_limits(orders.device_limit_pages, orders.pool_limit_pages);
        shared.trace_levels(self);
        orders
    }
}

//! A device's dirty files, and how its write-back fares.

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

/// Files that are looked at for one with a long enough run.
const LOOKED_AT: usize = 256;

/// Files with dirty pages, in the order in which they became dirty. They are kept alive by it.
#[derive(Debug, Default)]
pub(super) struct DirtyFiles {
    next: u64,
    by_age: BTreeMap<Listed, Arc<Inner>>,
    /// Those that the flusher passes over.
    stuck: BTreeMap<Listed, Arc<Inner>>,
    /// The flusher has ended: dirty pages are lost with the last handle of their file.
    is_closed: bool,
}

/// Files of a device with ended runs, in order of the runs' ends; a file may be there several times.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    pub(crate) files: VecDeque<Arc<Inner>>,
    /// Whether the completion task is at it.
    pub(crate) is_running: bool,
}

/// A file's place among the dirty ones.
pub(crate) type Listed = (Nanos, u64);

impl DiskState {
    /// No time at all.
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

    /// A handle or a file came.
    pub(crate) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// One of them went; after the last the flusher looks whether the device is let go.
    pub(crate) fn release(&self, shared: &Shared) {
        if self.holders.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.kick(shared);
        }
    }

    /// Whether nothing can make a file of it dirty but a caller who looks for all devices.
    pub(crate) fn is_left(&self) -> bool {
        self.holders.load(Ordering::SeqCst) == 0
    }

    /// Lists a file as dirty since `now`, under its lock.
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

    /// Has the flusher pass over a file, or not any more, under the file's lock.
    pub(crate) fn set_stuck(&self, place: Listed, is_stuck: bool) {
        let DirtyFiles { by_age, stuck, .. } = &mut *self.files.lock();
        let (from, to) = if is_stuck { (by_age, stuck) } else { (stuck, by_age) };
        if let Some(file) = from.remove(&place) {
            to.insert(place, file);
        }
    }

    /// The files that the flusher passes over.
    pub(super) fn stuck_files(&self) -> Vec<Arc<Inner>> {
        self.files.lock().stuck.values().cloned().collect()
    }

    /// All files with dirty pages, oldest first. `None` once the list is closed.
    pub(crate) fn listed(&self) -> Option<Vec<Arc<Inner>>> {
        let files = self.files.lock();
        (!files.is_closed).then(|| files.by_age.values().chain(files.stuck.values()).cloned().collect())
    }

    /// Takes a file off the list, under its lock. The caller drops what it gets without that lock.
    pub(crate) fn unlist(&self, place: Listed) -> Option<Arc<Inner>> {
        let mut files = self.files.lock();
        files.by_age.remove(&place).or_else(|| files.stuck.remove(&place))
    }

    /// The first dirty file after `after`, or the first of all.
    pub(crate) fn next_file(&self, after: Option<Listed>) -> Option<(Listed, Arc<Inner>)> {
        let files = self.files.lock();
        let from = after.map_or((Nanos::ZERO, 0), |(at, n)| (at, n + 1));
        files.by_age.range(from..).next().map(|(place, file)| (*place, file.clone()))
    }

    /// The next file in turn, going round: the first that has `least` dirty pages, or, if none has that is looked at, the
    /// first of all.
    pub(crate) fn next_in_turn(&self, least: u64) -> Option<Arc<Inner>> {
        let mut turn = self.turn.lock();
        let files = self.files.lock();
        let from = turn.map_or((Nanos::ZERO, 0), |(at, n)| (at, n + 1));
        let mut round = files.by_age.range(from..).chain(files.by_age.range(..from));
        let mut chosen = round.next()?;
        if least > 1 {
            // The list is locked under files' locks elsewhere, so a file's is only tried: one that it is changed under is
            // passed over.
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

    /// Forgets a file: what is dirty of it is lost with its last handle.
    pub(crate) fn give_up(&self, file: &Inner) {
        let place = file.pages.lock().listed;
        drop(place.and_then(|place| self.unlist(place)));
    }

    /// Lists no more files, if none is listed; says whether that is so.
    pub(crate) fn close_if_clean(&self) -> bool {
        let mut files = self.files.lock();
        files.is_closed = files.by_age.is_empty() && files.stuck.is_empty();
        files.is_closed
    }

    /// Lists no more files, and forgets those that are listed.
    pub(crate) fn close(&self) {
        let files = {
            let mut files = self.files.lock();
            files.is_closed = true;
            (std::mem::take(&mut files.by_age), std::mem::take(&mut files.stuck))
        };
        // They take the lock when they go.
        drop(files);
    }

    /// How many files are dirty.
    pub(crate) fn dirty_files(&self) -> usize {
        self.files.lock().by_age.len()
    }

    /// Takes note of how a write-back ended. An error of a file's backing is not the device's.
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

    /// Why the last write-back failed, if it did.
    pub(crate) fn failure(&self) -> Option<CacheError> {
        self.last_error.lock().clone()
    }

    pub(crate) fn kick(&self, shared: &Shared) {
        shared.waits.wake_all(Condition::Flusher(self.index.0));
    }

    /// Has the flusher work even below the background threshold, because a task waits. While something is in flight there is
    /// no need: its end wakes those for whom it has something, and has the flusher work for the others
    /// ([`Self::is_waited_for`]).
    pub(crate) fn want(&self, shared: &Shared) {
        if self.ledger.in_flight() > 0 {
            return;
        }
        self.wanted.store(true, Ordering::SeqCst);
        self.kick(shared);
    }

    /// Whether tasks wait for frames or room, and nothing is in flight whose end could wake them.
    pub(crate) fn is_waited_for(&self, shared: &Shared) -> bool {
        let conditions = [Condition::Frames, Condition::Room(None), Condition::Room(Some(self.index.0))];
        self.ledger.in_flight() == 0
            && conditions.into_iter().any(|condition| shared.waits.has_waiters(condition))
    }

    /// Asks the controller, for a writer or for the flusher; takes over the limits.
    pub(crate) fn orders(&self, shared: &Shared, asking: Option<Asking>) -> Orders {
        let (now, numbers) = (shared.rt.now(), self.ledger.numbers());
        let orders = shared.control.lock().orders(now, &numbers, asking);
        self.ledger.set_limits(orders.device_limit_pages, orders.pool_limit_pages);
        shared.trace_levels(self);
        orders
    }
}

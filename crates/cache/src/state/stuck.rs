//! Files whose dirty pages their backing could not place: no space, a quota, damage, an aborted
//! journal.
//!
//! Such a file keeps its pages and its error. The flusher does not retry it; it is retried on
//! demand only: by a sync, by [`crate::Mapping::write_back`], when the cache is closed, or after
//! [`crate::Disk::retry`]. Its pages return their charges, so that they take no room from files of
//! the same device that can be written back. Instead they lower everyone's limit, and no further
//! page of the file can become dirty, so that they cannot fill the memory.

use crate::CacheError;
use crate::state::{DiskState, Inner, Pages, Shared};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a file is stuck, and why.
#[derive(Debug, Default)]
pub(crate) struct Stuck {
    is_stuck: AtomicBool,
    error: Mutex<Option<CacheError>>,
}

impl Inner {
    /// Whether no page can become dirty.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.is_stuck.load(Ordering::Relaxed)
    }

    /// The error; `None` if the file is no longer stuck.
    pub(crate) fn stuck_error(&self) -> Option<CacheError> {
        self.stuck.error.lock().clone()
    }

    /// The backing could not place a run that was taken after `retries` retries. If there has been
    /// another retry since, the flusher has not tried again yet, so the file does not stay stuck.
    pub(crate) fn stick_since(&self, retries: u64, pages: &mut Pages, error: Option<CacheError>) {
        self.stick(pages, error);
        // Last: a retry that comes after this check finds the file stuck.
        if self.disk.retries.load(Ordering::SeqCst) != retries {
            self.unstick(pages);
        }
    }

    /// The backing could not place a run.
    pub(crate) fn stick(&self, pages: &mut Pages, error: Option<CacheError>) {
        *self.shared.stuck_error.lock() = error.clone();
        *self.stuck.error.lock() = error;
        if !pages.dirty.stick() {
            return;
        }
        self.stuck.is_stuck.store(true, Ordering::Relaxed);
        if let Some(place) = pages.listed {
            self.disk.set_stuck(place, true);
        }
    }

    /// The backing has placed a run, or says that it can again.
    pub(crate) fn unstick(&self, pages: &mut Pages) {
        if !pages.dirty.unstick() {
            return;
        }
        self.stuck.is_stuck.store(false, Ordering::Relaxed);
        *self.stuck.error.lock() = None;
        if let Some(place) = pages.listed {
            self.disk.set_stuck(place, false);
            self.disk.kick(&self.shared);
        }
    }

    /// Makes the flusher retry the file.
    pub(crate) fn retry(self: &Arc<Self>) {
        self.unstick(&mut self.pages.lock());
    }
}

impl DiskState {
    /// Makes the flusher retry files whose error `may_be_over`.
    pub(crate) fn retry(&self, may_be_over: impl Fn(&CacheError) -> bool) {
        // First: a run that ends after this does not leave its file stuck.
        self.retries.fetch_add(1, Ordering::SeqCst);
        for file in self.stuck_files() {
            if file.stuck_error().is_some_and(|error| may_be_over(&error)) {
                file.retry();
            }
        }
    }
}

impl Shared {
    /// The reason, if stuck files and failing devices leave no room for others.
    pub(crate) fn held_up_room(&self) -> Option<CacheError> {
        self.ledger.is_held_up(self.pool.dirty_limit()).then(|| self.why_held_up()).flatten()
    }

    /// The reason, if they leave no frame for others.
    pub(crate) fn held_up_frames(&self) -> Option<CacheError> {
        (self.ledger.held_up() >= self.pool.frames_in_force().into()).then(|| self.why_held_up()).flatten()
    }

    fn why_held_up(&self) -> Option<CacheError> {
        let failing = self.disks.read().iter().find_map(|disk| disk.failure());
        failing.or_else(|| self.stuck_error.lock().clone())
    }
}

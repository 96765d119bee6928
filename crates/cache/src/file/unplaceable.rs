//! Files whose dirty pages their backing could not place: no space, a quota, damage, an aborted
//! journal.
//!
//! Such a file keeps its pages and its error. The flusher does not retry it; it is retried on
//! demand only: by a sync, by [`crate::Mapping::write_back`], when the cache is closed, or after
//! [`crate::Disk::retry`]. Its pages return their charges, so that they take no room from files of
//! the same device that can be written back. Instead they lower the limit for all files, and no
//! further page of the file can become dirty, so that they cannot fill the memory.

use crate::CacheError;
use crate::file::page_table::LockedPages;
use crate::file::{CacheCore, CachedFile};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a file's pages have no place, and why. [`DirtyPages`](crate::dirty::charges::DirtyPages)
/// records this too; this copy can be read without the lock on the pages.
#[derive(Debug, Default)]
pub(super) struct Unplaceable {
    is_unplaceable: AtomicBool,
    error: Mutex<Option<CacheError>>,
}

impl CachedFile {
    /// Whether no page can become dirty.
    #[inline]
    pub(crate) fn is_unplaceable(&self) -> bool {
        self.unplaceable.is_unplaceable.load(Ordering::Relaxed)
    }

    /// The error; `None` if the pages can be placed by now.
    pub(crate) fn why_unplaceable(&self) -> Option<CacheError> {
        self.unplaceable.error.lock().clone()
    }
}

impl LockedPages<'_> {
    /// The backing could not place a run that was taken after `retries` retries. If there has been
    /// another retry since, the flusher has not tried again yet, so the file gets more turns.
    pub(crate) fn set_unplaceable(&mut self, retries: u64, error: CacheError) {
        let file = self.file();
        *file.unplaceable.error.lock() = Some(error);
        if self.release_charges() {
            file.unplaceable.is_unplaceable.store(true, Ordering::Relaxed);
            if let Some(place) = self.dirty_since() {
                file.disk.turns.set_skipped(place, true);
            }
        }
        // Check this last: a retry that comes after the check finds the file unplaceable.
        if file.disk.retries.load(Ordering::SeqCst) != retries {
            self.set_placeable();
        }
    }

    /// The backing has placed a run, or has announced that it can do so again: the flusher retries
    /// the file.
    pub(crate) fn set_placeable(&mut self) {
        if !self.charge_again() {
            return;
        }
        let file = self.file();
        file.unplaceable.is_unplaceable.store(false, Ordering::Relaxed);
        *file.unplaceable.error.lock() = None;
        if let Some(place) = self.dirty_since() {
            file.disk.turns.set_skipped(place, false);
            file.disk.kick(&file.core);
        }
    }
}

impl CacheCore {
    /// The reason, if unplaceable files and failing devices leave no room for others.
    pub(crate) fn held_up_room(&self) -> Option<CacheError> {
        self.ledger.is_held_up(self.pool.dirty_limit()).then(|| self.why_held_up()).flatten()
    }

    /// The reason, if they leave no frame for others.
    pub(crate) fn held_up_frames(&self) -> Option<CacheError> {
        (self.ledger.held_up() >= self.pool.frames_in_force().into()).then(|| self.why_held_up()).flatten()
    }

    fn why_held_up(&self) -> Option<CacheError> {
        // Clone the list instead of holding its lock, since files may be dropped meanwhile.
        let disks = self.disks.read().clone();
        let failing = disks.iter().find_map(|disk| disk.health.failure());
        let unplaceable = || disks.iter().flat_map(|disk| disk.turns.skipped());
        failing.or_else(|| unplaceable().find_map(|file| file.why_unplaceable()))
    }
}

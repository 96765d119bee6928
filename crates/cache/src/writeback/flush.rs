//! Flushing a device's volatile cache, and what a failure means for the files that were written before.
//!
//! A device reports a failed flush once, and what its cache held may be gone. So every file that was written since the last
//! good flush takes the error into its log, where each of its open files is told once; and the device counts failures, for
//! a file system to latch on.
//!
//! One flush of a device is in flight at a time, and callers that come meanwhile share the next one (as Linux's
//! `block/blk-flush.c` has it). Two in flight could end in one order on the device and be reaped in the other: the good one
//! would vouch for data that the failed one had lost. A file system's write with `PREFLUSH` is a flush, too, and takes its
//! turn among them.
//!
//! Nobody is chosen to flush next: all who wait are woken, and the first that is polled begins the flush and submits it in the same
//! poll, so that a future which is kept unpolled, or dropped, keeps no other waiting.

use crate::state::flushes::Part;
use crate::state::{DiskState, Inner, Shared};
use crate::{CacheError, Result};
use extant_block::{Bio, IoError, Op, Sector};
use extant_rt::WaitKey;
use std::sync::{Arc, OnceLock};

/// A flush of a device ended.
fn flushed(disk: &DiskState) -> WaitKey {
    WaitKey { object: disk.index.0.into(), event: 3 }
}

impl DiskState {
    /// A write of `file`, submitted when `failures` flushes had failed, has reached the device, though perhaps only its cache.
    pub(crate) fn note_unflushed(&self, file: &Arc<Inner>, failures: u64) {
        if self.device.limits().volatile_cache
            && let Some(error) = self.flushes.note_write(file, failures)
        {
            file.errors.record(CacheError::Io(error));
        }
    }

    /// A flush failed: enters it where it is to be reported.
    fn flush_failed(&self, error: &IoError) {
        self.errors.record(CacheError::Io(error.clone()));
        for file in self.flushes.fail(error) {
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
                Part::Begins(nth) => {
                    drop(self.submit_flush(shared, Bio::range(Op::Flush, Sector(0), 0), Some(nth)));
                }
            }
        }
    }

    /// Runs a write with `PREFLUSH`, when no flush is in flight. Callers that flush before it begins share its outcome.
    pub(crate) async fn write_behind_flush(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        bio: Bio,
    ) -> std::result::Result<(), IoError> {
        let mut nth = None;
        if self.device.limits().volatile_cache {
            let has_begun = || {
                nth = self.flushes.begin();
                nth.is_some()
            };
            shared.pages.wait_until(flushed(self), has_begun).await;
        }
        let ended = self.submit_flush(shared, bio, nth);
        shared.pages.wait_until(flushed(self), || ended.get().is_some()).await;
        ended.get().cloned().expect("the wait is over")
    }

    /// Submits flush number `nth`, or a write to a device without a volatile cache. Its end is entered on the thread that reaps
    /// it, whatever becomes of the callers that wait for it.
    fn submit_flush(self: &Arc<Self>, shared: &Arc<Shared>, mut bio: Bio, nth: Option<u64>) -> Ended {
        let ended = Ended::default();
        let (disk, shared, entry) = (self.clone(), shared.clone(), ended.clone());
        bio.on_end(Box::new(move |_, result| {
            if let Err(error) = &result {
                disk.flush_failed(error);
            }
            if let Some(nth) = nth {
                disk.flushes.end(nth, &result);
            }
            entry.get_or_init(|| result);
            shared.pages.wake(flushed(&disk));
        }));
        self.device.submit(bio);
        ended
    }
}

/// The outcome of a flush, when it has ended.
type Ended = Arc<OnceLock<std::result::Result<(), IoError>>>;

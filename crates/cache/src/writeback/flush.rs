//! Flushing a device's volatile cache, and what a failure means for the files that were written before.
//!
//! A device reports a failed flush once, and what its cache held may be gone. So every file that was written since the last
//! good flush takes the error into its log, where each of its open files is told once; and the device counts failures, for
//! a file system to latch on.
//!
//! One flush of a device is in flight at a time, and callers that come meanwhile share the next one (as Linux's
//! `block/blk-flush.c` has it). Two in flight could end in one order on the device and be reaped in the other: the good one
//! would vouch for data that the failed one had lost.

use crate::state::flushes::Part;
use crate::state::{DiskState, Inner, Shared};
use crate::{CacheError, Result};
use extant_block::{Bio, IoError, Op, Sector};
use extant_rt::WaitKey;
use std::sync::Arc;

/// A flush of a device ended.
fn flushed(disk: &DiskState) -> WaitKey {
    WaitKey { object: disk.index.0.into(), event: 3 }
}

impl DiskState {
    /// A write of `file` has reached the device, though perhaps only its cache.
    pub(crate) fn note_unflushed(&self, file: &Arc<Inner>) {
        if self.device.limits().volatile_cache {
            self.flushes.note_write(file);
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

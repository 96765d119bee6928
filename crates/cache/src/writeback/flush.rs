//! Flushes a device's volatile cache, and reports failures to the files written before.
//!
//! A device reports a failed flush only once, and what its cache held may be lost. So the error
//! goes into the log of every file written since the last successful flush, and each of their open
//! files reports it once. The device also counts failures, for a file system to latch on.
//!
//! One flush per device is in flight at a time, and callers that arrive meanwhile share the next
//! one (as in Linux's `block/blk-flush.c`). With two in flight, the device might end them in one
//! order and we might reap them in the other: the successful flush would then vouch for data that
//! the failed one had lost. A file system's `PREFLUSH` write is also a flush, and takes its turn
//! among them.
//!
//! No waiter is appointed to flush next. All waiters are woken, and the first one polled begins the
//! flush and submits it in the same poll. A future that is dropped or no longer polled therefore
//! holds up no other waiter.

use crate::state::flushes::Part;
use crate::state::{DiskState, Inner, Shared};
use crate::{CacheError, Result};
use extant_block::{Bio, IoError, Op, Sector};
use extant_rt::WaitKey;
use std::sync::{Arc, OnceLock};

/// Key for waiting until a flush of a device has ended.
fn flushed(disk: &DiskState) -> WaitKey {
    WaitKey { object: disk.index.0.into(), event: 3 }
}

impl DiskState {
    /// Notes that a write of `file` has reached the device, though perhaps only its cache.
    /// `failures` is the number of flushes that had failed when the write was submitted.
    pub(crate) fn note_unflushed(&self, file: &Arc<Inner>, failures: u64) {
        if self.device.limits().volatile_cache
            && let Some(error) = self.flushes.note_write(file, failures)
        {
            file.errors.record(CacheError::Io(error));
        }
    }

    /// Records a failed flush everywhere it is to be reported.
    fn flush_failed(&self, error: &IoError) {
        self.errors.record(CacheError::Io(error.clone()));
        for file in self.flushes.fail(error) {
            file.errors.record(CacheError::Io(error.clone()));
        }
    }

    /// Flushes the device's cache, if it has one. When this returns, a flush that began after the
    /// call has ended. The outcome is recorded even if the caller goes away, because the device
    /// reports it only once.
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

    /// Runs a `PREFLUSH` write while no flush is in flight, unless more than `failures` flushes
    /// have failed by then. Callers that asked for a flush before it begins share its outcome.
    pub(crate) async fn write_behind_flush(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        bio: Bio,
        failures: u64,
    ) -> std::result::Result<(), IoError> {
        let mut begun = None;
        if self.device.limits().volatile_cache {
            let has_begun = || {
                begun = self.flushes.begin_behind(failures);
                begun.is_some()
            };
            shared.pages.wait_until(flushed(self), has_begun).await;
        }
        let nth = begun.transpose()?;
        let ended = self.submit_flush(shared, bio, nth);
        shared.pages.wait_until(flushed(self), || ended.get().is_some()).await;
        ended.get().cloned().expect("the wait is over")
    }

    /// Submits flush number `nth`, or a write to a device without a volatile cache. The thread that
    /// reaps it records the outcome, whatever becomes of the callers that wait for it.
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

/// The outcome of a flush, once it has ended.
type Ended = Arc<OnceLock<std::result::Result<(), IoError>>>;

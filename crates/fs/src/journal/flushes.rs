//! Flushes of the device: what each one makes durable, and what happens when one fails.
//!
//! A flush covers the writes that had completed before it began. So a sync counts flushes: the data
//! it wrote are durable once a flush that began later has succeeded, whether its own or a commit's.
//! A device reports a failed flush only once, and the contents of its cache may be gone, including
//! home writes of checkpoints. The journal therefore stops for good (Rebello et al., *Can
//! Applications Recover from fsync Failures?*, USENIX ATC 2020).

use super::{Inner, Tid};
use crate::{Error, Result};
use extant_block::{Bio, Buf, IoError, IoErrorKind, Op, Sector};
use extant_cache::blocks::Durable;
use extant_cache::{CacheError, Disk};
use std::future::Future;

/// The device as the page cache sees it, for flushes and for writes that rely on them.
#[derive(Debug)]
pub(super) struct FlushedDisk {
    disk: Disk,
    /// Failed flushes of the device when the volume was opened.
    failures: u64,
}

impl FlushedDisk {
    pub(super) fn new(disk: &Disk) -> Self {
        Self { disk: disk.clone(), failures: disk.flush_failures() }
    }

    /// Whether a flush has failed since the volume was opened.
    fn has_failed(&self) -> bool {
        self.disk.flush_failures() != self.failures
    }

    /// Runs a `PREFLUSH` write, unless a flush has failed since the volume was opened.
    ///
    /// # Errors
    /// As [`Disk::write_behind_flush`].
    pub(super) async fn write_behind_flush(&self, bio: Bio) -> Result<()> {
        Ok(self.disk.write_behind_flush(bio, self.failures).await?)
    }

    /// Writes the commit block of `tid` at `start`, unless a flush has failed since the volume was
    /// opened: it may have lost the transaction's log blocks, and not every log has checksums.
    ///
    /// # Errors
    /// As [`Disk::write_commit`].
    pub(super) async fn write_commit(&self, tid: Tid, start: Sector, block: Buf) -> Result<Durable> {
        Ok(self.disk.write_commit(tid.0, start, block, self.failures).await?)
    }
}

/// Counts flushes, numbered from 1 in the order they begin.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    begun: u64,
    /// The highest number among flushes that succeeded.
    succeeded: u64,
}

impl Flushes {
    /// The number of the most recently begun flush.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    fn end(&mut self, nth: u64) {
        self.succeeded = self.succeeded.max(nth);
    }

    /// Whether a flush that began after number `mark` has succeeded.
    fn succeeded_since(&self, mark: u64) -> bool {
        self.succeeded > mark
    }
}

impl Inner {
    /// Makes durable the writes that completed while flush `mark` was the last to have begun.
    ///
    /// # Errors
    /// Why the journal was aborted, now or earlier.
    pub(super) async fn flush_since(&self, mark: u64) -> Result<()> {
        let is_covered = {
            let state = self.lock();
            state.check_alive()?;
            state.flushes.succeeded_since(mark)
        };
        if is_covered { self.check_flushes() } else { self.flush().await }
    }

    /// Flushes the device. A failure aborts the journal and is reported for every file written
    /// since the last successful flush.
    ///
    /// # Errors
    /// As [`Self::flush_since`].
    pub(super) async fn flush(&self) -> Result<()> {
        let nth = self.lock().flushes.begin();
        let flushed = self.disk.disk.flush().await.map_err(|error| match error {
            CacheError::Io(error) => error.into(),
            _ => self.flush_error(),
        });
        self.flush_ended(nth, flushed)
    }

    /// Runs a write that begins with a flush.
    ///
    /// # Errors
    /// As [`Self::flush_since`].
    pub(super) async fn behind_flush<T>(&self, write: impl Future<Output = Result<T>>) -> Result<T> {
        let nth = self.lock().flushes.begin();
        let written = write.await;
        self.flush_ended(nth, written)
    }

    fn flush_ended<T>(&self, nth: u64, outcome: Result<T>) -> Result<T> {
        match outcome {
            Ok(done) => {
                self.check_flushes()?;
                self.lock().flushes.end(nth);
                Ok(done)
            }
            Err(cause) => {
                self.latch(cause.clone());
                Err(cause)
            }
        }
    }

    /// Detects flushes that failed elsewhere. A later success does not bring back what was lost.
    fn check_flushes(&self) -> Result<()> {
        if !self.disk.has_failed() {
            return Ok(());
        }
        self.latch(self.flush_error());
        self.lock().check_alive()
    }

    fn flush_error(&self) -> Error {
        let device = self.disk.disk.device().limits().name.clone();
        let kind = IoErrorKind::Os(5);
        IoError { device, op: Op::Flush, start: Sector(0), bytes: 0, kind }.into()
    }
}

//! Flushes of the device: what is durable after one, and what follows when one fails.
//!
//! A flush covers the writes that had completed before it began, so a sync counts flushes: data that it wrote are durable
//! once a flush that began later has succeeded, its own or a commit's. A device reports a failed flush once, and what its
//! cache held may be gone, home writes of checkpoints among it: the journal stops for good (Rebello et al., *Can
//! Applications Recover from fsync Failures?*, USENIX ATC 2020).

use super::Inner;
use crate::{Error, Result};
use extant_block::{IoError, IoErrorKind, Op, Sector};
use extant_cache::CacheError;
use std::future::Future;

/// Flushes so far, numbered from 1 as they begin.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    begun: u64,
    /// The highest number of a flush that succeeded.
    succeeded: u64,
}

impl Flushes {
    /// The number of the flush that began last.
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
    /// Makes the writes durable that completed while flush `mark` was the last to have begun.
    ///
    /// # Errors
    /// Why the journal gave up, now or before.
    pub(super) async fn flush_since(&self, mark: u64) -> Result<()> {
        let is_covered = {
            let state = self.lock();
            state.check_alive()?;
            state.flushes.succeeded_since(mark)
        };
        if is_covered { self.check_flushes() } else { self.flush().await }
    }

    /// Flushes the device. A failure ends writing, and every file that was written since the last good flush hears of it.
    ///
    /// # Errors
    /// As [`Self::flush_since`].
    pub(super) async fn flush(&self) -> Result<()> {
        let nth = self.lock().flushes.begin();
        let flushed = self.disk.flush().await.map_err(|error| match error {
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

    /// Notices flushes that failed elsewhere: a later one that succeeds does not bring back what was lost.
    fn check_flushes(&self) -> Result<()> {
        if self.disk.flush_failures() == self.flush_failures {
            return Ok(());
        }
        self.latch(self.flush_error());
        self.lock().check_alive()
    }

    fn flush_error(&self) -> Error {
        let device = self.disk.device().limits().name.clone();
        let kind = IoErrorKind::Os(5);
        IoError { device, op: Op::Flush, start: Sector(0), bytes: 0, kind }.into()
    }
}

//! Records whether a device's writes succeed, and the errors that a sync of the device will return.

use crate::dirty::ledger::DeviceLedger;
use crate::error_log::{ErrorCursor, ErrorLog};
use crate::{CacheError, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// The health of a device.
#[derive(Debug)]
pub(crate) struct DeviceHealth {
    /// Gets each change of whether the device fails, because its limits on dirty memory depend on
    /// that.
    ledger: Arc<DeviceLedger>,
    /// Why the last write-back failed, if it did.
    failure: Mutex<Option<CacheError>>,
    /// Every failure of write-back or of a flush.
    errors: ErrorLog,
    /// How many of them a sync of the device has returned.
    returned: Mutex<ErrorCursor>,
}

impl DeviceHealth {
    pub(crate) fn new(ledger: Arc<DeviceLedger>) -> Self {
        let errors = ErrorLog::default();
        let returned = Mutex::new(errors.now());
        Self { ledger, failure: Mutex::default(), errors, returned }
    }

    /// Notes how a write-back ended. An error of a file's backing is not the device's.
    pub(crate) fn note(&self, result: &Result<()>) {
        match result {
            Err(CacheError::Backing(_)) => {}
            Ok(()) if !self.is_failing() => {}
            result => {
                let mut failure = self.failure.lock();
                *failure = result.clone().err();
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
        self.failure.lock().clone()
    }

    /// Records an error for the next sync of the device.
    pub(crate) fn record(&self, error: CacheError) {
        self.errors.record(error);
    }

    /// A cursor for a caller that asks only about later errors.
    pub(crate) fn now(&self) -> ErrorCursor {
        self.errors.now()
    }

    /// Returns the last error since `cursor`, and advances `cursor` to now. A sync will still
    /// return the error.
    ///
    /// # Errors
    /// That error.
    pub(crate) fn since(&self, cursor: &mut ErrorCursor) -> Result<()> {
        self.errors.peek(cursor)
    }

    /// Returns the last error that no call has returned yet.
    ///
    /// # Errors
    /// That error.
    pub(crate) fn return_error(&self) -> Result<()> {
        self.errors.check(&mut self.returned.lock())
    }

    /// Whether every error has been returned.
    pub(crate) fn has_returned_all(&self) -> bool {
        self.errors.peek(&mut self.returned.lock().clone()).is_ok()
    }
}

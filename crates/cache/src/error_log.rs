//! Write-back errors, each reported once per open file (Linux: `lib/errseq.c`).

use crate::CacheError;
use parking_lot::Mutex;

/// A log of the failures of a mapping or a device.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    count: u64,
    last: Option<CacheError>,
    seen: bool,
}

/// The position in a log up to which an open file has reported errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorCursor(u64);

impl ErrorLog {
    /// Records an error.
    pub(crate) fn record(&self, error: CacheError) {
        let mut log = self.0.lock();
        log.count += 1;
        log.last = Some(error);
        log.seen = false;
    }

    /// A cursor for a file being opened: that file reports any error that no open file has reported
    /// yet.
    pub(crate) fn sample(&self) -> ErrorCursor {
        let log = self.0.lock();
        ErrorCursor(if log.seen { log.count } else { log.count.saturating_sub(1) })
    }

    /// A cursor for a caller that asks only about later errors.
    pub(crate) fn now(&self) -> ErrorCursor {
        ErrorCursor(self.0.lock().count)
    }

    /// Whether every error has been reported to some open file.
    pub(crate) fn is_told(&self) -> bool {
        let log = self.0.lock();
        log.seen || log.count == 0
    }

    /// Like [`ErrorLog::check`], but does not mark errors as reported.
    pub(crate) fn peek(&self, told: &mut ErrorCursor) -> Result<(), CacheError> {
        let log = self.0.lock();
        if told.0 == log.count {
            return Ok(());
        }
        told.0 = log.count;
        log.last.clone().map_or(Ok(()), Err)
    }

    /// Returns the last error since `told`, and advances `told`.
    pub(crate) fn check(&self, told: &mut ErrorCursor) -> Result<(), CacheError> {
        let mut log = self.0.lock();
        if told.0 == log.count {
            return Ok(());
        }
        told.0 = log.count;
        log.seen = true;
        log.last.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_open_file_hears_of_an_error_once() {
        let log = ErrorLog::default();
        let (mut a, mut b) = (log.sample(), log.sample());
        assert!(log.check(&mut a).is_ok());
        log.record(CacheError::ShutDown);
        assert!(log.check(&mut a).is_err());
        assert!(log.check(&mut a).is_ok());
        assert!(log.check(&mut b).is_err());
        assert!(log.check(&mut b).is_ok());
    }

    #[test]
    fn a_file_opened_later_hears_of_an_error_only_if_no_other_has() {
        let log = ErrorLog::default();
        log.record(CacheError::ShutDown);
        let mut late = log.sample();
        assert!(log.check(&mut late).is_err());
        let mut later = log.sample();
        assert!(log.check(&mut later).is_ok());
    }
}

//! Errors of this crate as errors of the cache, and back.

use crate::Error;
use extant_cache::{BackingError, BackingErrorKind, CacheError};

/// Wraps an error for the cache; [`cache_error`] unwraps it again.
pub(super) fn refusal(error: Error) -> BackingError {
    let kind = match &error {
        Error::NoSpace => BackingErrorKind::NoSpace,
        Error::TooBig(_) => BackingErrorKind::TooLarge,
        Error::Corrupt(_) => BackingErrorKind::Corrupt,
        Error::ReadOnly => BackingErrorKind::ReadOnly,
        Error::Io(_) => BackingErrorKind::Io,
        _ => BackingErrorKind::Other,
    };
    BackingError::new(kind, error)
}

/// Unwraps this crate's error from a cache error.
pub(super) fn cache_error(error: CacheError) -> Error {
    match error {
        CacheError::Io(error) => Error::Io(error),
        CacheError::Backing(error) => match error.get::<Error>() {
            Some(own) => own.clone(),
            None => Error::NotWritten(error.to_string()),
        },
        CacheError::TooLarge { bytes } => Error::TooBig(format!("a file of {bytes} bytes")),
        other => Error::NotWritten(other.to_string()),
    }
}

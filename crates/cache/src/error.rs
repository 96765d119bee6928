//! Errors of the cache, and of what lies under a mapping.

use extant_block::IoError;
use extant_rt::RtError;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Why a [`crate::Backing`] could not map, place or log a range: a kind that the cache understands, and the backing's own
/// error behind it. Cheap to clone: a failure is reported to every open file.
///
/// ```
/// use extant_cache::{BackingError, BackingErrorKind};
///
/// #[derive(Debug, thiserror::Error)]
/// #[error("group {group} has {free} free blocks")]
/// struct NoBlocks { group: u32, free: u32 }
///
/// let error = BackingError::new(BackingErrorKind::NoSpace, NoBlocks { group: 3, free: 0 });
/// assert_eq!(error.kind(), BackingErrorKind::NoSpace);
/// assert_eq!(error.get::<NoBlocks>().map(|own| own.group), Some(3));
/// ```
#[derive(Clone)]
pub struct BackingError {
    kind: BackingErrorKind,
    own: Arc<dyn Error + Send + Sync>,
}

/// The kind of failure a [`BackingError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackingErrorKind {
    /// No free blocks (`ENOSPC`).
    NoSpace,
    /// Over a quota (`EDQUOT`).
    Quota,
    /// The range lies beyond what the file can hold (`EFBIG`).
    TooLarge,
    /// The structures that describe the file are damaged (`EUCLEAN`).
    Corrupt,
    /// The volume is read-only, or its journal was aborted (`EROFS`).
    ReadOnly,
    /// Metadata could not be read or written (`EIO`).
    Io,
    /// The backing cannot do this (`EOPNOTSUPP`).
    Unsupported,
    /// The backing panicked.
    Panicked,
    /// Anything else.
    Other,
}

impl BackingError {
    /// An error of this kind, with the backing's own error as its source.
    pub fn new(kind: BackingErrorKind, own: impl Error + Send + Sync + 'static) -> Self {
        Self { kind, own: Arc::new(own) }
    }

    /// The kind.
    pub fn kind(&self) -> BackingErrorKind {
        self.kind
    }

    /// The backing's own error, if it is an `E`.
    pub fn get<E: Error + 'static>(&self) -> Option<&E> {
        self.own.downcast_ref()
    }
}

impl From<IoError> for BackingError {
    fn from(error: IoError) -> Self {
        Self::new(BackingErrorKind::Io, error)
    }
}

impl fmt::Debug for BackingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackingError({:?}, {:?})", self.kind, self.own)
    }
}

impl fmt::Display for BackingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.own.fmt(f)
    }
}

impl Error for BackingError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.own.source()
    }
}

/// Why a page could not be read, written or kept.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The backing could not map, place or log the range.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The file would exceed [`crate::MAX_FILE_BYTES`].
    #[error("a file of {bytes} bytes is larger than the cache can address; at most 4 PiB")]
    TooLarge {
        /// The size that it would have.
        bytes: u64,
    },
    /// The cache is being shut down.
    #[error("the cache has been shut down")]
    ShutDown,
    /// A call that blocks was made where none may, or a task of the cache panicked.
    #[error(transparent)]
    World(RtError),
}

impl From<RtError> for CacheError {
    fn from(error: RtError) -> Self {
        match error {
            RtError::ShutDown { .. } => Self::ShutDown,
            other => Self::World(other),
        }
    }
}

/// A write that stopped before its end: as much was done, and then this went wrong.
#[derive(Clone, Debug, Error)]
#[error("{error}")]
pub struct WriteError {
    /// Bytes that were written, from the start of the request on.
    pub done_bytes: usize,
    /// Why the rest was not.
    pub error: CacheError,
}

impl From<WriteError> for CacheError {
    fn from(stopped: WriteError) -> Self {
        stopped.error
    }
}

/// A read or write would have had to wait: for the device, for memory, or to be throttled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the operation would have to wait after {done_bytes} bytes")]
pub struct WouldWait {
    /// Bytes that were read or written, from the start of the request on.
    pub done_bytes: usize,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, CacheError>;

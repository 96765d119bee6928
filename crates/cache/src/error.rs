//! Errors of the cache, and of the layers below a mapping.

use extant_block::IoError;
use extant_rt::RtError;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Why a [`crate::Backing`] could not map, place or log a range.
///
/// It carries a kind that the cache understands, and the backing's own error as the source. Cheap
/// to clone, because a failure is reported to every open file.
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

/// The kind of a [`BackingError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackingErrorKind {
    /// No free blocks (`ENOSPC`).
    NoSpace,
    /// Over a quota (`EDQUOT`).
    Quota,
    /// The range lies beyond the largest size the file can have (`EFBIG`).
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
    /// An error of this kind; `own`, the backing's error, becomes its source.
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
        /// The size the file would have.
        bytes: u64,
    },
    /// The cache is being shut down.
    #[error("the cache has been shut down")]
    ShutDown,
    /// A blocking call was made where none is allowed, or a task of the cache panicked.
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

/// A write that stopped early: how much was written, and why it stopped.
#[derive(Clone, Debug, Error)]
#[error("{error}")]
pub struct WriteError {
    /// Bytes written, from the start of the request.
    pub done_bytes: usize,
    /// Why the rest was not written.
    pub error: CacheError,
}

impl From<WriteError> for CacheError {
    fn from(stopped: WriteError) -> Self {
        stopped.error
    }
}

/// The operation would have to wait: for the device, for memory, or because of throttling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the operation would have to wait after {done_bytes} bytes")]
pub struct WouldWait {
    /// Bytes read or written, from the start of the request.
    pub done_bytes: usize,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, CacheError>;

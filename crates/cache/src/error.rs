//! What can go wrong in the cache.

use extant_block::IoError;
use std::sync::Arc;
use thiserror::Error;

/// What a [`crate::Backing`] says went wrong: its own error.
pub type BackingError = Arc<dyn std::error::Error + Send + Sync>;

/// Why a page could not be read, written or kept.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The file's owner could not tell where it is, or give it room.
    #[error(transparent)]
    Backing(BackingError),
    /// The file would exceed [`crate::MAX_FILE_BYTES`].
    #[error("a file of {bytes} bytes is larger than the cache can address; at most 4 PiB")]
    TooLarge {
        /// The size that it would have.
        bytes: u64,
    },
    /// The cache is being shut down.
    #[error("the cache has been shut down")]
    ShutDown,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, CacheError>;

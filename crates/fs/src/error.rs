//! What can go wrong with a volume.

use extant_block::IoError;
use extant_format::Corrupt;
use thiserror::Error;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on a volume failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A structure of the volume is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The volume uses something that this program cannot handle.
    #[error("the volume uses {feature}, which is not supported{hint}")]
    Unsupported {
        /// Name of the feature, as `mke2fs -O` spells it, or a short description.
        feature: String,
        /// What to do instead; empty or beginning with a separator.
        hint: &'static str,
    },
    /// Somebody else uses a volume that would have been written.
    #[error("the volume is in use by {by} on {host}; end that first")]
    InUse {
        /// What uses it.
        by: String,
        /// The host that says so, quoted for printing.
        host: String,
    },
    /// A path names nothing. The path is quoted for printing.
    #[error("{0}: no such file or directory")]
    NotFound(String),
    /// A path leads through, or names, something that is not a directory.
    #[error("{0}: not a directory")]
    NotADirectory(String),
    /// A file was needed.
    #[error("{0}: is a directory")]
    IsADirectory(String),
    /// Another kind of file was needed.
    #[error("{0}: not a regular file")]
    NotAFile(String),
    /// Too many symbolic links on the way.
    #[error("{0}: too many levels of symbolic links")]
    TooManyLinks(String),
    /// The contents are encrypted; names and sizes are read as they are stored.
    #[error("inode {0} is encrypted; its contents cannot be read without the key")]
    Encrypted(extant_format::InodeNumber),
}

impl Error {
    /// A feature without advice.
    pub fn unsupported(feature: impl Into<String>) -> Self {
        Self::Unsupported { feature: feature.into(), hint: "" }
    }
}

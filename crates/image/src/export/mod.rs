//! Out of a volume: to a tar archive, to a directory of the host, or one file's contents to a stream.
//!
//! The first two go through a volume once, in the order of [`extant_fs::Walk`], so that the same volume gives the same archive. A
//! file that cannot be read, or not be kept at the destination, is reported to a [`Watch`] and left out. Parts of contents that
//! cannot be read are reported and read as zeros.

mod archive;
pub(crate) mod contents;
mod header;
mod host;
mod links;
mod stream;
mod tar;
mod tree;

pub use archive::{Archive, Compression};
pub use stream::to_writer;
pub use tar::to_tar;
pub use tree::to_directory;

use extant_format::{Corrupt, Inode, Place};
use extant_fs::Error;
use std::fmt;
use std::io;
use thiserror::Error as ThisError;

/// Receives progress and losses of an export. Paths are relative to the exported file; its own is empty.
pub trait Watch {
    /// Bytes of files' contents copied since the last call.
    fn advanced(&mut self, bytes: u64);
    /// Something could not be read; of contents, the parts that could not ([`Error::Lost`]), one call for each.
    fn unreadable(&mut self, path: &[u8], error: Error);
    /// A file was read but could not be kept, or not as a whole.
    fn not_kept(&mut self, path: &[u8], loss: Loss);
}

/// A property of a file that an export cannot keep.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Loss {
    /// The file as a whole.
    #[error("cannot be created: {0}")]
    File(io::Error),
    /// A device node, which only a privileged user may create.
    #[error("device nodes can be created by root only; left out")]
    Device,
    /// An archive has no form for it.
    #[error("is a socket, which a tar archive cannot hold; left out")]
    Socket,
    /// A name that would lead out of the destination.
    #[error("has a name that no directory of the host can hold; left out")]
    Name,
    /// An attribute.
    #[error("attribute {name} cannot be set: {error}")]
    Attribute {
        /// The attribute's name, fit to print.
        name: String,
        /// The system's answer.
        error: io::Error,
    },
    /// Owner, mode or times.
    #[error("{what} cannot be set: {error}")]
    Metadata {
        /// Which of them.
        what: &'static str,
        /// The system's answer.
        error: io::Error,
    },
}

impl Loss {
    /// Whether the loss is normal: a socket without its process, or an attribute that needs privileges or support that the
    /// destination lacks.
    pub fn is_expected(&self) -> bool {
        match self {
            Self::Socket => true,
            Self::Attribute { error, .. } => {
                matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
            }
            _ => false,
        }
    }
}

/// Why an export could not go on.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum ExportError {
    /// The place where it goes failed.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// Where it was to begin cannot be read, or the volume makes no sense as a whole.
    #[error(transparent)]
    Volume(#[from] Error),
}

/// Fails where the mode of the exported inode is that of no kind of file.
fn check_top(top: &Inode) -> Result<(), ExportError> {
    match top.kind() {
        Some(_) => Ok(()),
        None => {
            let place = Place::Inode(top.number);
            let corrupt = Corrupt::field(place, "i_mode", top.mode().into(), "that of a kind of file");
            Err(Error::from(corrupt).into())
        }
    }
}

/// Counts of a finished export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Directories.
    pub directories: u64,
    /// Names of everything else, hard links included.
    pub others: u64,
    /// Bytes of files' contents, holes left out.
    pub bytes: u64,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directories, others, bytes } = self;
        write!(f, "{directories} directories, {others} others, {bytes} bytes of contents")
    }
}

//! Exports from a volume: to a tar archive, to a host directory, or one file's contents to a
//! stream.
//!
//! The first two walk the volume once, in the order of [`extant_fs::Walk`], so the same volume
//! gives the same archive. A file that cannot be read, or that the destination cannot hold, is
//! reported to a [`Watch`] and left out. Unreadable parts of contents are reported and read as
//! zeros.

mod archive_file;
mod directory;
pub(crate) mod file_contents;
mod given;
mod hard_links;
mod host;
mod places;
mod read_ahead;
mod stream;
mod tar;
mod tar_header;

pub use archive_file::{Archive, Compression};
pub use directory::to_directory;
pub(crate) use places::{Place as OutPlace, Places};
pub use stream::to_writer;
pub use tar::{to_tar, to_tar_of};

use extant_format::{Corrupt, Inode, Place};
use extant_fs::Error;
use std::fmt;
use std::io;
use thiserror::Error as ThisError;

/// Receives progress and losses of an export. Paths are relative to the exported file, whose own
/// path is empty.
pub trait Watch {
    /// Content bytes copied since the last call.
    fn advanced(&mut self, bytes: u64);
    /// Something is unreadable. For contents, called once per unreadable part ([`Error::Lost`]).
    fn unreadable(&mut self, path: &[u8], error: Error);
    /// A name, a directory or a part of one is unreadable, and no more is reported about it.
    fn missing(&mut self, path: &[u8], error: Error) {
        self.unreadable(path, error);
    }
    /// A file was read but could not be kept, or only in part.
    fn not_kept(&mut self, path: &[u8], loss: Loss);
    /// Called last for a path, except that a directory's contents and attributes follow. `is_kept`
    /// says whether the destination contains the path now.
    fn settled(&mut self, _path: &[u8], _inode: &Inode, _is_kept: bool) {}
}

/// Something that an export cannot keep.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Loss {
    /// The file as a whole.
    #[error("cannot be created: {0}")]
    File(io::Error),
    /// A device node, which only a privileged user can create.
    #[error("device nodes can be created by root only; left out")]
    Device,
    /// A socket, which tar archives cannot represent.
    #[error("is a socket, which a tar archive cannot hold; left out")]
    Socket,
    /// A name that would lead outside the destination.
    #[error("has a name that no directory of the host can hold; left out")]
    Name,
    /// An attribute.
    #[error("attribute {name} cannot be set: {error}")]
    Attribute {
        /// The attribute's name, in printable form.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// Owner, mode or times.
    #[error("{what} cannot be set: {error}")]
    Metadata {
        /// Which of these.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl Loss {
    /// Whether the loss is to be expected: a socket without its process, or an attribute that needs
    /// privileges, or support that the destination lacks.
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

/// Why an export failed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum ExportError {
    /// The destination failed.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// The exported file cannot be read, or the volume as a whole is invalid.
    #[error(transparent)]
    Volume(#[from] Error),
}

/// Fails if the mode of the exported inode is not a known kind of file.
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
    /// Names of everything else, including hard links.
    pub others: u64,
    /// Content bytes, excluding holes.
    pub bytes: u64,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directories, others, bytes } = self;
        write!(f, "{directories} directories, {others} others, {bytes} bytes of contents")
    }
}

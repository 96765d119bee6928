//! Differences between a volume and its sources that are no errors, each told once with the first path that it concerns.

use extant_format::Timestamp;
use std::fmt;

/// Something that the volume does not keep as the sources have it. Names and paths are quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// An extended attribute that ext has no place for was left out.
    XattrLeftOut {
        /// The attribute.
        name: String,
        /// The first file that has it.
        path: String,
        /// Files that have it.
        files: u64,
    },
    /// Times of change lie outside the range that inodes of the volume's size store; the nearest is stored.
    TimeClamped {
        /// The first file.
        path: String,
        /// Files with such times.
        files: u64,
        /// The first and the last second that can be stored, since 1970.
        range: (i64, i64),
    },
    /// Names that an image layer uses to remove files were taken as files.
    Whiteouts {
        /// The archive.
        archive: String,
        /// The first of the names, with its path.
        path: String,
        /// How many there are.
        names: u64,
    },
    /// Access lists of archives name users or groups whose numbers no source tells; they were taken
    /// from this host.
    NamesOfHost {
        /// Each as `user NAME = NUMBER` or `group NAME = NUMBER`.
        names: Vec<String>,
    },
    /// Zero blocks within an archive, which ends with two of them, were passed over.
    LoneZeros {
        /// The archive.
        archive: String,
        /// Where the first one begins, in bytes of the uncompressed archive.
        at: u64,
        /// How many there are.
        blocks: u64,
    },
    /// Something follows the end of an archive, and was not read.
    BehindEnd {
        /// The archive.
        archive: String,
        /// Where it begins, in bytes of the uncompressed archive.
        at: u64,
        /// It begins as an archive does.
        is_archive: bool,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::XattrLeftOut { name, path, files } => write!(
                f,
                "extended attribute {name} of {path}{} left out: ext stores user., trusted. and security. attributes and \
                 POSIX access control lists",
                More(*files)
            ),
            Self::TimeClamped { path, files, range } => {
                let second = |seconds| Timestamp { seconds, nanos: 0 };
                write!(
                    f,
                    "time of {path}{} replaced by the nearest that an inode of this size stores: {} to {}",
                    More(*files),
                    second(range.0),
                    second(range.1)
                )
            }
            Self::Whiteouts { archive, path, names } => {
                write!(f, "{archive}: whiteout {path}{} taken as a file, not applied", More(*names))
            }
            Self::NamesOfHost { names } => {
                write!(
                    f,
                    "access lists: numbers taken from this host's /etc/passwd and /etc/group: {}",
                    names.join(", ")
                )
            }
            Self::LoneZeros { archive, at, blocks } => {
                write!(
                    f,
                    "{archive}: a lone zero block at byte {at}{} passed over; two end an archive",
                    More(*blocks)
                )
            }
            Self::BehindEnd { archive, at, is_archive: true } => write!(
                f,
                "{archive}: the archive that begins at byte {at}, behind the end of the first, not read: give it as a source \
                 of its own"
            ),
            Self::BehindEnd { archive, at, is_archive: false } => {
                write!(f, "{archive}: bytes from {at} on, behind the end of the archive, not read")
            }
        }
    }
}

/// Those beside the one that is named.
struct More(u64);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 | 1 => Ok(()),
            n => write!(f, " and {} more", n - 1),
        }
    }
}

//! Differences between a volume and its sources that are not errors, each reported once with the
//! first path affected.

use extant_format::Timestamp;
use std::fmt;

/// Something that the volume does not store as in the sources. Names and paths are quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// An extended attribute that ext cannot store was left out.
    XattrLeftOut {
        /// The attribute.
        name: String,
        /// The first file that has it.
        path: String,
        /// Number of files that have it.
        files: u64,
    },
    /// An extended attribute was left out, because Linux does not allow it on files of this type.
    XattrMisplaced {
        /// The attribute.
        name: String,
        /// The first file that has it.
        path: String,
        /// Number of files that have it.
        files: u64,
    },
    /// Modification times outside the range that the volume's inodes can store; they are clamped.
    TimeClamped {
        /// The first file.
        path: String,
        /// Number of files with such times.
        files: u64,
        /// Earliest and latest second since 1970 that can be stored.
        range: (i64, i64),
    },
    /// Names that image layers use to remove files were treated as files.
    Whiteouts {
        /// The archive.
        archive: String,
        /// The first of the names, with its path.
        path: String,
        /// Number of such names.
        names: u64,
    },
    /// Entries of a source were left out, because the source also contains another file with the
    /// same path, or with the path of their directory.
    Replaced {
        /// The archive.
        archive: String,
        /// The first of these entries.
        path: String,
        /// Number of such entries.
        entries: u64,
    },
    /// File flags (chattr) in an archive were left out.
    FlagsLeftOut {
        /// The archive.
        archive: String,
        /// The flags of the first file, separated by commas.
        flags: String,
        /// The first file with flags.
        path: String,
        /// Number of files with flags.
        files: u64,
    },
    /// Access lists in archives name users or groups that no source has a number for. The numbers
    /// were taken from this host.
    NamesOfHost {
        /// Each name as `user NAME = NUMBER` or `group NAME = NUMBER`.
        names: Vec<String>,
    },
    /// Zero blocks within an archive were skipped; two of them would end it.
    LoneZeros {
        /// The archive.
        archive: String,
        /// Offset of the first one, in bytes of the uncompressed archive.
        at: u64,
        /// Number of such blocks.
        blocks: u64,
    },
    /// Data after the end of an archive were not read.
    BehindEnd {
        /// The archive.
        archive: String,
        /// Offset of the data, in bytes of the uncompressed archive.
        at: u64,
        /// Whether the data look like the start of another archive.
        is_archive: bool,
    },
    /// A discard was requested, but the target does not support it.
    NoDiscard,
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
            Self::XattrMisplaced { name, path, files } => write!(
                f,
                "extended attribute {name} of {path}{} left out: on Linux, only regular files and directories have user. \
                 attributes, symbolic links have no access control lists, and only directories have default ones",
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
            Self::Replaced { archive, path, entries } => write!(
                f,
                "{archive}: {path}{} left out: the same source has another file in their place or in place of their directory",
                More(*entries)
            ),
            Self::FlagsLeftOut { archive, flags, path, files } => {
                write!(f, "{archive}: file flags {flags} of {path}{} left out", More(*files))
            }
            Self::NamesOfHost { names } => {
                write!(f, "numbers taken from this host's /etc/passwd and /etc/group: {}", names.join(", "))
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
            Self::NoDiscard => write!(f, "the target does not support discard"),
        }
    }
}

/// Counts files other than the one named.
struct More(u64);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 | 1 => Ok(()),
            n => write!(f, " and {} more", n - 1),
        }
    }
}

//! Errors of operations on a volume.

use extant_block::IoError;
use extant_format::{Corrupt, InodeNumber, Problem};
use std::fmt;
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
    /// A part of a file or directory cannot be read; the rest can.
    #[error(transparent)]
    Lost(#[from] Box<Lost>),
    /// More lost parts of a file than are reported one by one.
    #[error("{parts} more parts, {bytes} bytes together, cannot be read")]
    LostMore {
        /// How many there are.
        parts: u64,
        /// Their length in bytes.
        bytes: u64,
    },
    /// A structure is damaged, and a copy was used instead.
    #[error("{damage}; {instead}")]
    Replaced {
        /// The damage.
        damage: Box<Error>,
        /// Which copy was used, as a sentence without a full stop.
        instead: String,
    },
    /// The volume uses something that this program cannot handle.
    #[error("not supported: {feature}{hint}")]
    Unsupported {
        /// Name of the feature, as in `mke2fs -O`, or a short description.
        feature: String,
        /// Advice for the user; empty or starting with a separator.
        hint: &'static str,
    },
    /// The host refused access to a file or device that holds a volume; `errno` is the host's.
    #[error("{place}: {message}")]
    Host {
        /// The path, quoted for printing.
        place: String,
        /// The host's error number.
        errno: i32,
        /// The host's error message.
        message: String,
    },
    /// Another program, such as a virtual machine, has locked the image that was to be written.
    #[error("{place}: in use by {by}, which holds a lock on it; end that first")]
    Locked {
        /// The image or device, quoted for printing.
        place: String,
        /// The program, in words.
        by: String,
    },
    /// Another mount or a checker is using the volume that was to be written (multiple-mount
    /// protection).
    #[error("the volume is in use by {by} on {host}; end that first")]
    InUse {
        /// What is using it: a mount or a checker.
        by: String,
        /// The host recorded in the protection block, quoted for printing.
        host: String,
    },
    /// A path does not exist. The path is quoted for printing.
    #[error("{0}: no such file or directory")]
    NotFound(String),
    /// A path leads through, or names, something that is not a directory.
    #[error("{0}: not a directory")]
    NotADirectory(String),
    /// A directory was found where a file is needed.
    #[error("{0}: is a directory")]
    IsADirectory(String),
    /// Not a regular file.
    #[error("{0}: not a regular file")]
    NotAFile(String),
    /// A device node, pipe or socket has no contents on the volume to open (ENXIO).
    #[error("{0}: a device node, pipe or socket, which has no contents to open")]
    Special(String),
    /// Too many symbolic links in a path (ELOOP).
    #[error("{0}: too many levels of symbolic links")]
    Loop(String),
    /// The name exists already (EEXIST).
    #[error("{0}: exists already")]
    Exists(String),
    /// A directory that must be empty is not (ENOTEMPTY).
    #[error("{0}: the directory is not empty")]
    NotEmpty(String),
    /// A name has more than 255 bytes (ENAMETOOLONG).
    #[error("{0}: the name is too long")]
    NameTooLong(String),
    /// The inode already has the maximum number of links (EMLINK).
    #[error("{0}: has as many links as an inode can have")]
    TooManyLinks(String),
    /// Only the owner or a caller with a certain capability may do this (EPERM).
    #[error("{0}: not permitted")]
    Permission(String),
    /// The mode or the access control list denies it (EACCES).
    #[error("{0}: permission denied")]
    Access(String),
    /// The volume was opened read-only, or an earlier failure ended writing (EROFS).
    #[error("the volume is read-only")]
    ReadOnly,
    /// A bug in this program ended writing (EIO). Everything synced before is on the volume.
    #[error("a defect of this program ended writing; open the volume again, which recovers it")]
    Defect,
    /// An error stopped all use of the volume because of `errors=panic` (EIO).
    #[error("the volume was stopped at an error, as its policy for errors asks: {0}")]
    Halted(String),
    /// Data, or a file's size, were not written, for a reason that has no error of its own (EIO).
    #[error("{0}")]
    NotWritten(String),
    /// The two names are on different volumes or in different projects (EXDEV).
    #[error("{0}: lies elsewhere")]
    CrossDevice(String),
    /// The file was not opened for this operation (EBADF).
    #[error("the file is not open for {0}")]
    BadFile(&'static str),
    /// An invalid request (EINVAL).
    #[error("{0}")]
    Invalid(String),
    /// No free blocks (ENOSPC).
    #[error("no space is left on the volume")]
    NoSpace,
    /// No free inodes (ENOSPC).
    #[error("no space is left on the volume for another file: all of its inodes are in use")]
    NoInodes,
    /// A directory cannot take more names, however much space is free (ENOSPC).
    #[error("{0}")]
    DirectoryFull(String),
    /// An attribute fits neither in the inode nor in its attribute block (ENOSPC).
    #[error(
        "no room for attribute {name} of {bytes} bytes: a file's attributes fit its inode and one block of {block_bytes} \
         bytes{hint}"
    )]
    NoXattrRoom {
        /// The attribute, quoted for printing.
        name: String,
        /// Length of its value, in bytes.
        bytes: usize,
        /// The volume's block size, in bytes.
        block_bytes: u32,
        /// Advice for the user; empty or starting with a separator.
        hint: &'static str,
    },
    /// The contents do not fit in memory (ENOMEM).
    #[error("{0}: do not fit in memory")]
    NoMemory(String),
    /// The owner's quota is exhausted (EDQUOT).
    #[error("the quota of {0} is used up")]
    Quota(String),
    /// Larger than the maximum file size (EFBIG).
    #[error("{0}: would become larger than a file of this volume can be")]
    TooBig(String),
    /// There is no such attribute (ENODATA).
    #[error("{0}: no such attribute")]
    NoData(String),
    /// An attribute's value is too long (E2BIG).
    #[error("{0}: the value is too long")]
    ValueTooBig(String),
    /// A name or a buffer has a length out of range (ERANGE).
    #[error("{0}: the length is out of range")]
    Range(String),
    /// In use in a way that prevents this (EBUSY).
    #[error("{0}: in use")]
    Busy(String),
    /// Not supported for this kind of file or volume (EOPNOTSUPP).
    #[error("{0}: not supported")]
    NotSupported(String),
    /// The inode has been deleted (ESTALE).
    #[error("inode {0} has been deleted since")]
    Stale(InodeNumber),
    /// The contents are encrypted. Names and sizes are returned as stored.
    #[error("inode {0} is encrypted; its contents cannot be read without the key")]
    Encrypted(InodeNumber),
}

/// A part of a file or directory that cannot be read. The data around it can.
#[derive(Debug, Clone, Error)]
#[error("bytes {offset}..{} ({bytes} bytes){} cannot be read: {error}", .offset + .bytes, OfDirectory(*.directory))]
pub struct Lost {
    /// The directory, if it is part of one.
    pub directory: Option<InodeNumber>,
    /// Offset of its first byte.
    pub offset: u64,
    /// Its length in bytes, at least 1.
    pub bytes: u64,
    /// The first error met there.
    pub error: Error,
}

/// Prints whose bytes are lost, because a path printed with them may lead elsewhere.
struct OfDirectory(Option<InodeNumber>);

impl fmt::Display for OfDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |number| write!(f, " of directory {number}"))
    }
}

impl Lost {
    /// One past its last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Merges `next` into this part if it is adjacent and its error is of the same kind. Returns
    /// whether it did.
    pub(crate) fn joins(&mut self, next: &Self) -> bool {
        let same_kind = std::mem::discriminant(&self.error) == std::mem::discriminant(&next.error);
        let joins = same_kind && next.offset == self.end();
        if joins {
            self.bytes += next.bytes;
        }
        joins
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::Lost(Box::new(lost))
    }
}

impl From<Error> for std::io::Error {
    /// The kind follows from the errno; the message is the original error's.
    fn from(error: Error) -> Self {
        Self::new(Self::from_raw_os_error(error.errno()).kind(), error)
    }
}

impl Error {
    /// The number that Linux system calls report for it (asm-generic/errno.h; ext4 uses EUCLEAN for
    /// a damaged structure and EBADMSG for a wrong checksum).
    pub fn errno(&self) -> i32 {
        match self {
            Self::Host { errno, .. } => *errno,
            Self::Lost(lost) => lost.error.errno(),
            Self::Replaced { damage, .. } => damage.errno(),
            Self::Permission(_) => 1,
            Self::NotFound(_) => 2,
            Self::Io(_) | Self::LostMore { .. } | Self::Defect | Self::Halted(_) | Self::NotWritten(_) => 5,
            Self::Special(_) => 6,
            Self::ValueTooBig(_) => 7,
            Self::BadFile(_) => 9,
            Self::NoMemory(_) => 12,
            Self::Access(_) => 13,
            Self::Busy(_) | Self::Locked { .. } | Self::InUse { .. } => 16,
            Self::Exists(_) => 17,
            Self::CrossDevice(_) => 18,
            Self::NotADirectory(_) => 20,
            Self::IsADirectory(_) => 21,
            Self::Invalid(_) | Self::NotAFile(_) => 22,
            Self::TooBig(_) => 27,
            Self::NoSpace | Self::NoInodes | Self::DirectoryFull(_) | Self::NoXattrRoom { .. } => 28,
            Self::ReadOnly => 30,
            Self::TooManyLinks(_) => 31,
            Self::Range(_) => 34,
            Self::NameTooLong(_) => 36,
            Self::NotEmpty(_) => 39,
            Self::Loop(_) => 40,
            Self::NoData(_) => 61,
            Self::Corrupt(Corrupt { problem: Problem::Checksum { .. }, .. }) => 74,
            Self::Unsupported { .. } | Self::NotSupported(_) => 95,
            Self::Stale(_) => 116,
            Self::Corrupt(_) => 117,
            Self::Quota(_) => 122,
            Self::Encrypted(_) => 126,
        }
    }

    /// An unsupported feature, without advice.
    pub fn unsupported(feature: impl Into<String>) -> Self {
        Self::Unsupported { feature: feature.into(), hint: "" }
    }
}

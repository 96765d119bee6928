//! Errors of bios.

use crate::op::{Op, Sector};
use thiserror::Error;

/// A failed bio: which device, which operation, where, and why.
#[derive(Debug, Clone, Error)]
#[error("{device}: {op} of {bytes} bytes at sector {start}: {kind}")]
pub struct IoError {
    /// The device's name: a path, a URI, or the name of a modelled disk.
    pub device: String,
    /// The operation that failed.
    pub op: Op,
    /// The bio's first sector.
    pub start: Sector,
    /// The bio's length in bytes.
    pub bytes: u64,
    /// The cause.
    pub kind: IoErrorKind,
}

/// Why a bio failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IoErrorKind {
    /// The operating system's error number.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// The range lies beyond the end of the device.
    #[error("beyond the end of the device")]
    OutOfRange,
    /// The host returned fewer bytes than asked for.
    #[error("short transfer: {0} bytes done")]
    Short(u64),
    /// Another writer has claimed the device; see [`crate::Device::claim`].
    #[error("in use by another writer")]
    Claimed,
    /// Another program holds a lock on the file; see [`crate::ForeignLocks`].
    #[error("in use by {by}, which holds a lock on it")]
    Locked {
        /// The program, in words.
        by: String,
    },
    /// A write to a device opened read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// Start, length or memory is not aligned as [`crate::Limits`] requires.
    #[error("not aligned to the device's block size")]
    Misaligned,
    /// No answer in time; it is unknown whether the operation was done.
    #[error("timed out")]
    TimedOut,
    /// The device has disappeared; it is unknown whether the operation was done.
    #[error("the device is gone: {0}")]
    Gone(String),
    /// The device's server violated its protocol; it is unknown whether the operation was done.
    #[error("{0}")]
    Protocol(String),
    /// The bio was dropped before its device ended it, by a panic or along with its world; it is
    /// unknown whether the operation was done.
    #[error("dropped before it ended")]
    Dropped,
    /// The words of a program's own [`crate::Storage`].
    #[error("{0}")]
    Storage(String),
    /// The device does not support this operation.
    #[error("not supported by the device")]
    Unsupported,
}

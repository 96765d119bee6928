//! Errors as they are reported to the kernel.

use extant_fs::Error;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The volume returned an error.
    Volume(Error),
    /// The request itself is invalid.
    Request(Errno),
}

/// Error numbers that the server itself reports (asm-generic/errno.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(i32);

impl Errno {
    pub(crate) const PERM: Self = Self(1);
    pub(crate) const INTR: Self = Self(4);
    pub(crate) const IO: Self = Self(5);
    pub(crate) const NXIO: Self = Self(6);
    pub(crate) const BADF: Self = Self(9);
    pub(crate) const INVAL: Self = Self(22);
    pub(crate) const NOTTY: Self = Self(25);
    pub(crate) const RANGE: Self = Self(34);
    pub(crate) const NOSYS: Self = Self(38);
    pub(crate) const NODATA: Self = Self(61);
    pub(crate) const PROTO: Self = Self(71);
    pub(crate) const OVERFLOW: Self = Self(75);
    pub(crate) const OPNOTSUPP: Self = Self(95);
    pub(crate) const STALE: Self = Self(116);
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Volume(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Request(errno)
    }
}

impl Failure {
    /// A positive error number.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Volume(error) => error.errno(),
            Self::Request(errno) => errno.0,
        }
    }

    /// Whether another caller might succeed.
    pub(crate) const fn is_denied(&self) -> bool {
        matches!(self, Self::Volume(Error::Access(_) | Error::Permission(_)))
    }

    pub(crate) const fn is_missing(&self) -> bool {
        matches!(self, Self::Volume(Error::NotFound(_)))
    }
}

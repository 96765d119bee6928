//! Operations and addresses.

use std::fmt;

/// A 512-byte unit of a device, counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

impl Sector {
    /// Bytes in a sector.
    pub const BYTES: u64 = 512;

    /// The sector that contains byte `offset_bytes`.
    pub const fn containing(offset_bytes: u64) -> Self {
        Self(offset_bytes / Self::BYTES)
    }

    /// Offset of the sector's first byte, or `None` if it does not fit in 64 bits.
    pub const fn byte_offset(self) -> Option<u64> {
        self.0.checked_mul(Self::BYTES)
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The operation of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the segments from the device.
    Read,
    /// Store the segments on the device.
    Write,
    /// Make all writes that completed earlier durable.
    Flush,
    /// Tell the device that the range's contents are no longer needed.
    Discard,
    /// Make the range read as zeros.
    WriteZeroes,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write-zeroes",
        })
    }
}

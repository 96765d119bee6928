//! Number types that must not be mixed up.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// An inode number; the first is 1, and 0 means none.
    InodeNumber(u32)
}
number! {
    /// A block within a file, directory or journal, counted from 0.
    FileBlock(u32)
}
number! {
    /// A block of the volume, counted from 0.
    VolumeBlock(u64)
}
number! {
    /// A block group, counted from 0.
    Group(u32)
}

impl InodeNumber {
    /// The list of bad blocks.
    pub const BAD_BLOCKS: Self = Self(1);
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// User quota.
    pub const USER_QUOTA: Self = Self(3);
    /// Group quota.
    pub const GROUP_QUOTA: Self = Self(4);
    /// Reserved group descriptor blocks.
    pub const RESIZE: Self = Self(7);
    /// The journal.
    pub const JOURNAL: Self = Self(8);
}

/// A volume's block size: a power of two from 1 KiB to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u8);

impl BlockSize {
    /// 1 KiB.
    pub const K1: Self = Self(10);
    /// 4 KiB.
    pub const K4: Self = Self(12);

    /// From `s_log_block_size`: 0 (1 KiB) to 6 (64 KiB).
    pub const fn from_log_kib(log: u32) -> Option<Self> {
        if log <= 6 { Some(Self(10 + log as u8)) } else { None }
    }

    /// From a size in bytes.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= 1024 && bytes <= 65536 {
            Some(Self(bytes.trailing_zeros() as u8))
        } else {
            None
        }
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        1 << self.0
    }

    /// Size in bytes, as a `usize`.
    pub const fn byte_len(self) -> usize {
        1 << self.0
    }

    /// Base-2 logarithm of the size in bytes.
    pub const fn log2(self) -> u32 {
        self.0 as u32
    }

    /// Number of blocks needed for `bytes`.
    pub const fn blocks_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.0)
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

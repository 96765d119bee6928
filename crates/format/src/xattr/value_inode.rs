//! The inode that holds one large value (`ea_inode`).

use crate::{ChecksumSeed, UintExt};
use std::fmt;

/// Fields of an inode with `EXT4_EA_INODE_FL`, whose contents are an attribute value. Several
/// inodes may share it; it has no name, and its time stamp fields have other meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueInode {
    /// [`ValueInode::hash_of`] the value, in `i_atime`.
    pub hash: u32,
    /// Number of attributes that refer to it: high half in `i_ctime`, low half in `i_version`
    /// (`osd1.linux1.l_i_version`).
    pub references: u64,
}

impl ValueInode {
    /// The hash of a value.
    pub fn hash_of(value: &[u8], seed: ChecksumSeed) -> u32 {
        seed.over(value).0
    }

    /// From these fields of the inode.
    pub fn from_fields(i_atime: u32, i_ctime: u32, i_version: u32) -> Self {
        Self { hash: i_atime, references: u64::from(i_ctime) << 32 | u64::from(i_version) }
    }

    /// `i_atime`, `i_ctime` and `i_version`.
    pub fn to_fields(self) -> (u32, u32, u32) {
        (self.hash, (self.references >> 32).low_u32(), self.references.low_u32())
    }
}

impl fmt::Display for ValueInode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attribute value: hash {:#010x}, references {}", self.hash, self.references)
    }
}

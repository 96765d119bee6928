//! Extended attributes: in the inode after its fixed part, in a block, and in separate inodes that
//! each hold one large value.
//!
//! Kernel documentation: *Extended Attributes* (Documentation/filesystems/ext4/attributes.rst).
//!
//! In both areas a list of entries grows up, and values grow down:
//!
//! ```text
//! inode:  0xea020000 │ entry │ entry │ … │ 0 │ free │ value │ value │
//! block:  header (32 bytes)  │ entry │ … │ 0 │ free │ value │ value │
//! ```
//!
//! Value offsets are relative to the first entry in an inode, and to the start of a block.

mod block;
mod entries;
mod name;
mod value_inode;
mod write;

pub use block::{
    RawXattrBlockHeader, XATTR_BLOCK_HEADER_BYTES, XattrBlock, verify_xattr_block, write_xattr_checksum,
};
pub use entries::{RawXattrEntry, Xattr, XattrIter, XattrValue, Xattrs, set_value_inodes};
pub use name::{XattrIndex, XattrName};
pub use value_inode::ValueInode;
pub use write::{XattrWriteError, write_inode_xattrs, write_xattr_block, xattr_space};

/// `EXT4_XATTR_MAGIC`: starts the area in an inode, and a block.
pub const XATTR_MAGIC: u32 = 0xea02_0000;
/// Largest value allowed by Linux, `EXT4_XATTR_SIZE_MAX`.
pub const XATTR_VALUE_MAX: u32 = 1 << 24;
/// Maximum number of inodes that share a block, `EXT4_XATTR_REFCOUNT_MAX`.
pub const XATTR_BLOCK_SHARES_MAX: u32 = 1024;

/// Length rounded up to a multiple of 4, as for entries and values.
const fn padded(len: usize) -> usize {
    (len + 3) & !3
}

#[cfg(test)]
mod tests;

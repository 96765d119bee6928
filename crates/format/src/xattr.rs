//! Extended attributes: in the inode after its fixed part, in a block, and as inodes that hold one large value.
//!
//! Kernel documentation: *Extended Attributes* (Documentation/filesystems/ext4/attributes.rst).
//!
//! Both areas are a list of entries that grows up and values that grow down:
//!
//! ```text
//! inode:  0xea020000 │ entry │ entry │ … │ 0 │ free │ value │ value │     offsets count from the first entry
//! block:  header (32 bytes)  │ entry │ … │ 0 │ free │ value │ value │     offsets count from the block's start
//! ```

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

/// `EXT4_XATTR_MAGIC`: opens the area in an inode, and a block.
pub const XATTR_MAGIC: u32 = 0xea02_0000;
/// The largest value that Linux allows, `EXT4_XATTR_SIZE_MAX`.
pub const XATTR_VALUE_MAX: u32 = 1 << 24;
/// How many inodes may share a block, `EXT4_XATTR_REFCOUNT_MAX`.
pub const XATTR_BLOCK_SHARES_MAX: u32 = 1024;

/// Length with the padding to a multiple of 4 that entries and values get.
const fn padded(len: usize) -> usize {
    (len + 3) & !3
}

#[cfg(test)]
mod tests;

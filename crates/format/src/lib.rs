//! On-disk structures of ext2, ext3, ext4 and jbd2: converts bytes to types and back.
//!
//! Every structure has the same shape: a `Raw…` layout with the kernel's field names at their
//! documented offsets; a type with English names on top; `parse`, which accepts only consistent
//! values; `write_to`; checksums; and `Display`, whose output `extant info` and `extant debug`
//! print. Layouts follow the kernel's *ext4 Data Structures and Algorithms*
//! (Documentation/filesystems/ext4).
//!
//! This crate does no I/O, reads no clock and has no `unsafe`. For any input bytes, it never
//! panics, overflows, loops without bound, or allocates more than a small multiple of its input.
//!
//! ```
//! use extant_format::{Corrupt, Problem, Superblock};
//!
//! let bytes = [0u8; 1024];
//! let refused = Superblock::parse(&bytes).unwrap_err();
//! assert!(matches!(refused.problem, Problem::Magic { found: 0, expected: 0xef53 }));
//! assert_eq!(refused.to_string(), "superblock: magic is 0x0, expected 0xef53");
//! ```
#![forbid(unsafe_code)]

mod acl;
mod bitmap;
mod block_range;
mod capability;
mod char_sign;
mod checksum;
mod cluster;
mod dirent;
mod error;
mod extent;
mod features;
mod foreign;
mod group_desc;
mod htree;
mod ids;
mod indirect;
mod inline_data;
mod inode;
pub mod jbd2;
mod mmp;
mod orphan_file;
mod quota;
mod superblock;
mod timestamp;
mod uint;
mod xattr;

pub use acl::{Acl, AclEntry, AclTag, RawAclEntry, RawAclEntryShort};
pub use bitmap::{
    bit, bits_are_clear, block_bitmap_checksum, clear_bits, count_free, inode_bitmap_checksum, set_bits,
    verify_block_bitmap, verify_inode_bitmap,
};
pub use block_range::{BlockRange, joined_ranges};
pub use capability::{CAPABILITY_XATTR, capability_root, with_capability_root};
pub use char_sign::CharSign;
pub use checksum::{ChecksumSeed, crc16, crc32c, crc32c_origin};
pub use cluster::ClusterSize;
pub use dirent::{
    DIRENT_HEADER_BYTES, DIRENT_TAIL_BYTES, DirEntries, DirEntry, NAME_MAX, decode_record_bytes,
    dirent_bytes, dirent_checksum_seed, encode_record_bytes, has_dirent_tail, init_dirent_tail,
    verify_dirent_checksum, write_dirent, write_dirent_tail,
};
pub use error::{Corrupt, Place, Problem};
pub use extent::{
    DamagedRange, EXTENT_MAGIC, EXTENT_MAX_BLOCKS, EXTENT_MAX_DEPTH, Extent, ExtentContext, ExtentIndex,
    ExtentNode, UNWRITTEN_MAX_BLOCKS, extent_checksum_seed, verify_extent_checksum, write_extent_checksum,
};
pub use features::{Compat, Incompat, RoCompat};
pub use foreign::{FOREIGN_HEAD_BYTES, Foreign};
pub use group_desc::{
    GroupDescriptor, GroupFlags, RawGroupDescriptor, inode_offset, inode_table_blocks, leading_blocks,
};
pub use htree::{
    DxEntries, DxEntriesMut, DxEntry, DxNode, DxRoot, DxRootInfo, HASH_LANES, HashVersion, HtreeContext,
    NameHash, RawDxCountLimit, RawDxDot, RawDxEntry, RawDxRoot, RawDxTail, dx_checksum_seed, hash_name,
    hash_names, init_dx_node, init_dx_root, is_dx_block, set_dotdot, set_dx_levels, verify_dx_checksum,
    write_dx_checksum, write_dx_node, write_dx_root,
};
pub use ids::{BlockSize, FileBlock, Group, InodeNumber, VolumeBlock};
pub use indirect::{
    DIRECT_POINTERS, IndirectPath, check_pointer, indirect_capacity, indirect_path, parse_indirect,
    pointers_per_block,
};
pub use inline_data::{
    INLINE_HEAD_BYTES, INLINE_PARENT_BYTES, InlineData, InlineDirectory, split_inline_data,
    write_inline_entries,
};
pub use inode::{DeviceNumber, FileKind, GOOD_OLD_INODE_SIZE, Inode, InodeFlags, RawInode, RawInodeExtra};
pub use mmp::{MMP_BYTES, MMP_MAGIC, MMP_SEQUENCE_MAX, Mmp, MmpState, RawMmp};
pub use orphan_file::{
    ORPHAN_MAGIC, OrphanBlock, RawOrphanTail, finish_orphan_block, orphans_per_block, set_orphan,
};
pub use quota::{
    QUOTA_BLOCK_BYTES, QUOTA_LEAF_ENTRIES, QUOTA_TREE_DEPTH, QUOTA_TREE_ROOT, QuotaEntry, QuotaHeader,
    QuotaKind, QuotaLeaf, QuotaTreeNode, RawQuotaEntry, RawQuotaHeader, RawQuotaLeafHeader,
    next_free_quota_block, write_quota_leaf, write_quota_tree_node,
};
pub use superblock::{
    DescriptorCopy, ErrorCode, ErrorRecord, RawSuperblock, STATE_ERROR, STATE_ORPHAN, STATE_VALID,
    SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, Superblock, backup_offsets,
};
pub use timestamp::Timestamp;
pub use uint::UintExt;
pub use xattr::{
    RawXattrBlockHeader, RawXattrEntry, ValueInode, XATTR_BLOCK_HEADER_BYTES, XATTR_BLOCK_SHARES_MAX,
    XATTR_MAGIC, XATTR_VALUE_MAX, Xattr, XattrBlock, XattrIndex, XattrIter, XattrName, XattrValue,
    XattrWriteError, Xattrs, set_value_inodes, verify_xattr_block, write_inode_xattrs, write_xattr_block,
    write_xattr_checksum, xattr_space,
};

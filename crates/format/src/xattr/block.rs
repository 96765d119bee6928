//! An attribute block, which several inodes may share.

use super::{XATTR_MAGIC, Xattrs};
use crate::{ChecksumSeed, Corrupt, InodeNumber, Place, Problem, VolumeBlock};
use std::fmt;
use std::mem::offset_of;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `struct ext4_xattr_header`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawXattrBlockHeader {
    /// 0x0: 0xea020000.
    pub h_magic: U32,
    /// 0x4: number of inodes that share the block.
    pub h_refcount: U32,
    /// 0x8: always 1.
    pub h_blocks: U32,
    /// 0xc: hash of all entries; 0 if it must not be shared.
    pub h_hash: U32,
    /// 0x10: checksum of the block's number and contents.
    pub h_checksum: U32,
    /// 0x14.
    pub h_reserved: [U32; 3],
}

/// Size of the header of an attribute block in bytes; its entries follow.
pub const XATTR_BLOCK_HEADER_BYTES: usize = HEADER_LEN;
pub(super) const HEADER_LEN: usize = size_of::<RawXattrBlockHeader>();
const CHECKSUM: usize = offset_of!(RawXattrBlockHeader, h_checksum);

/// An attribute block.
#[derive(Clone, Copy, Debug)]
pub struct XattrBlock<'a> {
    /// Number of inodes that share it.
    pub references: u32,
    /// Hash of its entries, used to find an identical block; 0 if it must not be shared.
    pub hash: u32,
    /// The stored checksum; 0 without `metadata_csum`.
    pub checksum: u32,
    /// The attributes.
    pub xattrs: Xattrs<'a>,
}

impl<'a> XattrBlock<'a> {
    /// Parses `block`, which `inode` refers to by `number`.
    ///
    /// # Errors
    /// Another magic number, more than one block, or entries as in [`Xattrs::parse_inode`].
    pub fn parse(block: &'a [u8], inode: InodeNumber, number: VolumeBlock) -> Result<Self, Corrupt> {
        let place = Place::XattrBlock(inode, number);
        let Ok((raw, _)) = RawXattrBlockHeader::ref_from_prefix(block) else {
            return Err(Corrupt::truncated(place, HEADER_LEN, block.len()));
        };
        let found = raw.h_magic.get();
        if found != XATTR_MAGIC {
            return Err(Corrupt { place, problem: Problem::Magic { found, expected: XATTR_MAGIC } });
        }
        if raw.h_blocks.get() != 1 {
            return Err(Corrupt::field(place, "h_blocks", raw.h_blocks.get().into(), "1"));
        }
        Ok(Self {
            references: raw.h_refcount.get(),
            hash: raw.h_hash.get(),
            checksum: raw.h_checksum.get(),
            xattrs: Xattrs::check(block, HEADER_LEN, place)?,
        })
    }

    /// The value `h_hash` must have for these entries.
    pub fn computed_hash(&self) -> u32 {
        hash_entries(self.xattrs.iter().map(|xattr| xattr.hash))
    }
}

/// Combines entry hashes into a block's hash. An entry without a hash makes the block unshareable:
/// 0.
pub(super) fn hash_entries(hashes: impl IntoIterator<Item = u32>) -> u32 {
    hashes
        .into_iter()
        .try_fold(0u32, |hash, entry| (entry != 0).then_some(hash.rotate_left(16) ^ entry))
        .unwrap_or(0)
}

/// Checks the checksum of a block on a volume with `metadata_csum`.
///
/// # Errors
/// Another checksum, or too few bytes.
pub fn verify_xattr_block(
    block: &[u8],
    inode: InodeNumber,
    number: VolumeBlock,
    seed: ChecksumSeed,
) -> Result<(), Corrupt> {
    let place = Place::XattrBlock(inode, number);
    let (Some(computed), Ok((raw, _))) =
        (checksum(block, number, seed), RawXattrBlockHeader::ref_from_prefix(block))
    else {
        return Err(Corrupt::truncated(place, HEADER_LEN, block.len()));
    };
    let stored = raw.h_checksum.get();
    if stored == computed { Ok(()) } else { Err(Corrupt::checksum(place, stored, computed)) }
}

/// Updates the checksum of an edited block on a volume with `metadata_csum`.
///
/// # Panics
/// If the block is shorter than its header.
pub fn write_xattr_checksum(block: &mut [u8], number: VolumeBlock, seed: ChecksumSeed) {
    let sum = checksum(block, number, seed).expect("a block is longer than its header");
    block[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Covers the block's number, and the block with its checksum field as 0.
pub(super) fn checksum(block: &[u8], number: VolumeBlock, seed: ChecksumSeed) -> Option<u32> {
    let (before, rest) = block.split_at_checked(CHECKSUM)?;
    Some(seed.over(&number.0.to_le_bytes()).over(before).over(&[0; 4]).over(rest.get(4..)?).0)
}

impl fmt::Display for XattrBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { references, hash, checksum, xattrs } = self;
        writeln!(
            f,
            "attribute block: references {references}, hash {hash:#010x}, checksum {checksum:#010x}"
        )?;
        xattrs.iter().try_for_each(|xattr| writeln!(f, "  {xattr}"))
    }
}

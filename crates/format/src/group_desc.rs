//! Block group descriptors (kernel document: *Block Group Descriptors*).

use crate::{
    BlockSize, Corrupt, Group, Incompat, InodeNumber, Place, Superblock, UintExt, VolumeBlock, crc16,
};
use bitflags::bitflags;
use std::fmt;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// On-disk descriptor: the first 32 bytes without `64bit`, all 64 with it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // the kernel's names are the documentation
pub struct RawGroupDescriptor {
    /* 0x00 */ pub bg_block_bitmap_lo: U32,
    /* 0x04 */ pub bg_inode_bitmap_lo: U32,
    /* 0x08 */ pub bg_inode_table_lo: U32,
    /* 0x0c */ pub bg_free_blocks_count_lo: U16,
    /* 0x0e */ pub bg_free_inodes_count_lo: U16,
    /* 0x10 */ pub bg_used_dirs_count_lo: U16,
    /* 0x12 */ pub bg_flags: U16,
    /* 0x14 */ pub bg_exclude_bitmap_lo: U32,
    /* 0x18 */ pub bg_block_bitmap_csum_lo: U16,
    /* 0x1a */ pub bg_inode_bitmap_csum_lo: U16,
    /* 0x1c */ pub bg_itable_unused_lo: U16,
    /* 0x1e */ pub bg_checksum: U16,
    /* 0x20 */ pub bg_block_bitmap_hi: U32,
    /* 0x24 */ pub bg_inode_bitmap_hi: U32,
    /* 0x28 */ pub bg_inode_table_hi: U32,
    /* 0x2c */ pub bg_free_blocks_count_hi: U16,
    /* 0x2e */ pub bg_free_inodes_count_hi: U16,
    /* 0x30 */ pub bg_used_dirs_count_hi: U16,
    /* 0x32 */ pub bg_itable_unused_hi: U16,
    /* 0x34 */ pub bg_exclude_bitmap_hi: U32,
    /* 0x38 */ pub bg_block_bitmap_csum_hi: U16,
    /* 0x3a */ pub bg_inode_bitmap_csum_hi: U16,
    /* 0x3c */ pub bg_reserved: U32,
}

const CHECKSUM_AT: usize = 0x1e;

bitflags! {
    /// `bg_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap and table were never written: all inodes are free.
        const INODE_UNINIT = 1;
        /// The block bitmap was never written: only the group's own metadata is in use.
        const BLOCK_UNINIT = 2;
        /// The inode table is zeroed.
        const INODE_ZEROED = 4;
        const _ = !0;
    }
}

/// A group's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDescriptor {
    /// Location of the block bitmap.
    pub block_bitmap: VolumeBlock,
    /// Location of the inode bitmap.
    pub inode_bitmap: VolumeBlock,
    /// Start of the inode table.
    pub inode_table: VolumeBlock,
    /// Free blocks (clusters with `bigalloc`).
    pub free_blocks: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Number of directories.
    pub used_dirs: u32,
    /// Number of never-used inodes at the end of the table.
    pub unused_inodes: u32,
    /// Flags.
    pub flags: GroupFlags,
    /// Checksum of the block bitmap; 16 bits without `64bit`.
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap; 16 bits without `64bit`.
    pub inode_bitmap_csum: u32,
}

impl GroupDescriptor {
    /// Parses a descriptor, and checks that everything it points to lies in the volume. Also checks
    /// its checksum, if the volume has them.
    ///
    /// # Errors
    /// Too few bytes, a location outside the volume, or another checksum.
    pub fn parse(bytes: &[u8], sb: &Superblock, group: Group) -> Result<Self, Corrupt> {
        let parsed = Self::parse_unchecked(bytes, sb, group)?;
        Self::verify_checksum(bytes, sb, group)?;
        Ok(parsed)
    }

    /// Like [`Self::parse`], without the checksum, for tools that report a mismatch and continue.
    ///
    /// # Errors
    /// Too few bytes, or a location outside the volume.
    pub fn parse_unchecked(bytes: &[u8], sb: &Superblock, group: Group) -> Result<Self, Corrupt> {
        let place = Place::GroupDescriptor(group);
        let parsed = Self::decode(bytes, sb, group)?;
        for (field, at) in
            [("bg_block_bitmap", parsed.block_bitmap), ("bg_inode_bitmap", parsed.inode_bitmap)]
        {
            if !sb.is_valid_block(at) {
                return Err(Corrupt::field(place, field, at.0, "a block of the volume"));
            }
        }
        check_inode_table(parsed.inode_table, sb, place)?;
        Ok(parsed)
    }

    /// Like [`Self::parse`], but checks nothing: what it points to may lie outside the volume. For
    /// tools that judge each field.
    ///
    /// # Errors
    /// Too few bytes.
    pub fn decode(bytes: &[u8], sb: &Superblock, group: Group) -> Result<Self, Corrupt> {
        let place = Place::GroupDescriptor(group);
        let size = sb.descriptor_size();
        if bytes.len() < size {
            return Err(Corrupt::truncated(place, size, bytes.len()));
        }
        let mut raw = RawGroupDescriptor::new_zeroed();
        let known = size.min(size_of::<RawGroupDescriptor>());
        raw.as_mut_bytes()[..known].copy_from_slice(&bytes[..known]);
        let block = |lo: U32, hi: U32| VolumeBlock(u64::from(hi.get()) << 32 | u64::from(lo.get()));
        let count = |lo: U16, hi: U16| u32::from(hi.get()) << 16 | u32::from(lo.get());
        Ok(Self {
            block_bitmap: block(raw.bg_block_bitmap_lo, raw.bg_block_bitmap_hi),
            inode_bitmap: block(raw.bg_inode_bitmap_lo, raw.bg_inode_bitmap_hi),
            inode_table: block(raw.bg_inode_table_lo, raw.bg_inode_table_hi),
            free_blocks: count(raw.bg_free_blocks_count_lo, raw.bg_free_blocks_count_hi),
            free_inodes: count(raw.bg_free_inodes_count_lo, raw.bg_free_inodes_count_hi),
            used_dirs: count(raw.bg_used_dirs_count_lo, raw.bg_used_dirs_count_hi),
            unused_inodes: count(raw.bg_itable_unused_lo, raw.bg_itable_unused_hi),
            flags: GroupFlags::from_bits_retain(raw.bg_flags.get()),
            block_bitmap_csum: count(raw.bg_block_bitmap_csum_lo, raw.bg_block_bitmap_csum_hi),
            inode_bitmap_csum: count(raw.bg_inode_bitmap_csum_lo, raw.bg_inode_bitmap_csum_hi),
        })
    }

    /// Checks the checksum of the descriptor at the start of `bytes`, if the volume has them.
    ///
    /// # Errors
    /// Too few bytes, or another checksum.
    pub fn verify_checksum(bytes: &[u8], sb: &Superblock, group: Group) -> Result<(), Corrupt> {
        let size = sb.descriptor_size();
        let Some(bytes) = bytes.get(..size) else {
            return Err(Corrupt::truncated(Place::GroupDescriptor(group), size, bytes.len()));
        };
        let stored = u16::from_le_bytes([bytes[CHECKSUM_AT], bytes[CHECKSUM_AT + 1]]);
        let computed = checksum(bytes, sb, group);
        if !sb.has_group_csum() || stored == computed {
            return Ok(());
        }
        Err(Corrupt::checksum(Place::GroupDescriptor(group), stored.into(), computed.into()))
    }

    /// Start of the inode table, regardless of the descriptor's other fields. It is all that
    /// reading a damaged volume requires.
    ///
    /// # Errors
    /// Too few bytes, or a table outside the volume.
    pub fn parse_inode_table(bytes: &[u8], sb: &Superblock, group: Group) -> Result<VolumeBlock, Corrupt> {
        let place = Place::GroupDescriptor(group);
        let size = sb.descriptor_size();
        let field = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        if bytes.len() < size {
            return Err(Corrupt::truncated(place, size, bytes.len()));
        }
        let high = if size >= 64 { field(0x28) } else { 0 };
        let table = VolumeBlock(u64::from(high) << 32 | u64::from(field(0x08)));
        check_inode_table(table, sb, place)?;
        Ok(table)
    }

    /// Writes the descriptor, with its checksum, to `to`, which is [`Superblock::descriptor_size`]
    /// bytes long.
    pub fn write_to(&self, to: &mut [u8], sb: &Superblock, group: Group) {
        let split = |n: u64| (U32::new(n.low_u32()), U32::new((n >> 32).low_u32()));
        let half = |n: u32| (U16::new(n.low_u16()), U16::new((n >> 16).low_u16()));
        let (bg_block_bitmap_lo, bg_block_bitmap_hi) = split(self.block_bitmap.0);
        let (bg_inode_bitmap_lo, bg_inode_bitmap_hi) = split(self.inode_bitmap.0);
        let (bg_inode_table_lo, bg_inode_table_hi) = split(self.inode_table.0);
        let (bg_free_blocks_count_lo, bg_free_blocks_count_hi) = half(self.free_blocks);
        let (bg_free_inodes_count_lo, bg_free_inodes_count_hi) = half(self.free_inodes);
        let (bg_used_dirs_count_lo, bg_used_dirs_count_hi) = half(self.used_dirs);
        let (bg_itable_unused_lo, bg_itable_unused_hi) = half(self.unused_inodes);
        let (bg_block_bitmap_csum_lo, bg_block_bitmap_csum_hi) = half(self.block_bitmap_csum);
        let (bg_inode_bitmap_csum_lo, bg_inode_bitmap_csum_hi) = half(self.inode_bitmap_csum);
        let raw = RawGroupDescriptor {
            bg_block_bitmap_lo,
            bg_inode_bitmap_lo,
            bg_inode_table_lo,
            bg_free_blocks_count_lo,
            bg_free_inodes_count_lo,
            bg_used_dirs_count_lo,
            bg_flags: self.flags.bits().into(),
            bg_exclude_bitmap_lo: U32::ZERO,
            bg_block_bitmap_csum_lo,
            bg_inode_bitmap_csum_lo,
            bg_itable_unused_lo,
            bg_checksum: U16::ZERO,
            bg_block_bitmap_hi,
            bg_inode_bitmap_hi,
            bg_inode_table_hi,
            bg_free_blocks_count_hi,
            bg_free_inodes_count_hi,
            bg_used_dirs_count_hi,
            bg_itable_unused_hi,
            bg_exclude_bitmap_hi: U32::ZERO,
            bg_block_bitmap_csum_hi,
            bg_inode_bitmap_csum_hi,
            bg_reserved: U32::ZERO,
        };
        let size = sb.descriptor_size();
        let known = size.min(size_of::<RawGroupDescriptor>());
        to[..known].copy_from_slice(&raw.as_bytes()[..known]);
        to[known..size].fill(0);
        if sb.has_group_csum() {
            let sum = checksum(&to[..size], sb, group);
            to[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

impl fmt::Display for GroupDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "block bitmap {}, inode bitmap {}, inode table {}; {} free blocks, {} free inodes, {} directories, \
             {} unused inodes",
            self.block_bitmap,
            self.inode_bitmap,
            self.inode_table,
            self.free_blocks,
            self.free_inodes,
            self.used_dirs,
            self.unused_inodes
        )?;
        for (name, _) in self.flags.iter_names() {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}

fn check_inode_table(at: VolumeBlock, sb: &Superblock, place: Place) -> Result<(), Corrupt> {
    let end = at.0.saturating_add(inode_table_blocks(sb).into());
    if sb.is_valid_block(at) && end <= sb.blocks_count() {
        return Ok(());
    }
    Err(Corrupt::field(place, "bg_inode_table", at.0, "the start of an inode table within the volume"))
}

/// Number of blocks in a group's inode table.
pub fn inode_table_blocks(sb: &Superblock) -> u32 {
    let bytes = u64::from(sb.inodes_per_group()) * u64::from(sb.inode_size());
    sb.block_size().blocks_for(bytes).fit_u32()
}

/// Blocks at the start of a group that hold a copy of the superblock, descriptors, and blocks
/// reserved for more descriptors.
pub fn leading_blocks(sb: &Superblock, group: Group) -> u32 {
    // With blocks of 1 KiB in clusters, group 0 begins with block 0 but its superblock is in block
    // 1.
    let before = if group == Group(0) { primary_superblock(sb) - sb.first_data_block().0 } else { 0 };
    before.fit_u32() + leading_structures(sb, group)
}

/// The block of the primary superblock.
fn primary_superblock(sb: &Superblock) -> u64 {
    sb.first_data_block().0.max(u64::from(sb.block_size() == BlockSize::K1))
}

fn leading_structures(sb: &Superblock, group: Group) -> u32 {
    let backup = u32::from(sb.has_backup(group));
    let per_block = sb.descriptors_per_block();
    let meta_bg = sb.incompat().contains(Incompat::META_BG);
    let first_meta_bg = sb.raw().s_first_meta_bg.get();
    if !meta_bg || group.0 / per_block < first_meta_bg {
        let all = sb.descriptor_blocks();
        let table = if meta_bg { first_meta_bg.min(all) } else { all };
        let reserved = u32::from(sb.raw().s_reserved_gdt_blocks.get());
        return backup * table.saturating_add(1 + reserved);
    }
    // A meta group has one block of descriptors, with copies in its first, second and last group.
    let within = group.0 % per_block;
    backup + u32::from(within == 0 || within == 1 || within == per_block - 1)
}

/// Group of an inode, and its byte offset in the group's table.
pub fn inode_offset(sb: &Superblock, number: InodeNumber) -> Option<(Group, u64)> {
    let (group, index) = sb.locate_inode(number)?;
    Some((group, u64::from(index) * u64::from(sb.inode_size())))
}

fn checksum(bytes: &[u8], sb: &Superblock, group: Group) -> u16 {
    let number = group.0.to_le_bytes();
    if let Some(seed) = sb.checksum_seed() {
        seed.over(&number)
            .over(&bytes[..CHECKSUM_AT])
            .over(&[0, 0])
            .over(&bytes[CHECKSUM_AT + 2..])
            .0
            .low_u16()
    } else {
        let crc = crc16(crc16(crc16(!0, &sb.uuid()), &number), &bytes[..CHECKSUM_AT]);
        crc16(crc, &bytes[CHECKSUM_AT + 2..])
    }
}

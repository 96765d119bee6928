//! Superblocks, group descriptors and reserved descriptor blocks.

use crate::layout::Geometry;
use extant_format::{Group, SUPERBLOCK_BYTES, Superblock, UintExt, VolumeBlock};

/// Structures at the start of groups.
pub(crate) struct Heads<'a> {
    pub(crate) geometry: &'a Geometry,
    /// The finished superblock.
    pub(crate) sb: &'a Superblock,
    /// All group descriptors, in whole blocks.
    pub(crate) descriptors: &'a [u8],
}

impl Heads<'_> {
    /// Writes a group's superblock and descriptors, from block `skip`, into zeroed blocks.
    pub(crate) fn write(&self, group: Group, skip: u32, to: &mut [u8]) {
        let block_len = self.sb.block_size().byte_len();
        let mut to = to;
        if skip == 0 {
            let (first, rest) = to.split_at_mut(block_len);
            let mut sb = self.sb.clone();
            sb.raw_mut().s_block_group_nr = group.0.low_u16().into();
            sb.update_checksum();
            // The primary superblock is at byte 1,024; with 1 KiB blocks that is block 1, where
            // group 0 begins.
            let at = if group == Group(0) && block_len > 1024 { 1024 } else { 0 };
            first[at..at + SUPERBLOCK_BYTES].copy_from_slice(sb.as_bytes());
            to = rest;
        }
        let from = skip.to_usize().saturating_sub(1) * block_len;
        to.copy_from_slice(&self.descriptors[from..from + to.len()]);
    }

    /// Writes a reserved descriptor block of group 0: an indirect block that lists its copies.
    pub(crate) fn write_reserved(&self, at: VolumeBlock, block: &mut [u8]) {
        let offset = at.0 - self.geometry.first_block(Group(0)).0;
        for (slot, group) in block.chunks_exact_mut(4).zip(self.geometry.backup_groups()) {
            slot.copy_from_slice(&(self.geometry.first_block(group).0 + offset).fit_u32().to_le_bytes());
        }
    }

    /// Writes the double indirect block of the resize inode.
    pub(crate) fn write_resize_map(&self, block: &mut [u8]) {
        let used = self.geometry.sb.descriptor_blocks();
        let first = self.geometry.first_block(Group(0)).0 + 1 + u64::from(used);
        let pointers = block.len() / 4;
        for n in 0..self.geometry.reserved_gdt {
            let at = (used + n).to_usize() % pointers * 4;
            block[at..at + 4].copy_from_slice(&(first + u64::from(n)).fit_u32().to_le_bytes());
        }
    }
}

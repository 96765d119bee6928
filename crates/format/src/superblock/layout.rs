//! Location of superblock backups and group descriptors (kernel document: *Layout*).

use super::{RawSuperblock, Superblock};
use crate::{BlockSize, Compat, Group, Incompat, RoCompat, VolumeBlock};
use zerocopy::FromBytes;

/// Maximum number of backups listed: without `sparse_super` every group has one.
const BACKUPS_MAX: usize = 64;

/// Cluster size of `mke2fs -O bigalloc`, in blocks.
const USUAL_CLUSTER_BLOCKS: u64 = 16;

/// Byte offsets on a device where a backup superblock may be if the primary one is damaged, best
/// guesses first.
///
/// They are based on group sizes that `mke2fs` chooses or is usually given, and on what the bytes
/// of the damaged superblock, `primary`, still say.
///
/// ```
/// // `mke2fs -n -b 4096` for 200 MiB lists block 32768 first, `-b 1024` block 8193.
/// let guesses = extant_format::backup_offsets(&[0; 1024], 200 << 20);
/// assert_eq!(guesses[0], 32768 * 4096);
/// assert!(guesses.contains(&(8193 * 1024)));
/// ```
pub fn backup_offsets(primary: &[u8], device_bytes: u64) -> Vec<u64> {
    // Bytes per block, blocks per group, and the block where group 0 begins.
    let mut shapes: Vec<(u64, u64, u64)> = Vec::new();
    if let Ok((raw, _)) = RawSuperblock::read_from_prefix(primary)
        && let Some(block) = BlockSize::from_log_kib(raw.s_log_block_size.get())
        && raw.s_blocks_per_group.get() > 0
    {
        let first = raw.s_first_data_block.get().min(1);
        shapes.push((block.bytes().into(), raw.s_blocks_per_group.get().into(), first.into()));
    }
    let usual = [4096_u64, 1024, 2048, 65536, 8192, 16384, 32768];
    shapes.extend(usual.map(|block| (block, block * 8, u64::from(block == 1024))));
    shapes.extend(usual.map(|block| (block, block * 8 * USUAL_CLUSTER_BLOCKS, 0)));
    // Smaller groups (`mke2fs -g`), which are usually powers of two.
    for block in [4096_u64, 1024, 2048] {
        let sizes = (8..block.ilog2() + 3).rev().map(|log| 1 << log);
        shapes.extend(sizes.map(|per_group| (block, per_group, u64::from(block == 1024))));
    }
    let mut offsets = Vec::new();
    for (block, per_group, first) in shapes {
        let blocks = device_bytes / block;
        // With `sparse_super2` the second backup is in the last group.
        let last = blocks.saturating_sub(first + 1) / per_group;
        for group in [1, 3, 5, 7, 9, 25, 27, 49, 81, last] {
            let at = first.saturating_add(per_group.saturating_mul(group));
            if (1..=last).contains(&group) && at < blocks && !offsets.contains(&(at * block)) {
                offsets.push(at * block);
            }
        }
    }
    offsets
}

/// A copy of a block of the group descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorCopy {
    /// The group that contains it.
    pub group: Group,
    /// Its location.
    pub block: VolumeBlock,
}

impl Superblock {
    /// Whether a group has a backup of the superblock and, without `meta_bg`, of the descriptors.
    pub fn has_backup(&self, group: Group) -> bool {
        let is_power_of = |base: u32| {
            let mut n = base;
            while n < group.0 {
                match n.checked_mul(base) {
                    Some(next) => n = next,
                    None => return false,
                }
            }
            n == group.0
        };
        if group.0 == 0 {
            return true;
        }
        if self.compat().contains(Compat::SPARSE_SUPER2) {
            return self.raw.s_backup_bgs.iter().any(|g| g.get() == group.0);
        }
        if !self.ro_compat().contains(RoCompat::SPARSE_SUPER) || group.0 == 1 {
            return true;
        }
        group.0 % 2 == 1 && (is_power_of(3) || is_power_of(5) || is_power_of(7))
    }

    /// Groups after the first that have a backup of the superblock, in order, at most 64.
    pub fn backup_groups(&self) -> Vec<Group> {
        let is_group = |group: &u32| (1..self.group_count()).contains(group);
        let mut groups: Vec<u32> = if self.compat().contains(Compat::SPARSE_SUPER2) {
            self.raw.s_backup_bgs.iter().map(|group| group.get()).filter(is_group).collect()
        } else if self.ro_compat().contains(RoCompat::SPARSE_SUPER) {
            let powers = |base: u32| std::iter::successors(Some(base), move |n| n.checked_mul(base));
            let all = std::iter::once(1).chain(powers(3)).chain(powers(5)).chain(powers(7));
            all.filter(is_group).collect()
        } else {
            (1..self.group_count()).take(BACKUPS_MAX).collect()
        };
        groups.sort_unstable();
        groups.dedup();
        groups.truncate(BACKUPS_MAX);
        groups.into_iter().map(Group).collect()
    }

    /// Whether this is the backup at byte `offset`, and not the superblock of another volume.
    pub fn is_backup_at(&self, offset: u64) -> bool {
        let group = Group(self.raw.s_block_group_nr.get().into());
        let at = u128::from(self.group_first_block(group).0) << self.block_size().log2();
        group.0 > 0 && group.0 < self.group_count() && self.has_backup(group) && at == u128::from(offset)
    }

    /// The location of block `index` of the primary group descriptor table.
    pub fn descriptor_block(&self, index: u32) -> VolumeBlock {
        // With 1 KiB blocks the superblock is block 1, even with bigalloc, where group 0 begins at
        // block 0.
        let superblock = u64::from(self.block_size() == BlockSize::K1);
        if !self.is_in_meta_group(index) {
            return VolumeBlock(superblock + 1 + u64::from(index));
        }
        let group = Group(index.saturating_mul(self.descriptors_per_block()));
        let first = self.group_first_block(group).0.max(if index == 0 { superblock } else { 0 });
        VolumeBlock(first + u64::from(self.has_backup(group)))
    }

    /// All copies of block `index` of the group descriptor table, the primary one first.
    ///
    /// The others follow backups of the superblock or, with `meta_bg`, are in the second and last
    /// group of the meta block group. One that the volume's end cuts short has no last group
    /// (Linux, `ext4_bg_num_gdb_meta`).
    pub fn descriptor_copies(&self, index: u32) -> Vec<DescriptorCopy> {
        let meta = self.is_in_meta_group(index);
        let first = if meta { index.saturating_mul(self.descriptors_per_block()) } else { 0 };
        let primary = DescriptorCopy { group: Group(first), block: self.descriptor_block(index) };
        let last = first.saturating_add(self.descriptors_per_block() - 1);
        let others = match meta {
            false => self.backup_groups(),
            // In a meta group of two groups, the second is also the last.
            true => [first.saturating_add(1), last]
                .into_iter()
                .filter(|&n| n > first && n < self.group_count())
                .map(Group)
                .collect(),
        };
        let mut copies = vec![primary];
        for group in others {
            let skip = if meta { u64::from(self.has_backup(group)) } else { 1 + u64::from(index) };
            let copy = DescriptorCopy { group, block: VolumeBlock(self.group_first_block(group).0 + skip) };
            if copies.last() != Some(&copy) {
                copies.push(copy);
            }
        }
        copies
    }

    /// Whether block `index` of the group descriptor table is stored in the groups that it
    /// describes (`meta_bg`), and not after the superblock.
    pub fn is_in_meta_group(&self, index: u32) -> bool {
        self.incompat().contains(Incompat::META_BG) && index >= self.raw.s_first_meta_bg.get()
    }
}

//! Blocks of the volume's own structures, which no file can have.
//!
//! Linux keeps such a list, too, and refuses a file that maps one of them
//! (fs/ext4/block_validity.c).

use super::View;
use extant_format::{
    BlockRange, Corrupt, Group, GroupDescriptor, Incompat, Inode, InodeFlags, InodeNumber, Place, UintExt,
    VolumeBlock, inode_table_blocks, joined_ranges, leading_blocks,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of groups whose structures are looked up together. Larger flexible groups are
/// cut.
const GROUPS_MAX: u32 = 4096;

/// The volume's own structures within some adjacent groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnStructures {
    /// The blocks of these groups.
    within: BlockRange,
    /// In order, and disjoint.
    ranges: Arc<[BlockRange]>,
}

/// Those found so far, by the first of their groups.
pub(super) type Known = Mutex<BTreeMap<u32, OwnStructures>>;

impl OwnStructures {
    /// Whether the block lies in these groups.
    pub(crate) fn covers(&self, block: VolumeBlock) -> bool {
        self.within.contains(block.0)
    }

    /// Counts the blocks from `at` on that hold no structure: at most `blocks`, and none behind
    /// these groups.
    ///
    /// # Errors
    /// Block `at` holds a structure. The error is the number of adjacent blocks that do.
    pub(crate) fn free_from(&self, at: VolumeBlock, blocks: u64) -> Result<u64, u64> {
        let end = at.0.saturating_add(blocks).min(self.within.end);
        let next = self.ranges.partition_point(|range| range.end <= at.0);
        match self.ranges.get(next).filter(|range| range.start < end) {
            Some(range) if range.start <= at.0 => Err(range.end.min(end) - at.0),
            Some(range) => Ok(range.start - at.0),
            None => Ok(end - at.0),
        }
    }
}

/// The error for a file that maps one of the volume's own structures.
pub(crate) fn maps_structure(inode: InodeNumber, at: VolumeBlock) -> Corrupt {
    let rule = "a block that holds none of the volume's own structures";
    Corrupt::field(Place::Inode(inode), "block", at.0, rule)
}

impl View {
    /// The volume's own structures around a block: those of the block's flexible group. Structures
    /// that other groups keep here are not found, nor are those of damaged descriptors.
    pub(crate) async fn own_structures(&self, around: VolumeBlock) -> OwnStructures {
        let sb = self.superblock();
        let is_flexible = sb.incompat().contains(Incompat::FLEX_BG);
        let flex = if is_flexible { 1u32 << sb.raw().s_log_groups_per_flex.min(31) } else { 1 };
        let flex = flex.min(GROUPS_MAX);
        let group = around.0.saturating_sub(sb.first_data_block().0) / u64::from(sb.blocks_per_group());
        let first = group.min(u64::from(sb.group_count()) - 1).fit_u32() / flex * flex;
        if let Some(known) = self.inner.own_structures.lock().get(&first) {
            return known.clone();
        }
        let end = first.saturating_add(flex).min(sb.group_count());
        let start = if first == 0 { 0 } else { sb.group_first_block(Group(first)).0 };
        let within = BlockRange::new(start, sb.group_first_block(Group(end)).0.min(sb.blocks_count()));
        let table = u64::from(inode_table_blocks(sb));
        let mut ranges = self.confirmed_journal().await;
        for group in (first..end).map(Group) {
            ranges.push(BlockRange::at(sb.group_first_block(group).0, leading_blocks(sb, group).into()));
            if let Some(descriptor) = self.group_if_sound(group).await {
                let GroupDescriptor { block_bitmap, inode_bitmap, inode_table, .. } = descriptor;
                ranges.extend([block_bitmap, inode_bitmap].map(|at| BlockRange::one(at.0)));
                ranges.push(BlockRange::at(inode_table.0, table));
            }
        }
        let parts =
            ranges.into_iter().map(|range| range.start.max(start)..range.end.min(within.end)).collect();
        let ranges = joined_ranges(parts).into_iter().map(BlockRange::from).collect();
        let found = OwnStructures { within, ranges };
        self.inner.own_structures.lock().insert(first, found.clone());
        found
    }

    /// A group's descriptor, if it is sound. Damage is not recorded, because the caller's operation
    /// does not depend on this group.
    async fn group_if_sound(&self, group: Group) -> Option<GroupDescriptor> {
        if let Some(live) = &self.inner.live {
            return Some(live.group(group));
        }
        // A superblock may claim more groups than the device has room for.
        let first = self.superblock().group_first_block(group).0 << self.superblock().block_size().log2();
        if first >= self.device().limits().capacity_bytes {
            return None;
        }
        let (block, at) = self.descriptor(self.table_block_of(group), group).await.ok()?;
        GroupDescriptor::parse(&block[at..], self.superblock(), group).ok()
    }

    /// The journal's blocks, if the superblock confirms them.
    async fn confirmed_journal(&self) -> Vec<BlockRange> {
        let Some(journal) = self.superblock().journal_inode() else { return Vec::new() };
        let Ok(inode) = self.inode_quietly(journal).await else { return Vec::new() };
        if !self.is_journal_confirmed(&inode) {
            return Vec::new();
        }
        let blocks = self.readable_blocks_of(&inode).await.unwrap_or_default();
        blocks.into_iter().map(|range| BlockRange::new(range.start.0, range.end.0)).collect()
    }

    /// Whether the superblock has a copy of the journal's whole map, which agrees with its inode. A
    /// file with the same blocks is wrong then.
    pub(crate) fn is_journal_confirmed(&self, journal: &Inode) -> bool {
        let raw = self.superblock().raw();
        let copy = raw.s_jnl_blocks[..15].iter().flat_map(|word| word.get().to_le_bytes());
        let is_whole = journal.flags().contains(InodeFlags::EXTENTS) && !journal.has_map_nodes();
        raw.s_jnl_backup_type == 1 && is_whole && copy.eq(journal.raw.i_block)
    }
}

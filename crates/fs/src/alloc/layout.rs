//! Locations of a volume's own metadata: superblock copies, descriptors, bitmaps, inode tables.
//!
//! Nothing else may be allocated or freed there. A group whose bitmap was never written
//! (`BLOCK_UNINIT`, `INODE_UNINIT`) has exactly this in use. Kernel document: *Block Groups*,
//! *Flexible Block Groups*, *Meta Block Groups*.

use extant_format::{
    BlockRange, Corrupt, Group, GroupDescriptor, InodeNumber, Place, Superblock, UintExt, VolumeBlock,
    inode_table_blocks, joined_ranges, leading_blocks, set_bits,
};
use std::ops::Range;

/// Ranges of volume blocks that hold the volume's own metadata.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Sorted, disjoint, not adjacent.
    ranges: Vec<Range<VolumeBlock>>,
    /// Blocks of the volume's own files and of its root directory, each with its inode; no other
    /// file may have them. Sorted, disjoint.
    private: Vec<Owned>,
}

/// Blocks owned by one of the volume's own inodes: its data, or a node of its map.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) blocks: Range<VolumeBlock>,
    /// Inode 0 stands for the volume.
    pub(crate) owner: InodeNumber,
}

impl Layout {
    /// Builds the layout from all descriptors, in group order, and from the blocks of the volume's
    /// own files. With `flex_bg` a group's bitmaps and table may be in another group.
    ///
    /// # Errors
    /// Bitmaps, tables or own files that share a block with each other or with the descriptors, so
    /// that a write to one would corrupt another.
    pub(crate) fn new(
        sb: &Superblock,
        descriptors: &[GroupDescriptor],
        mut private: Vec<Owned>,
    ) -> std::result::Result<Self, Corrupt> {
        let table = u64::from(inode_table_blocks(sb));
        private.retain(|owned| !owned.blocks.is_empty());
        private.sort_unstable_by_key(|owned| owned.blocks.start);
        Self::check_overlaps(sb, descriptors, table, &private)?;
        let mut ranges = Vec::with_capacity(descriptors.len() * 4);
        for (n, descriptor) in descriptors.iter().enumerate() {
            let group = Group(n.fit_u32());
            let first = sb.group_first_block(group);
            ranges.push(first..VolumeBlock(first.0 + u64::from(leading_blocks(sb, group))));
            for (at, len) in
                [(descriptor.block_bitmap, 1), (descriptor.inode_bitmap, 1), (descriptor.inode_table, table)]
            {
                ranges.push(at..VolumeBlock(at.0 + len));
            }
        }
        Ok(Self { ranges: joined_ranges(ranges), private })
    }

    fn check_overlaps(
        sb: &Superblock,
        descriptors: &[GroupDescriptor],
        table: u64,
        private: &[Owned],
    ) -> std::result::Result<(), Corrupt> {
        // As on Linux, copies and the space reserved for more descriptors count as well.
        let fronts = (0..sb.group_count()).map(Group).map(|group| {
            let first = if group == Group(0) { 0 } else { sb.group_first_block(group).0 };
            let end = sb.group_first_block(group).0 + u64::from(leading_blocks(sb, group));
            (first..end, Place::Superblock)
        });
        let mut parts: Vec<_> = fronts.filter(|(range, _)| !range.is_empty()).collect();
        let copies = parts.clone();
        // Unlike the first superblock, a copy may be on bad blocks.
        let is_bad_copy = |owned: &&Owned| {
            let next = copies.partition_point(|(copy, _)| copy.end <= owned.blocks.start.0);
            owned.owner == InodeNumber::BAD_BLOCKS
                && copies.get(next).is_some_and(|(copy, _)| copy.start > 0 && copy.start < owned.blocks.end.0)
        };
        let place = |owned: &Owned| match owned.owner {
            InodeNumber(0) => Place::Superblock,
            owner => Place::Inode(owner),
        };
        let private = private.iter().filter(|owned| !is_bad_copy(owned));
        parts.extend(private.map(|owned| (owned.blocks.start.0..owned.blocks.end.0, place(owned))));
        for (n, descriptor) in descriptors.iter().enumerate() {
            let group = Place::GroupDescriptor(Group(n.fit_u32()));
            let GroupDescriptor { block_bitmap, inode_bitmap, inode_table, .. } = descriptor;
            let own = [(block_bitmap, 1), (inode_bitmap, 1), (inode_table, table)];
            parts.extend(own.map(|(at, len)| (at.0..at.0 + len, group)));
        }
        parts.sort_unstable_by_key(|(range, _)| range.start);
        match parts.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
            Some([_, (range, place)]) => {
                let rule = "one that belongs to one of the volume's own structures or files";
                Err(Corrupt::field(*place, "block", range.start, rule))
            }
            _ => Ok(()),
        }
    }

    /// The ranges that hold the volume's own metadata, in order, disjoint.
    pub(crate) fn into_ranges(self) -> Vec<Range<VolumeBlock>> {
        self.ranges
    }

    /// Whether any of `blocks` blocks from `start` holds the volume's own metadata, or belongs to
    /// its own files other than inode `by`.
    pub(crate) fn overlaps(&self, start: VolumeBlock, blocks: u64, by: Option<InodeNumber>) -> bool {
        let end = VolumeBlock(start.0.saturating_add(blocks));
        let next = self.ranges.partition_point(|range| range.end <= start);
        let own = self.private.partition_point(|owned| owned.blocks.end <= start);
        self.ranges.get(next).is_some_and(|range| range.start < end)
            || self.private[own..]
                .iter()
                .take_while(|owned| owned.blocks.start < end)
                .any(|owned| Some(owned.owner) != by)
    }

    /// The block bitmap of a group with `BLOCK_UNINIT`: the clusters that hold metadata, and the
    /// padding after the last cluster.
    pub(crate) fn block_bitmap(&self, sb: &Superblock, group: Group) -> Vec<u8> {
        let mut bitmap = vec![0; sb.block_size().byte_len()];
        let first = sb.group_first_block(group);
        let next = self.ranges.partition_point(|range| range.end <= first);
        mark(&mut bitmap, sb, group, self.ranges[next..].iter());
        set_bits(&mut bitmap, sb.group_clusters(group), sb.block_size().bytes() * 8);
        bitmap
    }

    /// Marks the blocks of the volume's own files in a group's bitmap. Returns whether there are
    /// any.
    pub(crate) fn mark_private(&self, bitmap: &mut [u8], sb: &Superblock, group: Group) -> bool {
        let first = sb.group_first_block(group);
        let next = self.private.partition_point(|owned| owned.blocks.end <= first);
        mark(bitmap, sb, group, self.private[next..].iter().map(|owned| &owned.blocks))
    }
}

/// Marks the clusters of ranges that end in or after a group, in order. Returns whether there are
/// any.
fn mark<'a>(
    bitmap: &mut [u8],
    sb: &Superblock,
    group: Group,
    ranges: impl Iterator<Item = &'a Range<VolumeBlock>>,
) -> bool {
    let (first, cluster) = (sb.group_first_block(group), sb.cluster_size());
    let end = VolumeBlock(first.0 + u64::from(sb.group_blocks(group)));
    let mut is_any = false;
    for range in ranges.take_while(|range| range.start < end) {
        is_any = true;
        let blocks = BlockRange::new(range.start.max(first).0 - first.0, range.end.min(end).0 - first.0);
        let clusters = cluster.around(blocks);
        set_bits(
            bitmap,
            (clusters.start >> cluster.log2()).fit_u32(),
            (clusters.end >> cluster.log2()).fit_u32(),
        );
    }
    is_any
}

/// The inode bitmap of a group with `INODE_UNINIT`: the padding after the last inode.
pub(crate) fn empty_inode_bitmap(sb: &Superblock) -> Vec<u8> {
    let mut bitmap = vec![0; sb.block_size().byte_len()];
    set_bits(&mut bitmap, sb.inodes_per_group(), sb.block_size().bytes() * 8);
    bitmap
}

/// Blocks that no file can have, counted as Linux does for statfs (`ext4_calculate_overhead`): the
/// volume's own structures and its journal. If the superblock contains the number, Linux trusts it.
pub(crate) fn overhead_blocks(sb: &Superblock) -> u64 {
    let raw = sb.raw();
    let stored = u64::from(raw.s_overhead_clusters.get()) * u64::from(sb.blocks_per_cluster());
    if stored != 0 && stored < sb.blocks_count() {
        return stored;
    }
    let each = u64::from(inode_table_blocks(sb)) + 2;
    let groups = 0..sb.group_count();
    let structures: u64 = groups.map(|group| u64::from(leading_blocks(sb, Group(group))) + each).sum();
    // The copy of the journal's inode ends with its size, high word first.
    let journal = match (sb.journal_inode(), raw.s_jnl_backup_type) {
        (Some(_), 1) => {
            let [high, low] = [raw.s_jnl_blocks[15].get(), raw.s_jnl_blocks[16].get()];
            (u64::from(high) << 32 | u64::from(low)) >> sb.block_size().log2()
        }
        _ => 0,
    };
    sb.cluster_size().end(sb.first_data_block().0 + structures + journal).min(sb.blocks_count())
}

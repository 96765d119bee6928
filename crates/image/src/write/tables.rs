//! The final superblock, group descriptors and bitmaps.

use crate::layout::{Contents, Geometry, Own, Params, Plan, ROOT_BYTES};
use crate::tree::Kind;
use extant_format::{
    Compat, Group, GroupDescriptor, GroupFlags, InodeNumber, Superblock, UintExt, block_bitmap_checksum,
    inode_bitmap_checksum, set_bits,
};

/// Superblock and group descriptors of the volume.
pub(crate) struct Tables {
    pub(crate) sb: Superblock,
    /// All group descriptors, in whole blocks.
    pub(crate) descriptors: Vec<u8>,
}

impl Tables {
    pub(crate) fn new(contents: &Contents, params: &Params, plan: &Plan) -> Self {
        let sb = finished(contents, params, plan);
        let mut dirs = vec![0u32; plan.geometry.groups().to_usize()];
        for inode in contents.inodes.all() {
            if contents.inodes.tree.node(contents.inodes.node_of(inode)).kind == Kind::Directory {
                let (group, _) = sb.locate_inode(inode).expect("inodes are numbered within the volume");
                dirs[group.0.to_usize()] += 1;
            }
        }
        let inodes = |group| {
            let used = used_inodes(plan, group);
            GroupInodes { used, end: used, directories: dirs[group.0.to_usize()] }
        };
        let bitmap = |group, to: &mut [u8]| inode_bitmap(plan, group, to);
        let descriptors = descriptors(&plan.geometry, &sb, inodes, bitmap);
        Self { sb, descriptors }
    }
}

fn finished(contents: &Contents, params: &Params, plan: &Plan) -> Superblock {
    let mut sb = plan.geometry.sb.clone();
    let (blocks, inodes) = (sb.blocks_count(), sb.inodes_count());
    let created = params.created.seconds.cast_unsigned();
    let raw = sb.raw_mut();
    let reserved = (u128::from(blocks) * u128::from(params.reserved_milli_percent) / 100_000) as u64;
    (raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi) =
        (reserved.low_u32().into(), (reserved >> 32).fit_u32().into());
    for (lo, hi) in [
        (&mut raw.s_mkfs_time, &mut raw.s_mkfs_time_hi),
        (&mut raw.s_wtime, &mut raw.s_wtime_hi),
        (&mut raw.s_lastcheck, &mut raw.s_lastcheck_hi),
    ] {
        (*lo, *hi) = (created.low_u32().into(), (created >> 32).low_u8());
    }
    if plan.own.journal.is_some() {
        raw.s_journal_inum = InodeNumber::JOURNAL.0.into();
    }
    if plan.own.orphan_file.is_some() {
        raw.s_orphan_file_inum = contents.orphan_inode.0.into();
    }
    count_usage(&mut sb, &plan.geometry, &plan.own, params, inodes - plan.used_inodes());
    debug_assert_eq!(plan.own.journal.is_some(), sb.compat().contains(Compat::HAS_JOURNAL));
    sb.update_checksum();
    sb
}

/// Sets the superblock's counts of free blocks, free inodes and metadata, and the journal's
/// location.
pub(crate) fn count_usage(
    sb: &mut Superblock,
    geometry: &Geometry,
    own: &Own,
    params: &Params,
    free_inodes: u32,
) {
    let free = geometry.space.free();
    let journal = own.journal.as_ref();
    // Linux counts the boot block as well.
    let overhead = sb.first_data_block().0
        + geometry.overhead
        + journal.map_or(0, |map| map.blocks() - map.meta_blocks());
    let raw = sb.raw_mut();
    (raw.s_free_blocks_count_lo, raw.s_free_blocks_count_hi) =
        (free.low_u32().into(), (free >> 32).fit_u32().into());
    raw.s_free_inodes_count = free_inodes.into();
    raw.s_overhead_clusters = u32::try_from(overhead).unwrap_or(0).into();
    if let Some(map) = journal {
        // Backup of the journal inode's map and size, for e2fsck.
        raw.s_jnl_backup_type = 1;
        let mut root = [0; ROOT_BYTES];
        map.write_root(&mut root, params);
        for (word, bytes) in raw.s_jnl_blocks.iter_mut().zip(root.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into();
        }
        let size = (map.blocks() - map.meta_blocks()) << params.block.log2();
        raw.s_jnl_blocks[15] = (size >> 32).fit_u32().into();
        raw.s_jnl_blocks[16] = size.low_u32().into();
    }
}

/// A group's inodes in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupInodes {
    pub(crate) used: u32,
    /// Number of inodes up to the last one in use.
    pub(crate) end: u32,
    pub(crate) directories: u32,
}

/// All group descriptors, in whole blocks.
pub(crate) fn descriptors(
    geometry: &Geometry,
    sb: &Superblock,
    inodes: impl Fn(Group) -> GroupInodes,
    inode_bitmap: impl Fn(Group, &mut [u8]),
) -> Vec<u8> {
    let size = sb.descriptor_size();
    let mut descriptors = vec![0; sb.descriptor_blocks().to_usize() * sb.block_size().byte_len()];
    for (group, to) in geometry.all_groups().zip(descriptors.chunks_exact_mut(size)) {
        descriptor(geometry, sb, group, inodes(group), &inode_bitmap).write_to(to, sb, group);
    }
    descriptors
}

fn descriptor(
    geometry: &Geometry,
    sb: &Superblock,
    group: Group,
    inodes: GroupInodes,
    inode_bitmap: impl Fn(Group, &mut [u8]),
) -> GroupDescriptor {
    let tables = &geometry.tables[group.0.to_usize()];
    let per_group = sb.inodes_per_group();
    let GroupInodes { used, end, directories } = inodes;
    let mut flags = GroupFlags::empty();
    let (mut block_bitmap_csum, mut inode_bitmap_csum) = (0, 0);
    if geometry.is_block_uninit(group) {
        flags |= GroupFlags::BLOCK_UNINIT;
    } else if let Some(seed) = sb.checksum_seed() {
        let mut bitmap = vec![0; sb.block_size().byte_len()];
        block_bitmap(geometry, group, &mut bitmap);
        block_bitmap_csum = block_bitmap_checksum(seed, &bitmap, sb);
    }
    if sb.has_group_csum() && used == 0 {
        flags |= GroupFlags::INODE_UNINIT;
    } else if let Some(seed) = sb.checksum_seed() {
        let mut bitmap = vec![0; sb.block_size().byte_len()];
        inode_bitmap(group, &mut bitmap);
        inode_bitmap_csum = inode_bitmap_checksum(seed, &bitmap, sb);
    }
    let mut unused_inodes = 0;
    if sb.has_group_csum() {
        flags |= GroupFlags::INODE_ZEROED;
        unused_inodes = per_group - end;
    }
    GroupDescriptor {
        block_bitmap: tables.block_bitmap,
        inode_bitmap: tables.inode_bitmap,
        inode_table: tables.inode_table,
        free_blocks: geometry.free_in(group).fit_u32(),
        free_inodes: per_group - used,
        used_dirs: directories,
        unused_inodes,
        flags,
        block_bitmap_csum,
        inode_bitmap_csum,
    }
}

/// Number of a group's inodes in use. Those in use are always the first ones of the volume.
fn used_inodes(plan: &Plan, group: Group) -> u32 {
    let per_group = u64::from(plan.geometry.sb.inodes_per_group());
    let in_use = u64::from(plan.used_inodes());
    in_use.saturating_sub(u64::from(group.0) * per_group).min(per_group).fit_u32()
}

/// Fills a zeroed block with a group's block bitmap; bits past the group's end are set.
pub(crate) fn block_bitmap(geometry: &Geometry, group: Group, to: &mut [u8]) {
    let start = geometry.first_block(group).0;
    let mut at = 0;
    for run in geometry.free_runs_in(group) {
        set_bits(to, at, (run.start.0 - start).fit_u32());
        at = (run.end().0 - start).fit_u32();
    }
    set_bits(to, at, to.len().fit_u32() * 8);
}

/// Fills a zeroed block with a group's inode bitmap; bits past the group's last inode are set.
pub(crate) fn inode_bitmap(plan: &Plan, group: Group, to: &mut [u8]) {
    set_bits(to, 0, used_inodes(plan, group));
    set_bits(to, plan.geometry.sb.inodes_per_group(), to.len().fit_u32() * 8);
}

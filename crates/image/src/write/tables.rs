//! The finished superblock, the group descriptors, and the bitmaps.

use crate::layout::{Contents, Params, Plan, ROOT_BYTES};
use crate::tree::Kind;
use extant_format::{
    Compat, Group, GroupDescriptor, GroupFlags, InodeNumber, Superblock, block_bitmap_checksum,
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
        let mut dirs = vec![0u32; plan.geometry.groups() as usize];
        for inode in contents.inodes.all() {
            if contents.inodes.tree.node(contents.inodes.node_of(inode)).kind == Kind::Directory {
                let (group, _) = sb.locate_inode(inode).expect("inodes are numbered within the volume");
                dirs[group.0 as usize] += 1;
            }
        }
        let size = sb.descriptor_size();
        let mut descriptors = vec![0; sb.descriptor_blocks() as usize * params.block.byte_len()];
        for (group, to) in plan.geometry.all_groups().zip(descriptors.chunks_exact_mut(size)) {
            let descriptor = descriptor(plan, &sb, group, dirs[group.0 as usize]);
            descriptor.write_to(to, &sb, group);
        }
        Self { sb, descriptors }
    }
}

fn finished(contents: &Contents, params: &Params, plan: &Plan) -> Superblock {
    let mut sb = plan.geometry.sb.clone();
    let blocks = sb.blocks_count();
    let free = plan.geometry.space.free();
    let used_inodes = plan.used_inodes();
    let inodes = sb.inodes_count();
    let journal = plan.journal.as_ref();
    // Linux counts the boot block, too.
    let overhead = sb.first_data_block().0
        + plan.geometry.overhead
        + journal.map_or(0, |map| map.blocks() - map.meta_blocks());
    let created = params.created.seconds as u64;
    let raw = sb.raw_mut();
    let reserved = blocks * u64::from(params.reserved_percent) / 100;
    (raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi) =
        ((reserved as u32).into(), ((reserved >> 32) as u32).into());
    (raw.s_free_blocks_count_lo, raw.s_free_blocks_count_hi) =
        ((free as u32).into(), ((free >> 32) as u32).into());
    raw.s_free_inodes_count = (inodes - used_inodes).into();
    raw.s_overhead_clusters = u32::try_from(overhead).unwrap_or(0).into();
    for (lo, hi) in [
        (&mut raw.s_mkfs_time, &mut raw.s_mkfs_time_hi),
        (&mut raw.s_wtime, &mut raw.s_wtime_hi),
        (&mut raw.s_lastcheck, &mut raw.s_lastcheck_hi),
    ] {
        (*lo, *hi) = ((created as u32).into(), (created >> 32) as u8);
    }
    if let Some(map) = journal {
        raw.s_journal_inum = InodeNumber::JOURNAL.0.into();
        // A copy of the journal inode's map and size, for e2fsck.
        raw.s_jnl_backup_type = 1;
        let mut root = [0; ROOT_BYTES];
        map.write_root(&mut root, params);
        for (word, bytes) in raw.s_jnl_blocks.iter_mut().zip(root.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into();
        }
        let size = (map.blocks() - map.meta_blocks()) << params.block.log2();
        raw.s_jnl_blocks[15] = ((size >> 32) as u32).into();
        raw.s_jnl_blocks[16] = (size as u32).into();
    }
    if plan.orphan_file.is_some() {
        raw.s_orphan_file_inum = contents.orphan_inode.0.into();
    }
    debug_assert_eq!(plan.journal.is_some(), sb.compat().contains(Compat::HAS_JOURNAL));
    sb.update_checksum();
    sb
}

fn descriptor(plan: &Plan, sb: &Superblock, group: Group, used_dirs: u32) -> GroupDescriptor {
    let tables = &plan.geometry.tables[group.0 as usize];
    let per_group = sb.inodes_per_group();
    let used = used_inodes(plan, group);
    let mut flags = GroupFlags::empty();
    let (mut block_bitmap_csum, mut inode_bitmap_csum) = (0, 0);
    if plan.is_block_uninit(group) {
        flags |= GroupFlags::BLOCK_UNINIT;
    } else if let Some(seed) = sb.checksum_seed() {
        let mut bitmap = vec![0; sb.block_size().byte_len()];
        block_bitmap(plan, group, &mut bitmap);
        block_bitmap_csum = block_bitmap_checksum(seed, &bitmap, sb);
    }
    if plan.is_inode_uninit(group) {
        flags |= GroupFlags::INODE_UNINIT;
    } else if let Some(seed) = sb.checksum_seed() {
        let mut bitmap = vec![0; sb.block_size().byte_len()];
        inode_bitmap(plan, group, &mut bitmap);
        inode_bitmap_csum = inode_bitmap_checksum(seed, &bitmap, sb);
    }
    let mut unused_inodes = 0;
    if sb.has_group_csum() {
        flags |= GroupFlags::INODE_ZEROED;
        unused_inodes = per_group - used;
    }
    GroupDescriptor {
        block_bitmap: tables.block_bitmap,
        inode_bitmap: tables.inode_bitmap,
        inode_table: tables.inode_table,
        free_blocks: plan.free_in(group) as u32,
        free_inodes: per_group - used,
        used_dirs,
        unused_inodes,
        flags,
        block_bitmap_csum,
        inode_bitmap_csum,
    }
}

/// Inodes in use in a group: always the first ones.
fn used_inodes(plan: &Plan, group: Group) -> u32 {
    let per_group = u64::from(plan.geometry.sb.inodes_per_group());
    let in_use = u64::from(plan.used_inodes());
    in_use.saturating_sub(u64::from(group.0) * per_group).min(per_group) as u32
}

/// Fills a zeroed block with a group's block bitmap; bits past the group's end are set.
pub(crate) fn block_bitmap(plan: &Plan, group: Group, to: &mut [u8]) {
    let start = plan.geometry.first_block(group).0;
    let mut at = 0;
    for run in plan.free_runs_in(group) {
        set_bits(to, at, (run.start.0 - start) as u32);
        at = (run.end().0 - start) as u32;
    }
    set_bits(to, at, to.len() as u32 * 8);
}

/// Fills a zeroed block with a group's inode bitmap; bits past the group's last inode are set.
pub(crate) fn inode_bitmap(plan: &Plan, group: Group, to: &mut [u8]) {
    set_bits(to, 0, used_inodes(plan, group));
    set_bits(to, plan.geometry.sb.inodes_per_group(), to.len() as u32 * 8);
}

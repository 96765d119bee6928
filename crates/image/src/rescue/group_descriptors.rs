//! Reconstructs group descriptors of which no copy is sound.

use super::slots::{Slot, first_block, judge, looks_used, number_by_checksum, number_by_directory, slots};
use super::sweep::{patched, sweep};
use extant_block::Mended;
use extant_format::{
    Group, GroupDescriptor, GroupFlags, Incompat, InodeNumber, Superblock, UintExt, VolumeBlock,
    inode_table_blocks, leading_blocks,
};
use extant_fs::{DescriptorSource, Volume};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Descriptors of volumes with more groups than this (128 TiB, with blocks of 4 KiB) are not
/// reconstructed.
const GROUPS_MAX: u32 = 1 << 20;
/// Maximum number of blocks to look at to decide whether they are an inode table.
const SAMPLE_BLOCKS: u32 = 16;

/// The result of a reconstruction.
#[derive(Debug, Default)]
pub(super) struct Rebuilt {
    /// Number of groups whose tables are where `mke2fs` puts them.
    pub(super) at_default: usize,
    /// Number of groups whose tables were found by their contents.
    pub(super) found: usize,
    /// Number of groups about which nothing could be found out; they are assumed to be empty.
    pub(super) unknown: usize,
}

/// Makes a descriptor that only says where block bitmap, inode bitmap and inode table are.
pub(super) fn descriptor([block_bitmap, inode_bitmap, inode_table]: [VolumeBlock; 3]) -> GroupDescriptor {
    GroupDescriptor {
        block_bitmap,
        inode_bitmap,
        inode_table,
        free_blocks: 0,
        free_inodes: 0,
        used_dirs: 0,
        unused_inodes: 0,
        flags: GroupFlags::empty(),
        block_bitmap_csum: 0,
        inode_bitmap_csum: 0,
    }
}

/// Returns `device` with sound descriptors for all groups of its `volume`; `None` if no descriptor
/// was missing.
pub(super) async fn rebuilt(volume: &Volume, device: &Mended) -> Option<(Mended, Rebuilt)> {
    let sb = volume.superblock();
    if sb.group_count() > GROUPS_MAX {
        return None;
    }
    let mut missing = Vec::new();
    for group in (0..sb.group_count()).map(Group) {
        if volume.descriptor_source(group).await == DescriptorSource::Nowhere
            && !leads_to_table(volume, group).await
        {
            missing.push(group);
        }
    }
    if missing.is_empty() {
        return None;
    }
    let (chosen, rebuilt) = choose(volume, device, &missing).await;
    let mut blocks: BTreeMap<VolumeBlock, Vec<u8>> = BTreeMap::new();
    let size = sb.descriptor_size();
    for group in missing {
        let (at, offset) = volume.descriptor_place(group);
        if let Entry::Vacant(free) = blocks.entry(at) {
            let bytes = volume.block(at).await.map(|block| block.to_vec());
            free.insert(bytes.unwrap_or_else(|_| vec![0; sb.block_size().byte_len()]));
        }
        if let (Some(bytes), Some(descriptor)) = (blocks.get_mut(&at), chosen.get(&group)) {
            descriptor.write_to(&mut bytes[offset..offset + size], sb, group);
        }
    }
    let mut device = device.clone();
    for (at, bytes) in blocks {
        device = patched(device, bytes.len(), at.0 << sb.block_size().log2(), &bytes).await;
    }
    Some((device, rebuilt))
}

/// Whether a group's descriptor leads to its inodes, even if it is otherwise wrong.
async fn leads_to_table(volume: &Volume, group: Group) -> bool {
    let (at, offset) = volume.descriptor_place(group);
    let Ok(block) = volume.block(at).await else { return false };
    let bytes = block.get(offset..).unwrap_or_default();
    match GroupDescriptor::parse_inode_table(bytes, volume.superblock(), group) {
        Ok(table) => fit(volume, table, group).await == Slot::Right,
        Err(_) => false,
    }
}

/// Chooses descriptors for the `missing` groups.
async fn choose(
    volume: &Volume,
    device: &Mended,
    missing: &[Group],
) -> (BTreeMap<Group, GroupDescriptor>, Rebuilt) {
    let sb = volume.superblock();
    let mut best = (0, Vec::new(), Vec::new());
    for is_spread in [false, true] {
        let places = default_places(sb, is_spread);
        let mut fits = Vec::with_capacity(missing.len());
        for group in missing {
            fits.push(fit(volume, places[group.0.to_usize()].inode_table, *group).await);
        }
        let right = fits.iter().filter(|slot| **slot == Slot::Right).count();
        if !is_spread || right > best.0 {
            best = (right, places, fits);
        }
    }
    let (right, places, fits) = best;
    let mut wanted: BTreeSet<Group> = BTreeSet::new();
    let mut rebuilt = Rebuilt { at_default: missing.len(), found: 0, unknown: 0 };
    for (group, fit) in missing.iter().zip(fits) {
        // If the layout is right for some groups, blank tables are no reason to doubt it.
        if fit == Slot::Wrong || (fit == Slot::Blank && right == 0) {
            wanted.insert(*group);
        }
    }
    let mut chosen: BTreeMap<Group, GroupDescriptor> =
        missing.iter().map(|group| (*group, places[group.0.to_usize()])).collect();
    if !wanted.is_empty() {
        let votes = votes(sb, device, &wanted).await;
        for group in &wanted {
            rebuilt.at_default -= 1;
            let default = chosen[group].inode_table;
            let found = votes.get(group).and_then(|tables| {
                // Copies of table blocks in a journal vote as well, but each for a different place.
                tables.iter().max_by_key(|(at, votes)| (**votes, std::cmp::Reverse(at.0.abs_diff(default.0))))
            });
            match found {
                Some((at, _)) => {
                    rebuilt.found += 1;
                    chosen.entry(*group).and_modify(|descriptor| descriptor.inode_table = *at);
                }
                None => rebuilt.unknown += 1,
            }
        }
    }
    (chosen, rebuilt)
}

/// Returns where `mke2fs` puts bitmaps and tables. With `flex_bg`, they are packed for the existing
/// groups, or, if `is_spread`, placed as if the flex group were complete.
fn default_places(sb: &Superblock, is_spread: bool) -> Vec<GroupDescriptor> {
    let flex_log = match sb.incompat().contains(Incompat::FLEX_BG) {
        true => u32::from(sb.raw().s_log_groups_per_flex).min(20),
        false => 0,
    };
    let (groups, per_flex) = (sb.group_count(), 1 << flex_log);
    let table_blocks = u64::from(inode_table_blocks(sb));
    let mut places = Vec::with_capacity(groups.to_usize());
    for flex in (0..groups).step_by(per_flex.to_usize()) {
        let members = per_flex.min(groups - flex);
        let slots = if is_spread { per_flex } else { members };
        let mut at = sb.group_first_block(Group(flex)).0;
        let mut take = |blocks: u64| {
            at = behind_heads(sb, at, blocks);
            at += blocks;
            at - blocks
        };
        let bitmaps = [take(slots.into()), take(slots.into())];
        for n in 0..u64::from(members) {
            let places_of = [bitmaps[0] + n, bitmaps[1] + n, take(table_blocks)];
            places.push(descriptor(places_of.map(VolumeBlock)));
        }
    }
    places
}

/// The first place at or after `at` where `blocks` blocks avoid superblocks and descriptors.
fn behind_heads(sb: &Superblock, mut at: u64, blocks: u64) -> u64 {
    let first_data = sb.first_data_block().0;
    let group_of = |block: u64| ((block - first_data) / u64::from(sb.blocks_per_group())).low_u32();
    'again: loop {
        for group in (group_of(at)..=group_of(at + blocks - 1)).map(Group) {
            let start = sb.group_first_block(group).0;
            let end = start + u64::from(leading_blocks(sb, group));
            if at < end && start < at + blocks {
                at = end;
                continue 'again;
            }
        }
        return at;
    }
}

/// Judges whether a group's inode table is at `table`.
async fn fit(volume: &Volume, table: VolumeBlock, group: Group) -> Slot {
    let sb = volume.superblock();
    let inode_bytes = usize::from(sb.inode_size());
    let (mut right, mut wrong) = (0, 0);
    for n in 0..inode_table_blocks(sb).min(SAMPLE_BLOCKS) {
        let at = VolumeBlock(table.0 + u64::from(n));
        if at.0 >= volume.device().limits().capacity_bytes >> sb.block_size().log2() {
            break;
        }
        let Ok(block) = volume.block(at).await else { continue };
        let per_block = sb.block_size().bytes() / u32::from(sb.inode_size());
        let first = group.0 * sb.inodes_per_group() + n * per_block + 1;
        let (mut good, mut bad) = (0, 0);
        for (number, (_, bytes)) in (first..).zip(slots(&block, inode_bytes)) {
            match judge(bytes, sb, InodeNumber(number)) {
                Slot::Blank => {}
                Slot::Right => good += 1,
                Slot::Wrong => bad += 1,
            }
        }
        // A superblock may claim longer tables than there are, so what follows proves nothing.
        if bad > good && right > 0 {
            break;
        }
        (right, wrong) = (right + good, wrong + bad);
    }
    match (right, wrong) {
        (0, 0) => Slot::Blank,
        // A few inodes may be damaged.
        _ if right > wrong => Slot::Right,
        _ => Slot::Wrong,
    }
}

/// For each of the `wanted` groups, places where its table begins according to its inodes, each
/// with the number of inodes that agree.
async fn votes(
    sb: &Superblock,
    device: &Mended,
    wanted: &BTreeSet<Group>,
) -> BTreeMap<Group, BTreeMap<VolumeBlock, u32>> {
    /// Maximum number of directories to look at whose checksums do not identify the inode.
    const DIRECTORIES_MAX: usize = 1 << 20;
    let inode_bytes = usize::from(sb.inode_size());
    let mut votes: BTreeMap<Group, BTreeMap<VolumeBlock, u32>> = BTreeMap::new();
    // Byte offsets of directories' inodes, and the first blocks of these directories.
    let mut directories: Vec<(u64, u64)> = Vec::new();
    let mut vote = |at: u64, number: InodeNumber| {
        let Some((group, index)) = sb.locate_inode(number) else { return };
        let table = at.checked_sub(u64::from(index) * u64::from(sb.inode_size()));
        let Some(table) = table.filter(|at| at.is_multiple_of(sb.block_size().bytes().into())) else {
            return;
        };
        let table = VolumeBlock(table >> sb.block_size().log2());
        let end = table.0 + u64::from(inode_table_blocks(sb));
        if wanted.contains(&group) && sb.is_valid_block(table) && end <= sb.blocks_count() {
            *votes.entry(group).or_default().entry(table).or_default() += 1;
        }
    };
    sweep(device, |start, bytes| {
        for (offset, slot) in slots(bytes, inode_bytes).filter(|(_, slot)| looks_used(slot)) {
            if let Some(number) = number_by_checksum(slot, sb) {
                vote(start + offset, number);
            } else if let Some(first) = first_block(slot)
                && directories.len() < DIRECTORIES_MAX
            {
                directories.push((start + offset, first));
            }
        }
    })
    .await;
    for (at, first) in directories {
        if let Some(number) = number_by_directory(device, sb.block_size(), first).await {
            vote(at, number);
        }
    }
    votes
}

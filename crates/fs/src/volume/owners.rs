//! Finds blocks that two files claim, and blocks of files that the bitmaps say are free. This is
//! done when a volume with few inodes is opened for writing, so that changing one file cannot
//! affect another.
//!
//! It reads the maps of all inodes. With many inodes that would take longer than most changes, so
//! it is left to e2fsck, as on Linux.

use crate::Result;
use crate::alloc::Owned;
use crate::view::View;
use extant_format::{
    BlockRange, Corrupt, FileKind, Group, GroupFlags, Inode, InodeNumber, Place, Superblock, VolumeBlock, bit,
};
use std::ops::Range;

/// Up to this many inodes in use, all maps are read, which takes some milliseconds.
const INODES_MAX: u64 = 4096;
/// How many inodes are prefetched together.
const AHEAD: usize = 1024;

/// The result of the search.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Blocks with several owners, in order.
    pub(crate) contested: Vec<Range<VolumeBlock>>,
    /// Groups in which blocks of files are marked as free, with the damage.
    pub(crate) distrusted: Vec<(Group, Corrupt)>,
}

/// Reads all maps, if there are few. `own` has the blocks of the volume's own files. Inodes that
/// are damaged themselves or cannot be read are skipped; using them will fail.
///
/// # Errors
/// A damaged descriptor.
pub(crate) async fn look(view: &View, own: &[Owned]) -> Result<Findings> {
    let sb = view.superblock();
    let mut used = 0;
    for group in (0..sb.group_count()).map(Group) {
        used += u64::from(sb.inodes_per_group().saturating_sub(view.group(group).await?.free_inodes));
        if used > INODES_MAX {
            return Ok(Findings::default());
        }
    }
    let mut claims: Vec<(Range<VolumeBlock>, InodeNumber)> =
        own.iter().map(|owned| (owned.blocks.clone(), owned.owner)).collect();
    let numbers = in_use(view).await?;
    for numbers in numbers.chunks(AHEAD) {
        view.prefetch_inodes(numbers).await;
        for &number in numbers {
            if let Ok(inode) = view.inode(number).await {
                claim(view, &inode, &mut claims).await;
            }
        }
    }
    let claims = whole_clusters(claims, sb);
    Ok(Findings { contested: contested(&claims), distrusted: distrusted(view, &claims).await? })
}

/// The inodes that the bitmaps mark as in use, except the volume's own.
async fn in_use(view: &View) -> Result<Vec<InodeNumber>> {
    let sb = view.superblock();
    let per_group = sb.inodes_per_group();
    let mut numbers = Vec::new();
    for group in (0..sb.group_count()).map(Group) {
        let descriptor = view.group(group).await?;
        if sb.has_group_csum() && descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        let Ok(bitmap) = view.buffers().block(descriptor.inode_bitmap).await else { continue };
        let first = group.0 * per_group + 1;
        let used = (0..per_group).filter(|&n| bit(&bitmap, n)).map(|n| InodeNumber(first + n));
        numbers.extend(used.filter(|&number| number != InodeNumber::ROOT && !sb.is_own_inode(number)));
        // A bitmap that contradicts its descriptor may contain anything.
        numbers.truncate(2 * INODES_MAX as usize);
    }
    Ok(numbers)
}

async fn claim(view: &View, inode: &Inode, claims: &mut Vec<(Range<VolumeBlock>, InodeNumber)>) {
    let is_mapped = match inode.kind() {
        Some(FileKind::Regular | FileKind::Directory) => true,
        Some(FileKind::Symlink) => !inode.is_fast_symlink(view.superblock()),
        _ => false,
    };
    if !is_mapped || inode.raw.i_block == [0; 60] {
        return;
    }
    if let Ok(blocks) = view.blocks_of(inode).await {
        claims.extend(blocks.into_iter().map(|range| (range, inode.number)));
    }
}

/// Sorts the claims, extends them to whole clusters and merges those of one inode.
fn whole_clusters(
    mut claims: Vec<(Range<VolumeBlock>, InodeNumber)>,
    sb: &Superblock,
) -> Vec<(Range<VolumeBlock>, InodeNumber)> {
    let cluster = sb.cluster_size();
    if !cluster.is_block() {
        for (range, _) in &mut claims {
            let whole = cluster.around(BlockRange::new(range.start.0, range.end.0));
            *range = VolumeBlock(whole.start)..VolumeBlock(whole.end);
        }
        // An inode claims each cluster only once.
        claims.sort_unstable_by_key(|(range, owner)| (*owner, range.start));
        let mut joined: Vec<(Range<VolumeBlock>, InodeNumber)> = Vec::with_capacity(claims.len());
        for (range, owner) in claims {
            match joined.last_mut() {
                Some((last, same)) if *same == owner && range.start <= last.end => {
                    last.end = last.end.max(range.end);
                }
                _ => joined.push((range, owner)),
            }
        }
        claims = joined;
    }
    claims.sort_unstable_by_key(|(range, _)| range.start);
    claims
}

/// The parts of claims that overlap others.
fn contested(claims: &[(Range<VolumeBlock>, InodeNumber)]) -> Vec<Range<VolumeBlock>> {
    let mut found: Vec<Range<VolumeBlock>> = Vec::new();
    let mut reached = VolumeBlock(0);
    for (range, _) in claims {
        if range.start < reached {
            let shared = range.start..range.end.min(reached);
            match found.last_mut() {
                Some(last) if shared.start <= last.end => last.end = last.end.max(shared.end),
                _ => found.push(shared),
            }
        }
        reached = reached.max(range.end);
    }
    found
}

/// The groups whose bitmaps say that claimed blocks are free.
async fn distrusted(
    view: &View,
    claims: &[(Range<VolumeBlock>, InodeNumber)],
) -> Result<Vec<(Group, Corrupt)>> {
    let sb = view.superblock();
    let cluster = sb.cluster_size();
    let mut found: Vec<(Group, Corrupt)> = Vec::new();
    for group in (0..sb.group_count()).map(Group) {
        let first = sb.group_first_block(group);
        let end = VolumeBlock(first.0 + u64::from(sb.group_blocks(group)));
        let mut here: Vec<Range<u64>> = Vec::new();
        for (range, _) in claims {
            if range.start < end && range.end > first {
                here.push(range.start.max(first).0..range.end.min(end).0);
            }
        }
        if here.is_empty() {
            continue;
        }
        let descriptor = view.group(group).await?;
        let is_unwritten = sb.has_group_csum() && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
        let bitmap = match is_unwritten {
            true => None,
            false => match view.buffers().block(descriptor.block_bitmap).await {
                Ok(bitmap) => Some(bitmap),
                Err(_) => continue,
            },
        };
        let is_free = |block: u64| {
            let n = ((block - first.0) >> cluster.log2()) as u32;
            bitmap.as_ref().is_none_or(|bitmap| !bit(bitmap, n))
        };
        let step = cluster.blocks() as usize;
        let free = here.into_iter().find_map(|range| range.step_by(step).find(|&block| is_free(block)));
        if let Some(block) = free {
            let rule = "marked as in use, for a file has it; run e2fsck";
            found.push((group, Corrupt::field(Place::BlockBitmap(group), "block", block, rule)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_two_owners_are_found_wherever_they_overlap() {
        let claim = |start, end, owner| (VolumeBlock(start)..VolumeBlock(end), InodeNumber(owner));
        let claims = [
            claim(1, 10, 1),
            claim(3, 5, 2),
            claim(4, 6, 3),
            claim(9, 20, 4),
            claim(20, 30, 5),
            claim(25, 26, 5),
        ];
        let found: Vec<_> = contested(&claims).into_iter().map(|range| range.start.0..range.end.0).collect();
        assert_eq!(found, [3..6, 9..10, 25..26]);
        assert!(contested(&claims[4..5]).is_empty());
    }
}

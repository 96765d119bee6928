//! Finds blocks that two files claim, and blocks and inodes of files that the bitmaps say are free.
//! This is done when a volume with few inodes is opened for writing, so that changing one file
//! cannot affect another.
//!
//! It reads the maps of all inodes. With many inodes that would take longer than most changes, so
//! it is left to e2fsck, as on Linux.

use crate::Result;
use crate::alloc::Owned;
use crate::inode::unmarked;
use crate::meta::{BlockRef, MetaStore};
use crate::view::View;
use extant_format::{
    BlockRange, Corrupt, FileKind, Group, GroupDescriptor, GroupFlags, Inode, InodeFlags, InodeNumber, Place,
    Superblock, VolumeBlock, XattrBlock, bit, count_free, inode_table_blocks,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// Up to this many inodes in use, all maps are read, which takes some milliseconds.
const INODES_MAX: u64 = 4096;
/// Most bitmaps that are counted where the descriptors' counts say that more inodes are in use.
const BITMAPS_MAX: usize = 256;
/// How many inodes are prefetched together.
const AHEAD: usize = 1024;
/// Offset of the depth in the root of an extent tree.
const DEPTH_AT: usize = 6;
/// Of the volume's own inodes, the root directory, whose blocks are checked like those of files,
/// and those that are never written (`EXT4_BAD_INO`, `EXT4_BOOT_LOADER_INO`, `EXT4_RESIZE_INO`).
const LEFT_ALONE: [InodeNumber; 4] =
    [InodeNumber::BAD_BLOCKS, InodeNumber::ROOT, InodeNumber(5), InodeNumber::RESIZE];

/// The result of the search.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Blocks with several owners, in order.
    pub(crate) contested: Vec<Range<VolumeBlock>>,
    /// Groups in which blocks of files are marked as free, with the damage.
    pub(crate) distrusted: Vec<(Group, Corrupt)>,
    /// Inodes with links that are marked as free.
    pub(crate) unmarked: Vec<Corrupt>,
}

/// Reads all maps, if there are few. `own` has the blocks of the volume's own files. Of a damaged
/// map, what can be read counts. Inodes that are damaged themselves or cannot be read are skipped;
/// using them will fail.
///
/// # Errors
/// A file's block is also one of the volume's own structures, and it is unknown which is wrong.
pub(crate) async fn look(view: &View, store: &MetaStore, own: &[Owned]) -> Result<Findings> {
    let sb = view.superblock();
    if are_many(view, store).await {
        return Ok(Findings::default());
    }
    let (mut claims, mut findings) = (Claims::default(), Findings::default());
    // The blocks of its map are among `own`.
    if let Ok(root) = view.inode(InodeNumber::ROOT).await {
        claims.add_attributes(&root, sb);
    }
    let Numbers { used, free } = numbers(view, store).await;
    for numbers in used.chunks(AHEAD) {
        view.prefetch_inodes(numbers).await;
        for &number in numbers {
            if let Ok(inode) = view.inode(number).await {
                claims.add(view, &inode).await;
            }
        }
    }
    for numbers in free.chunks(AHEAD) {
        view.prefetch_inodes(numbers).await;
        for &number in numbers {
            let inode = view.inode(number).await;
            // The table keeps what deleted inodes were, with the time of their deletion.
            let is_named =
                |inode: &Inode| inode.links() > 0 && inode.raw.i_dtime.get() == 0 && inode.kind().is_some();
            if let Some(inode) = inode.ok().filter(is_named) {
                findings.unmarked.push(unmarked(number, inode.links()));
                claims.add(view, &inode).await;
            }
        }
    }
    let mut claims = claims.with_attribute_blocks(view).await;
    check_structures(&structures(view, store, own).await, &claims)?;
    claims.extend(own.iter().map(|owned| (owned.blocks.clone(), owned.owner)));
    let claims = whole_clusters(claims, sb);
    findings.contested = contested(&claims);
    findings.distrusted = distrusted(view, &claims).await?;
    Ok(findings)
}

/// Whether more inodes are in use than are looked at. A descriptor's count may be damaged, so where
/// the counts say so, the bitmaps of the fullest groups are counted.
async fn are_many(view: &View, store: &MetaStore) -> bool {
    let sb = view.superblock();
    let used = |group| sb.inodes_per_group().saturating_sub(store.groups().get(group).free_inodes);
    let mut told: Vec<(u32, Group)> =
        (0..sb.group_count()).map(Group).map(|group| (used(group), group)).collect();
    let mut left: u64 = told.iter().map(|(used, _)| u64::from(*used)).sum();
    if left <= INODES_MAX {
        return false;
    }
    told.sort_unstable_by_key(|(used, _)| Reverse(*used));
    let mut counted = 0;
    for (used, group) in told.into_iter().take(BITMAPS_MAX) {
        counted += match inode_bitmap(view, &store.groups().get(group)).await {
            Bitmap::Read(bitmap) => {
                u64::from(sb.inodes_per_group() - count_free(&bitmap, sb.inodes_per_group()))
            }
            Bitmap::Unwritten => 0,
            Bitmap::Unreadable => used.into(),
        };
        left -= u64::from(used);
        if counted > INODES_MAX || counted + left <= INODES_MAX {
            return counted > INODES_MAX;
        }
    }
    true
}

/// The inode bitmap of a group.
enum Bitmap {
    Read(BlockRef),
    /// No inode of the group was ever in use.
    Unwritten,
    Unreadable,
}

async fn inode_bitmap(view: &View, descriptor: &GroupDescriptor) -> Bitmap {
    if view.superblock().has_group_csum() && descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
        return Bitmap::Unwritten;
    }
    match view.buffers().block(descriptor.inode_bitmap).await {
        Ok(bitmap) => Bitmap::Read(bitmap),
        Err(_) => Bitmap::Unreadable,
    }
}

/// The inodes to look at, except the volume's own.
struct Numbers {
    /// Marked as in use.
    used: Vec<InodeNumber>,
    /// Marked as free, but their records were written. With those in use, at most [`INODES_MAX`].
    free: Vec<InodeNumber>,
}

async fn numbers(view: &View, store: &MetaStore) -> Numbers {
    let sb = view.superblock();
    let per_group = sb.inodes_per_group();
    let per_block = (sb.block_size().bytes() / u32::from(sb.inode_size())).max(1);
    // Free ones in a block with others that are in use are looked at first.
    let (mut used, mut near, mut far) = (Vec::new(), Vec::new(), Vec::new());
    for group in (0..sb.group_count()).map(Group) {
        let descriptor = store.groups().get(group);
        let Bitmap::Read(bitmap) = inode_bitmap(view, &descriptor).await else { continue };
        let first = group.0 * per_group + 1;
        let unused = if sb.has_group_csum() { descriptor.unused_inodes } else { 0 };
        let written = per_group.saturating_sub(unused);
        for start in (0..per_group).step_by(per_block as usize) {
            let block = start..(start + per_block).min(per_group);
            let is_near = block.clone().any(|n| bit(&bitmap, n));
            for n in block {
                let number = InodeNumber(first + n);
                if number == InodeNumber::ROOT || sb.is_own_inode(number) {
                    continue;
                }
                match (bit(&bitmap, n), is_near) {
                    (true, _) => used.push(number),
                    (false, true) if n < written => near.push(number),
                    (false, false) if n < written => far.push(number),
                    _ => {}
                }
            }
        }
        // A bitmap that contradicts its descriptor may contain anything.
        used.truncate(2 * INODES_MAX as usize);
        near.truncate(INODES_MAX as usize);
        far.truncate(INODES_MAX as usize);
    }
    near.append(&mut far);
    near.truncate((INODES_MAX as usize).saturating_sub(used.len()));
    Numbers { used, free: near }
}

/// The blocks of files.
#[derive(Default)]
struct Claims {
    blocks: Vec<(Range<VolumeBlock>, InodeNumber)>,
    /// Inodes that have each attribute block.
    attributes: BTreeMap<VolumeBlock, Vec<InodeNumber>>,
}

impl Claims {
    async fn add(&mut self, view: &View, inode: &Inode) {
        self.add_attributes(inode, view.superblock());
        let is_mapped = match inode.kind() {
            Some(FileKind::Regular | FileKind::Directory) => true,
            Some(FileKind::Symlink) => !inode.is_fast_symlink(view.superblock()),
            _ => false,
        };
        if !is_mapped || inode.raw.i_block == [0; 60] {
            return;
        }
        if let Ok(blocks) = view.readable_blocks_of(inode).await {
            self.blocks.extend(blocks.into_iter().map(|range| (range, inode.number)));
        }
    }

    fn add_attributes(&mut self, inode: &Inode, sb: &Superblock) {
        if let Some(at) = inode.xattr_block().filter(|at| sb.is_valid_block(*at)) {
            self.attributes.entry(at).or_default().push(inode.number);
        }
    }

    /// All claims. Inodes may share an attribute block, but not more of them than it counts
    /// (`h_refcount`): the last owner but one would free it.
    async fn with_attribute_blocks(self, view: &View) -> Vec<(Range<VolumeBlock>, InodeNumber)> {
        let Self { mut blocks, attributes } = self;
        let shared = attributes.iter().filter(|(_, owners)| owners.len() > 1).map(|(at, _)| *at);
        view.buffers().prefetch(shared).await;
        for (at, owners) in attributes {
            let range = at..VolumeBlock(at.0 + 1);
            let mut claimed = 1;
            if owners.len() > 1
                && let Ok(block) = view.buffers().block(at).await
                && let Ok(parsed) = XattrBlock::parse(&block, owners[0], at)
                && owners.len() > parsed.references as usize
            {
                claimed = 2;
            }
            blocks.extend(owners.into_iter().take(claimed).map(|owner| (range.clone(), owner)));
        }
        blocks
    }
}

/// Structures and own files that the volume writes wherever they are said to be, in order.
async fn structures(view: &View, store: &MetaStore, own: &[Owned]) -> Vec<(Range<VolumeBlock>, Place)> {
    let sb = view.superblock();
    let mut all = Vec::with_capacity(3 * sb.group_count() as usize + own.len());
    let table = u64::from(inode_table_blocks(sb));
    for group in (0..sb.group_count()).map(Group) {
        let GroupDescriptor { block_bitmap, inode_bitmap, inode_table, .. } = store.groups().get(group);
        for (at, blocks) in [(block_bitmap, 1), (inode_bitmap, 1), (inode_table, table)] {
            all.push((at..VolumeBlock(at.0 + blocks), Place::GroupDescriptor(group)));
        }
    }
    let journal = sb.journal_inode();
    let is_journal_known = match journal {
        Some(journal) => is_journal_confirmed(view, journal).await,
        None => false,
    };
    for Owned { blocks, owner } in own {
        let is_left_alone = LEFT_ALONE.contains(owner) || (is_journal_known && Some(*owner) == journal);
        if !is_left_alone {
            let place = if owner.0 == 0 { Place::Superblock } else { Place::Inode(*owner) };
            all.push((blocks.clone(), place));
        }
    }
    all.sort_unstable_by_key(|(range, _)| range.start);
    all
}

/// Whether the superblock has a copy of the journal's whole map, which agrees with its inode. A
/// file with the same blocks is wrong then.
async fn is_journal_confirmed(view: &View, journal: InodeNumber) -> bool {
    let raw = view.superblock().raw();
    let copy = raw.s_jnl_blocks[..15].iter().flat_map(|word| word.get().to_le_bytes());
    let Ok(inode) = view.inode(journal).await else { return false };
    let is_whole = inode.flags().contains(InodeFlags::EXTENTS) && inode.map()[DEPTH_AT..][..2] == [0; 2];
    raw.s_jnl_backup_type == 1 && is_whole && copy.eq(inode.raw.i_block)
}

/// Fails if a file has a block that the volume writes as one of its own.
fn check_structures(
    structures: &[(Range<VolumeBlock>, Place)],
    claims: &[(Range<VolumeBlock>, InodeNumber)],
) -> std::result::Result<(), Corrupt> {
    for (range, _) in claims {
        let next = structures.partition_point(|(own, _)| own.end <= range.start);
        if let Some((own, place)) = structures.get(next).filter(|(own, _)| own.start < range.end) {
            let rule = "one that no file has; run e2fsck";
            return Err(Corrupt::field(*place, "block", own.start.max(range.start).0, rule));
        }
    }
    Ok(())
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

//! Finds blocks that two files claim, and blocks and inodes of files that the bitmaps say are free.
//! This is done when a volume is opened for writing, so that changing one file cannot affect
//! another.
//!
//! The search reads the maps of all inodes. With many inodes, this would take longer than most
//! changes do. The search then runs only if an error is recorded on the volume. Freeing blocks that
//! are free already records such an error.

use super::claims::Claims;
use crate::Result;
use crate::alloc::Owned;
use crate::inode::unmarked;
use crate::meta::{BlockRef, MetaStore};
use crate::view::View;
use extant_format::{
    BlockRange, Corrupt, FileKind, Group, GroupDescriptor, GroupFlags, Inode, InodeNumber, Place, Superblock,
    UintExt, VolumeBlock, XattrBlock, bit, count_free, inode_table_blocks,
};
use std::cmp::Reverse;
use std::ops::Range;

/// Up to this many inodes in use, all maps are always read, which takes some milliseconds.
const INODES_MAX: u64 = 4096;
/// Maximum number of bitmaps to count if, by the descriptors' counts, more inodes are in use.
const BITMAPS_MAX: usize = 256;
/// How many inodes are prefetched together.
const AHEAD: usize = 1024;
/// Inodes that the claims of files are not checked against: the root directory, whose blocks are
/// checked like those of files, and inodes that are never written (`EXT4_BAD_INO`,
/// `EXT4_BOOT_LOADER_INO`, `EXT4_RESIZE_INO`).
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

/// Reads all maps if there are few, or if the volume is known to be damaged. `own` has the blocks
/// of the volume's own files. The readable part of a damaged map counts. Inodes that are damaged or
/// cannot be read are skipped; using them will fail.
///
/// # Errors
/// A file's block is also one of the volume's own structures, and it is unknown which is wrong.
pub(crate) async fn look(
    view: &View,
    store: &MetaStore,
    own: &[Owned],
    is_damaged: bool,
) -> Result<Findings> {
    let are_many = are_many(view, store).await;
    if are_many && !is_damaged {
        return Ok(Findings::default());
    }
    let structures = structures(view, store, own).await;
    let cluster = view.superblock().cluster_size();
    let mut findings = Findings::default();
    let mut start = Some(0);
    while let Some(from) = start {
        let mut claims = Claims::new(&structures, view.superblock().blocks_count(), cluster, from);
        // Each pass meets the same inodes.
        findings.unmarked.clear();
        add_files(view, store, &mut claims, are_many, &mut findings.unmarked).await?;
        add_attribute_blocks(view, &mut claims).await?;
        for owned in own.chunk_by(|one, next| one.owner == next.owner) {
            let blocks: Vec<_> = owned.iter().map(|owned| owned.blocks.clone()).collect();
            claims.add_own(&blocks);
        }
        let volume_blocks = |range: BlockRange| VolumeBlock(range.start)..VolumeBlock(range.end);
        findings.contested.extend(claims.contested().map(volume_blocks));
        add_distrusted(view, &claims, &mut findings.distrusted).await?;
        start = claims.left_from();
    }
    Ok(findings)
}

/// Adds the claims of all files, or only of those that are always looked at. `unmarked` gets those
/// that are marked as free.
async fn add_files(
    view: &View,
    store: &MetaStore,
    claims: &mut Claims<'_>,
    are_many: bool,
    unmarked_inodes: &mut Vec<Corrupt>,
) -> Result<()> {
    let sb = view.superblock();
    // The blocks of its map are among the volume's own.
    if let Ok(root) = view.inode(InodeNumber::ROOT).await {
        add_attributes(claims, &root, sb);
    }
    let mut few = Numbers::default();
    for group in (0..sb.group_count()).map(Group) {
        let numbers = numbers(view, store, group).await;
        if are_many {
            add_inodes(view, claims, &numbers, unmarked_inodes).await?;
        } else {
            few.add(numbers);
        }
    }
    let room = INODES_MAX.to_usize().saturating_sub(few.used.len());
    few.near.truncate(room);
    few.far.truncate(room - few.near.len());
    add_inodes(view, claims, &few, unmarked_inodes).await
}

async fn add_inodes(
    view: &View,
    claims: &mut Claims<'_>,
    numbers: &Numbers,
    unmarked_inodes: &mut Vec<Corrupt>,
) -> Result<()> {
    for numbers in numbers.used.chunks(AHEAD) {
        view.prefetch_inodes(numbers).await;
        for &number in numbers {
            if let Ok(inode) = view.inode(number).await {
                add_file(view, claims, &inode).await?;
            }
        }
    }
    for numbers in numbers.near.chunks(AHEAD).chain(numbers.far.chunks(AHEAD)) {
        view.prefetch_inodes(numbers).await;
        for &number in numbers {
            let inode = view.inode(number).await;
            // The table keeps the records of deleted inodes, with the time of deletion.
            let is_named =
                |inode: &Inode| inode.links() > 0 && inode.raw.i_dtime.get() == 0 && inode.kind().is_some();
            if let Some(inode) = inode.ok().filter(is_named) {
                if unmarked_inodes.len() < INODES_MAX.to_usize() {
                    unmarked_inodes.push(unmarked(number, inode.links()));
                }
                add_file(view, claims, &inode).await?;
            }
        }
    }
    Ok(())
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
#[derive(Default)]
struct Numbers {
    /// Marked as in use.
    used: Vec<InodeNumber>,
    /// Marked as free, but their records were written. `near` are in a block with inodes in use and
    /// are looked at first; `far` are the rest.
    near: Vec<InodeNumber>,
    far: Vec<InodeNumber>,
}

impl Numbers {
    /// Adds those of another group, up to a limit.
    fn add(&mut self, more: Self) {
        let most = INODES_MAX.to_usize();
        // A bitmap that contradicts its descriptor may contain anything.
        for (all, more, most) in [
            (&mut self.used, more.used, 2 * most),
            (&mut self.near, more.near, most),
            (&mut self.far, more.far, most),
        ] {
            all.extend(more);
            all.truncate(most);
        }
    }
}

async fn numbers(view: &View, store: &MetaStore, group: Group) -> Numbers {
    let sb = view.superblock();
    let per_group = sb.inodes_per_group();
    let per_block = (sb.block_size().bytes() / u32::from(sb.inode_size())).max(1);
    let mut numbers = Numbers::default();
    let descriptor = store.groups().get(group);
    let Bitmap::Read(bitmap) = inode_bitmap(view, &descriptor).await else { return numbers };
    let first = group.0 * per_group + 1;
    let unused = if sb.has_group_csum() { descriptor.unused_inodes } else { 0 };
    let written = per_group.saturating_sub(unused);
    for start in (0..per_group).step_by(per_block.to_usize()) {
        let block = start..(start + per_block).min(per_group);
        let is_near = block.clone().any(|n| bit(&bitmap, n));
        for n in block {
            let number = InodeNumber(first + n);
            if number == InodeNumber::ROOT || sb.is_own_inode(number) {
                continue;
            }
            match (bit(&bitmap, n), is_near) {
                (true, _) => numbers.used.push(number),
                (false, true) if n < written => numbers.near.push(number),
                (false, false) if n < written => numbers.far.push(number),
                _ => {}
            }
        }
    }
    numbers
}

async fn add_file(view: &View, claims: &mut Claims<'_>, inode: &Inode) -> Result<()> {
    add_attributes(claims, inode, view.superblock());
    let is_mapped = match inode.kind() {
        Some(FileKind::Regular | FileKind::Directory) => true,
        Some(FileKind::Symlink) => !inode.is_fast_symlink(view.superblock()),
        _ => false,
    };
    if is_mapped
        && inode.raw.i_block != [0; 60]
        && let Ok(blocks) = view.readable_blocks_of(inode).await
    {
        claims.add(&blocks)?;
    }
    Ok(())
}

fn add_attributes(claims: &mut Claims<'_>, inode: &Inode, sb: &Superblock) {
    if let Some(at) = inode.xattr_block().filter(|at| sb.is_valid_block(*at)) {
        claims.add_attributes(at, inode.number);
    }
}

/// Adds the attribute blocks. Several inodes may share one. If more of them share it than its
/// reference count (`h_refcount`) says, the block is freed while an inode still uses it.
async fn add_attribute_blocks(view: &View, claims: &mut Claims<'_>) -> Result<()> {
    let all: Vec<_> = claims.take_attributes().into_iter().collect();
    for some in all.chunks(AHEAD) {
        let shared = some.iter().filter(|(_, (_, owners))| *owners > 1).map(|(at, _)| VolumeBlock(*at));
        view.buffers().prefetch(shared).await;
        for &(at, (owner, owners)) in some {
            let at = VolumeBlock(at);
            let mut claimed = 1;
            if owners > 1
                && let Ok(block) = view.buffers().block(at).await
                && let Ok(parsed) = XattrBlock::parse(&block, owner, at)
                && owners > parsed.references
            {
                claimed = 2;
            }
            for _ in 0..claimed {
                claims.add(&[at..VolumeBlock(at.0 + 1)])?;
            }
        }
    }
    Ok(())
}

/// Structures and own files that are written wherever the volume says they are, right or wrong; in
/// order.
async fn structures(view: &View, store: &MetaStore, own: &[Owned]) -> Vec<(Range<VolumeBlock>, Place)> {
    let sb = view.superblock();
    let mut all = Vec::with_capacity(3 * sb.group_count().to_usize() + own.len());
    let table = u64::from(inode_table_blocks(sb));
    for group in (0..sb.group_count()).map(Group) {
        let GroupDescriptor { block_bitmap, inode_bitmap, inode_table, .. } = store.groups().get(group);
        for (at, blocks) in [(block_bitmap, 1), (inode_bitmap, 1), (inode_table, table)] {
            all.push((at..VolumeBlock(at.0 + blocks), Place::GroupDescriptor(group)));
        }
    }
    let journal = sb.journal_inode();
    let is_journal_known = match journal {
        Some(journal) => view.inode(journal).await.is_ok_and(|inode| view.is_journal_confirmed(&inode)),
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

/// Adds the groups whose bitmaps say that claimed blocks are free.
async fn add_distrusted(view: &View, claims: &Claims<'_>, found: &mut Vec<(Group, Corrupt)>) -> Result<()> {
    let sb = view.superblock();
    let cluster = sb.cluster_size();
    for group in (0..sb.group_count()).map(Group) {
        let first = sb.group_first_block(group).0;
        let blocks = BlockRange::at(first, sb.group_blocks(group).into());
        // A pass may end within a group.
        let is_known = found.last().is_some_and(|(known, _)| *known == group);
        if is_known || claims.claimed_in(blocks).next().is_none() {
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
            let n = ((block - first) >> cluster.log2()).fit_u32();
            bitmap.as_ref().is_none_or(|bitmap| !bit(bitmap, n))
        };
        let step = cluster.blocks().to_usize();
        let mut ranges = claims.claimed_in(blocks);
        let free = ranges.find_map(|range| range.blocks().step_by(step).find(|&block| is_free(block)));
        if let Some(block) = free {
            let rule = "marked as in use, for a file has it; run e2fsck";
            found.push((group, Corrupt::field(Place::BlockBitmap(group), "block", block, rule)));
        }
    }
    Ok(())
}

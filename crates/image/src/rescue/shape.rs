//! Derives the geometry of a volume from its directories, if no superblock is left.
//!
//! A directory's first block contains the number of the directory's inode. An inode whose map
//! points to that block tells the block size, and where the first inode table begins. With
//! `flex_bg` the tables of the first flex group are adjacent, so that any assumed number of inodes
//! per group leads to the same inodes.

use super::group_descriptors;
use super::slots::{Slot, directory, first_block, judge, looks_used, slots};
use super::sweep::{patched, read_at, sweep};
use extant_block::{Device, Mended};
use extant_format::{
    BlockSize, ChecksumSeed, Compat, Group, Incompat, Inode, InodeNumber, RawSuperblock, RoCompat,
    SUPERBLOCK_MAGIC, Superblock, UintExt, VolumeBlock, inode_table_blocks,
};
use std::collections::BTreeMap;

/// Maximum number of directories to look at, and of shapes to try.
const DIRECTORIES_MAX: usize = 1 << 20;
const SHAPES_MAX: usize = 16;
/// Maximum number of blocks to look at to decide whether they are an inode table.
const SAMPLE_BLOCKS: u64 = 64;
/// `RawSuperblock::s_rev_level` of volumes that have features.
const DYNAMIC_REVISION: u32 = 1;

/// The geometry that directories agree on.
#[derive(Clone, Debug)]
struct Shape {
    block: BlockSize,
    inode_bytes: u64,
    /// Byte at which the first inode table begins.
    table: u64,
    has_types: bool,
    has_journal: bool,
    seed: Option<ChecksumSeed>,
}

/// How many directories agree on a shape, and one of these directories.
struct Vote {
    count: u32,
    /// Byte offset of that directory's inode.
    at: u64,
    number: InodeNumber,
    has_types: bool,
}

/// Returns `device` with a superblock and descriptors that lead to the inodes of its volume, and a
/// sentence about them.
pub(super) async fn derived(device: &Mended) -> Option<(Mended, String)> {
    let mut best: Option<(u64, Shape)> = None;
    for mut shape in shapes(device).await {
        let mut right = 0;
        for seed in [shape.seed, None] {
            shape.seed = seed;
            right = inodes(device, &shape, SAMPLE_BLOCKS).await.0;
            // A single inode's checksum proves nothing, because the seed was derived from it.
            if right > 1 {
                break;
            }
        }
        if best.as_ref().is_none_or(|(most, _)| right > *most) {
            best = Some((right, shape));
        }
    }
    let (_, shape) = best?;
    let (_, count) = inodes(device, &shape, u64::MAX).await;
    let sb = superblock(device, &shape, count)?;
    let table_blocks = u64::from(inode_table_blocks(&sb));
    let mut descriptors = vec![0; sb.descriptor_blocks().to_usize() * sb.block_size().byte_len()];
    for group in (0..sb.group_count()).map(Group) {
        let table = (shape.table >> shape.block.log2()) + u64::from(group.0) * table_blocks;
        let start = sb.group_first_block(group);
        let bitmap = start.0.max(sb.descriptor_block(0).0 + 1);
        let table = table.min(sb.blocks_count() - table_blocks);
        let descriptor = group_descriptors::descriptor([bitmap, bitmap, table].map(VolumeBlock));
        let at = group.0.to_usize() * sb.descriptor_size();
        descriptor.write_to(&mut descriptors[at..at + sb.descriptor_size()], &sb, group);
    }
    let block_bytes = shape.block.byte_len();
    let mut mended = patched(device.clone(), block_bytes, 1024, sb.as_bytes()).await;
    for (n, bytes) in (0..).zip(descriptors.chunks_exact(block_bytes)) {
        let at = sb.descriptor_block(n).0 << shape.block.log2();
        mended = patched(mended, block_bytes, at, bytes).await;
    }
    let told = format!(
        "no superblock is left; directories tell that blocks have {block_bytes} bytes, inodes {}, and that the \
         first inode table begins at byte {}",
        shape.inode_bytes, shape.table
    );
    Some((mended, told))
}

/// Returns all shapes on which the inode and the first block of some directory agree, the most
/// frequent first.
async fn shapes(device: &Mended) -> Vec<Shape> {
    // First blocks of directories, by their byte offset, with the directories' numbers; and byte
    // offsets of directories' inodes, with the first blocks of the directories.
    let mut blocks: BTreeMap<u64, (InodeNumber, bool)> = BTreeMap::new();
    let mut inodes: Vec<(u64, u64)> = Vec::new();
    sweep(device, |start, bytes| {
        for (offset, unit) in slots(bytes, 1024) {
            if let Some((number, _)) = directory(unit)
                && blocks.len() < DIRECTORIES_MAX
            {
                blocks.insert(start + offset, (number, unit[7] != 0));
            }
        }
        for (offset, unit) in slots(bytes, 128) {
            if looks_used(unit)
                && let Some(first) = first_block(unit)
                && inodes.len() < DIRECTORIES_MAX
            {
                inodes.push((start + offset, first));
            }
        }
    })
    .await;
    let mut votes: BTreeMap<(BlockSize, u64, u64), Vote> = BTreeMap::new();
    for (at, first) in inodes {
        for block in (0..=6).filter_map(BlockSize::from_log_kib) {
            let place = first.checked_mul(block.bytes().into());
            let Some(&(number, has_types)) = place.and_then(|place| blocks.get(&place)) else { continue };
            let sizes = (7..=block.log2()).map(|log2| 1_u64 << log2);
            for inode_bytes in sizes.filter(|size| at.is_multiple_of(*size)) {
                // A table begins at the start of a block.
                let table = at.checked_sub(u64::from(number.0 - 1) * inode_bytes);
                if let Some(table) = table.filter(|table| table.is_multiple_of(block.bytes().into())) {
                    let vote = Vote { count: 0, at, number, has_types };
                    votes.entry((block, inode_bytes, table)).or_insert(vote).count += 1;
                }
            }
        }
    }
    let mut votes: Vec<_> = votes.into_iter().collect();
    votes.sort_by_key(|((.., table), vote)| (std::cmp::Reverse(vote.count), *table));
    let mut shapes = Vec::new();
    for ((block, inode_bytes, table), vote) in votes.into_iter().take(SHAPES_MAX) {
        let Vote { at, number, has_types, .. } = vote;
        let origin = match read_at(device, at, inode_bytes.to_usize()).await {
            Some(whole) => Inode::checksum_origin(&whole),
            None => None,
        };
        let journal = table + u64::from(InodeNumber::JOURNAL.0 - 1) * inode_bytes;
        shapes.push(Shape {
            block,
            inode_bytes,
            table,
            has_types,
            has_journal: read_at(device, journal, 128).await.is_some_and(|inode| looks_used(&inode)),
            seed: origin.map(|origin| ChecksumSeed(origin ^ number.0)),
        });
    }
    shapes
}

/// Returns how many of the first inodes from the table's start are valid, and the number of the
/// last inode in use. Assumes that tables follow each other as long as blocks contain inodes.
async fn inodes(device: &Mended, shape: &Shape, blocks: u64) -> (u64, u32) {
    let Some(sb) = superblock(device, shape, 1) else { return (0, 0) };
    let (mut right, mut last, mut blank) = (0, 0, 0);
    let block_bytes = shape.block.byte_len();
    let per_block = block_bytes.to_u64() / shape.inode_bytes;
    for n in 0..blocks {
        let Some(bytes) = read_at(device, shape.table + n * block_bytes.to_u64(), block_bytes).await else {
            // A bad sector does not end a table, but the device's end does.
            if shape.table + n * block_bytes.to_u64() < device.limits().capacity_bytes {
                continue;
            }
            break;
        };
        let (mut good, mut bad) = (0, 0);
        for (number, (_, slot)) in (n * per_block + 1..).zip(slots(&bytes, shape.inode_bytes.to_usize())) {
            match judge(slot, &sb, InodeNumber(number.low_u32())) {
                Slot::Blank => {}
                Slot::Right => {
                    good += 1;
                    last = if looks_used(slot) { number } else { last };
                }
                Slot::Wrong => bad += 1,
            }
        }
        right += good;
        blank = if good + bad == 0 { blank + 1 } else { 0 };
        // The last table is followed by contents of files, or by nothing for as long as a table can
        // be.
        if bad > good || blank > u64::from(shape.block.bytes()) * 8 / per_block {
            break;
        }
    }
    (right, last.min(u32::MAX.into()).low_u32())
}

/// Makes a superblock for a volume of this shape with at least `inodes` inodes.
fn superblock(device: &Mended, shape: &Shape, inodes: u32) -> Option<Superblock> {
    let block = shape.block;
    let first = u64::from(block == BlockSize::K1);
    let blocks = device.limits().capacity_bytes >> block.log2();
    let per_group = block.bytes() * 8;
    let groups = blocks.checked_sub(first)?.div_ceil(per_group.into());
    // Each group needs a number of inodes that fills whole blocks, and whole bytes of a bitmap.
    let unit = (u64::from(block.bytes()) / shape.inode_bytes).max(8);
    let inodes_per_group = u64::from(inodes.max(16)).div_ceil(groups.max(1)).next_multiple_of(unit);
    let is_wide = blocks > u32::MAX.into();
    // Each inode shows whether it uses these features.
    let mut incompat = Incompat::EXTENTS | Incompat::INLINE_DATA | Incompat::EA_INODE | Incompat::LARGEDIR;
    incompat |= Incompat::FLEX_BG;
    incompat.set(Incompat::FILETYPE, shape.has_types);
    incompat.set(Incompat::BIT64, is_wide);
    incompat.set(Incompat::CSUM_SEED, shape.seed.is_some());
    // The journal's own superblock says whether the journal is dirty.
    incompat.set(Incompat::RECOVER, shape.has_journal);
    let mut compat = Compat::DIR_INDEX | Compat::EXT_ATTR;
    compat.set(Compat::HAS_JOURNAL, shape.has_journal);
    let mut ro_compat =
        RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE | RoCompat::HUGE_FILE | RoCompat::EXTRA_ISIZE;
    ro_compat.set(RoCompat::METADATA_CSUM, shape.seed.is_some());
    let raw = RawSuperblock {
        s_inodes_count: u32::try_from(groups * inodes_per_group).ok()?.into(),
        s_blocks_count_lo: blocks.low_u32().into(),
        s_blocks_count_hi: (blocks >> 32).low_u32().into(),
        s_first_data_block: first.low_u32().into(),
        s_log_block_size: (block.log2() - 10).into(),
        s_log_cluster_size: (block.log2() - 10).into(),
        s_blocks_per_group: per_group.into(),
        s_clusters_per_group: per_group.into(),
        s_inodes_per_group: u32::try_from(inodes_per_group).ok()?.into(),
        s_magic: SUPERBLOCK_MAGIC.into(),
        s_rev_level: DYNAMIC_REVISION.into(),
        s_first_ino: 11.into(),
        s_inode_size: shape.inode_bytes.low_u16().into(),
        s_feature_compat: compat.bits().into(),
        s_feature_incompat: incompat.bits().into(),
        s_feature_ro_compat: ro_compat.bits().into(),
        s_journal_inum: if shape.has_journal { InodeNumber::JOURNAL.0 } else { 0 }.into(),
        s_desc_size: if is_wide { 64 } else { 0 }.into(),
        s_checksum_type: u8::from(shape.seed.is_some()),
        s_checksum_seed: shape.seed.map_or(0, |seed| seed.0).into(),
        ..RawSuperblock::default()
    };
    let mut sb = Superblock::from_raw(raw).ok()?;
    sb.update_checksum();
    Some(sb)
}

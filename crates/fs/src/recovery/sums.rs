//! Updates superblock fields that summarise other structures, after a replay.
//!
//! Linux counts free blocks and inodes from the group descriptors at mount and rarely logs the
//! superblock, so its counts are stale after a replay (e2fsck's `check_super_block` recomputes them
//! without asking). The same is true of `orphan_present`: Linux sets it for the whole duration of a
//! mount, whether or not the file ever holds an inode.

use crate::map::RunWalker;
use crate::view::{OpenOptions, View};
use crate::{Result, RunState};
use extant_block::Device;
use extant_format::{BlockRange, FileBlock, Group, OrphanBlock, RoCompat, Superblock, UintExt, VolumeBlock};
use std::sync::Arc;

/// Updates `sb` from the descriptors and the orphan file on `device`. A count over damaged
/// structures stays as it is; e2fsck will find the damage itself.
pub(super) async fn refresh(device: &Arc<dyn Device>, options: OpenOptions, sb: &mut Superblock) {
    // Open the volume again, since the blocks cached so far are from before the replay.
    let Ok(view) = View::open(device.clone(), options).await else { return };
    if let Ok((blocks, inodes)) = free_counts(&view).await
        && blocks <= sb.blocks_count()
        && inodes <= sb.inodes_count().into()
    {
        let has_high_half = sb.incompat().contains(extant_format::Incompat::BIT64);
        let raw = sb.raw_mut();
        raw.s_free_blocks_count_lo = blocks.low_u32().into();
        if has_high_half {
            raw.s_free_blocks_count_hi = (blocks >> 32).low_u32().into();
        }
        raw.s_free_inodes_count = inodes.fit_u32().into();
    }
    if sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT) && is_orphan_file_empty(&view).await.unwrap_or(false)
    {
        sb.raw_mut().s_feature_ro_compat = (sb.ro_compat() - RoCompat::ORPHAN_PRESENT).bits().into();
    }
}

/// Free blocks and free inodes, summed over all groups.
async fn free_counts(view: &View) -> Result<(u64, u64)> {
    let sb = view.superblock();
    let (mut clusters, mut inodes) = (0u64, 0u64);
    for group in 0..sb.group_count() {
        let descriptor = view.group(Group(group)).await?;
        clusters += u64::from(descriptor.free_blocks);
        inodes += u64::from(descriptor.free_inodes);
    }
    Ok((clusters.saturating_mul(sb.blocks_per_cluster().into()), inodes))
}

async fn is_orphan_file_empty(view: &View) -> Result<bool> {
    let sb = view.superblock();
    let Some(number) = sb.orphan_file() else { return Ok(false) };
    let inode = view.inode(number).await?;
    let seed = sb.checksum_seed().map(|seed| inode.checksum_seed(seed));
    let mut walker = RunWalker::new(BlockRange::new(0, sb.block_size().blocks_for(inode.size())));
    while let Some(run) = walker.next(view, &inode).await? {
        let RunState::Written(first) = run.state else { return Ok(false) };
        for n in 0..run.blocks {
            let at = VolumeBlock(first.0 + n);
            let block = view.buffers().raw_block(at).await?;
            let orphans = OrphanBlock::parse(&block, FileBlock((run.logical + n).fit_u32()))?;
            if let Some(seed) = seed {
                orphans.verify_checksum(at, seed)?;
            }
            if orphans.orphans().next().is_some() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

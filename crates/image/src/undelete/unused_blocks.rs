//! Blocks that are in use now.

use extant_block::Spans;
use extant_format::{Group, GroupFlags, Superblock, UintExt, VolumeBlock, bit};
use extant_fs::Volume;

/// Blocks in use, as ranges of bytes.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) used: Spans,
    block_log2: u32,
}

impl Space {
    /// Reads the block bitmaps. A group whose bitmap cannot be read is assumed to be full.
    pub(super) async fn of(volume: &Volume) -> Self {
        let sb = volume.superblock();
        let mut space = Self { used: Spans::default(), block_log2: sb.block_size().log2() };
        for group in (0..sb.group_count()).map(Group) {
            space.add_group(volume, sb, group).await;
        }
        // A bitmap that was never written does not contain these.
        if let Ok(ranges) = volume.own_structures().await {
            for range in ranges {
                space.used.insert(space.bytes(range.start.0..range.end.0));
            }
        }
        // With blocks of 1 KiB, the boot block is not in a group.
        space.used.insert(space.bytes(0..sb.first_data_block().0));
        space
    }

    async fn add_group(&mut self, volume: &Volume, sb: &Superblock, group: Group) {
        let start = sb.group_first_block(group).0;
        let end = start + u64::from(sb.group_blocks(group));
        let read = async {
            let descriptor = volume.group(group).await.ok()?;
            let is_blank = sb.has_group_csum() && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
            match is_blank {
                true => Some(None),
                false => Some(Some(volume.block(descriptor.block_bitmap).await.ok()?)),
            }
        };
        let bitmap = match read.await {
            None => return self.used.insert(self.bytes(start..end)),
            Some(None) => return,
            Some(Some(bitmap)) => bitmap,
        };
        let per_cluster = u64::from(sb.blocks_per_cluster());
        let clusters = sb.group_clusters(group);
        let mut n = 0;
        while n < clusters {
            let first = n;
            while n < clusters && bit(&bitmap, n) {
                n += 1;
            }
            let at = |cluster: u32| (start + u64::from(cluster) * per_cluster).min(end);
            self.used.insert(self.bytes(at(first)..at(n)));
            n += 1;
        }
    }

    /// Converts a range of blocks to bytes.
    pub(super) fn bytes(&self, blocks: std::ops::Range<u64>) -> std::ops::Range<u64> {
        blocks.start << self.block_log2..blocks.end << self.block_log2
    }

    pub(super) fn is_free(&self, block: VolumeBlock) -> bool {
        let range = self.bytes(block.0..block.0 + 1);
        self.used.within(range).is_empty()
    }

    /// The length of a block in bytes.
    pub(super) fn block_bytes(&self) -> usize {
        1_u64.checked_shl(self.block_log2).unwrap_or(0).to_usize()
    }
}

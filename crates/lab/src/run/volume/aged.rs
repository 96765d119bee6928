//! Ages volumes, so that their free space is fragmented.

use super::BLOCK_BYTES;
use extant_fs::{Caller, Error, Fallocate, FileOptions, Volume};
use extant_rt::Rng;
use serde::Deserialize;

/// Free space of a volume that was filled and emptied for years: one file occupies everything
/// except holes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aged {
    /// Percentage of the volume that is free.
    pub free_percent: u64,
    /// Length of the shortest hole in blocks.
    pub least_blocks: u64,
    /// Length of the longest hole in blocks.
    pub most_blocks: u64,
}

/// Blocks that the file's map may need before any hole is freed.
const MAP_BLOCKS: u64 = 128;

impl Aged {
    /// Ages a new volume. The same volume always gets the same holes.
    pub(super) async fn apply(&self, volume: &Volume) -> Result<(), Error> {
        let caller = Caller::root();
        let node = volume.root_node().await?.create(&caller, b"years", 0o600).await?;
        let file = node.open(&caller, FileOptions { reserved_blocks: true, ..FileOptions::default() })?;
        // Fill the volume, except for blocks that the file's map needs: fewer than the shortest
        // hole.
        let mut blocks = 0;
        loop {
            let free = volume.space().blocks_free;
            let more = free.saturating_sub(free / 1000 + MAP_BLOCKS);
            if more == 0 {
                break;
            }
            let (at, len) = (blocks * BLOCK_BYTES, more * BLOCK_BYTES);
            file.fallocate(Fallocate::Allocate { keep_size: false }, at, len).await?;
            blocks += more;
        }
        let mut rng = Rng::labelled(1, "years");
        let spread = self.most_blocks.saturating_sub(self.least_blocks) + 1;
        let used = 100 - self.free_percent.clamp(1, 99);
        let mut at = 0;
        for hole_number in 1.. {
            let hole = self.least_blocks + rng.below(spread);
            // The average distance between holes follows from the free percentage.
            let between = hole * used / (100 - used);
            let hole_at = at + between / 2 + rng.below(between.max(1));
            if hole_at + hole > blocks {
                break;
            }
            file.fallocate(Fallocate::PunchHole, hole_at * BLOCK_BYTES, hole * BLOCK_BYTES).await?;
            at = hole_at + hole;
            // The file's map may need freed blocks, which can be allocated only once their
            // transaction is durable.
            if hole_number % 500 == 0 {
                volume.sync().await?;
            }
        }
        volume.sync().await
    }
}

//! Blocks of the volume as the journal leaves them, for reading.

use crate::Result;
use extant_block::{Buf, Device};
use extant_cache::blocks::{BlockBytes, Blocks};
use extant_format::{BlockSize, VolumeBlock};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files up to this length are read block by block, like metadata, because their neighbours are wanted soon.
pub(crate) const CHUNK_BYTES: u64 = 64 << 10;
/// Memory of a volume that is open for reading alone.
const BUDGET_BYTES: usize = 32 << 20;

/// Place of the newest contents of a block that the journal holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journaled {
    /// Block of the volume that holds the copy.
    pub(crate) copy: VolumeBlock,
    /// The copy's first four bytes were replaced, because they were the journal's magic number.
    pub(crate) escaped: bool,
}

/// Reader of blocks. On a volume that is open for writing it shows their live versions.
#[derive(Debug)]
pub(crate) struct Buffers {
    blocks: Blocks,
    /// Blocks that the journal holds newer than the volume.
    overlay: BTreeMap<VolumeBlock, Journaled>,
}

impl Buffers {
    /// For a volume that is open for reading.
    pub(crate) fn new(device: Arc<dyn Device>, block: BlockSize) -> Self {
        Self::over(Blocks::new(device, block.byte_len(), BUDGET_BYTES))
    }

    /// Over blocks that others read and change, too.
    pub(crate) fn over(blocks: Blocks) -> Self {
        Self { blocks, overlay: BTreeMap::new() }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        self.blocks.device()
    }

    pub(crate) fn set_overlay(&mut self, overlay: BTreeMap<VolumeBlock, Journaled>) {
        self.overlay = overlay;
    }

    /// Length of the run from `start`, at most `blocks`, that the journal does not hold newer.
    pub(crate) fn clean_run(&self, start: VolumeBlock, blocks: u64) -> u64 {
        match self.overlay.range(start..).next() {
            Some((at, _)) => blocks.min(at.0 - start.0),
            None => blocks,
        }
    }

    /// One block as the journal leaves it.
    pub(crate) async fn block(&self, at: VolumeBlock) -> Result<BlockBytes> {
        match self.overlay.get(&at) {
            None => self.raw_block(at).await,
            Some(journaled) => {
                let copy = self.raw_block(journaled.copy).await?;
                if !journaled.escaped {
                    return Ok(copy);
                }
                let mut bytes = Buf::from_slice(&copy);
                extant_format::jbd2::unescape(&mut bytes);
                Ok(bytes.into())
            }
        }
    }

    /// One block as it lies on the device.
    pub(crate) async fn raw_block(&self, at: VolumeBlock) -> Result<BlockBytes> {
        Ok(self.blocks.read(at.0).await?.bytes())
    }

    /// Reads what is not in memory of these blocks, many at a time; errors surface when the blocks are read.
    pub(crate) async fn prefetch(&self, blocks: impl Iterator<Item = VolumeBlock>) {
        self.blocks.prefetch(blocks.map(|at| at.0)).await;
    }
}

//! A block of known kind.

use super::MetaKind;
use extant_cache::blocks::{BlockBytes, BlockRef};
use extant_format::{BlockRange, ClusterSize, VolumeBlock};

/// A pinned metadata block. Each clone is another pin.
#[derive(Clone, Debug)]
pub(crate) struct MetaBlock {
    pub(super) block: BlockRef,
    pub(super) kind: MetaKind,
}

impl MetaBlock {
    pub(super) fn new(block: BlockRef, kind: MetaKind) -> Self {
        Self { block, kind }
    }

    /// Its location on the volume.
    pub(crate) fn number(&self) -> VolumeBlock {
        VolumeBlock(self.block.number())
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> MetaKind {
        self.kind
    }

    /// Its current live version. The caller must not be editing the block.
    pub(crate) fn bytes(&self) -> BlockBytes {
        self.block.bytes()
    }

    /// The block in the cache, for the journal.
    pub(crate) fn block(&self) -> &BlockRef {
        &self.block
    }
}

/// A run of adjacent blocks of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PhysicalRun {
    pub(crate) start: VolumeBlock,
    /// At least 1.
    pub(crate) blocks: u64,
}

impl PhysicalRun {
    pub(crate) fn new(start: VolumeBlock, blocks: u64) -> Self {
        Self { start, blocks }
    }

    /// The clusters that contain these blocks.
    pub(crate) fn clusters(self, size: ClusterSize) -> Self {
        let around = size.around(BlockRange::at(self.start.0, self.blocks));
        Self::new(VolumeBlock(around.start), around.len())
    }

    /// One past its last block.
    pub(crate) fn end(&self) -> VolumeBlock {
        VolumeBlock(self.start.0 + self.blocks)
    }
}

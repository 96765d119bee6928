//! Reads blocks of the volume as the journal leaves them.

use crate::Result;
use extant_block::{Buf, Device};
use extant_cache::Disk;
use extant_cache::accounts::AccountConfig;
use extant_cache::blocks::{BlockBytes, Blocks};
use extant_format::{BlockSize, UintExt, VolumeBlock};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files up to this length are read in aligned chunks of this length, because their neighbours will
/// be wanted soon.
pub(crate) const CHUNK_BYTES: u64 = 64 << 10;
/// Memory for the metadata of a volume opened read-only.
const METADATA_BYTES: usize = 24 << 20;
/// Memory for the contents of its small files.
const CHUNKS_BYTES: usize = 8 << 20;
/// Minimum for each of the two, however small the cache that they are charged to: 16 chunks, or 16
/// of the largest blocks.
const CHARGED_MIN_BYTES: u64 = 16 * CHUNK_BYTES;

/// Location of the newest contents of a block that is in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journaled {
    /// Volume block that holds the copy.
    pub(crate) copy: VolumeBlock,
    /// The copy's first four bytes were zeroed because they matched the journal's magic number.
    pub(crate) escaped: bool,
}

/// Reads blocks. On a volume open for writing, it sees their live versions.
#[derive(Debug)]
pub(crate) struct Buffers {
    blocks: Blocks,
    /// Contents of small files in chunks of [`CHUNK_BYTES`]: caching each block separately would
    /// cost more than reading it. `None` on a volume open for writing, where the chunks would
    /// become stale.
    chunks: Option<Blocks>,
    /// Blocks whose contents in the journal are newer than on the volume.
    overlay: BTreeMap<VolumeBlock, Journaled>,
}

impl Buffers {
    /// For a volume opened read-only.
    pub(crate) fn new(device: Arc<dyn Device>, block: BlockSize) -> Self {
        let chunks = Blocks::new(device.clone(), CHUNK_BYTES.to_usize(), CHUNKS_BYTES);
        let blocks = Blocks::new(device, block.byte_len(), METADATA_BYTES);
        Self { chunks: Some(chunks), ..Self::over(blocks) }
    }

    /// Creates a reader over blocks that others also read and change.
    pub(crate) fn over(blocks: Blocks) -> Self {
        Self { blocks, chunks: None, overlay: BTreeMap::new() }
    }

    /// Charges the memory of a volume opened read-only to the cache of `disk`, and stays within
    /// three eighths of its budget.
    pub(crate) fn charge_to(&self, disk: &Disk) {
        let parts = [
            ("metadata", Some(&self.blocks), METADATA_BYTES, 4),
            ("chunks", self.chunks.as_ref(), CHUNKS_BYTES, 8),
        ];
        for (name, blocks, most_bytes, share) in parts {
            let Some(blocks) = blocks else { continue };
            let limit_bytes = (disk.budget_bytes() / share).clamp(CHARGED_MIN_BYTES, most_bytes.to_u64());
            blocks.set_budget(limit_bytes.to_usize());
            blocks.charge_to(&disk.account(AccountConfig { name, limit_bytes, pinned_bytes: 0 }));
        }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        self.blocks.device()
    }

    pub(crate) fn set_overlay(&mut self, overlay: BTreeMap<VolumeBlock, Journaled>) {
        self.overlay = overlay;
    }

    /// Length of the run from `start`, at most `blocks`, for which the journal has no newer
    /// contents.
    pub(crate) fn clean_run(&self, start: VolumeBlock, blocks: u64) -> u64 {
        match self.overlay.range(start..).next() {
            Some((at, _)) => blocks.min(at.0 - start.0),
            None => blocks,
        }
    }

    /// How many of the `blocks` from `start` are in one chunk and available from
    /// [`Self::contents`]; 0 on a volume open for writing.
    pub(crate) fn chunk_run(&self, start: VolumeBlock, blocks: u64) -> u64 {
        let Some(_) = &self.chunks else { return 0 };
        let per_chunk = CHUNK_BYTES / self.blocks.block_bytes().to_u64();
        blocks.min(per_chunk - start.0 % per_chunk)
    }

    /// Returns blocks of one chunk as they are on the device. After an error, other blocks of the
    /// chunk may still be readable one by one.
    pub(crate) async fn contents(&self, at: VolumeBlock, blocks: u64) -> Result<BlockBytes> {
        let Some(chunks) = &self.chunks else { return self.raw_block(at).await };
        let block_bytes = self.blocks.block_bytes();
        let per_chunk = CHUNK_BYTES / block_bytes.to_u64();
        let chunk = chunks.read(at.0 / per_chunk).await?;
        let start = (at.0 % per_chunk).to_usize() * block_bytes;
        Ok(chunk.bytes().part(start..start + blocks.to_usize() * block_bytes))
    }

    /// Returns one block as the journal leaves it.
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

    /// Returns one block as it is on the device.
    pub(crate) async fn raw_block(&self, at: VolumeBlock) -> Result<BlockBytes> {
        Ok(self.blocks.read(at.0).await?.bytes())
    }

    /// Reads those of the blocks that are not in memory, many at a time; errors surface when a
    /// block is read. On a read-only volume, small requests also load neighbours, which a walk will
    /// ask for next.
    pub(crate) async fn prefetch(&self, blocks: impl Iterator<Item = VolumeBlock>) {
        let blocks: Vec<u64> = blocks.map(|at| at.0).collect();
        let is_few = blocks.len() * self.blocks.block_bytes() <= CHUNK_BYTES.to_usize();
        if is_few && self.chunks.is_some() {
            let _ = join_all(blocks.into_iter().map(|n| self.blocks.read(n))).await;
        } else {
            self.blocks.prefetch(blocks.into_iter()).await;
        }
    }
}

//! Blocks of the volume as the journal leaves them, for reading.

use crate::Result;
use extant_block::{Buf, Device};
use extant_cache::blocks::{BlockBytes, Blocks};
use extant_format::{BlockSize, VolumeBlock};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files up to this length are read in aligned chunks of this length, because their neighbours are wanted soon.
pub(crate) const CHUNK_BYTES: u64 = 64 << 10;
/// Memory for the metadata of a volume that is open for reading alone.
const METADATA_BYTES: usize = 24 << 20;
/// Memory for the contents of its small files.
const CHUNKS_BYTES: usize = 8 << 20;

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
    /// Contents of small files in chunks of [`CHUNK_BYTES`]: to keep each block of them costs more than to read it. None on a volume
    /// that is open for writing, where they would grow stale.
    chunks: Option<Blocks>,
    /// Blocks that the journal holds newer than the volume.
    overlay: BTreeMap<VolumeBlock, Journaled>,
}

impl Buffers {
    /// For a volume that is open for reading.
    pub(crate) fn new(device: Arc<dyn Device>, block: BlockSize) -> Self {
        let chunks = Blocks::new(device.clone(), CHUNK_BYTES as usize, CHUNKS_BYTES);
        let blocks = Blocks::new(device, block.byte_len(), METADATA_BYTES);
        Self { chunks: Some(chunks), ..Self::over(blocks) }
    }

    /// Over blocks that others read and change, too.
    pub(crate) fn over(blocks: Blocks) -> Self {
        Self { blocks, chunks: None, overlay: BTreeMap::new() }
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

    /// How many of the `blocks` from `start` on lie in one chunk and can be had from [`Self::contents`]; 0 on a volume that is
    /// open for writing.
    pub(crate) fn chunk_run(&self, start: VolumeBlock, blocks: u64) -> u64 {
        let Some(_) = &self.chunks else { return 0 };
        let per_chunk = CHUNK_BYTES / self.blocks.block_bytes() as u64;
        blocks.min(per_chunk - start.0 % per_chunk)
    }

    /// Blocks of one chunk as they lie on the device. After an error its other blocks may be read one by one.
    pub(crate) async fn contents(&self, at: VolumeBlock, blocks: u64) -> Result<BlockBytes> {
        let Some(chunks) = &self.chunks else { return self.raw_block(at).await };
        let block_bytes = self.blocks.block_bytes();
        let per_chunk = CHUNK_BYTES / block_bytes as u64;
        let chunk = chunks.read(at.0 / per_chunk).await?;
        let start = (at.0 % per_chunk) as usize * block_bytes;
        Ok(chunk.bytes().part(start..start + blocks as usize * block_bytes))
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

    /// Reads what is not in memory of these blocks, many at a time; errors surface when the blocks are read. A few bring their
    /// neighbours on a volume that is open for reading: a walk asks for these next.
    pub(crate) async fn prefetch(&self, blocks: impl Iterator<Item = VolumeBlock>) {
        let blocks: Vec<u64> = blocks.map(|at| at.0).collect();
        let is_few = blocks.len() * self.blocks.block_bytes() <= CHUNK_BYTES as usize;
        if is_few && self.chunks.is_some() {
            let _ = join_all(blocks.into_iter().map(|n| self.blocks.read(n))).await;
        } else {
            self.blocks.prefetch(blocks.into_iter()).await;
        }
    }
}

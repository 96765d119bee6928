//! Blocks of the volume as the journal leaves them, through a small cache.
//!
//! Metadata and small files are read in chunks of 64 KiB, because what lies together is wanted together; the cache holds
//! a bounded number of chunks whatever the volume says.

use crate::{Error, Result};
use extant_block::{Buf, Device, IoError, IoErrorKind, Op, Sector};
use extant_format::{BlockSize, VolumeBlock};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, Range};
use std::sync::Arc;

pub(crate) const CHUNK_BYTES: u64 = 64 << 10;
const CACHE_CHUNKS: usize = 512;

/// A block's bytes, shared with the cache.
#[derive(Clone, Debug)]
pub struct BlockRef {
    chunk: Arc<Buf>,
    range: Range<usize>,
}

impl BlockRef {
    pub(crate) fn new(bytes: Buf, len: usize) -> Self {
        Self { range: 0..len.min(bytes.len()), chunk: Arc::new(bytes) }
    }

    /// The first `len` bytes of it.
    pub(crate) fn truncated(mut self, len: usize) -> Self {
        self.range.end = self.range.end.min(self.range.start + len);
        self
    }
}

impl Deref for BlockRef {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.chunk[self.range.clone()]
    }
}

/// Where the journal holds the newest contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journaled {
    /// Block of the volume that holds the copy.
    pub(crate) copy: VolumeBlock,
    /// The copy's first four bytes were replaced, because they were the journal's magic number.
    pub(crate) escaped: bool,
}

/// Reader of blocks.
#[derive(Debug)]
pub(crate) struct Buffers {
    device: Arc<dyn Device>,
    block: BlockSize,
    /// Blocks that the journal holds newer than the volume.
    overlay: BTreeMap<VolumeBlock, Journaled>,
    cache: Mutex<ChunkCache>,
}

#[derive(Debug, Default)]
struct ChunkCache {
    chunks: BTreeMap<u64, (Arc<Buf>, bool)>,
    /// Second-chance order of eviction.
    order: VecDeque<u64>,
}

impl Buffers {
    pub(crate) fn new(device: Arc<dyn Device>, block: BlockSize) -> Self {
        Self { device, block, overlay: BTreeMap::new(), cache: Mutex::default() }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
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
    pub(crate) async fn block(&self, at: VolumeBlock) -> Result<BlockRef> {
        match self.overlay.get(&at) {
            None => self.raw_block(at).await,
            Some(journaled) => {
                let copy = self.raw_block(journaled.copy).await?;
                if !journaled.escaped {
                    return Ok(copy);
                }
                let mut bytes = Buf::from_slice(&copy);
                extant_format::jbd2::unescape(&mut bytes);
                let len = bytes.len();
                Ok(BlockRef::new(bytes, len))
            }
        }
    }

    /// One block as it lies on the device.
    pub(crate) async fn raw_block(&self, at: VolumeBlock) -> Result<BlockRef> {
        let bytes = u64::from(self.block.bytes());
        let offset = at.0.checked_mul(bytes).ok_or_else(|| self.out_of_range(at))?;
        let index = offset / CHUNK_BYTES;
        let chunk = self.chunk(index).await?;
        let start = (offset - index * CHUNK_BYTES) as usize;
        let range = start..start + bytes as usize;
        if range.end > chunk.len() {
            return Err(self.out_of_range(at));
        }
        Ok(BlockRef { chunk, range })
    }

    fn out_of_range(&self, at: VolumeBlock) -> Error {
        Error::Io(IoError {
            device: self.device.limits().name.clone(),
            op: Op::Read,
            start: Sector(at.0.saturating_mul(u64::from(self.block.bytes()) / Sector::BYTES)),
            bytes: self.block.bytes().into(),
            kind: IoErrorKind::OutOfRange,
        })
    }

    async fn chunk(&self, index: u64) -> Result<Arc<Buf>> {
        if let Some((chunk, used)) = self.cache.lock().chunks.get_mut(&index) {
            *used = true;
            return Ok(chunk.clone());
        }
        let offset = index * CHUNK_BYTES;
        let capacity = self.device.limits().capacity_bytes;
        let len = CHUNK_BYTES.min(capacity.saturating_sub(offset));
        // A file may end within a sector; the device fills up with zeroes.
        let len = len.next_multiple_of(Sector::BYTES) as usize;
        if len == 0 {
            return Err(self.out_of_range(VolumeBlock(offset / u64::from(self.block.bytes()))));
        }
        let chunk = Arc::new(extant_block::read(&*self.device, Sector::containing(offset), len).await?);
        self.cache.lock().insert(index, chunk.clone());
        Ok(chunk)
    }

    /// Reads what is not cached of these blocks, many at a time; errors surface when the blocks are read.
    pub(crate) async fn prefetch(&self, blocks: impl Iterator<Item = VolumeBlock>) {
        let per_chunk = CHUNK_BYTES / u64::from(self.block.bytes());
        let mut wanted: Vec<u64> = {
            let cache = self.cache.lock();
            blocks.map(|b| b.0 / per_chunk.max(1)).filter(|c| !cache.chunks.contains_key(c)).collect()
        };
        wanted.sort_unstable();
        wanted.dedup();
        wanted.truncate(CACHE_CHUNKS / 4);
        let capacity = self.device.limits().capacity_bytes;
        let reads: Vec<_> = wanted
            .into_iter()
            .filter(|index| (index + 1).saturating_mul(CHUNK_BYTES) <= capacity)
            .map(|index| {
                let start = Sector::containing(index * CHUNK_BYTES);
                (index, extant_block::read(&*self.device, start, CHUNK_BYTES as usize))
            })
            .collect();
        for (index, read) in reads {
            if let Ok(chunk) = read.await {
                self.cache.lock().insert(index, Arc::new(chunk));
            }
        }
    }
}

impl ChunkCache {
    fn insert(&mut self, index: u64, chunk: Arc<Buf>) {
        while self.chunks.len() >= CACHE_CHUNKS {
            let Some(oldest) = self.order.pop_front() else { break };
            match self.chunks.get_mut(&oldest) {
                Some((_, used)) if *used => {
                    *used = false;
                    self.order.push_back(oldest);
                }
                _ => {
                    self.chunks.remove(&oldest);
                }
            }
        }
        if self.chunks.insert(index, (chunk, false)).is_none() {
            self.order.push_back(index);
        }
    }
}

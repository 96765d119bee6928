//! Reading blocks of the volume, many at a time, as a dirty journal would leave them.

use crate::limits::Limits;
use extant_block::{Buf, Device, IoError, Sector};
use extant_format::{BlockSize, SUPERBLOCK_BYTES, UintExt};
use extant_fs::JournalCopy;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

mod feed;

pub(crate) use feed::Feed;

/// Maximum length of a read in bytes.
pub(crate) const READ_BYTES: usize = 256 << 10;
/// Bytes in flight for each read that a caller allows for. With eight reads for each of four tasks,
/// and one piece that each of them looks at, buffers take 4 MiB, two huge pages. A disk that was
/// measured is as busy with 2 MiB in flight as with 8.
const DEPTH_BYTES: usize = 96 << 10;
/// This many short reads may be in flight in place of one of that length.
const SHORT_READS: usize = 4;
/// Gaps of up to this length are read too, rather than skipped.
const GAP_BYTES: usize = 16 << 10;
/// `h_magic` of a journal block; zero in an escaped copy.
const JOURNAL_MAGIC: [u8; 4] = 0xc03b_3998_u32.to_be_bytes();

type Pending = Pin<Box<dyn Future<Output = Piece> + Send>>;

/// Blocks that were read together.
#[derive(Debug)]
pub(crate) struct Piece {
    buf: Buf,
    /// Bytes before the first block, for alignment.
    skip: usize,
    start: u64,
    blocks: u32,
    block_bytes: usize,
    /// Blocks that cannot be read, in order. They read as zeros.
    bad: Vec<u64>,
}

impl Piece {
    /// The first block.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The bytes of all blocks; unreadable blocks are zeros.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[self.skip..self.skip + self.blocks.to_usize() * self.block_bytes]
    }

    /// The bytes of one block; `None` if it cannot be read or was not asked for.
    pub(crate) fn block(&self, at: u64) -> Option<&[u8]> {
        let n = at.checked_sub(self.start).filter(|&n| n < self.blocks.into())?.to_usize();
        if !self.bad.is_empty() && self.bad.binary_search(&at).is_ok() {
            return None;
        }
        Some(&self.bytes()[n * self.block_bytes..][..self.block_bytes])
    }

    /// Blocks that cannot be read.
    pub(crate) fn bad(&self) -> &[u64] {
        &self.bad
    }
}

/// A volume's blocks.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    device: Arc<dyn Device>,
    /// The same device, opened past the host's page cache.
    uncached: Option<Arc<dyn Device>>,
    block: BlockSize,
    overlay: Arc<BTreeMap<u64, JournalCopy>>,
    limits: Arc<Limits>,
    /// Number of long reads to keep in flight.
    depth: usize,
    /// Number of tasks that may read at the same time.
    tasks: usize,
}

impl Source {
    pub(crate) fn new(device: Arc<dyn Device>, block: BlockSize, limits: Arc<Limits>) -> Self {
        Self { device, uncached: None, block, overlay: Arc::default(), limits, depth: 1, tasks: 1 }
    }

    /// Adds a device with the same blocks that is opened past the host's page cache.
    pub(crate) fn with_uncached(mut self, uncached: Option<Arc<dyn Device>>) -> Self {
        self.uncached = uncached.filter(|uncached| !uncached.is_cached_by_host());
        self
    }

    /// Sets the number of tasks, and of long reads that each of them keeps in flight.
    pub(crate) fn with_depth(mut self, tasks: usize, depth: usize) -> Self {
        (self.tasks, self.depth) = (tasks.max(1), depth.clamp(1, 64) * tasks.max(1));
        self
    }

    /// The same blocks, for one of several tasks that each read others.
    pub(crate) fn of_one_task(&self) -> Self {
        Self { depth: self.depth / self.tasks, tasks: 1, ..self.clone() }
    }

    /// Maximum number of reads in flight, and of their bytes.
    fn limits_in_flight(&self) -> (usize, usize) {
        (self.depth * SHORT_READS, self.depth * DEPTH_BYTES)
    }

    fn has_to_stop(&self) -> bool {
        self.limits.stopped()
    }

    /// Adds newer copies of blocks.
    pub(crate) fn with_overlay(mut self, overlay: BTreeMap<u64, JournalCopy>) -> Self {
        self.overlay = Arc::new(overlay);
        self
    }

    /// Number of whole blocks of the device.
    pub(crate) fn device_blocks(&self) -> u64 {
        self.device.limits().capacity_bytes >> self.block.log2()
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.block.byte_len()
    }

    /// Maximum number of blocks in one read.
    pub(crate) fn most(&self) -> u32 {
        (READ_BYTES >> self.block.log2()).max(1).fit_u32()
    }

    /// Whether blocks can be read past the host's page cache.
    fn may_pass_cache(&self) -> bool {
        self.uncached.is_some()
    }

    /// Reads blocks. The read starts at once.
    pub(crate) fn read(&self, start: u64, blocks: u32) -> Pending {
        let read = self.is_there(start, blocks).then(|| self.submit(&*self.device, start, blocks));
        self.piece(start, blocks, read)
    }

    /// Reads runs of blocks, past the page cache if possible. The reads start at once, and
    /// together.
    fn read_together(&self, runs: &[(u64, u32)]) -> Vec<Pending> {
        let device = &**self.uncached.as_ref().unwrap_or(&self.device);
        let places = runs
            .iter()
            .map(|&(start, blocks)| self.is_there(start, blocks).then(|| self.place(device, start, blocks)));
        let places: Vec<_> = places.collect();
        let ranges: Vec<_> = places.iter().flatten().map(|&(_, first, len)| (first, len)).collect();
        let mut reads = extant_block::read_all(device, &ranges).into_iter();
        let read = |place: Option<(usize, Sector, usize)>| Some((place?.0, reads.next()?));
        let reads: Vec<_> = places.into_iter().map(read).collect();
        let pieces = runs.iter().zip(reads);
        pieces.map(|(&(start, blocks), read)| self.piece(start, blocks, read)).collect()
    }

    /// Whether the device has all of these blocks.
    fn is_there(&self, start: u64, blocks: u32) -> bool {
        start.checked_add(blocks.into()).is_some_and(|end| end <= self.device_blocks())
    }

    /// Waits for a read, with the number of bytes before the first block. Without one, or if it
    /// fails, reads the blocks one by one.
    fn piece<R>(&self, start: u64, blocks: u32, read: Option<(usize, R)>) -> Pending
    where
        R: Future<Output = Result<Buf, IoError>> + Send + 'static,
    {
        let this = self.clone();
        Box::pin(async move {
            let read = match read {
                Some((skip, read)) => read.await.ok().map(|buf| (skip, buf)),
                None => None,
            };
            let mut piece = match read {
                Some((skip, buf)) => {
                    Piece { buf, skip, start, blocks, block_bytes: this.block_bytes(), bad: Vec::new() }
                }
                None => this.one_by_one(start, blocks).await,
            };
            if !this.overlay.is_empty() {
                this.lay_over(&mut piece).await;
            }
            piece
        })
    }

    /// Reads one block; `None` if that is impossible.
    pub(crate) async fn one(&self, at: u64) -> Option<Piece> {
        let piece = self.read(at, 1).await;
        piece.bad.is_empty().then_some(piece)
    }

    /// Starts a read. Also returns the number of bytes before the first block.
    fn submit(
        &self,
        device: &dyn Device,
        start: u64,
        blocks: u32,
    ) -> (usize, impl Future<Output = Result<Buf, IoError>> + Send + use<>) {
        let (skip, first, len) = self.place(device, start, blocks);
        (skip, extant_block::read(device, first, len))
    }

    /// Where to read blocks: the number of bytes before the first block, because a device reads
    /// whole blocks of its own, and the first sector and number of bytes.
    fn place(&self, device: &dyn Device, start: u64, blocks: u32) -> (usize, Sector, usize) {
        let unit = u64::from(device.limits().block_bytes).max(Sector::BYTES);
        let (from, len) = (start << self.block.log2(), u64::from(blocks) << self.block.log2());
        let aligned = from / unit * unit;
        let end = (from + len).next_multiple_of(unit).min(device.limits().capacity_bytes);
        let bytes = (end - aligned).max(from + len - aligned);
        ((from - aligned).to_usize(), Sector::containing(aligned), bytes.to_usize())
    }

    async fn one_by_one(&self, start: u64, blocks: u32) -> Piece {
        let block_bytes = self.block_bytes();
        let mut piece = Piece {
            buf: Buf::zeroed(blocks.to_usize() * block_bytes),
            skip: 0,
            start,
            blocks,
            block_bytes,
            bad: Vec::new(),
        };
        for n in 0..blocks {
            let at = start.saturating_add(n.into());
            let to = n.to_usize() * block_bytes;
            if at < self.device_blocks() {
                let (skip, read) = self.submit(&*self.device, at, 1);
                if let Ok(buf) = read.await {
                    piece.buf[to..to + block_bytes].copy_from_slice(&buf[skip..skip + block_bytes]);
                    continue;
                }
            }
            piece.bad.push(at);
        }
        piece
    }

    async fn lay_over(&self, piece: &mut Piece) {
        let end = piece.start.saturating_add(piece.blocks.into());
        for (&home, copy) in self.overlay.range(piece.start..end) {
            if copy.block.0 >= self.device_blocks() {
                continue;
            }
            let (skip, read) = self.submit(&*self.device, copy.block.0, 1);
            // If a copy is unreadable, keep the old contents, as a replay that fails there would.
            let Ok(buf) = read.await else { continue };
            let at = piece.skip + (home - piece.start).to_usize() * piece.block_bytes;
            let to = &mut piece.buf[at..at + piece.block_bytes];
            to.copy_from_slice(&buf[skip..skip + piece.block_bytes]);
            if copy.escaped {
                to[..4].copy_from_slice(&JOURNAL_MAGIC);
            }
            piece.bad.retain(|&bad| bad != home);
        }
    }

    /// Reads runs of blocks in order, many at a time.
    pub(crate) fn stream<I: Iterator<Item = (u64, u32)>>(
        &self,
        runs: I,
    ) -> Feed<impl Iterator<Item = ((), u64, u32)> + use<I>, ()> {
        Feed::new(self.clone(), runs.map(|(start, blocks)| ((), start, blocks)))
    }

    /// Reads runs of blocks in order, many at a time. Ends early if the check has to stop.
    pub(crate) async fn sweep(&self, runs: impl Iterator<Item = (u64, u32)>, mut each: impl FnMut(Piece)) {
        let stream = self.stream(runs);
        while let Some(((), piece)) = stream.next().await {
            each(piece);
        }
    }

    /// Reads single blocks, which must be sorted, many at a time. Neighbours are read together.
    pub(crate) async fn scattered(&self, blocks: &[u64], mut each: impl FnMut(usize, Option<&[u8]>)) {
        let runs = Coalesced { blocks, gap: self.gap(), most: self.most().into() };
        let mut next = 0;
        self.sweep(runs, |piece| {
            while let Some(&at) = blocks.get(next).filter(|&&at| at < piece.start + u64::from(piece.blocks)) {
                each(next, piece.block(at));
                next += 1;
            }
        })
        .await;
    }

    /// The first run of some sorted blocks to read together, and how many of them are in it.
    pub(crate) fn first_run(&self, sorted: impl Iterator<Item = u64>) -> Option<(u64, u32, usize)> {
        coalesce(sorted, self.gap(), self.most().into())
    }

    /// Gaps of up to this many blocks are read too, rather than skipped.
    fn gap(&self) -> u64 {
        (GAP_BYTES >> self.block.log2()).to_u64()
    }

    /// Reads the superblock's block, with newer copies, at its byte offset.
    pub(crate) async fn superblock_bytes(&self, offset: u64) -> Option<[u8; SUPERBLOCK_BYTES]> {
        let piece = self.one(offset >> self.block.log2()).await?;
        let at = (offset & (u64::from(self.block.bytes()) - 1)).to_usize();
        piece.bytes().get(at..at + SUPERBLOCK_BYTES)?.try_into().ok()
    }
}

/// Joins sorted blocks into runs.
struct Coalesced<'a> {
    blocks: &'a [u64],
    gap: u64,
    most: u64,
}

impl Iterator for Coalesced<'_> {
    type Item = (u64, u32);

    fn next(&mut self) -> Option<Self::Item> {
        let (start, blocks, count) = coalesce(self.blocks.iter().copied(), self.gap, self.most)?;
        self.blocks = &self.blocks[count..];
        Some((start, blocks))
    }
}

/// Joins the first of some sorted blocks with those behind it, if the gaps are at most `gap` and
/// the run has at most `most` blocks. Returns the run and the number of blocks joined.
fn coalesce(mut sorted: impl Iterator<Item = u64>, gap: u64, most: u64) -> Option<(u64, u32, usize)> {
    let start = sorted.next()?;
    let (mut end, mut count) = (start.saturating_add(1), 1);
    for at in sorted {
        let joined = at.saturating_add(1);
        if at > end.saturating_add(gap) || joined - start > most {
            break;
        }
        (end, count) = (end.max(joined), count + 1);
    }
    Some((start, (end - start).fit_u32(), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_together() {
        let runs = |blocks: &[u64]| -> Vec<_> { Coalesced { blocks, gap: 2, most: 8 }.collect() };
        assert_eq!(runs(&[1, 2, 2, 5, 20, 21]), [(1, 5), (20, 2)]);
        assert_eq!(runs(&[0, 3, 6, 9]), [(0, 7), (9, 1)]);
        assert_eq!(runs(&[u64::MAX]), [(u64::MAX, 0)]);
    }
}

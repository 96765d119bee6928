//! Reading blocks of the volume, many at a time, as a dirty journal would leave them.

use crate::limits::Limits;
use extant_block::{Buf, Device, Sector};
use extant_format::{BlockSize, SUPERBLOCK_BYTES, UintExt};
use extant_fs::JournalCopy;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Maximum length of a read in bytes.
pub(crate) const READ_BYTES: usize = 128 << 10;
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
    /// Number of reads that one task keeps in flight.
    depth: usize,
}

impl Source {
    pub(crate) fn new(device: Arc<dyn Device>, block: BlockSize, limits: Arc<Limits>) -> Self {
        Self { device, uncached: None, block, overlay: Arc::default(), limits, depth: 1 }
    }

    /// Adds a device with the same blocks that is opened past the host's page cache.
    pub(crate) fn with_uncached(mut self, uncached: Option<Arc<dyn Device>>) -> Self {
        self.uncached = uncached;
        self
    }

    /// Sets the number of reads that each task keeps in flight.
    pub(crate) fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth.clamp(1, 64);
        self
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

    /// Reads blocks. The read starts at once.
    pub(crate) fn read(&self, start: u64, blocks: u32) -> Pending {
        self.read_from(&*self.device, start, blocks)
    }

    fn read_from(&self, device: &dyn Device, start: u64, blocks: u32) -> Pending {
        let there = self.device_blocks().saturating_sub(start).min(blocks.into()).fit_u32();
        let submitted = (there == blocks).then(|| self.submit(device, start, blocks));
        let this = self.clone();
        Box::pin(async move {
            let read = match submitted {
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

    /// Starts a read. Also returns the number of bytes before the first block, because a device
    /// reads whole blocks of its own.
    fn submit(
        &self,
        device: &dyn Device,
        start: u64,
        blocks: u32,
    ) -> (usize, impl Future<Output = Result<Buf, extant_block::IoError>> + Send + use<>) {
        let unit = u64::from(device.limits().block_bytes).max(Sector::BYTES);
        let (from, len) = (start << self.block.log2(), u64::from(blocks) << self.block.log2());
        let aligned = from / unit * unit;
        let end = (from + len).next_multiple_of(unit).min(device.limits().capacity_bytes);
        let read = extant_block::read(
            device,
            Sector::containing(aligned),
            (end - aligned).max(from + len - aligned).to_usize(),
        );
        ((from - aligned).to_usize(), read)
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
    pub(crate) fn stream<I: Iterator<Item = (u64, u32)>>(&self, runs: I) -> Stream<'_, I> {
        Stream { source: self, runs, ahead: VecDeque::new(), quick: QUICK, made: 0 }
    }

    /// Reads runs of blocks in order, many at a time. Ends early if the check has to stop.
    pub(crate) async fn sweep(&self, runs: impl Iterator<Item = (u64, u32)>, mut each: impl FnMut(Piece)) {
        let mut stream = self.stream(runs);
        while let Some(piece) = stream.next().await {
            each(piece);
        }
    }

    /// Reads single blocks, which must be sorted, many at a time. Neighbours are read together.
    pub(crate) async fn scattered(&self, blocks: &[u64], mut each: impl FnMut(usize, Option<&[u8]>)) {
        let gap = (GAP_BYTES >> self.block.log2()).to_u64();
        let runs = Coalesced { blocks, gap, most: self.most().into() };
        let mut next = 0;
        self.sweep(runs, |piece| {
            while let Some(&at) = blocks.get(next).filter(|&&at| at < piece.start + u64::from(piece.blocks)) {
                each(next, piece.block(at));
                next += 1;
            }
        })
        .await;
    }

    /// Reads the superblock's block, with newer copies, at its byte offset.
    pub(crate) async fn superblock_bytes(&self, offset: u64) -> Option<[u8; SUPERBLOCK_BYTES]> {
        let piece = self.one(offset >> self.block.log2()).await?;
        let at = (offset & (u64::from(self.block.bytes()) - 1)).to_usize();
        piece.bytes().get(at..at + SUPERBLOCK_BYTES)?.try_into().ok()
    }
}

/// After this many reads in a row that complete at once, assume that blocks are cached.
const QUICK: usize = 16;
/// One read in this many goes through the page cache, to see whether blocks are cached.
const PROBE: usize = 16;

/// Reads in flight.
pub(crate) struct Stream<'a, I> {
    source: &'a Source,
    runs: I,
    ahead: VecDeque<Ahead>,
    /// Number of reads in a row that completed at once.
    quick: usize,
    /// Number of reads so far.
    made: usize,
}

enum Ahead {
    Ended(Piece),
    Waiting(Pending),
}

impl<I: Iterator<Item = (u64, u32)>> Stream<'_, I> {
    /// The next run; `None` after the last, or if the check has to stop.
    pub(crate) async fn next(&mut self) -> Option<Piece> {
        if self.source.limits.stopped() {
            return None;
        }
        self.read_ahead();
        match self.ahead.pop_front()? {
            Ahead::Ended(piece) => Some(piece),
            Ahead::Waiting(read) => Some(read.await),
        }
    }

    /// Starts reads. If reads complete at once, they come from the page cache; then only one is
    /// made at a time, so that its bytes are still in the processor's cache when they are checked.
    /// Otherwise many reads are in flight, past the page cache, because filling it costs as much
    /// processor time as the check itself.
    fn read_ahead(&mut self) {
        let mut now = Context::from_waker(Waker::noop());
        while self.ahead.len() < if self.quick >= QUICK { 1 } else { self.source.depth }
            && let Some((start, blocks)) = self.runs.next()
        {
            let is_probe = self.quick >= QUICK || self.made.is_multiple_of(PROBE);
            let uncached = self.source.uncached.as_ref().filter(|_| !is_probe);
            self.made += 1;
            let mut read = self.source.read_from(&**uncached.unwrap_or(&self.source.device), start, blocks);
            // A read that is pending wakes whichever task polls it next.
            match read.as_mut().poll(&mut now) {
                Poll::Ready(piece) => {
                    let is_enough = is_probe && self.source.uncached.is_some();
                    self.quick = if is_enough { QUICK } else { self.quick + 1 };
                    self.ahead.push_back(Ahead::Ended(piece));
                }
                Poll::Pending => {
                    self.quick = 0;
                    self.ahead.push_back(Ahead::Waiting(read));
                }
            }
        }
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
        let (&start, mut rest) = self.blocks.split_first()?;
        let mut end = start.saturating_add(1);
        while let Some((&at, others)) = rest.split_first() {
            let joined = at.saturating_add(1);
            if at > end.saturating_add(self.gap) || joined - start > self.most {
                break;
            }
            (end, rest) = (end.max(joined), others);
        }
        self.blocks = rest;
        Some((start, (end - start).fit_u32()))
    }
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

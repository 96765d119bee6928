//! Reading blocks of the volume, many at a time, as a dirty journal would leave them.

use crate::limits::Limits;
use extant_block::{Buf, Device, Sector};
use extant_format::{BlockSize, SUPERBLOCK_BYTES, UintExt};
use extant_fs::JournalCopy;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Maximum length of a read in bytes.
pub(crate) const READ_BYTES: usize = 128 << 10;
/// This many short reads may be in flight in place of a long one.
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
        self.uncached = uncached;
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
        (self.depth * SHORT_READS, self.depth * READ_BYTES)
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

    /// Reads blocks. The read starts at once.
    pub(crate) fn read(&self, start: u64, blocks: u32) -> Pending {
        self.read_from(&*self.device, start, blocks)
    }

    /// Like [`Self::read`], but past the page cache if possible.
    fn read_uncached(&self, start: u64, blocks: u32) -> Pending {
        self.read_from(&**self.uncached.as_ref().unwrap_or(&self.device), start, blocks)
    }

    fn may_pass_cache(&self) -> bool {
        self.uncached.is_some()
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

/// After this many reads in a row that complete at once, assume that blocks are cached.
const QUICK: usize = 16;
/// One read in this many goes through the page cache, to see whether blocks are cached.
const PROBE: usize = 16;

/// Runs of blocks that are read in order, each with what it is for.
///
/// Several tasks may take pieces of one feed. Its reads are in order all the same, and while one
/// task works on a piece, the reads for the others stay in flight.
pub(crate) struct Feed<I, T> {
    source: Source,
    state: Mutex<State<I, T>>,
}

struct State<I, T> {
    runs: I,
    /// Each with the length of its run in blocks.
    ahead: VecDeque<(T, u32, Ahead)>,
    /// Bytes of the reads ahead.
    bytes: usize,
    /// Number of reads in a row that completed at once.
    quick: usize,
    /// Number of reads so far.
    made: usize,
}

enum Ahead {
    Ended(Piece),
    Waiting(Pending),
    /// To be read by the task that takes it.
    Wanted(u64, u32),
}

impl<I: Iterator<Item = (T, u64, u32)>, T> Feed<I, T> {
    pub(crate) fn new(source: Source, runs: I) -> Self {
        let state = State { runs, ahead: VecDeque::new(), bytes: 0, quick: QUICK, made: 0 };
        Self { source, state: Mutex::new(state) }
    }

    /// The next run; `None` after the last, or if the check has to stop.
    pub(crate) async fn next(&self) -> Option<(T, Piece)> {
        if self.source.has_to_stop() {
            return None;
        }
        let (what, ahead) = {
            let mut state = self.state.lock();
            state.read_ahead(&self.source);
            let (what, blocks, ahead) = state.ahead.pop_front()?;
            state.bytes -= blocks.to_usize() * self.source.block_bytes();
            (what, ahead)
        };
        let piece = match ahead {
            Ahead::Ended(piece) => piece,
            Ahead::Waiting(read) => read.await,
            Ahead::Wanted(start, blocks) => self.read_now(start, blocks).await,
        };
        Some((what, piece))
    }

    /// Reads a run that is probably cached.
    async fn read_now(&self, start: u64, blocks: u32) -> Piece {
        let mut read = self.source.read(start, blocks);
        // A read that is pending wakes whichever task polls it next.
        if let Poll::Ready(piece) = read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return piece;
        }
        self.state.lock().quick = 0;
        read.await
    }
}

impl<I: Iterator<Item = (T, u64, u32)>, T> State<I, T> {
    /// Starts reads. If reads complete at once, they come from the page cache; then each is made by
    /// the task that takes it, so that its bytes are still in the processor's cache when they are
    /// checked. Otherwise many reads are in flight, past the page cache, because filling it costs
    /// as much processor time as the check itself.
    fn read_ahead(&mut self, source: &Source) {
        let (most, most_bytes) = source.limits_in_flight();
        while self.ahead.is_empty()
            || self.quick < QUICK && self.ahead.len() < most && self.bytes < most_bytes
        {
            let Some((what, start, blocks)) = self.runs.next() else { return };
            let ahead = match self.quick >= QUICK {
                true => Ahead::Wanted(start, blocks),
                false => self.start(source, start, blocks),
            };
            self.made += 1;
            self.bytes += blocks.to_usize() * source.block_bytes();
            self.ahead.push_back((what, blocks, ahead));
        }
    }

    fn start(&mut self, source: &Source, start: u64, blocks: u32) -> Ahead {
        let is_probe = self.made.is_multiple_of(PROBE) || !source.may_pass_cache();
        let mut read = match is_probe {
            true => source.read(start, blocks),
            false => source.read_uncached(start, blocks),
        };
        match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(piece) => {
                let is_enough = is_probe && source.may_pass_cache();
                self.quick = if is_enough { QUICK } else { self.quick + 1 };
                Ahead::Ended(piece)
            }
            Poll::Pending => {
                self.quick = 0;
                Ahead::Waiting(read)
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

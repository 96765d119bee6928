//! Reads the log in order, in large pieces, ahead of the walk.

use super::journal_file::Log;
use crate::Result;
use extant_block::{Buf, IoError};
use extant_format::{UintExt, VolumeBlock};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::sync::Arc;

/// Sizes in bytes of the first read and of the largest reads. Starting small avoids reading all of
/// a log that holds little.
const PIECE_BYTES_MIN: usize = 64 << 10;
const PIECE_BYTES_MAX: usize = 2 << 20;
/// Reads in flight.
const AHEAD: usize = 4;

type Pending = Pin<Box<dyn Future<Output = std::result::Result<Buf, IoError>> + Send>>;

/// One block of the log, as part of a larger read.
#[derive(Clone, Debug)]
pub(super) struct Block {
    piece: Arc<Buf>,
    range: Range<usize>,
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.piece[self.range.clone()]
    }
}

/// Pieces kept in memory, by the first volume block of each.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pieces: BTreeMap<u64, Arc<Buf>>,
    room_bytes: usize,
}

impl Kept {
    /// Creates an empty set of at most `room_bytes` bytes.
    pub(super) fn new(room_bytes: usize) -> Self {
        Self { pieces: BTreeMap::new(), room_bytes }
    }

    fn add(&mut self, first: VolumeBlock, piece: &Arc<Buf>) {
        if let Some(left) = self.room_bytes.checked_sub(piece.len()) {
            self.room_bytes = left;
            self.pieces.insert(first.0, piece.clone());
        }
    }

    /// The piece that contains a block of the volume, and the block's byte offset within it.
    pub(super) fn find(&self, at: VolumeBlock, block_bytes: usize) -> Option<(&Arc<Buf>, usize)> {
        let (first, piece) = self.pieces.range(..=at.0).next_back()?;
        let offset = (at.0 - first).to_usize() * block_bytes;
        (offset < piece.len()).then_some((piece, offset))
    }
}

/// A contiguous run of log blocks.
struct Piece<T> {
    first: u32,
    place: VolumeBlock,
    blocks: u32,
    bytes: T,
}

/// Reads the blocks of the log from its start, once around.
pub(super) struct Reader<'l> {
    log: &'l Log,
    block_bytes: usize,
    current: Option<Piece<Arc<Buf>>>,
    ahead: VecDeque<Piece<Pending>>,
    /// The first block not yet requested, and how many are left.
    next: u32,
    left: u32,
    piece_bytes: usize,
    kept: Kept,
}

impl<'l> Reader<'l> {
    /// Creates a reader that starts at block `start`.
    pub(super) fn new(log: &'l Log, start: u32, kept: Kept) -> Self {
        let block_bytes = log.sb.block_size().byte_len();
        let left = log.sb.log().len().fit_u32();
        let (current, ahead) = Default::default();
        let piece_bytes = PIECE_BYTES_MIN;
        Self { log, block_bytes, current, ahead, next: start, left, piece_bytes, kept }
    }

    /// The pieces kept in memory.
    pub(super) fn into_kept(self) -> Kept {
        self.kept
    }

    /// Reads block `n`, which must come after the last block requested.
    ///
    /// # Errors
    /// The block cannot be read. Damage next to it does not matter.
    pub(super) async fn block(&mut self, n: u32) -> Result<Block> {
        loop {
            if let Some(piece) = &self.current
                && (piece.first..piece.first + piece.blocks).contains(&n)
            {
                let at = (n - piece.first).to_usize() * self.block_bytes;
                return Ok(Block { piece: piece.bytes.clone(), range: at..at + self.block_bytes });
            }
            self.read_ahead()?;
            let Some(Piece { first, place, blocks, bytes }) = self.ahead.pop_front() else {
                return self.alone(n).await;
            };
            match bytes.await {
                Ok(bytes) => {
                    let bytes = Arc::new(bytes);
                    self.kept.add(place, &bytes);
                    self.current = Some(Piece { first, place, blocks, bytes });
                }
                Err(_) if (first..first + blocks).contains(&n) => {
                    let block = self.alone(n).await?;
                    if n + 1 < first + blocks {
                        // The rest of the piece may be readable.
                        let rest = Piece {
                            first: n + 1,
                            place: VolumeBlock(place.0 + u64::from(n + 1 - first)),
                            blocks: first + blocks - n - 1,
                            bytes: (),
                        };
                        let bytes = self.read(&rest)?;
                        let Piece { first, place, blocks, .. } = rest;
                        self.ahead.push_front(Piece { first, place, blocks, bytes });
                    }
                    return Ok(block);
                }
                Err(_) => {}
            }
        }
    }

    /// Reads a single block. Borrows nothing while it waits, because reads in flight are not
    /// `Sync`.
    fn alone(&self, n: u32) -> impl Future<Output = Result<Block>> + use<'l> {
        let read = self
            .log
            .map
            .home(n)
            .and_then(|place| self.read(&Piece { first: n, place, blocks: 1, bytes: () }));
        Self::one(read)
    }

    async fn one(read: Result<Pending>) -> Result<Block> {
        let bytes = Arc::new(read?.await?);
        let range = 0..bytes.len();
        Ok(Block { piece: bytes, range })
    }

    fn read_ahead(&mut self) -> Result<()> {
        while self.ahead.len() < AHEAD && self.left > 0 {
            let ring = self.log.sb.log();
            let most = (self.piece_bytes / self.block_bytes).fit_u32().clamp(1, self.left);
            let (place, blocks) = self.log.map.run(self.next, most.min(ring.end - self.next))?;
            let piece = Piece { first: self.next, place, blocks, bytes: () };
            let bytes = self.read(&piece)?;
            self.ahead.push_back(Piece { first: piece.first, place, blocks, bytes });
            self.next += blocks;
            if self.next >= ring.end {
                self.next = ring.start;
            }
            self.left -= blocks;
            self.piece_bytes = (self.piece_bytes * 2).min(PIECE_BYTES_MAX);
        }
        Ok(())
    }

    fn read(&self, piece: &Piece<()>) -> Result<Pending> {
        let view = &self.log.view;
        let start = super::sector(view, piece.place);
        let len = piece.blocks.to_usize() * self.block_bytes;
        Ok(Box::pin(extant_block::read(&**view.device(), start, len)))
    }
}

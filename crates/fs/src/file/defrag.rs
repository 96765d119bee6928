//! Defragmentation of one file, with its volume open for writing: blocks move to fewer runs (`EXT4_IOC_MOVE_EXT`).
//!
//! Of each stretch of the file between two holes, the new blocks are allocated in memory first, and only a stretch that
//! gets fewer runs is moved. Then, piece by piece, the bytes are copied on the device, and one transaction maps the copy, logs
//! its bitmaps and frees the old blocks, which nothing uses before that is durable. A crash finds each piece at its old place
//! or at its new one, with the same bytes. Times and everything else that a program sees of the file stay.

use super::backing::{MapChange, RUNS_PER_HANDLE};
use super::contents::Contents;
use super::write::OpenFile;
use crate::alloc::{Allocated, Privilege};
use crate::map::change::{Change, unwritten, written};
use crate::map::cost::tree_growth;
use crate::map::live::{Known, Stored};
use crate::writer::Writer;
use crate::{Error, Result};
use extant_block::Sector;
use extant_cache::ByteRange;
use extant_format::{BlockRange, Extent, VolumeBlock};
use futures_util::future::BoxFuture;
use futures_util::future::join_all;

/// Bytes that one request copies.
const COPY_BYTES: u64 = 1 << 20;
/// Blocks of a file with data=journal that move in one transaction.
const JOURNALLED_BLOCKS: u64 = 1024;
/// Requests in flight.
const COPIES: usize = 8;

/// How a file's blocks lay, and how they lie now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defragmented {
    /// Runs of adjacent blocks, each as long as it can be.
    pub runs_before: u64,
    /// The same afterwards.
    pub runs_after: u64,
    /// Bytes of blocks that have another place now.
    pub moved_bytes: u64,
}

/// Adjacent blocks of a file that are adjacent on the volume, all written or all not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    blocks: BlockRange,
    at: VolumeBlock,
    is_written: bool,
}

impl Piece {
    fn end(&self) -> VolumeBlock {
        VolumeBlock(self.at.0 + self.blocks.len())
    }

    /// The part in a range of the file's blocks.
    fn within(&self, range: BlockRange) -> Option<Self> {
        let blocks = BlockRange::new(self.blocks.start.max(range.start), self.blocks.end.min(range.end));
        let at = VolumeBlock(self.at.0 + blocks.start.saturating_sub(self.blocks.start));
        (!blocks.is_empty()).then_some(Self { blocks, at, is_written: self.is_written })
    }
}

/// Runs that are adjacent on the volume, of pieces in the file's order.
fn runs(pieces: &[Piece]) -> u64 {
    let breaks = pieces.windows(2).filter(|pair| pair[0].end() != pair[1].at).count();
    breaks as u64 + u64::from(!pieces.is_empty())
}

impl OpenFile {
    /// Moves the file's blocks to as few runs as free space allows. Durable after [`OpenFile::sync`]. Once begun it comes to its
    /// end, or to an error: a caller that drops the future leaves it to a task.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for a file with a map of pointers, and on a volume with `bigalloc`; [`Error::Permission`] for one that is immutable, append-only
    /// or sealed; [`Error::NoSpace`] where there is none for a second copy of its largest stretch; [`Error::ReadOnly`]; a
    /// damaged map; the device fails. Pieces that were moved before stay moved.
    pub fn defragment(&self) -> BoxFuture<'_, Result<Defragmented>> {
        let file = self.reopened();
        let run = async move { file.gather().await };
        let writer = &self.contents.writer;
        Box::pin(writer.guarded(writer.rt.unstoppable("defragment", run)))
    }

    async fn gather(&self) -> Result<Defragmented> {
        let contents = &*self.contents;
        let _inode = contents.cell.write_lock().await;
        self.check_may_change(false)?;
        if contents.inline_bytes().is_some() {
            return Ok(Defragmented::default());
        }
        if !contents.uses_extents() {
            let what = format!("inode {}: defragmentation of a map of pointers", self.inode());
            return Err(Error::NotSupported(what));
        }
        if !contents.sb().cluster_size().is_block() {
            // As Linux has it (`EXT4_IOC_MOVE_EXT`).
            return Err(Error::NotSupported("defragmentation of a volume with bigalloc".into()));
        }
        self.write_out(ByteRange::ALL).await?;
        // Blocks that are kept behind the file are free space like other.
        contents.writer.alloc.close_window(self.inode());
        contents.log_emptied().await?;
        let exclusion = self.settle_behind(0).await?;
        if contents.is_journalled() {
            // The bytes are copied on the device.
            contents.writer.journal.commit_home().await?;
        }
        let gathered = self.gather_stretches().await;
        drop(exclusion);
        gathered
    }

    /// Moves the stretches between holes, of a file that nothing else reads or writes.
    async fn gather_stretches(&self) -> Result<Defragmented> {
        let contents = &*self.contents;
        let mut done = Defragmented::default();
        let mut at = 0;
        let mut last: Option<VolumeBlock> = None;
        while at < BlockRange::MAP_END {
            let stretch = contents.stretch(&mut at).await?;
            let (Some(first), Some(end)) = (stretch.first(), stretch.last()) else { continue };
            let before = runs(&stretch);
            let blocks = end.blocks.end - first.blocks.start;
            let near = last.unwrap_or_else(|| contents.near(first.blocks.start));
            let (after, end) = match before {
                1 => (1, end.end()),
                _ => match self.place_stretch(&stretch, near, before).await? {
                    None => (before, end.end()),
                    Some(places) => {
                        let after = 1 + places
                            .windows(2)
                            .filter(|two| two[0].run().end() != two[1].run().start)
                            .count();
                        let end = places.last().map_or(near, |place| place.run().end());
                        self.move_stretch(&stretch, places).await?;
                        done.moved_bytes += blocks << contents.block.log2();
                        (after as u64, end)
                    }
                },
            };
            last = Some(end);
            done.runs_before += before;
            done.runs_after += after;
        }
        Ok(done)
    }

    /// New places for a stretch of `before` runs; `None` where these would be as many.
    async fn place_stretch(
        &self,
        stretch: &[Piece],
        near: VolumeBlock,
        before: u64,
    ) -> Result<Option<Vec<Allocated>>> {
        let Writer { alloc, journal, .. } = &*self.contents.writer;
        let mut left: u64 = stretch.iter().map(|piece| piece.blocks.len()).sum();
        let mut reservation = alloc.reserve_waiting(journal, left, 0, self.privilege()).await?;
        let (mut goal, mut after) = (near, 0);
        let mut places: Vec<Allocated> = Vec::new();
        while left > 0 {
            let place = alloc.blocks(goal, u32::try_from(left).unwrap_or(u32::MAX), &mut reservation).await?;
            after += u64::from(places.is_empty() || place.run().start != goal);
            if after >= before {
                return Ok(None);
            }
            goal = place.run().end();
            left -= place.run().blocks;
            places.push(place);
        }
        Ok(Some(places))
    }

    async fn move_stretch(&self, stretch: &[Piece], places: Vec<Allocated>) -> Result<()> {
        let mut at = stretch[0].blocks.start;
        for mut place in places {
            loop {
                // The runs that one transaction may free.
                let first = stretch.partition_point(|piece| piece.blocks.end <= at);
                let last = (first + RUNS_PER_HANDLE).min(stretch.len()) - 1;
                // Each block whose data went through the log takes a record in it when it is freed.
                let most = if self.contents.is_journalled() { JOURNALLED_BLOCKS } else { u64::MAX };
                let blocks = place.run().blocks.min(stretch[last].blocks.end - at).min(most);
                let part = if blocks < place.run().blocks { Some(place.split_front(blocks)) } else { None };
                let range = BlockRange::at(at, blocks);
                let pieces: Vec<Piece> =
                    stretch[first..=last].iter().filter_map(|piece| piece.within(range)).collect();
                at = range.end;
                match part {
                    Some(part) => self.contents.move_pieces(&pieces, part, self.size()).await?,
                    None => {
                        self.contents.move_pieces(&pieces, place, self.size()).await?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Contents {
    /// The next stretch of blocks without a hole at or behind `at`, which moves behind it.
    async fn stretch(&self, at: &mut u64) -> Result<Vec<Piece>> {
        let mut pieces: Vec<Piece> = Vec::new();
        while *at < BlockRange::MAP_END {
            self.know(BlockRange::one(*at)).await?;
            let Some((run, stored)) = self.live.lock().map.stored(*at) else { continue };
            let blocks = BlockRange::new(*at, run.end.min(BlockRange::MAP_END));
            let (at_block, is_written) = match stored {
                Stored::Written(to) => (to, true),
                Stored::Unwritten { at, .. } => (at, false),
                Stored::Hole | Stored::Delayed if pieces.is_empty() => {
                    *at = blocks.end;
                    continue;
                }
                Stored::Hole | Stored::Delayed => break,
            };
            *at = blocks.end;
            match pieces.last_mut().filter(|last| last.is_written == is_written && last.end() == at_block) {
                Some(last) => last.blocks.end = blocks.end,
                None => pieces.push(Piece { blocks, at: at_block, is_written }),
            }
        }
        Ok(pieces)
    }

    /// Copies pieces to their new place and has one transaction map it.
    async fn move_pieces(&self, pieces: &[Piece], place: Allocated, size: u64) -> Result<()> {
        let to = place.run().start;
        let first = pieces[0].blocks.start;
        let place_of = |block: u64| VolumeBlock(to.0 + (block - first));
        for piece in pieces.iter().filter(|piece| piece.is_written) {
            self.copy_blocks(piece, place_of(piece.blocks.start)).await?;
        }
        // A read of a neighbour may have brought the past of the new blocks along.
        self.writer.store.forget(place.run());
        let extents: Vec<Extent> = pieces
            .iter()
            .map(|piece| match piece.is_written {
                true => written(piece.blocks, place_of(piece.blocks.start)),
                false => unwritten(piece.blocks, place_of(piece.blocks.start)),
            })
            .collect();
        let Writer { alloc, journal, .. } = &*self.writer;
        let count = tree_growth(self.tree_shape(), 2 * extents.len() as u64 + 2, 1, self.block);
        let mut nodes = alloc.reserve_waiting(journal, 0, count.max(1), Privilege::Reserved).await?;
        let change = MapChange {
            change: Change::Move(&extents),
            near: to,
            nodes: Some(&mut nodes),
            data: &[],
            credits: Allocated::CREDITS,
        };
        self.change_map(change, |handle, live, _| {
            let blocks = place.run().blocks;
            alloc.log(handle, place);
            for piece in pieces {
                let at = place_of(piece.blocks.start);
                let known = if piece.is_written { Known::Written(at) } else { Known::Unwritten(at) };
                live.map.remap(piece.blocks, known);
            }
            live.map.vouch(size);
            blocks
        })
        .await?;
        Ok(())
    }

    /// Copies a piece on the device, several requests at a time.
    async fn copy_blocks(&self, piece: &Piece, to: VolumeBlock) -> Result<()> {
        let device = self.writer.disk.device();
        let log2 = self.block.log2();
        let sector = |at: VolumeBlock| at.0 << (log2 - 9);
        let (from, to) = (sector(piece.at), sector(to));
        let bytes = piece.blocks.len() << log2;
        let mut at = 0;
        while at < bytes {
            let copies = (0..COPIES as u64).map(|n| at + n * COPY_BYTES).take_while(|&at| at < bytes).map(
                |at| async move {
                    let len = COPY_BYTES.min(bytes - at) as usize;
                    let buf = extant_block::read(&**device, Sector(from + (at >> 9)), len).await?;
                    extant_block::write(&**device, Sector(to + (at >> 9)), buf).await
                },
            );
            // Each of them, also where one fails: a write in flight that is left behind would come to blocks that others have.
            join_all(copies).await.into_iter().collect::<std::result::Result<(), _>>()?;
            at += COPIES as u64 * COPY_BYTES;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_is_adjacent_on_the_volume() {
        let piece = |start, end, at, is_written| Piece {
            blocks: BlockRange::new(start, end),
            at: VolumeBlock(at),
            is_written,
        };
        assert_eq!(runs(&[]), 0);
        assert_eq!(runs(&[piece(0, 4, 100, true), piece(4, 6, 104, false), piece(6, 7, 200, true)]), 2);
        assert_eq!(piece(2, 8, 50, true).within(BlockRange::new(4, 6)), Some(piece(4, 6, 52, true)));
        assert_eq!(piece(2, 8, 50, true).within(BlockRange::one(8)), None);
    }
}

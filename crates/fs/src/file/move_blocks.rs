//! Online defragmentation of one file: moves its blocks into fewer runs (`EXT4_IOC_MOVE_EXT`).
//!
//! For each stretch of the file between two holes, the new blocks are first allocated in memory.
//! The stretch is moved only if that gives it fewer runs. Then, piece by piece, the bytes are
//! copied on the device, and one transaction maps the copy, logs its bitmaps and frees the old
//! blocks, which are not reused until that is durable. After a crash each piece is at its old or
//! its new place, with the same bytes. Times and everything else visible to programs stay the same.

use super::contents::Contents;
use super::map_logging::{MapChange, RUNS_PER_HANDLE};
use super::open_file::OpenFile;
use crate::alloc::{Allocated, Privilege};
use crate::map::block_state::{OnDisk, Stored};
use crate::map::change::{Change, unwritten, written};
use crate::map::growth::tree_growth;
use crate::writer::Writer;
use crate::{Error, Result};
use extant_block::Sector;
use extant_cache::ByteRange;
use extant_format::{BlockRange, Extent, UintExt, VolumeBlock};
use futures_util::future::BoxFuture;
use futures_util::future::join_all;

/// Bytes copied by one request.
const COPY_BYTES: u64 = 1 << 20;
/// Maximum number of blocks of a file with data=journal moved in one transaction.
const JOURNALLED_BLOCKS: u64 = 1024;
/// Copy requests in flight.
const COPIES: usize = 8;

/// Layout of a file's blocks before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defragmented {
    /// Maximal runs of adjacent blocks before.
    pub runs_before: u64,
    /// Maximal runs of adjacent blocks afterwards.
    pub runs_after: u64,
    /// Bytes of the blocks that moved.
    pub moved_bytes: u64,
}

/// Blocks adjacent both in the file and on the volume, all written or all unwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MovedPiece {
    blocks: BlockRange,
    at: VolumeBlock,
    is_written: bool,
}

impl MovedPiece {
    fn end(&self) -> VolumeBlock {
        VolumeBlock(self.at.0 + self.blocks.len())
    }

    /// The part within a range of file blocks.
    fn within(&self, range: BlockRange) -> Option<Self> {
        let blocks = BlockRange::new(self.blocks.start.max(range.start), self.blocks.end.min(range.end));
        let at = VolumeBlock(self.at.0 + blocks.start.saturating_sub(self.blocks.start));
        (!blocks.is_empty()).then_some(Self { blocks, at, is_written: self.is_written })
    }
}

/// Counts the runs adjacent on the volume; `pieces` are in file order.
fn runs(pieces: &[MovedPiece]) -> u64 {
    let breaks = pieces.windows(2).filter(|pair| pair[0].end() != pair[1].at).count();
    breaks.to_u64() + u64::from(!pieces.is_empty())
}

impl OpenFile {
    /// Moves the file's blocks into as few runs as free space allows. Durable after
    /// [`OpenFile::sync`]. Once started it runs to completion or an error: if the caller drops the
    /// future, a task finishes it.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for a file with a map of pointers or a volume with `bigalloc`;
    /// [`Error::Permission`] if the file is immutable, append-only or sealed; [`Error::NoSpace`] if
    /// there is no room for a second copy of its largest stretch; [`Error::ReadOnly`]; the map is
    /// damaged; the device fails. Pieces moved before the error stay moved.
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
            // Linux has the same limit (`EXT4_IOC_MOVE_EXT`).
            return Err(Error::NotSupported("defragmentation of a volume with bigalloc".into()));
        }
        self.write_out(ByteRange::ALL).await?;
        // Blocks kept behind the file are free space like any other.
        contents.writer.alloc.close_window(self.inode());
        contents.log_emptied().await?;
        let exclusion = self.settle_behind(0).await?;
        if contents.is_journalled() {
            // The bytes are copied on the device, so it must have the newest ones.
            contents.writer.journal.commit_home().await?;
        }
        let gathered = self.gather_stretches().await;
        drop(exclusion);
        gathered
    }

    /// Moves the stretches between holes. Nothing else may read or write the file.
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
                        (after.to_u64(), end)
                    }
                },
            };
            last = Some(end);
            done.runs_before += before;
            done.runs_after += after;
        }
        Ok(done)
    }

    /// Allocates new places for a stretch of `before` runs. Returns `None` if that would not reduce
    /// the number of runs.
    async fn place_stretch(
        &self,
        stretch: &[MovedPiece],
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

    async fn move_stretch(&self, stretch: &[MovedPiece], places: Vec<Allocated>) -> Result<()> {
        let mut at = stretch[0].blocks.start;
        for mut place in places {
            loop {
                // The runs that one transaction may free.
                let first = stretch.partition_point(|piece| piece.blocks.end <= at);
                let last = (first + RUNS_PER_HANDLE).min(stretch.len()) - 1;
                // Freeing a block whose data went through the log takes a record in the log.
                let most = if self.contents.is_journalled() { JOURNALLED_BLOCKS } else { u64::MAX };
                let blocks = place.run().blocks.min(stretch[last].blocks.end - at).min(most);
                let part = if blocks < place.run().blocks { Some(place.split_front(blocks)) } else { None };
                let range = BlockRange::at(at, blocks);
                let pieces: Vec<MovedPiece> =
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
    /// Returns the next stretch of blocks without a hole at or after `at`, and moves `at` past it.
    async fn stretch(&self, at: &mut u64) -> Result<Vec<MovedPiece>> {
        let mut pieces: Vec<MovedPiece> = Vec::new();
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
                None => pieces.push(MovedPiece { blocks, at: at_block, is_written }),
            }
        }
        Ok(pieces)
    }

    /// Copies pieces to their new place and maps it in one transaction.
    async fn move_pieces(&self, pieces: &[MovedPiece], place: Allocated, size: u64) -> Result<()> {
        let to = place.run().start;
        let first = pieces[0].blocks.start;
        let place_of = |block: u64| VolumeBlock(to.0 + (block - first));
        for piece in pieces.iter().filter(|piece| piece.is_written) {
            self.copy_blocks(piece, place_of(piece.blocks.start)).await?;
        }
        // A read of a neighbouring block may have loaded the old contents of the new blocks.
        self.writer.store.forget(place.run());
        let extents: Vec<Extent> = pieces
            .iter()
            .map(|piece| match piece.is_written {
                true => written(piece.blocks, place_of(piece.blocks.start)),
                false => unwritten(piece.blocks, place_of(piece.blocks.start)),
            })
            .collect();
        let Writer { alloc, journal, .. } = &*self.writer;
        let count = tree_growth(self.tree_shape(), 2 * extents.len().to_u64() + 2, 1, self.block);
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
                let known = if piece.is_written { OnDisk::Written(at) } else { OnDisk::Unwritten(at) };
                live.map.remap(piece.blocks, known);
            }
            live.map.size.vouch(size);
            blocks
        })
        .await?;
        Ok(())
    }

    /// Copies a piece on the device, with several requests in flight.
    async fn copy_blocks(&self, piece: &MovedPiece, to: VolumeBlock) -> Result<()> {
        let device = self.writer.disk.device();
        let log2 = self.block.log2();
        let sector = |at: VolumeBlock| at.0 << (log2 - 9);
        let (from, to) = (sector(piece.at), sector(to));
        let bytes = piece.blocks.len() << log2;
        let mut at = 0;
        while at < bytes {
            let copies = (0..COPIES.to_u64()).map(|n| at + n * COPY_BYTES).take_while(|&at| at < bytes).map(
                |at| async move {
                    let len = COPY_BYTES.min(bytes - at).to_usize();
                    let buf = extant_block::read(&**device, Sector(from + (at >> 9)), len).await?;
                    extant_block::write(&**device, Sector(to + (at >> 9)), buf).await
                },
            );
            // Wait for all of them even if one fails: a write left in flight would hit blocks
            // reused by others.
            join_all(copies).await.into_iter().collect::<std::result::Result<(), _>>()?;
            at += COPIES.to_u64() * COPY_BYTES;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_is_adjacent_on_the_volume() {
        let piece = |start, end, at, is_written| MovedPiece {
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

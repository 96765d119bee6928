//! Moves a file's blocks towards its start or its end (`FALLOC_FL_COLLAPSE_RANGE` and
//! `FALLOC_FL_INSERT_RANGE`).

use super::cache_errors::cache_error;
use super::contents::Contents;
use super::fallocate::Fallocate;
use super::map_logging::MapChange;
use super::open_file::OpenFile;
use super::size_on_disk::RECORD_CREDITS;
use crate::alloc::Reservation;
use crate::journal::Credits;
use crate::map::change::Change;
use crate::map::node_edit::RemainingRange;
use crate::{Error, Result};
use extant_cache::ByteRange;
use extant_format::BlockRange;

impl OpenFile {
    /// Checks whether a range may be removed from or inserted into the middle of the file.
    pub(super) fn check_shift(&self, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let cluster = self.contents.sb().cluster_size();
        let (size, unit) = (self.size(), cluster.blocks() << self.contents.block.log2());
        let invalid = |what: &str| Err(Error::Invalid(format!("inode {}: {what}", self.inode())));
        match mode {
            Fallocate::CollapseRange | Fallocate::InsertRange
                if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) =>
            {
                invalid("a range that is not of whole blocks, or clusters of them (bigalloc)")
            }
            Fallocate::CollapseRange if offset + len >= size => {
                invalid("a range that reaches the file's end")
            }
            Fallocate::InsertRange if len > self.contents.max_bytes().saturating_sub(size) => {
                Err(Error::TooBig(format!("inode {}", self.inode())))
            }
            Fallocate::InsertRange if offset >= size => invalid("a range behind the file's end"),
            _ => Ok(()),
        }
    }

    pub(super) async fn collapse(&self, bytes: ByteRange) -> Result<()> {
        let contents = &*self.contents;
        let gone = contents.blocks_of(bytes);
        let (size, left) = (self.size(), self.size() - bytes.len());
        self.write_out(ByteRange::ALL).await?;
        let mut nodes = self.reserve_split(gone).await?;
        let exclusion = self.settle_behind(bytes.start).await?;
        contents.remove(gone, nodes.as_mut(), size).await?;
        let mut rest = Some(BlockRange::from_block(gone.end));
        while let Some(range) = rest {
            let change = Change::ShiftLeft(range, gone.len());
            rest = contents.shift(change, None, None).await?;
        }
        // Before recording the smaller size, since the last page may be unreadable. In that case
        // the file ends in zeroes.
        self.cut_pages(left).await?;
        {
            let mut handle = contents.writer.journal.start(Credits(RECORD_CREDITS)).await?;
            contents.live.lock().map.reset(left);
            contents.record_dated(&mut handle, left);
        }
        drop(exclusion);
        Ok(())
    }

    pub(super) async fn insert(&self, bytes: ByteRange) -> Result<()> {
        let contents = &*self.contents;
        let blocks = contents.blocks_of(bytes);
        let size = self.size() + bytes.len();
        self.write_out(ByteRange::ALL).await?;
        let mut nodes = self.reserve_split(BlockRange::at(blocks.start, 0)).await?;
        let exclusion = self.settle_behind(bytes.start).await?;
        let mut grown = Some(size);
        let mut rest = Some(BlockRange::from_block(blocks.start));
        while let Some(range) = rest {
            let change = Change::ShiftRight(range, blocks.len());
            rest = contents.shift(change, nodes.as_mut(), grown).await?;
            if grown.take().is_some() {
                self.mapping.set_size(size).await.map_err(cache_error)?;
            }
        }
        drop(exclusion);
        Ok(())
    }

    /// Drops everything after byte `start` from the cache until the returned exclusion is dropped.
    /// The file must have been written back.
    pub(super) async fn settle_behind(&self, start: u64) -> Result<extant_cache::Exclusion> {
        let behind = ByteRange::new(start, u64::MAX);
        let exclusion = self.mapping.exclude(behind).await;
        self.mapping.invalidate(behind).await.map_err(cache_error)?;
        self.mapping.wait_written(ByteRange::ALL).await;
        let mut live = self.contents.live.lock();
        live.last_placed = None;
        live.map.reset(self.size());
        drop(live);
        Ok(exclusion)
    }
}

impl Contents {
    /// Does one step of moving the file's mapped blocks, none of which is dirty. With `grown`,
    /// records that new size.
    async fn shift(
        &self,
        change: Change<'_>,
        nodes: Option<&mut Reservation>,
        grown: Option<u64>,
    ) -> Result<RemainingRange> {
        let change = MapChange { change, near: self.near(0), nodes, data: &[], credits: RECORD_CREDITS };
        self.change_map(change, |handle, live, _| {
            live.map.forget();
            if let Some(size) = grown {
                self.record_dated(handle, size);
                live.map.size.vouch(size);
            }
            0
        })
        .await
    }
}

//! Allocates and frees space without writing data: `fallocate(2)`.
//!
//! Each operation runs in steps that fit one transaction and leave a valid file. A crash between
//! two steps leaves part of a range allocated, freed or zeroed, or part of a file moved, but never
//! exposes another file's bytes. Preallocated blocks are unwritten until data are written to them.
//! Before a range is remapped its pages leave the cache, and none returns until the map has
//! changed. Bytes in partly covered blocks are zeroed through the cache.

use super::cache_errors::cache_error;
use super::contents::Contents;
use super::map_logging::{MapChange, RUNS_PER_HANDLE};
use super::open_file::OpenFile;
use super::reserving::Mark;
use super::resize::Dates;
use crate::alloc::{Allocated, Privilege, Reservation};
use crate::journal::STINT;
use crate::map::block_state::OnDisk;
use crate::map::change::{Change, unwritten};
use crate::map::growth::{split_growth, tree_growth};
use crate::writer::Writer;
use crate::{Error, Result};
use extant_cache::ByteRange;
use extant_format::{BlockRange, Extent, UintExt, VolumeBlock};
use futures_util::future::BoxFuture;

/// Bytes of a cache page.
const PAGE: u64 = extant_cache::PAGE_BYTES as u64;

/// The modes of `fallocate(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocates unallocated blocks, which read as zeroes. Grows the file unless `keep_size` is set
    /// (`FALLOC_FL_KEEP_SIZE`).
    Allocate {
        /// The file's size stays the same.
        keep_size: bool,
    },
    /// Frees the range, which then reads as zeroes (`FALLOC_FL_PUNCH_HOLE`). The size stays the
    /// same.
    PunchHole,
    /// Makes the range allocated and read as zeroes (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange {
        /// The file's size stays the same.
        keep_size: bool,
    },
    /// Removes the range from the file and moves what follows into its place
    /// (`FALLOC_FL_COLLAPSE_RANGE`).
    CollapseRange,
    /// Inserts a hole at the start of the range, moving what follows towards the end
    /// (`FALLOC_FL_INSERT_RANGE`).
    InsertRange,
}

impl OpenFile {
    /// Changes the allocation of `len` bytes from `offset` on. Durable after [`OpenFile::sync`].
    /// Once started it runs to completion or an error: if the caller drops the future, a task
    /// finishes it. After a crash the change may be partly done.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `len` is 0, or if a range to collapse or insert is not in whole blocks
    /// (clusters with `bigalloc`) or not inside the file; [`Error::NotSupported`] for anything but
    /// punching holes in a file with a map of pointers; [`Error::Permission`] for an immutable
    /// file, or for an append-only file unless the operation only allocates; [`Error::TooBig`]
    /// beyond the largest size; [`Error::NoSpace`]; [`Error::ReadOnly`]; the map is damaged.
    pub fn fallocate(&self, mode: Fallocate, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.contents.writer.guarded(self.fallocate_in_memory(mode, offset, len)).await?;
            if self.options.sync || self.options.datasync || self.is_synchronous() {
                self.sync().await
            } else {
                Ok(())
            }
        })
    }

    /// Like [`Self::fallocate`], but the caller syncs a synchronous file and applies the error
    /// policy.
    ///
    /// # Errors
    /// As [`Self::fallocate`].
    pub(super) async fn fallocate_in_memory(&self, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let file = self.reopened();
        let run = async move { file.change_space(mode, offset, len).await };
        self.contents.writer.rt.unstoppable("fallocate", run).await
    }

    async fn change_space(&self, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let contents = &*self.contents;
        if len == 0 {
            return Err(Error::Invalid("a range without bytes".into()));
        }
        let _inode = contents.cell.write_lock().await;
        self.check_may_change(matches!(mode, Fallocate::Allocate { .. }))?;
        let too_big = || Error::TooBig(format!("inode {}", self.inode()));
        let end =
            offset.checked_add(len).filter(|&end| end <= contents.addressable_bytes()).ok_or_else(too_big)?;
        if mode != Fallocate::PunchHole && !contents.uses_extents() {
            return Err(Error::NotSupported(format!(
                "inode {}: fallocate of a map of pointers",
                self.inode()
            )));
        }
        if mode != Fallocate::PunchHole && end > contents.max_bytes() {
            return Err(too_big());
        }
        self.check_shift(mode, offset, len)?;
        self.drop_privileges().await?;
        contents.leave_inode(&self.mapping, &self.pages, self.privilege()).await?;
        contents.log_emptied().await?;
        self.touch();
        let bytes = ByteRange::new(offset, end);
        match mode {
            Fallocate::Allocate { keep_size } => self.preallocate(bytes, keep_size).await,
            Fallocate::PunchHole => self.punch(bytes).await,
            Fallocate::ZeroRange { keep_size } => self.zero_range(bytes, keep_size).await,
            Fallocate::CollapseRange => self.collapse(bytes).await,
            Fallocate::InsertRange => self.insert(bytes).await,
        }
    }

    async fn preallocate(&self, bytes: ByteRange, keep_size: bool) -> Result<()> {
        let contents = &*self.contents;
        let grows = !keep_size && bytes.end > self.size();
        if grows {
            self.zero_last_block().await?;
        }
        self.allocate_holes(contents.blocks_of(bytes)).await?;
        if grows {
            self.record_larger(bytes.end, Dates::default()).await
        } else {
            contents.log_times(false).await
        }
    }

    /// Allocates the holes of a range as unwritten blocks.
    async fn allocate_holes(&self, blocks: BlockRange) -> Result<()> {
        let contents = &*self.contents;
        // Holes can be allocated only in clusters without delayed blocks.
        for clusters in contents.contested_clusters(blocks).await? {
            let written = self.write_out(contents.bytes_of(clusters)).await;
            // The error may concern another page of the file that was being written back at the
            // same time.
            let part = BlockRange::new(clusters.start.max(blocks.start), clusters.end.min(blocks.end));
            if !contents.contested_clusters(part).await?.is_empty() {
                written?;
            }
        }
        let holes = contents.reserve_as(blocks, self.privilege(), Mark::Holes).await?;
        let placed = contents.place_holes(&holes).await;
        if placed.is_err() {
            contents.unreserve_all(&holes, 0);
        }
        placed?;
        if contents.sb().cluster_size().is_block() { Ok(()) } else { self.map_implied(blocks).await }
    }

    /// Writes back the blocks outside a range in its first and last clusters, if they have their
    /// places only because blocks of the range are mapped. Then the map has these blocks too and
    /// keeps the cluster. Delayed blocks of such a cluster are not affected unless a write of the
    /// range is in progress. The caller keeps writers out.
    pub(super) async fn settle_around(&self, blocks: BlockRange) -> Result<()> {
        let contents = &*self.contents;
        let around = contents.sb().cluster_size().around(blocks);
        for outside in [around.until(blocks.start), BlockRange::new(blocks.end, around.end)] {
            let has_implied = contents.live.lock().map.pending.writes_implied(outside);
            if has_implied {
                self.write_out(contents.bytes_of(outside)).await?;
            }
        }
        Ok(())
    }

    /// Maps the implied blocks of a range as unwritten.
    async fn map_implied(&self, blocks: BlockRange) -> Result<()> {
        let contents = &*self.contents;
        let implied = |known| if let OnDisk::Implied(at) = known { Some(at) } else { None };
        let mut at = blocks.start;
        while at < blocks.end {
            let runs = contents.next_runs(&mut at, blocks.end, implied).await?;
            let count = runs.len().to_u64();
            let mut nodes =
                self.reserve_nodes(tree_growth(contents.tree_shape(), count, count, contents.block)).await?;
            contents.map_unwritten(&runs, nodes.as_mut(), None).await?;
        }
        Ok(())
    }

    async fn punch(&self, bytes: ByteRange) -> Result<()> {
        let contents = &*self.contents;
        let unit = u64::from(contents.block.bytes());
        let size = self.size();
        if bytes.start >= size {
            return contents.log_times(false).await;
        }
        // Includes all of the last block. Beyond it there are only preallocated blocks, which must
        // stay.
        let end = if bytes.end < size { bytes.end } else { size.next_multiple_of(unit) };
        let bytes = ByteRange::new(bytes.start, end);
        self.zero_edges(bytes).await?;
        let whole = contents.whole_blocks(bytes);
        if whole.is_empty() {
            return contents.log_times(false).await;
        }
        self.settle_around(whole).await?;
        let mut nodes = self.reserve_split(whole).await?;
        let cut = contents.bytes_of(whole);
        let exclusion = self.mapping.exclude(cut).await;
        self.drop_pages(cut, size).await?;
        contents.unreserve(whole);
        // Writes of the range that have ended since may have allocated its clusters.
        let removed = match self.settle_around(whole).await {
            Ok(()) => contents.remove(whole, nodes.as_mut(), size).await,
            Err(error) => Err(error),
        };
        drop(exclusion);
        removed
    }

    async fn zero_range(&self, bytes: ByteRange, keep_size: bool) -> Result<()> {
        let contents = &*self.contents;
        let size = self.size();
        let grows = !keep_size && bytes.end > size;
        if grows {
            self.zero_last_block().await?;
        }
        self.zero_edges(bytes).await?;
        self.allocate_holes(contents.blocks_of(bytes)).await?;
        let whole = contents.whole_blocks(bytes);
        if !whole.is_empty() {
            let count = tree_growth(contents.tree_shape(), 2 + whole.len() / 32_767, 1, contents.block);
            let mut nodes = self.reserve_nodes(count).await?;
            let zeroed = contents.bytes_of(whole);
            let exclusion = self.mapping.exclude(zeroed).await;
            self.mapping.invalidate(zeroed).await.map_err(cache_error)?;
            contents.unwrite(whole, nodes.as_mut(), size).await?;
            drop(exclusion);
        }
        if grows {
            self.record_larger(bytes.end, Dates::default()).await
        } else {
            contents.log_times(false).await
        }
    }

    /// Reserves the nodes needed to cut out a range. A run that extends past both of its ends is
    /// split in two.
    pub(super) async fn reserve_split(&self, blocks: BlockRange) -> Result<Option<Reservation>> {
        let contents = &*self.contents;
        let Some(before) = blocks.start.checked_sub(1) else { return Ok(None) };
        contents.know(BlockRange::one(before)).await?;
        contents.know(BlockRange::one(blocks.end)).await?;
        let is_split = {
            let live = contents.live.lock();
            let places = (live.map.place_of(before), live.map.place_of(blocks.end));
            matches!(places, (Some(a), Some(b)) if b.0 == a.0 + (blocks.end - before))
        };
        match is_split && contents.uses_extents() {
            true => self.reserve_nodes(split_growth(contents.tree_shape())).await,
            false => Ok(None),
        }
    }

    async fn reserve_nodes(&self, count: u64) -> Result<Option<Reservation>> {
        if count == 0 {
            return Ok(None);
        }
        let Writer { alloc, journal, .. } = &*self.contents.writer;
        alloc.reserve_waiting(journal, 0, count, Privilege::Reserved).await.map(Some)
    }

    /// Zeroes the bytes of partly covered blocks that hold data.
    async fn zero_edges(&self, bytes: ByteRange) -> Result<()> {
        let unit = u64::from(self.contents.block.bytes());
        let end = bytes.end.min(self.size());
        if bytes.start >= end {
            return Ok(());
        }
        let head = ByteRange::new(bytes.start, bytes.start.next_multiple_of(unit).min(end));
        self.zero_in_block(head).await?;
        let tail = ByteRange::new((end / unit * unit).max(head.end), end);
        if bytes.end.is_multiple_of(unit) { Ok(()) } else { self.zero_in_block(tail).await }
    }

    async fn zero_in_block(&self, bytes: ByteRange) -> Result<()> {
        let contents = &*self.contents;
        if bytes.is_empty() {
            return Ok(());
        }
        let block = bytes.start >> contents.block.log2();
        if !contents.has_data(block).await? {
            return Ok(());
        }
        let reserved =
            contents.reserve_for_copy(BlockRange::one(block), bytes.start, self.privilege()).await?;
        let zeroes = vec![0; bytes.len().to_usize()];
        self.pages.write_counted(bytes.start, &zeroes, &reserved.copied_bytes).await.map_err(cache_error)
    }

    /// Drops the cached pages of whole blocks, dirty or not. The caller holds their exclusion. No
    /// write to the blocks is in progress afterwards.
    async fn drop_pages(&self, bytes: ByteRange, size: u64) -> Result<()> {
        let first = bytes.start.next_multiple_of(PAGE);
        let last = bytes.end.min(size) / PAGE * PAGE;
        // Pages that also contain blocks outside the range.
        for edge in
            [ByteRange::new(bytes.start, first.min(bytes.end)), ByteRange::new(last.max(first), bytes.end)]
        {
            if edge.start < edge.end {
                self.mapping.invalidate(edge).await.map_err(cache_error)?;
            }
        }
        if first < last {
            self.mapping.punch(ByteRange::new(first, last)).await.map_err(cache_error)?;
        }
        Ok(())
    }
}

impl Contents {
    /// The blocks that lie entirely in a range.
    fn whole_blocks(&self, bytes: ByteRange) -> BlockRange {
        let end = bytes.end >> self.block.log2();
        BlockRange::new(self.block.blocks_for(bytes.start).min(end), end)
    }

    fn bytes_of(&self, blocks: BlockRange) -> ByteRange {
        ByteRange::new(blocks.start << self.block.log2(), blocks.end << self.block.log2())
    }

    /// Clusters in which a range has both a hole and blocks that are delayed or being allocated by
    /// their write.
    async fn contested_clusters(&self, blocks: BlockRange) -> Result<Vec<BlockRange>> {
        while !self.sb().cluster_size().is_block() {
            self.know(blocks).await?;
            let live = self.live.lock();
            // Known runs may have been forgotten meanwhile.
            if live.map.first_unknown(blocks).is_none() {
                return Ok(live.map.contested_clusters(blocks));
            }
        }
        Ok(Vec::new())
    }

    /// Allocates places for delayed holes and logs them as unwritten.
    async fn place_holes(&self, holes: &[BlockRange]) -> Result<()> {
        let mut placed: Vec<Extent> = Vec::with_capacity(RUNS_PER_HANDLE);
        for hole in holes {
            let mut at = hole.start;
            loop {
                // Skip blocks that write-back has claimed since; they are being written.
                let run = {
                    let mut live = self.live.lock();
                    let run = live.map.pending.first_delayed(BlockRange::new(at, hole.end));
                    run.inspect(|&run| live.map.pending.claim(run))
                };
                let Some(run) = run else { break };
                match self.allocate(run, None).await {
                    Ok((to, blocks)) => {
                        at = run.start + blocks;
                        placed.push(unwritten(run.until(at), to));
                    }
                    Err(error) => {
                        self.log_unwritten(&mut placed).await?;
                        return Err(error);
                    }
                }
                if placed.len() == RUNS_PER_HANDLE {
                    self.log_unwritten(&mut placed).await?;
                }
            }
        }
        self.log_unwritten(&mut placed).await
    }

    async fn log_unwritten(&self, placed: &mut Vec<Extent>) -> Result<()> {
        let placed = std::mem::take(placed);
        let Some(first) = placed.first() else { return Ok(()) };
        let change = MapChange {
            change: Change::Map(&placed),
            near: first.physical,
            nodes: None,
            data: &[],
            credits: placed.len().fit_u32() * Allocated::CREDITS,
        };
        let logged = self.change_map(change, |handle, live, _| {
            let mut data_blocks = 0;
            for extent in &placed {
                data_blocks += self.log_place(handle, live, extent.range());
                live.map.preallocated(extent.range());
            }
            data_blocks
        });
        match logged.await {
            Ok(_) => Ok(()),
            Err(error) => {
                self.give_up(placed.iter().map(|extent| extent.range()));
                Err(error)
            }
        }
    }

    /// Turns a range into a hole. The file has `size` bytes and no writes in progress.
    pub(super) async fn remove(
        &self,
        range: BlockRange,
        mut nodes: Option<&mut Reservation>,
        size: u64,
    ) -> Result<()> {
        let near = self.near(range.start);
        let mut budget = self.writer.rt.budget(STINT);
        let mut rest = Some(range);
        while let Some(range) = rest {
            let (change, nodes) = (Change::Remove(range), nodes.as_deref_mut());
            let change = MapChange { change, near, nodes, data: &[], credits: 0 };
            let removed = self.change_map(change, |_, live, rest| {
                let from = rest.map_or(range.start, |rest| rest.end);
                live.map.unmap(BlockRange::new(from, range.end));
                if rest.is_none() {
                    live.map.size.vouch(size.min(self.bytes_at(range.end)));
                }
                0
            });
            rest = removed.await?;
            if rest.is_some() {
                budget.resched().await;
            }
        }
        Ok(())
    }

    /// Makes the written blocks of a range unwritten. The file has `size` bytes and no writes in
    /// progress.
    async fn unwrite(
        &self,
        blocks: BlockRange,
        mut nodes: Option<&mut Reservation>,
        size: u64,
    ) -> Result<()> {
        let written = |known| if let OnDisk::Written(at) = known { Some(at) } else { None };
        let mut at = blocks.start;
        while at < blocks.end {
            let runs = self.next_runs(&mut at, blocks.end, written).await?;
            self.map_unwritten(&runs, nodes.as_deref_mut(), Some(size)).await?;
        }
        Ok(())
    }

    /// The next runs in `at..end` that `place_of` selects, as unwritten extents, at most as many as
    /// one handle logs. Moves `at` past them.
    async fn next_runs(
        &self,
        at: &mut u64,
        end: u64,
        place_of: impl Fn(OnDisk) -> Option<VolumeBlock>,
    ) -> Result<Vec<Extent>> {
        let mut runs: Vec<Extent> = Vec::new();
        while *at < end && runs.len() < RUNS_PER_HANDLE {
            self.know(BlockRange::one(*at)).await?;
            let Some((run, known)) = self.live.lock().map.read(*at) else { continue };
            let run = run.until(end);
            *at = run.end;
            runs.extend(place_of(known).map(|to| unwritten(run, to)));
        }
        Ok(runs)
    }

    /// Maps allocated runs as unwritten. With `size`, the bytes of the runs below it count as being
    /// on the device.
    async fn map_unwritten(
        &self,
        runs: &[Extent],
        nodes: Option<&mut Reservation>,
        size: Option<u64>,
    ) -> Result<()> {
        let Some(first) = runs.first() else { return Ok(()) };
        let change = Change::Map(runs);
        let change = MapChange { change, near: first.physical, nodes, data: &[], credits: 0 };
        self.change_map(change, |_, live, _| {
            for extent in runs {
                live.map.remap(extent.range(), OnDisk::Unwritten(extent.physical));
                if let Some(size) = size {
                    live.map.size.vouch(size.min(self.bytes_at(extent.range().end)));
                }
            }
            0
        })
        .await?;
        Ok(())
    }
}

//! The cache's backing for file contents: where to read, where to write back, and what to log when
//! a write ends.
//!
//! Write-back claims dirty blocks, allocates the delayed ones (in memory only), and writes. When
//! the write ends, it plans the map change, allocates the nodes for it, and logs bitmaps, nodes,
//! map and size in one handle. Until then nothing on the volume points to the written blocks, so no
//! crash can expose blocks without their data. For files with data=journal the data are not written
//! at that point but logged in the same handle (`journalled`).

use super::contents::{Contents, Live, NewPlace};
use super::inline;
use super::removal::Removal;
use crate::alloc::{Allocated, Privilege, Reservation};
use crate::inode::{Orphan, Orphans};
use crate::journal::{Credits, Handle};
use crate::map::block_state::{OnDisk, WasBefore, WriteStep};
use crate::map::change::{Change, PinnedNodes, frees_metadata, plan, written};
use crate::map::growth::pointer_growth;
use crate::map::node_edit::RemainingRange;
use crate::meta::{MetaBlock, MetaKind, RankedGuard};
use crate::writer::Writer;
use crate::{Cost, Error, Result, RunState};
use extant_block::Sector;
use extant_cache::{
    Answer, Backing, BackingError, BackingErrorKind, ByteRange, DirtyRun, Placed, ReadExtent, ReadFrom,
    WriteExtent, WriteTo, WrittenExtent, WrittenRun,
};
use extant_format::{BlockRange, Compat, Incompat, Place, RoCompat, VolumeBlock};
use std::sync::atomic::Ordering;
use std::task::Waker;

/// Most runs of a file logged by one handle.
pub(super) const RUNS_PER_HANDLE: usize = 12;
/// Most pointer blocks changed by one handle that logs several runs.
pub(super) const NODES_PER_HANDLE: u64 = 32;
/// Size from which the volume must have the feature `RO_COMPAT_LARGE_FILE`.
pub(super) const LARGE_FILE_BYTES: u64 = 1 << 31;

/// Files up to this size are allocated next to each other, as Linux does by default
/// (`mb_stream_req`: 16 blocks of 4 KiB).
const SMALL_BYTES: u64 = 64 << 10;

/// File blocks whose write has ended, their place, and their previous state.
pub(super) type Landed = (BlockRange, VolumeBlock, WasBefore);

/// A change of a file's map, for [`Contents::change_map`].
pub(super) struct MapChange<'a> {
    pub(super) change: Change<'a>,
    /// Preferred place for new pointer blocks. Extent tree nodes go near the inodes instead, as in
    /// Linux: placed among the data they would break up contiguous runs.
    pub(super) near: VolumeBlock,
    /// Space reserved for these nodes, in addition to that of the file's dirty blocks.
    pub(super) nodes: Option<&'a mut Reservation>,
    /// Bytes logged together with the change.
    pub(super) data: &'a [DataBlock<'a>],
    /// Credits for anything else done in the handle: [`Allocated::CREDITS`] for each new run. Those
    /// for the inode and the data are already included.
    pub(super) credits: u32,
}

/// Bytes for one block of the volume, to be written through the log.
pub(super) struct DataBlock<'a> {
    pub(super) to: VolumeBlock,
    /// Offset of the bytes within the block.
    pub(super) at: usize,
    pub(super) bytes: &'a [u8],
    /// The block if it is in memory; its other bytes are kept. If `None`, its other bytes become
    /// zero.
    pub(super) held: Option<MetaBlock>,
}

impl DataBlock<'_> {
    /// Copies the bytes into the block as part of the transaction.
    fn put(&self, handle: &mut Handle) {
        let to = self.at..self.at + self.bytes.len();
        match &self.held {
            Some(block) => handle.edit(block)[to].copy_from_slice(self.bytes),
            None => {
                let block = handle.create(self.to, MetaKind::Raw);
                handle.edit(&block)[to].copy_from_slice(self.bytes);
            }
        }
    }
}

/// Blocks being given up: what was allocated for them and the tasks waiting for them.
#[derive(Default)]
struct Failed {
    places: Vec<NewPlace>,
    wakers: Vec<Waker>,
    any: bool,
}

impl Failed {
    fn add(&mut self, live: &mut Live, blocks: BlockRange) {
        self.any = true;
        live.map.pending.failed(blocks);
        let starts: Vec<u64> = live.places.range(blocks.blocks()).map(|(&start, _)| start).collect();
        self.places.extend(starts.iter().filter_map(|start| live.places.remove(start)));
    }

    /// Collects the waiters; call before the lock is released.
    fn wake(&mut self, live: &mut Live) {
        if self.any {
            self.wakers.extend(live.wake());
        }
    }
}

impl Backing for Contents {
    fn block_bytes(&self) -> u32 {
        self.block.bytes()
    }

    fn end_bytes(&self) -> u64 {
        self.max_bytes()
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        if let Some(bytes) = self.inline_bytes() {
            let bytes = bytes.get(range.start as usize..).unwrap_or_default();
            return Answer::ok(ReadExtent { from: ReadFrom::Inline(bytes.into()), bytes: range.len() });
        }
        match self.read_extent(range) {
            Some(extent) => Answer::ok(extent),
            None => Answer::later(async move {
                let block = range.start >> self.block.log2();
                loop {
                    if self.know(BlockRange::one(block)).await.is_err() {
                        return self.damaged_extent(range).await.map_err(refusal);
                    }
                    if let Some(extent) = self.read_extent(range) {
                        return Ok(extent);
                    }
                }
            }),
        }
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        // After a failure, and once the volume is closed or dropped, write nothing: the blocks may
        // have been reused.
        if let Some(cause) = self.writer.journal.failure() {
            return Answer::err(refusal(cause));
        }
        let is_journalled = self.is_journalled();
        match self.overwrites(&run).filter(|_| !is_journalled) {
            Some(placed) => Answer::ok(placed),
            None => Answer::later(async move { self.place(&run, is_journalled).await.map_err(refusal) }),
        }
    }

    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::later(async move { self.finish(run).await.map_err(refusal) })
    }

    fn abandoned(&self, range: ByteRange) {
        // If a block is larger than a page, its other pages may still be dirty.
        let first = self.block.blocks_for(range.start);
        let last = range.end >> self.block.log2();
        if first < last {
            self.unreserve(BlockRange::new(first, last));
        }
    }
}

/// Wraps an error for the cache; [`super::write`] unwraps it again.
pub(super) fn refusal(error: Error) -> BackingError {
    let kind = match &error {
        Error::NoSpace => BackingErrorKind::NoSpace,
        Error::TooBig(_) => BackingErrorKind::TooLarge,
        Error::Corrupt(_) => BackingErrorKind::Corrupt,
        Error::ReadOnly => BackingErrorKind::ReadOnly,
        Error::Io(_) => BackingErrorKind::Io,
        _ => BackingErrorKind::Other,
    };
    BackingError::new(kind, error)
}

impl Contents {
    pub(super) fn sector(&self, at: VolumeBlock, skip_bytes: u64) -> Sector {
        Sector((at.0 << (self.block.log2() - 9)) + skip_bytes / Sector::BYTES)
    }

    pub(super) fn bytes_at(&self, block: u64) -> u64 {
        block << self.block.log2()
    }

    /// Place of the start of a range, if the in-memory map has it.
    fn read_extent(&self, range: ByteRange) -> Option<ReadExtent> {
        let block = range.start >> self.block.log2();
        let (run, known) = self.live.lock().map.read(block)?;
        let from = match known {
            OnDisk::Written(at) if self.is_journalled() => {
                let end = range.end.min(self.bytes_at(run.end));
                return Some(self.newest(at, ByteRange::new(range.start, end)));
            }
            OnDisk::Written(at) => ReadFrom::Device(self.sector(at, range.start - self.bytes_at(block))),
            OnDisk::Hole | OnDisk::Unwritten(_) | OnDisk::Implied(_) => ReadFrom::Hole,
        };
        Some(ReadExtent { from, bytes: self.bytes_at(run.end) - range.start })
    }

    /// As [`Self::read_extent`], for a damaged map.
    async fn damaged_extent(&self, range: ByteRange) -> Result<ReadExtent> {
        let block = range.start >> self.block.log2();
        let run = self.know_damaged(block).await?;
        let end = self.bytes_at(run.end());
        let from = match run.state {
            RunState::Written(at) if self.is_journalled() => {
                return Ok(self.newest(at, ByteRange::new(range.start, end.min(range.end))));
            }
            RunState::Written(at) => ReadFrom::Device(self.sector(at, range.start - self.bytes_at(block))),
            RunState::Hole | RunState::Unwritten(_) => ReadFrom::Hole,
        };
        Ok(ReadExtent { from, bytes: end - range.start })
    }

    /// Places for a run that only overwrites mapped blocks; `None` if it does more.
    fn overwrites(&self, run: &DirtyRun<'_>) -> Option<Placed> {
        let live = self.live.lock();
        let mut placed = Placed::default();
        for piece in run.pieces {
            let mut at = piece.start;
            while at < piece.end {
                let block = at >> self.block.log2();
                let (blocks, WriteStep::Overwrite(to)) = live.map.write_step(block)? else { return None };
                let end = self.bytes_at(blocks.end).min(piece.end);
                let sector = self.sector(to, at - self.bytes_at(block));
                placed.extents.push(WriteExtent::new(ByteRange::new(at, end), sector));
                at = end;
            }
        }
        Some(placed)
    }

    /// Places the first blocks of a run, allocating delayed ones in memory. For a file that
    /// `is_journalled`, the bytes go to [`Self::finish`].
    async fn place(&self, run: &DirtyRun<'_>, is_journalled: bool) -> Result<Placed> {
        let mut placed = Placed { changes_map: true, ..Placed::default() };
        for piece in run.pieces {
            let mut at = piece.start;
            while at < piece.end {
                let end = if is_journalled { self.logged_together_end(at, piece.end) } else { piece.end };
                match self.place_at(at, end, Some(run.number), placed.extents.is_empty()).await {
                    Ok(Some(extent)) => {
                        let extent = if is_journalled { self.through_log(extent) } else { extent };
                        at = extent.range.end;
                        placed.extents.push(extent);
                    }
                    Ok(None) if placed.extents.is_empty() => {}
                    // Submit the blocks placed so far first: the rest may wait for another run to
                    // end or for a map node. The next call hits the error again.
                    Ok(None) | Err(_) if !placed.extents.is_empty() => return Ok(placed),
                    Ok(None) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(placed)
    }

    /// Places what starts at byte `at`, for a write-back run or a direct write. Returns `None` if
    /// the caller must try again, after waiting if it `may_wait`. Zeroes over a hole get no place;
    /// they are passed to [`Contents::finish`].
    ///
    /// Runs and direct writes claim blocks, and with them the clusters to be allocated, in
    /// ascending order, and wait only for claims of others. So waits cannot form a cycle.
    pub(super) async fn place_at(
        &self,
        at: u64,
        end: u64,
        run: Option<u64>,
        may_wait: bool,
    ) -> Result<Option<WriteExtent>> {
        let (block, last) = (at >> self.block.log2(), self.block.blocks_for(end));
        let step = {
            let mut live = self.live.lock();
            let step = live.map.write_step(block);
            let step = step.map(|(blocks, step)| (blocks.until(last), step));
            match step {
                Some((blocks, WriteStep::Allocate | WriteStep::InPlace { .. })) => {
                    live.map.pending.claim(blocks);
                    step
                }
                Some((blocks, WriteStep::Share)) => {
                    let cluster = self.sb().cluster_size();
                    let place = run.and_then(|run| live.shared_place(block, run, cluster));
                    place.map_or(Some((blocks, WriteStep::Wait)), |to| {
                        live.map.pending.share(blocks, to);
                        Some((blocks, WriteStep::InPlace { to, fresh: true }))
                    })
                }
                _ => step,
            }
        };
        let (blocks, to, fresh) = match step {
            None => {
                self.know(BlockRange::new(block, last)).await?;
                return Ok(None);
            }
            Some((_, WriteStep::Wait | WriteStep::Share)) => {
                if may_wait {
                    self.wait_landed(block).await;
                }
                return Ok(None);
            }
            Some((blocks, WriteStep::Zeroes)) => {
                let range = ByteRange::new(at, self.bytes_at(blocks.end).min(end));
                return Ok(Some(WriteExtent { to: WriteTo::Backing, ..WriteExtent::new(range, Sector(0)) }));
            }
            Some((blocks, WriteStep::Overwrite(to))) => (blocks, to, false),
            Some((blocks, WriteStep::InPlace { to, fresh })) => (blocks, to, fresh),
            Some((blocks, WriteStep::Allocate)) => {
                let (to, got) = self.allocate(blocks, run).await?;
                (blocks.until(blocks.start + got), to, true)
            }
        };
        let range = ByteRange::new(at, self.bytes_at(blocks.end).min(end));
        let mut extent = WriteExtent::new(range, self.sector(to, at - self.bytes_at(block)));
        if fresh {
            extent.zero_before = (at - self.bytes_at(block)) as u32;
            extent.zero_after = (self.bytes_at(blocks.end) - range.end) as u32;
        }
        Ok(Some(extent))
    }

    /// Allocates a place for claimed blocks, for a write-back run if there is one. Returns the
    /// first volume block and how many blocks were placed; the others become delayed again.
    pub(super) async fn allocate(&self, blocks: BlockRange, run: Option<u64>) -> Result<(VolumeBlock, u64)> {
        let cluster = self.sb().cluster_size();
        // No block of the first cluster has a place yet; otherwise these blocks would be implied.
        let want = cluster.count(blocks).min(u64::from(u32::MAX)) as u32;
        let _placing = match self.placing.try_write() {
            Some(held) => held,
            None => Box::pin(self.placing.write()).await,
        };
        let (reservation, goal) = {
            let mut live = self.live.lock();
            (live.take_reserved(want.into()), self.goal(&live, blocks.start))
        };
        let alloc = &self.writer.alloc;
        self.writer.rt.charge(Cost::BlockSearch(1));
        let mut reservation = match reservation.filter(|reservation| reservation.clusters() > 0) {
            Some(reservation) => Ok(reservation),
            // Another write took the blocks of a failed write before they were reserved again.
            None => alloc.reserve(want.into(), 0, Privilege::Reserved),
        };
        let allocated = match &mut reservation {
            // Files that are not open do not grow, and most small files are written once. Space
            // kept behind them would only spread them apart.
            Ok(reservation) if !self.is_open() || self.bytes_at(blocks.end) <= SMALL_BYTES => {
                alloc.blocks(goal, want, reservation).await
            }
            Ok(reservation) => {
                let allocated = alloc.growing(self.number(), blocks.start, goal, want, reservation).await;
                // The file was closed during a bitmap read, and its last closer found no window to
                // close.
                if !self.is_open() {
                    alloc.close_window(self.number());
                }
                allocated
            }
            Err(error) => Err(error.clone()),
        };
        let (got, wakers) = {
            let mut live = self.live.lock();
            if let Ok(rest) = reservation {
                live.put_back(rest);
            }
            let got = allocated.map(|allocated| {
                let (at, skipped) = (allocated.run(), cluster.offset(blocks.start));
                let placed = BlockRange::at(blocks.start, at.blocks - skipped).until(blocks.end);
                let to = VolumeBlock(at.start.0 + skipped);
                live.map.pending.place(placed, to);
                live.last_placed = Some((placed.end, VolumeBlock(to.0 + placed.len())));
                live.places.insert(placed.start, NewPlace { allocated, run });
                (to, placed.len())
            });
            let done = got.as_ref().map_or(0, |&(_, blocks)| blocks);
            if blocks.start + done < blocks.end {
                live.map.pending.failed(BlockRange::new(blocks.start + done, blocks.end));
            }
            (got, live.wake())
        };
        wakers.into_iter().for_each(Waker::wake);
        got
    }

    /// Whether the file is open. Nodes that only hold its inode do not count, since they do not
    /// make it grow.
    fn is_open(&self) -> bool {
        self.files.load(Ordering::Acquire) > 0
    }

    /// Logs the blocks that have landed and gives up those that have failed.
    pub(super) async fn finish(&self, run: &WrittenRun) -> Result<()> {
        let (mut data, mut on_device) = (Vec::new(), Vec::new());
        let mut result = Ok(());
        for written in &run.extents {
            if written.extent.to != WriteTo::Backing {
                on_device.push(written);
            } else if Self::is_data(&written.extent) {
                data.push(written);
            } else if written.bytes.iter().any(|bytes| bytes.iter().any(|&byte| byte != 0)) {
                // The hole stays a hole. Bytes written by a caller would be lost here, but those
                // always have space reserved.
                result = Err(Error::Defect);
            }
        }
        let landed = self.part_landed(&on_device);
        let mut rest = &landed[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(self.logged_together(rest));
            if result.is_ok() {
                result = self.log(part, part[0].1, run.size_bytes, &[]).await;
            }
            if result.is_err() {
                self.give_up(rest.iter().map(|(blocks, _, _)| *blocks));
                break;
            }
            rest = behind;
        }
        let logged = self.log_data(&data, run.size_bytes).await;
        result.and(logged)
    }

    /// Returns the blocks that were written successfully. Gives up those that failed, along with
    /// all blocks in a cluster allocated for one of them.
    fn part_landed(&self, written: &[&WrittenExtent]) -> Vec<Landed> {
        let (mut landed, mut failed) = (Vec::new(), Failed::default());
        {
            let mut live = self.live.lock();
            for written in written {
                let blocks = self.blocks_of(written.extent.range);
                match written.result {
                    Ok(()) => landed.extend(live.map.pending.in_flight(blocks)),
                    Err(_) => failed.add(&mut live, blocks),
                }
            }
            failed.wake(&mut live);
        }
        self.give_back(failed);
        landed
    }

    /// How many of these runs fit in one handle.
    fn logged_together(&self, landed: &[Landed]) -> usize {
        let mut nodes = 0;
        let fits = |(blocks, ..): &&Landed| {
            nodes += if self.uses_extents() { 0 } else { pointer_growth(*blocks, self.block) };
            nodes <= NODES_PER_HANDLE
        };
        landed.iter().take(RUNS_PER_HANDLE).take_while(fits).count().max(1)
    }

    /// Gives up in-flight blocks that did not reach the map; those that were delayed become delayed
    /// again. All of a run must be given up together: once the block that a cluster was allocated
    /// for is delayed, others may claim the rest of the cluster.
    pub(super) fn give_up(&self, ranges: impl IntoIterator<Item = BlockRange>) {
        let mut failed = Failed::default();
        {
            let mut live = self.live.lock();
            ranges.into_iter().for_each(|blocks| failed.add(&mut live, blocks));
            failed.wake(&mut live);
        }
        self.give_back(failed);
    }

    fn give_back(&self, failed: Failed) {
        for place in failed.places {
            let reservation = self.writer.alloc.take_back(place.allocated);
            self.live.lock().put_back(reservation);
        }
        failed.wakers.into_iter().for_each(Waker::wake);
    }

    /// Logs blocks that are on the device, or whose `data` are logged by the same handle: their
    /// bitmaps, their mapping, and the size that they allow.
    pub(super) async fn log(
        &self,
        landed: &[Landed],
        near: VolumeBlock,
        size_bytes: u64,
        data: &[DataBlock<'_>],
    ) -> Result<()> {
        let mapped: Vec<_> = landed
            .iter()
            .filter(|(_, _, was)| *was != WasBefore::Written)
            .map(|(blocks, to, _)| written(*blocks, *to))
            .collect();
        let change = MapChange {
            change: Change::Map(&mapped),
            near,
            nodes: None,
            data,
            credits: landed.len() as u32 * Allocated::CREDITS,
        };
        self.change_map(change, |handle, live, _| {
            let new = landed.iter().filter(|(_, _, was)| *was == WasBefore::New);
            let data_blocks = new.map(|(blocks, _, _)| self.log_place(handle, live, *blocks)).sum();
            for (blocks, _, _) in landed {
                live.map.landed(*blocks, size_bytes);
            }
            data_blocks
        })
        .await?;
        Ok(())
    }

    /// Logs the allocation of new blocks in flight. Returns how many blocks the file gains, in
    /// whole clusters.
    pub(super) fn log_place(&self, handle: &mut Handle, live: &mut Live, blocks: BlockRange) -> u64 {
        let place = live.places.remove(&blocks.start).expect("new blocks in flight have a place");
        let data_blocks = place.allocated.run().blocks;
        self.writer.alloc.log(handle, place.allocated);
        data_blocks
    }

    /// Plans a map change and logs it, together with the blocks it frees and the resulting size of
    /// the file on the device. Under the same handle, `settle` makes related changes, also in
    /// memory, and returns the number of newly mapped blocks. It receives the part of the change
    /// that is still to be done, which is also returned to the caller.
    ///
    /// # Errors
    /// The map or a bitmap is damaged or unreadable; no space for nodes; why the journal gave up.
    /// Nothing has changed.
    pub(super) async fn change_map(
        &self,
        change: MapChange<'_>,
        settle: impl FnOnce(&mut Handle, &mut Live, &RemainingRange) -> u64,
    ) -> Result<RemainingRange> {
        let Writer { store, alloc, journal, .. } = &*self.writer;
        let sb = store.shape();
        let metadata = self.cell.read(|inode| frees_metadata(inode, sb));
        let MapChange { change, mut near, nodes: mut own, data, credits } = change;
        if self.uses_extents() {
            near = alloc.data_goal(self.number(), None);
        }
        let _edits = self.edits.write().await;
        // The old contents of an emptied file are removed along with the first new ones.
        let old = match self.is_emptied() {
            true => Some(Box::pin(Removal::plan(&self.writer, &self.cell, 0)).await?),
            false => None,
        };
        if old.as_ref().is_some_and(|old| !old.is_whole()) {
            return Err(Error::Defect);
        }
        let change = match change {
            Change::Map(extents) if old.is_some() => Change::Refill(extents),
            change => change,
        };
        let of_old = old.as_ref().map_or(0, |old| old.credits(sb));
        // The superblock may need a feature flag.
        let beside = of_old + credits + data.len() as u32 + Orphans::CREDITS + 1;
        let (mut for_copies, mut in_place) = (None, false);
        let (wakers, rest) = loop {
            let mut nodes = match in_place {
                true => PinnedNodes::of(&self.cell, sb),
                false => PinnedNodes::copying(&self.cell, sb, journal),
            };
            let planned = plan(store, alloc, &self.cell, &mut nodes, &change).await?;
            if planned.copies > 0 && !Box::pin(self.reserve_copies(planned.copies, &mut for_copies)).await? {
                in_place = true;
                continue;
            }
            let pins = match alloc.pin(planned.freed(), Place::Inode(self.number())).await {
                // The failure is in the bitmap of a group that holds an old node.
                Err(_) if planned.copies > 0 => {
                    in_place = true;
                    continue;
                }
                pins => pins?,
            };
            let (mut places, mut news) = match planned.new_nodes - planned.copies {
                0 => Default::default(),
                count => Box::pin(self.allocate_nodes(count, near, own.as_deref_mut())).await?,
            };
            let first_copy = places.len();
            if planned.copies > 0 {
                match Box::pin(self.allocate_nodes(planned.copies, near, for_copies.as_mut())).await {
                    Ok((of_copies, blocks)) => {
                        places.extend(of_copies);
                        news.extend(blocks);
                    }
                    Err(_) => {
                        self.put_back_all(places, first_copy, own.as_deref_mut(), for_copies.as_mut());
                        in_place = true;
                        continue;
                    }
                }
            }
            let bitmaps = pins.credits() + places.len() as u32 * Allocated::CREDITS;
            let revokes = planned.revoke_blocks(metadata, sb);
            let credits = Credits(planned.credits() + bitmaps + revokes + beside);
            let mut handle = match journal.start(credits).await {
                Ok(handle) if planned.is_for(handle.tid()) => handle,
                other => {
                    let refused = other.err();
                    self.put_back_all(places, first_copy, own.as_deref_mut(), for_copies.as_mut());
                    match refused {
                        // No transaction can be that large.
                        Some(Error::NoSpace) if planned.copies > 0 => in_place = true,
                        Some(error) => return Err(error),
                        // A transaction has ended since the plan was made.
                        None => {}
                    }
                    continue;
                }
            };
            // Done before locking the map, because readers and writers wait for that lock.
            data.iter().for_each(|block| block.put(&mut handle));
            let mut live = self.live.lock();
            inline::leave(&mut handle, &self.cell, sb);
            let data_blocks = settle(&mut handle, &mut live, &planned.rest);
            places.into_iter().for_each(|place| alloc.log(&mut handle, place));
            let replaces = old.is_some();
            if let Some(old) = old {
                old.apply(&self.writer, &mut handle, &self.cell);
            }
            planned.apply(&mut handle, &self.cell, &nodes, &news, data_blocks, sb);
            drop(nodes);
            planned.free(&mut handle, alloc, &pins, metadata);
            live.map.changed_on_disk();
            let recorded = self.recorded_bytes();
            let size = live.map.recordable_bytes(recorded);
            self.emptied.store(0, Ordering::Release);
            if replaces || size != recorded {
                handle.inode(&self.cell).set_size(size);
            }
            self.note_ahead(&mut handle, &mut live, size);
            if size >= LARGE_FILE_BYTES {
                ensure_large_file(&mut handle);
            }
            // Touch the inode even if only a node changed: a sync asks the inode which transaction
            // to commit, and the times go with it.
            drop(handle.inode(&self.cell));
            live.times_unlogged = false;
            break (self.finish_live(live), planned.rest);
        };
        wakers.into_iter().for_each(Waker::wake);
        Ok(rest)
    }

    /// Puts the inode on the orphan list while blocks are mapped beyond the size being recorded
    /// because write-back of earlier blocks has not ended. A crash then frees those blocks, as it
    /// does for appending direct I/O in Linux. If the inode were not an orphan, e2fsck would report
    /// a wrong size.
    pub(super) fn note_ahead(&self, handle: &mut Handle, live: &mut Live, recorded_bytes: u64) {
        let is_ahead = live.map.size.is_ahead(recorded_bytes);
        if is_ahead == live.is_ahead {
            return;
        }
        live.is_ahead = is_ahead;
        let orphans = &self.writer.orphans;
        match is_ahead {
            true => orphans.add(handle, &self.cell, Orphan::Ahead),
            false => orphans.remove(handle, &self.cell, Orphan::Ahead),
        }
    }

    /// Ends a map change in memory. Returns the waiters to wake once no lock is held.
    pub(super) fn finish_live(&self, mut live: RankedGuard<'_, Live>) -> Vec<Waker> {
        let wakers = live.wake();
        let given_back = live.give_back(0);
        drop(live);
        drop(given_back);
        wakers
    }

    /// Allocates new nodes near `near`, from `own` or else from the reservation of the file's dirty
    /// blocks. On error all blocks return to their reservations.
    async fn allocate_nodes(
        &self,
        count: u32,
        near: VolumeBlock,
        mut own: Option<&mut Reservation>,
    ) -> Result<(Vec<Allocated>, Vec<VolumeBlock>)> {
        let (mut places, mut from_own) = (Vec::new(), 0);
        let mut left = count;
        while left > 0 {
            let from = own.as_deref_mut().filter(|own| own.clusters() > 0);
            let is_own = from.is_some();
            match self.allocate_some_nodes(left, near, from).await {
                Ok(got) => {
                    left -= got.firsts().count() as u32;
                    from_own += usize::from(is_own);
                    places.push(got);
                }
                Err(error) => {
                    for (n, place) in places.into_iter().enumerate() {
                        self.put_back_nodes(place, own.as_deref_mut().filter(|_| n < from_own));
                    }
                    return Err(error);
                }
            }
        }
        let news = places.iter().flat_map(Allocated::firsts).collect();
        Ok((places, news))
    }

    /// Allocates up to `want` adjacent blocks for nodes.
    async fn allocate_some_nodes(
        &self,
        want: u32,
        near: VolumeBlock,
        own: Option<&mut Reservation>,
    ) -> Result<Allocated> {
        let alloc = &self.writer.alloc;
        if let Some(own) = own {
            return alloc.blocks(near, want, own).await;
        }
        let reserved = {
            let mut live = self.live.lock();
            let from_nodes = u64::from(want).min(live.for_nodes);
            live.for_nodes -= from_nodes;
            live.take_reserved(from_nodes).filter(|reservation| reservation.clusters() > 0)
        };
        let mut reservation = match reserved {
            Some(reservation) => reservation,
            None => alloc.reserve(0, want.into(), Privilege::Reserved)?,
        };
        let got = alloc.blocks(near, want, &mut reservation).await;
        self.keep_for_nodes(reservation);
        got
    }

    /// Reserves space for `count` node copies in total. The nodes reserved for acknowledged data
    /// cover a larger tree, but not copies. Returns whether space is available, committing freed
    /// blocks first if necessary.
    async fn reserve_copies(&self, count: u32, copies: &mut Option<Reservation>) -> Result<bool> {
        let Writer { alloc, journal, .. } = &*self.writer;
        let missing = u64::from(count).saturating_sub(copies.as_ref().map_or(0, Reservation::clusters));
        let mut reserved = alloc.reserve(0, missing, Privilege::Reserved);
        if matches!(reserved, Err(Error::NoSpace)) && alloc.pending() > 0 {
            journal.commit(journal.running()).await?;
            journal.released().await?;
            reserved = alloc.reserve(0, missing, Privilege::Reserved);
        }
        match reserved {
            Ok(more) => match copies {
                Some(copies) => copies.merge(more),
                None => *copies = Some(more),
            },
            Err(Error::NoSpace) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Returns node blocks to their reservations; those from index `first_copy` on are for copies.
    fn put_back_all(
        &self,
        mut places: Vec<Allocated>,
        first_copy: usize,
        mut own: Option<&mut Reservation>,
        mut copies: Option<&mut Reservation>,
    ) {
        for place in places.split_off(first_copy) {
            self.put_back_nodes(place, copies.as_deref_mut());
        }
        for place in places {
            self.put_back_nodes(place, own.as_deref_mut());
        }
    }

    fn put_back_nodes(&self, place: Allocated, own: Option<&mut Reservation>) {
        let reservation = self.writer.alloc.take_back(place);
        match own {
            Some(own) => own.merge(reservation),
            None => self.keep_for_nodes(reservation),
        }
    }

    fn keep_for_nodes(&self, reservation: Reservation) {
        if reservation.clusters() > 0 {
            let mut live = self.live.lock();
            live.for_nodes += reservation.clusters();
            live.put_back(reservation);
        }
    }
}

/// Sets the feature flag that large files need.
pub(super) fn ensure_large_file(handle: &mut crate::journal::Handle) {
    let mut sb = handle.superblock();
    if !sb.ro_compat().contains(RoCompat::LARGE_FILE) {
        sb.add_features(Compat::empty(), Incompat::empty(), RoCompat::LARGE_FILE);
    }
}

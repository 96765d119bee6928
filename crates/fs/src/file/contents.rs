//! One file's contents in memory: its pages and its map, the space that dirty pages have reserved, and what is in flight.

use crate::alloc::{Allocated, Privilege, Reservation};
use crate::map::Unmapped;
use crate::map::change::{look_up, look_up_damaged, maps_nothing};
use crate::map::cost::{TreeShape, pointer_growth, tree_growth};
use crate::map::live::{Known, LiveMap, Need, WriteStep};
use crate::meta::{InodeCell, LockRank, PhysicalRun, Ranked};
use crate::writer::Writer;
use crate::{Error, Result, Run};
use extant_cache::ByteRange;
use extant_cache::accounts::{Account, Charge};
use extant_format::{
    BlockRange, BlockSize, ClusterSize, FileKind, Incompat, Inode, InodeFlags, InodeNumber, Place,
    Superblock, VolumeBlock,
};
use extant_rt::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

/// A regular file's contents, as the cache's backing of its pages.
///
/// Lock order within: `endings`, `edits`, `placing`, then `live`, then the inode's record; the last two are never held across a
/// wait.
pub(crate) struct Contents {
    pub(super) writer: Arc<Writer>,
    pub(super) cell: Arc<InodeCell>,
    pub(super) block: BlockSize,
    /// Held while the map on disk is changed, from loading its nodes to the end of the handle.
    pub(super) edits: RwLock,
    pub(super) live: Ranked<Live>,
    /// Held while blocks get a place: where a bitmap has to be read for some, those behind them wait, as a rule.
    pub(super) placing: RwLock,
    /// Held by a direct write from its end on the device until the file's size is told. Before `edits`.
    pub(super) endings: RwLock,
    /// Of a file that was emptied while the volume still has its old contents, one more than the blocks of these; else 0. The
    /// map in memory has the new contents alone. Changed under `edits`.
    pub(super) emptied: AtomicU64,
    /// Open files of it.
    pub(super) files: AtomicUsize,
    _charge: Charge,
}

/// Bytes that the cache reads at least.
const PAGE_BYTES: u64 = extant_cache::PAGE_BYTES as u64;

/// Memory of a file in the table, without its map: two pointers to it, and its pages' index.
const MEMORY_BYTES: u64 = size_of::<Contents>() as u64 + 256;

/// State that changes with each write.
pub(super) struct Live {
    pub(super) map: LiveMap,
    /// Changes whenever the map on disk does, so that what was loaded before is known to be old.
    pub(super) version: u64,
    /// Clusters for delayed blocks and for nodes that mapping them may need.
    pub(super) reservation: Option<Reservation>,
    /// Clusters of it that are kept for nodes.
    pub(super) for_nodes: u64,
    /// Blocks allocated and not logged, by the first that is in flight to them.
    pub(super) places: BTreeMap<u64, NewPlace>,
    /// The file block and the volume block behind what was placed last.
    pub(super) last_placed: Option<(u64, VolumeBlock)>,
    /// The inode's times are newer than any transaction knows.
    pub(super) times_unlogged: bool,
    /// The inode is an orphan because blocks are mapped behind its recorded size.
    pub(super) is_ahead: bool,
    waiters: Vec<Waker>,
}

/// Blocks that are allocated for a write in flight.
#[derive(Debug)]
pub(super) struct NewPlace {
    pub(super) allocated: Allocated,
    /// The run of write-back that writes to them, if one does.
    pub(super) run: Option<u64>,
}

/// Blocks of an extent that an allocation ahead of writes gets, as a rule.
const EXTENT_EXPECTED_BLOCKS: u64 = 512;

/// Use of reserved blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// All of them are about to be dirty.
    Dirty,
    /// Holes are to be allocated without a write.
    Holes,
}

/// The changes of a file that are not logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Idle,
    /// Its times alone: it was overwritten in place.
    TimesUnlogged,
    /// Blocks are dirty or in flight, or behind the recorded size.
    Busy,
}

impl Contents {
    /// Those of a file of which nothing is known, their memory charged to `account`.
    pub(super) fn new(writer: Arc<Writer>, cell: Arc<InodeCell>, account: &Account) -> Self {
        let block = writer.store.shape().block_size();
        let mut map = LiveMap::new(block, writer.store.shape().cluster_size());
        map.charge_to(account);
        let live = Live {
            map,
            version: 0,
            reservation: None,
            for_nodes: 0,
            places: BTreeMap::new(),
            last_placed: None,
            times_unlogged: false,
            is_ahead: false,
            waiters: Vec::new(),
        };
        let (emptied, files) = Default::default();
        let _charge = account.charge(MEMORY_BYTES);
        let [edits, endings, placing] = [(); 3].map(|()| RwLock::new(writer.store.locks()));
        let live = Ranked::new(LockRank::Map, live);
        Self { writer, cell, block, edits, live, endings, placing, emptied, files, _charge }
    }

    pub(super) fn number(&self) -> InodeNumber {
        self.cell.number()
    }

    pub(super) fn sb(&self) -> &Superblock {
        self.writer.store.shape()
    }

    /// The size that the volume records; the cache's may be ahead of it.
    pub(super) fn recorded_bytes(&self) -> u64 {
        if self.is_emptied() { 0 } else { self.cell.read(Inode::size) }
    }

    /// The blocks with at least one byte in a range.
    pub(super) fn blocks_of(&self, range: ByteRange) -> BlockRange {
        BlockRange::new(range.start >> self.block.log2(), self.block.blocks_for(range.end))
    }

    pub(super) fn uses_extents(&self) -> bool {
        self.cell.read(|inode| match inode.flags().contains(InodeFlags::INLINE_DATA) {
            true => self.sb().incompat().contains(Incompat::EXTENTS),
            false => inode.flags().contains(InodeFlags::EXTENTS),
        })
    }

    /// Learns what the map says about a range of blocks.
    ///
    /// # Errors
    /// A damaged map, or one that cannot be read.
    pub(super) async fn know(&self, blocks: BlockRange) -> Result<()> {
        loop {
            let (unknown, version) = {
                let live = self.live.lock();
                (live.map.first_unknown(blocks), live.version)
            };
            let Some(unknown) = unknown else { return Ok(()) };
            let found = match self.look_up(unknown).await {
                Ok(found) => found,
                // A node that was read may have been freed meanwhile, and be another's; without changes the answer counts.
                Err(_) => Box::pin(self.look_up_alone(unknown)).await?,
            };
            let mut live = self.live.lock();
            if live.version == version {
                live.map.learn(blocks, &found);
            }
        }
    }

    /// As [`Self::look_up`], while nothing changes the map.
    async fn look_up_alone(&self, block: u64) -> Result<Vec<(BlockRange, Known)>> {
        let _edits = self.edits.write().await;
        self.look_up(block).await
    }

    /// The runs around a block, as the map on the volume has them.
    ///
    /// # Errors
    /// A damaged map, or one that cannot be read; one that claims the volume's own metadata.
    async fn look_up(&self, block: u64) -> Result<Vec<(BlockRange, Known)>> {
        if self.is_emptied() || self.cell.read(|inode| maps_nothing(inode, self.sb())) {
            return Ok(vec![(BlockRange::ALL, Known::Hole)]);
        }
        let Writer { store, alloc, .. } = &*self.writer;
        let found = look_up(store, alloc, &self.cell, block).await?;
        for (range, known) in &found {
            if let Known::Written(at) | Known::Unwritten(at) = *known {
                alloc.check_claim(PhysicalRun::new(at, range.len()), Place::Inode(self.number()))?;
            }
        }
        Ok(found)
    }

    /// Where a block lies, and those behind it, where [`Self::know`] fails: damage around it does not keep it from being read.
    ///
    /// # Errors
    /// What the map does not tell.
    pub(super) async fn know_damaged(&self, block: u64) -> std::result::Result<Run, Unmapped> {
        let _edits = self.edits.write().await;
        let Writer { store, alloc, .. } = &*self.writer;
        let mut run = look_up_damaged(store, alloc, &self.cell, block).await?;
        // Behind it there may be blocks that are only in memory.
        if let Some(pending) = self.live.lock().map.next_pending(block) {
            run.blocks = run.blocks.min(pending.saturating_sub(block).max(1));
        }
        Ok(run)
    }

    /// Where that ends which cannot be read with byte `at`: the map does not tell where it is, or the device fails.
    pub(super) async fn unreadable_end(&self, at: u64) -> u64 {
        match self.know_damaged(at >> self.block.log2()).await {
            Err(unmapped) => self.bytes_at(unmapped.blocks.end),
            Ok(_) => (at / PAGE_BYTES + 1) * PAGE_BYTES,
        }
    }

    /// Reserves what a copy of bytes to these blocks may need, from byte `at` on.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) async fn reserve_for_copy(
        &self,
        blocks: BlockRange,
        at: u64,
        privilege: Privilege,
    ) -> Result<Reserved<'_>> {
        let pending = self.reserve(blocks, privilege).await?;
        Ok(Reserved { contents: self, pending, at, copied_bytes: AtomicUsize::new(0) })
    }

    /// Reserves what writing to these blocks may need, and marks them dirty. Gives those that are pending only since then,
    /// for [`Self::unreserve_all`] where no page of them becomes dirty.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing marked; what [`Self::know`] meets; why the journal gave up.
    pub(super) async fn reserve(&self, blocks: BlockRange, privilege: Privilege) -> Result<Vec<BlockRange>> {
        self.reserve_as(blocks, privilege, Mark::Dirty, true).await
    }

    /// As [`Self::reserve`], without waiting for space that others give back: for a caller that keeps them from it.
    ///
    /// # Errors
    /// As there; [`Error::NoSpace`] where a wait might help.
    pub(super) async fn reserve_now(
        &self,
        blocks: BlockRange,
        privilege: Privilege,
    ) -> Result<Vec<BlockRange>> {
        self.reserve_as(blocks, privilege, Mark::Dirty, false).await
    }

    /// Reserves what allocating the holes among these blocks may need, and marks them as delayed. Gives their runs.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) async fn reserve_holes(
        &self,
        blocks: BlockRange,
        privilege: Privilege,
    ) -> Result<Vec<BlockRange>> {
        self.reserve_as(blocks, privilege, Mark::Holes, true).await
    }

    async fn reserve_as(
        &self,
        blocks: BlockRange,
        privilege: Privilege,
        mark: Mark,
        waits: bool,
    ) -> Result<Vec<BlockRange>> {
        let mut in_hand: Option<(Reservation, u64, u64)> = None;
        loop {
            self.know(blocks).await?;
            let (data, nodes) = {
                let mut live = self.live.lock();
                if live.map.first_unknown(blocks).is_some() {
                    continue;
                }
                let need = live.map.need(blocks);
                let nodes = match mark {
                    Mark::Dirty => self.nodes_for(&live, &need),
                    Mark::Holes => self.nodes_for_runs(&need),
                };
                let reserved = match in_hand.take() {
                    Some((reservation, data, for_nodes)) if need.clusters <= data && nodes <= for_nodes => {
                        live.for_nodes += for_nodes;
                        Ok(Some(reservation))
                    }
                    _ if need.clusters + nodes == 0 => Ok(None),
                    _ => self.writer.alloc.reserve(need.clusters, nodes, privilege).map(|reservation| {
                        live.for_nodes += nodes;
                        Some(reservation)
                    }),
                };
                match reserved {
                    Ok(reservation) => {
                        if let Some(reservation) = reservation {
                            live.keep(reservation);
                        }
                        return Ok(match mark {
                            Mark::Dirty => live.map.mark_dirty(blocks, self.recorded_bytes()),
                            Mark::Holes => live.map.delay_holes(blocks),
                        });
                    }
                    Err(Error::NoSpace) if waits => (need.clusters, nodes),
                    Err(other) => return Err(other),
                }
            };
            let Writer { alloc, journal, .. } = &*self.writer;
            let reservation = alloc.reserve_waiting(journal, data, nodes, privilege).await?;
            in_hand = Some((reservation, data, nodes));
        }
    }

    /// Nodes to be reserved in addition when `need` is added to what is dirty.
    fn nodes_for(&self, live: &Live, need: &Need) -> u64 {
        if self.uses_extents() {
            let more = need.delayed_blocks + need.converted_blocks;
            if more == 0 {
                return 0;
            }
            let (blocks, runs) = live.map.reserved();
            let runs = runs + need.delayed.len() as u64 + u64::from(need.converted_blocks > 0);
            let total = tree_growth(self.tree_shape(), blocks + more, runs, self.block);
            return total.saturating_sub(live.for_nodes);
        }
        let growth = |range| pointer_growth(range, self.block);
        need.delayed
            .iter()
            .map(|run| {
                let around = live.map.delayed_around(*run);
                let before = growth(around.until(run.start)) + growth(BlockRange::new(run.end, around.end));
                growth(around).saturating_sub(before)
            })
            .sum()
    }

    /// Nodes for an allocation that no acknowledged write depends on: as long as the extents are that it gets as a rule.
    fn nodes_for_runs(&self, need: &Need) -> u64 {
        let extents = need.delayed.len() as u64 + need.delayed_blocks / EXTENT_EXPECTED_BLOCKS;
        if need.delayed_blocks == 0 {
            return 0;
        }
        tree_growth(self.tree_shape(), extents, need.delayed.len() as u64, self.block)
    }

    pub(super) fn tree_shape(&self) -> TreeShape {
        if self.is_emptied() {
            return TreeShape::default();
        }
        self.cell.read(|inode| {
            if inode.flags().contains(InodeFlags::INLINE_DATA) {
                return TreeShape::default();
            }
            let word = |at: usize| u16::from_le_bytes([inode.map()[at], inode.map()[at + 1]]);
            TreeShape { depth: word(6), entries: word(2) }
        })
    }

    /// Blocks that were marked dirty will not be written.
    pub(super) fn unreserve(&self, blocks: BlockRange) {
        let given_back = {
            let mut live = self.live.lock();
            let delayed = live.map.abandon(blocks);
            live.give_back(delayed)
        };
        drop(given_back);
    }

    /// Blocks of a failed write, as [`Self::reserve`] gave them, will not be written from block `from` on.
    pub(super) fn unreserve_all(&self, pending: &[BlockRange], from: u64) {
        for blocks in pending.iter().filter(|blocks| blocks.end > from) {
            self.unreserve(BlockRange::new(blocks.start.max(from), blocks.end));
        }
    }

    /// Where the next block of the file should lie.
    pub(super) fn goal(&self, live: &Live, block: u64) -> VolumeBlock {
        if let Some(before) = block.checked_sub(1)
            && let Some(at) = live.map.place_of(before)
        {
            return VolumeBlock(at.0 + 1);
        }
        match live.last_placed {
            Some((logical, at)) if logical <= block => {
                let goal = VolumeBlock(at.0.saturating_add(block - logical));
                if self.sb().is_valid_block(goal) { goal } else { at }
            }
            _ => self.writer.alloc.data_goal(self.number(), Some(FileKind::Regular)),
        }
    }

    /// Waits until block `block` is not in flight.
    pub(super) async fn wait_landed(&self, block: u64) {
        poll_fn(|cx| {
            let mut live = self.live.lock();
            if !matches!(live.map.write_step(block), Some((_, WriteStep::Wait | WriteStep::Share))) {
                return Poll::Ready(());
            }
            live.waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// One of the openers is gone.
    pub(super) fn close(&self) {
        if self.cell.close() {
            self.writer.delete_later(&self.cell);
        }
    }

    /// The changes of the file that are not logged yet.
    pub(super) fn rest(&self) -> Rest {
        let recorded = self.recorded_bytes();
        let live = self.live.lock();
        let is_recorded = !live.is_ahead && live.map.recordable_bytes(recorded) <= recorded;
        match live.map.is_clean() && !self.is_emptied() && is_recorded {
            false => Rest::Busy,
            true if live.times_unlogged => Rest::TimesUnlogged,
            true => Rest::Idle,
        }
    }

    /// Forgets the map of a file that is not open and has no write in flight: it can be read again. Returns how many bytes of
    /// charge this gives back. The caller holds the table of files, in which a file is found to be opened.
    pub(super) fn forget_map(&self) -> u64 {
        let mut live = self.live.lock();
        let before = live.map.charged_bytes();
        let is_unused = self.files.load(Ordering::Acquire) == 0;
        // The volume still has the old map of a file that was emptied.
        if before > 0 && is_unused && live.map.is_clean() && !self.is_emptied() {
            live.map.forget();
        }
        before - live.map.charged_bytes()
    }

    /// Delayed blocks, which statistics count as the file's, without those that it was emptied of.
    pub(super) fn unrecorded_blocks(&self) -> i64 {
        self.live.lock().map.unrecorded_blocks().cast_signed() - self.emptied_blocks().cast_signed()
    }
}

/// Blocks that are reserved for a copy of bytes. When it is dropped, by an error or because the caller gave up, too, blocks
/// behind the bytes that were copied are as they were: left pending without a dirty page, they would keep the size from ever
/// growing over them.
pub(super) struct Reserved<'a> {
    contents: &'a Contents,
    /// Those that were not pending before.
    pending: Vec<BlockRange>,
    at: u64,
    /// Bytes that were copied, from `at` on.
    pub(super) copied_bytes: AtomicUsize,
}

impl Reserved<'_> {
    pub(super) fn copied(&self) -> usize {
        self.copied_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let from = match self.copied() {
            0 => 0,
            copied => self.contents.block.blocks_for(self.at + copied as u64),
        };
        self.contents.unreserve_all(&self.pending, from);
    }
}

impl Live {
    fn keep(&mut self, more: Reservation) {
        match &mut self.reservation {
            Some(reservation) => reservation.merge(more),
            none => *none = Some(more),
        }
    }

    /// Takes up to so many clusters out of the reservation.
    pub(super) fn take_reserved(&mut self, clusters: u64) -> Option<Reservation> {
        self.reservation.as_mut().map(|reservation| reservation.split(clusters))
    }

    /// Puts back what of [`Self::take_reserved`] was not used.
    pub(super) fn put_back(&mut self, rest: Reservation) {
        self.keep(rest);
    }

    /// The place of block `block` in a cluster that is allocated for a run of write-back, this one.
    pub(super) fn shared_place(&self, block: u64, run: u64, cluster: ClusterSize) -> Option<VolumeBlock> {
        let (&first, place) = self.places.range(..cluster.end(block + 1)).next_back()?;
        let (skip, at) = (block - cluster.start(first), place.allocated.run());
        (place.run == Some(run) && skip < at.blocks).then(|| VolumeBlock(at.start.0 + skip))
    }

    /// Gives up the reservation for `delayed` clusters, and that for nodes once nothing may need any; dropped without locks.
    pub(super) fn give_back(&mut self, delayed: u64) -> (Option<Reservation>, Option<Reservation>) {
        let part = self.take_reserved(delayed);
        let rest = if self.map.reserved().0 == 0 {
            self.for_nodes = 0;
            self.reservation.take()
        } else {
            None
        };
        (part, rest)
    }

    /// Blocks have landed or failed: those who wait for them look again.
    pub(super) fn wake(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiters)
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contents({})", self.number())
    }
}

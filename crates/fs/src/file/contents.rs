//! One file's contents in memory: its pages and map, space reserved for dirty pages, and writes in
//! flight.

use crate::alloc::{Allocated, Privilege, Reservation};
use crate::map::Unmapped;
use crate::map::block_state::{Need, OnDisk, WriteStep};
use crate::map::change::{look_up, look_up_damaged, maps_nothing};
use crate::map::file_map::FileMap;
use crate::map::growth::{TreeShape, pointer_growth, tree_growth};
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

/// A regular file's contents, as the cache's backing for its pages.
///
/// Lock order: `endings`, `edits`, `placing`, then `live`, then the inode's record. The last two
/// are never held across a wait.
pub(crate) struct Contents {
    pub(super) writer: Arc<Writer>,
    pub(super) cell: Arc<InodeCell>,
    pub(super) block: BlockSize,
    /// Held while the map on disk changes, from loading its nodes to the end of the handle.
    pub(super) edits: RwLock,
    pub(super) live: Ranked<Live>,
    /// Held while blocks are allocated. If an allocation must read a bitmap, those for later blocks
    /// usually wait for it.
    pub(super) placing: RwLock,
    /// Held by a direct write from I/O completion until the new size is published. Taken before
    /// `edits`.
    pub(super) endings: RwLock,
    /// For an emptied file whose old contents are still on the volume: one more than the number of
    /// old blocks. Otherwise 0. The in-memory map describes only the new contents. Changed under
    /// `edits`.
    pub(super) emptied: AtomicU64,
    /// Number of open files.
    pub(super) files: AtomicUsize,
    _charge: Charge,
}

/// Smallest unit of a cache read, in bytes.
const PAGE_BYTES: u64 = extant_cache::PAGE_BYTES as u64;

/// Memory of a file in the table without its map: two pointers to it, and its pages' index.
pub(super) const MEMORY_BYTES: u64 = size_of::<Contents>() as u64 + 256;

/// State that changes with each write.
pub(super) struct Live {
    pub(super) map: FileMap,
    /// Clusters reserved for delayed blocks and for the nodes that mapping them may need.
    pub(super) reservation: Option<Reservation>,
    /// How many of these clusters are for nodes.
    pub(super) for_nodes: u64,
    /// Blocks allocated but not logged, keyed by the first file block in flight to them.
    pub(super) places: BTreeMap<u64, NewPlace>,
    /// The file block and the volume block right after the last placement.
    pub(super) last_placed: Option<(u64, VolumeBlock)>,
    /// The inode's times are newer than in any transaction.
    pub(super) times_unlogged: bool,
    /// The inode is on the orphan list because blocks are mapped beyond its recorded size.
    pub(super) is_ahead: bool,
    waiters: Vec<Waker>,
}

/// Blocks allocated for a write in flight.
#[derive(Debug)]
pub(super) struct NewPlace {
    pub(super) allocated: Allocated,
    /// The write-back run that writes them, if any.
    pub(super) run: Option<u64>,
}

/// Typical length in blocks of an extent allocated ahead of writes.
const EXTENT_EXPECTED_BLOCKS: u64 = 512;

/// What reserved blocks are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// All of them are about to become dirty.
    Dirty,
    /// Holes to be allocated without a write.
    Holes,
}

/// Changes of a file that are not logged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlogged {
    Idle,
    /// Only its times: it was overwritten in place.
    TimesUnlogged,
    /// Blocks that are dirty, in flight, or beyond the recorded size.
    Busy,
}

impl Contents {
    /// Creates the contents of a file with nothing known yet, charging their memory to `account`.
    pub(super) fn new(writer: Arc<Writer>, cell: Arc<InodeCell>, account: &Account) -> Self {
        let block = writer.store.shape().block_size();
        let mut map = FileMap::new(block, writer.store.shape().cluster_size());
        map.charge_to(account);
        let live = Live {
            map,
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

    /// The size recorded on the volume; the cache's may be larger.
    pub(super) fn recorded_bytes(&self) -> u64 {
        if self.is_emptied() { 0 } else { self.cell.read(Inode::size) }
    }

    /// Blocks that contain at least one byte of a range.
    pub(super) fn blocks_of(&self, range: ByteRange) -> BlockRange {
        BlockRange::new(range.start >> self.block.log2(), self.block.blocks_for(range.end))
    }

    pub(super) fn uses_extents(&self) -> bool {
        self.cell.read(|inode| match inode.flags().contains(InodeFlags::INLINE_DATA) {
            true => self.sb().incompat().contains(Incompat::EXTENTS),
            false => inode.flags().contains(InodeFlags::EXTENTS),
        })
    }

    /// Loads what the map says about a range of blocks.
    ///
    /// # Errors
    /// The map is damaged or unreadable.
    pub(super) async fn know(&self, blocks: BlockRange) -> Result<()> {
        loop {
            let (unknown, version) = {
                let live = self.live.lock();
                (live.map.first_unknown(blocks), live.map.version())
            };
            let Some(unknown) = unknown else { return Ok(()) };
            let found = match self.look_up(unknown).await {
                Ok(found) => found,
                // A node read here may have been freed and reused meanwhile. Retry with changes
                // locked out; that answer is final.
                Err(_) => Box::pin(self.look_up_alone(unknown)).await?,
            };
            self.live.lock().map.learn(version, blocks, &found);
        }
    }

    /// As [`Self::look_up`], with map changes locked out.
    async fn look_up_alone(&self, block: u64) -> Result<Vec<(BlockRange, OnDisk)>> {
        let _edits = self.edits.write().await;
        self.look_up(block).await
    }

    /// Looks up the runs around a block in the map on the volume.
    ///
    /// # Errors
    /// The map is damaged or unreadable, or claims the volume's own metadata.
    async fn look_up(&self, block: u64) -> Result<Vec<(BlockRange, OnDisk)>> {
        if self.is_emptied() || self.cell.read(|inode| maps_nothing(inode, self.sb())) {
            return Ok(vec![(BlockRange::ALL, OnDisk::Hole)]);
        }
        let Writer { store, alloc, .. } = &*self.writer;
        let found = look_up(store, alloc, &self.cell, block).await?;
        for (range, known) in &found {
            if let OnDisk::Written(at) | OnDisk::Unwritten(at) = *known {
                alloc.check_claim(PhysicalRun::new(at, range.len()), Place::Inode(self.number()))?;
            }
        }
        Ok(found)
    }

    /// Finds where a block and its successors are when [`Self::know`] fails, so that damage nearby
    /// does not make them unreadable.
    ///
    /// # Errors
    /// Blocks that the map does not account for.
    pub(super) async fn know_damaged(&self, block: u64) -> std::result::Result<Run, Unmapped> {
        let _edits = self.edits.write().await;
        let Writer { store, alloc, .. } = &*self.writer;
        let mut run = look_up_damaged(store, alloc, &self.cell, block).await?;
        // The blocks after it may exist only in memory.
        if let Some(pending) = self.live.lock().map.pending.next(block) {
            run.blocks = run.blocks.min(pending.saturating_sub(block).max(1));
        }
        Ok(run)
    }

    /// End of the unreadable range that starts at byte `at`: the map does not account for it, or
    /// the device cannot read it.
    pub(super) async fn unreadable_end(&self, at: u64) -> u64 {
        match self.know_damaged(at >> self.block.log2()).await {
            Err(unmapped) => self.bytes_at(unmapped.blocks.end),
            Ok(_) => (at / PAGE_BYTES + 1) * PAGE_BYTES,
        }
    }

    /// Reserves what copying bytes to these blocks may need, starting at byte `at`.
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

    /// Reserves what writing to these blocks may need, and marks them dirty. Returns the blocks
    /// that were not pending before, for [`Self::unreserve_all`] if no page of them becomes dirty.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing marked; errors of [`Self::know`]; why the journal gave up.
    pub(super) async fn reserve(&self, blocks: BlockRange, privilege: Privilege) -> Result<Vec<BlockRange>> {
        self.reserve_as(blocks, privilege, Mark::Dirty, true).await
    }

    /// As [`Self::reserve`], without waiting for others to give space back, for a caller that keeps
    /// them from doing so.
    ///
    /// # Errors
    /// As [`Self::reserve`]; [`Error::NoSpace`] even if a wait might help.
    pub(super) async fn reserve_now(
        &self,
        blocks: BlockRange,
        privilege: Privilege,
    ) -> Result<Vec<BlockRange>> {
        self.reserve_as(blocks, privilege, Mark::Dirty, false).await
    }

    /// Reserves what allocating the holes among these blocks may need, and marks them delayed.
    /// Returns the runs of holes.
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

    /// Additional nodes to reserve when `need` joins what is already dirty.
    fn nodes_for(&self, live: &Live, need: &Need) -> u64 {
        if self.uses_extents() {
            let more = need.delayed_blocks + need.converted_blocks;
            if more == 0 {
                return 0;
            }
            let (blocks, runs) = live.map.pending.reserved();
            let runs = runs + need.delayed.len() as u64 + u64::from(need.converted_blocks > 0);
            let total = tree_growth(self.tree_shape(), blocks + more, runs, self.block);
            return total.saturating_sub(live.for_nodes);
        }
        let growth = |range| pointer_growth(range, self.block);
        need.delayed
            .iter()
            .map(|run| {
                let around = live.map.pending.delayed_around(*run);
                let before = growth(around.until(run.start)) + growth(BlockRange::new(run.end, around.end));
                growth(around).saturating_sub(before)
            })
            .sum()
    }

    /// Nodes for an allocation that no acknowledged write depends on. Assumes extents of typical
    /// length.
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

    /// Drops the reservation of blocks that were marked dirty but will not be written.
    pub(super) fn unreserve(&self, blocks: BlockRange) {
        let given_back = {
            let mut live = self.live.lock();
            let delayed = live.map.abandon(blocks);
            live.give_back(delayed)
        };
        drop(given_back);
    }

    /// Drops the reservation of a failed write's blocks, as returned by [`Self::reserve`], from
    /// block `from` on.
    pub(super) fn unreserve_all(&self, pending: &[BlockRange], from: u64) {
        for blocks in pending.iter().filter(|blocks| blocks.end > from) {
            self.unreserve(BlockRange::new(blocks.start.max(from), blocks.end));
        }
    }

    /// Preferred place for the next block of the file.
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

    /// Drops one opener.
    pub(super) fn close(&self) {
        if self.cell.close() {
            self.writer.delete_later(&self.cell);
        }
    }

    /// What of the file is not logged yet.
    pub(super) fn rest(&self) -> Unlogged {
        let recorded = self.recorded_bytes();
        let live = self.live.lock();
        let is_recorded = !live.is_ahead && live.map.recordable_bytes(recorded) <= recorded;
        match live.map.pending.is_clean() && !self.is_emptied() && is_recorded {
            false => Unlogged::Busy,
            true if live.times_unlogged => Unlogged::TimesUnlogged,
            true => Unlogged::Idle,
        }
    }

    /// Forgets the map of a file that is not open and has no write in flight; it can be loaded
    /// again. Returns the bytes of charge released. The caller holds the file table's lock, under
    /// which opens find the file.
    pub(super) fn forget_map(&self) -> u64 {
        let mut live = self.live.lock();
        let before = live.map.charged_bytes();
        let is_unused = self.files.load(Ordering::Acquire) == 0;
        // The map on the volume is still the old one if the file was emptied.
        if before > 0 && is_unused && live.map.pending.is_clean() && !self.is_emptied() {
            live.map.forget();
        }
        before - live.map.charged_bytes()
    }

    /// Delayed blocks, which statistics count as the file's, minus the old blocks of an emptied
    /// file.
    pub(super) fn unrecorded_blocks(&self) -> i64 {
        self.live.lock().map.pending.unrecorded_blocks().cast_signed() - self.emptied_blocks().cast_signed()
    }
}

/// Blocks reserved for copying bytes. On drop, including after an error or a dropped future, blocks
/// past the copied bytes return to their previous state. If they stayed pending without a dirty
/// page, the recorded size could never grow past them.
pub(super) struct Reserved<'a> {
    contents: &'a Contents,
    /// Those that were not pending before.
    pending: Vec<BlockRange>,
    at: u64,
    /// Bytes copied so far, starting at `at`.
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

    /// Takes up to `clusters` clusters out of the reservation.
    pub(super) fn take_reserved(&mut self, clusters: u64) -> Option<Reservation> {
        self.reservation.as_mut().map(|reservation| reservation.split(clusters))
    }

    /// Puts back the unused part of [`Self::take_reserved`].
    pub(super) fn put_back(&mut self, rest: Reservation) {
        self.keep(rest);
    }

    /// Place of block `block` if its cluster is already allocated for the same write-back run.
    pub(super) fn shared_place(&self, block: u64, run: u64, cluster: ClusterSize) -> Option<VolumeBlock> {
        let (&first, place) = self.places.range(..cluster.end(block + 1)).next_back()?;
        let (skip, at) = (block - cluster.start(first), place.allocated.run());
        (place.run == Some(run) && skip < at.blocks).then(|| VolumeBlock(at.start.0 + skip))
    }

    /// Releases the reservation for `delayed` clusters, and the one for nodes once nothing needs
    /// it. The result must be dropped without locks held.
    pub(super) fn give_back(&mut self, delayed: u64) -> (Option<Reservation>, Option<Reservation>) {
        let part = self.take_reserved(delayed);
        let rest = if self.map.pending.reserved().0 == 0 {
            self.for_nodes = 0;
            self.reservation.take()
        } else {
            None
        };
        (part, rest)
    }

    /// Blocks have landed or failed: returns the waiters, to be woken so that they look again.
    pub(super) fn wake(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiters)
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contents({})", self.number())
    }
}

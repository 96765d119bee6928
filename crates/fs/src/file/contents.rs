//! One file's contents in memory: its pages and map, space reserved for dirty pages, and writes in
//! flight.

use super::in_flight_places::InFlightPlaces;
use super::reserve::FileReserve;
use crate::alloc::Reservation;
use crate::map::block_state::WriteStep;
use crate::map::file_map::FileMap;
use crate::meta::{InodeCell, LockRank, Ranked};
use crate::writer::Writer;
use extant_block::Sector;
use extant_cache::ByteRange;
use extant_cache::accounts::{Account, Charge};
use extant_format::{BlockRange, BlockSize, Incompat, InodeFlags, InodeNumber, Superblock, VolumeBlock};
use extant_rt::RwLock;
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
    pub(super) live: Ranked<FileState>,
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

/// Memory of a file in the table without its map: two pointers to it, and its pages' index.
pub(super) const MEMORY_BYTES: u64 = size_of::<Contents>() as u64 + 256;

/// State that changes with each write.
pub(super) struct FileState {
    pub(super) map: FileMap,
    pub(super) reserve: FileReserve,
    pub(super) places: InFlightPlaces,
    /// The file block and the volume block right after the last placement.
    pub(super) last_placed: Option<(u64, VolumeBlock)>,
    /// The inode's times are newer than in any transaction.
    pub(super) times_unlogged: bool,
    /// The inode is on the orphan list because blocks are mapped beyond its recorded size.
    pub(super) is_ahead: bool,
    waiters: Vec<Waker>,
}

/// Changes of a file that are not logged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlogged {
    Idle,
    /// Only the file's times: it was overwritten in place.
    Times,
    /// Blocks that are dirty, in flight, or beyond the recorded size.
    Busy,
}

impl Contents {
    /// Creates the contents of a file with nothing known yet, charging their memory to `account`.
    pub(super) fn new(writer: Arc<Writer>, cell: Arc<InodeCell>, account: &Account) -> Self {
        let block = writer.store.shape().block_size();
        let mut map = FileMap::new(block, writer.store.shape().cluster_size());
        map.charge_to(account);
        let live = FileState {
            map,
            reserve: FileReserve::default(),
            places: InFlightPlaces::default(),
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

    /// Blocks that contain at least one byte of a range.
    pub(super) fn blocks_of(&self, range: ByteRange) -> BlockRange {
        BlockRange::new(range.start >> self.block.log2(), self.block.blocks_for(range.end))
    }

    pub(super) fn sector(&self, at: VolumeBlock, skip_bytes: u64) -> Sector {
        Sector((at.0 << (self.block.log2() - 9)) + skip_bytes / Sector::BYTES)
    }

    pub(super) fn bytes_at(&self, block: u64) -> u64 {
        block << self.block.log2()
    }

    pub(super) fn uses_extents(&self) -> bool {
        self.cell.read(|inode| match inode.flags().contains(InodeFlags::INLINE_DATA) {
            true => self.sb().incompat().contains(Incompat::EXTENTS),
            false => inode.flags().contains(InodeFlags::EXTENTS),
        })
    }

    /// Updates the inode's times for a change of its contents. The transaction that logs the data,
    /// or a sync, logs them.
    pub(super) fn touch(&self) {
        let now = self.writer.clock.now();
        // Under the lock, so that a sync that sees the new times also sees them as unlogged.
        let mut live = self.live.lock();
        live.times_unlogged |= self.cell.touch_contents(now);
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

    /// Returns which changes of the file are not logged yet.
    pub(super) fn unlogged(&self) -> Unlogged {
        let recorded = self.recorded_bytes();
        let live = self.live.lock();
        let is_recorded = !live.is_ahead && live.map.recordable_bytes(recorded) <= recorded;
        match live.map.pending.is_clean() && !self.is_emptied() && is_recorded {
            false => Unlogged::Busy,
            true if live.times_unlogged => Unlogged::Times,
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

impl FileState {
    /// Releases the reservation for `delayed` clusters, and the one for nodes once nothing needs
    /// it. The result must be dropped without locks held.
    pub(super) fn give_back(&mut self, delayed: u64) -> [Option<Reservation>; 2] {
        self.reserve.give_back(delayed, &self.map)
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

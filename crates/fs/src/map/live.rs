//! A file's map in memory: what is known of the map on disk, overlaid with what is dirty or in
//! flight.
//!
//! This code is pure: it answers every question from memory, or answers that something is unknown,
//! so that the caller loads the node that has the answer. A block is *pending* if the volume does
//! not yet have its data, its place, or a recorded size that covers it. Pending blocks are
//! authoritative. What is *known* is a cache and may be forgotten at any time.
//!
//! ```text
//! hole      -write-> delayed  -claim-> in flight (new), -place-> placed -end-> written, logged
//! unwritten -write-> converts -claim-> in flight (unwritten)            -end-> written, logged
//! written, not covered by the recorded size
//!           -write-> beyond   -claim-> in flight (written)              -end-> size logged
//! ```
//!
//! With `bigalloc`, a hole in a cluster that the file owns is *implied*, and is written like an
//! unwritten block. Only one write-back run at a time may have blocks of a delayed cluster in
//! flight; blocks of other runs wait until the cluster is allocated. If the run has several pieces
//! in the cluster, the first is *new* and the others *share* its place.
//!
//! The block that contained the end of the file when write-back took it stays *beyond* after the
//! write ends. Bytes past that end may have been copied to its page since, before or after the
//! write was taken. This keeps the recorded size from covering bytes that exist only in memory,
//! regardless of the order of marking, copying, taking and ending.

use super::runs::{RunMap, RunValue};
use extant_cache::ByteRange;
use extant_cache::accounts::{Account, Charge};
use extant_format::{BlockRange, BlockSize, ClusterSize, VolumeBlock};

/// Most runs of the map on disk to keep in memory.
const KNOWN_MAX: usize = 2048;
/// Memory of one run, with its share of a tree node.
const RUN_BYTES: u64 = 64;
/// Charges are rounded up to a multiple of this.
const CHARGE_STEP_BYTES: u64 = 1024;

/// A run's state in the map on disk, including changes logged but not yet checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Hole,
    Written(VolumeBlock),
    Unwritten(VolumeBlock),
    /// A hole in a cluster that the file owns because other blocks of it are mapped; this is the
    /// block's place.
    Implied(VolumeBlock),
}

/// A block's state before its write was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Was {
    /// Delayed; its place was allocated for this write.
    New,
    /// Delayed, in a cluster being allocated for a `New` block of the same write-back run. If that
    /// block's write fails, the place is void.
    Shared,
    Unwritten,
    Written,
}

/// Why a block is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Dirty and unallocated; its space is reserved.
    Delayed,
    /// Dirty over an unwritten block.
    Converts(VolumeBlock),
    /// A written block that the recorded size did not cover; its page may be dirty. Its bytes on
    /// the device are valid up to this file offset.
    Beyond { at: VolumeBlock, valid_bytes: u64 },
    /// Claimed by write-back: being written to its place, or about to get one. Before this write,
    /// its bytes on the device were valid up to this file offset.
    InFlight { to: Option<VolumeBlock>, was: Was, valid_bytes: u64 },
}

/// How a block's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Hole,
    /// In memory only, with space reserved, or being written to a place that no transaction
    /// contains yet.
    Delayed,
    /// Allocated; reads as zeroes unless `is_dirty`, in which case its bytes are in memory.
    Unwritten {
        at: VolumeBlock,
        is_dirty: bool,
    },
    Written(VolumeBlock),
}

impl RunValue for Known {
    fn advance(self, skip: u64) -> Self {
        match self {
            Self::Hole => Self::Hole,
            Self::Written(at) => Self::Written(VolumeBlock(at.0 + skip)),
            Self::Unwritten(at) => Self::Unwritten(VolumeBlock(at.0 + skip)),
            Self::Implied(at) => Self::Implied(VolumeBlock(at.0 + skip)),
        }
    }
}

impl RunValue for Pending {
    fn advance(self, skip: u64) -> Self {
        let on = |at: VolumeBlock| VolumeBlock(at.0 + skip);
        match self {
            Self::Delayed => Self::Delayed,
            Self::Converts(at) => Self::Converts(on(at)),
            Self::Beyond { at, valid_bytes } => Self::Beyond { at: on(at), valid_bytes },
            Self::InFlight { to, was, valid_bytes } => Self::InFlight { to: to.map(on), was, valid_bytes },
        }
    }
}

/// How write-back handles a run of dirty blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStep {
    /// Overwrite in place; the map does not change.
    Overwrite(VolumeBlock),
    /// Write in place and log when it ends. In a *fresh* block, the bytes outside the dirty ones
    /// are undefined.
    InPlace { to: VolumeBlock, fresh: bool },
    /// Needs allocation; space is reserved.
    Allocate,
    /// Write nothing: the page cache zeroed what a truncation cut off, and the block reads as
    /// zeroes anyway.
    Zeroes,
    /// An earlier write to it has not ended.
    Wait,
    /// A write that allocates its cluster has not ended. A block of the same write-back run shares
    /// the place; others wait.
    Share,
}

/// What marking a range dirty adds to the file's reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Runs of holes that become delayed.
    pub(crate) delayed: Vec<BlockRange>,
    /// Total number of blocks in `delayed`.
    pub(crate) delayed_blocks: u64,
    /// Clusters to be allocated for `delayed`.
    pub(crate) clusters: u64,
    /// Unwritten and implied blocks that become dirty.
    pub(crate) converted_blocks: u64,
}

/// One file's map in memory.
#[derive(Debug)]
pub(crate) struct LiveMap {
    block: BlockSize,
    cluster: ClusterSize,
    pending: RunMap<Pending>,
    known: RunMap<Known>,
    /// Delayed blocks, and dirty or in-flight blocks over unwritten ones.
    reserved_blocks: u64,
    /// The largest size that a finished write-back vouches for.
    written_bytes: u64,
    /// No block from here on has been logged as written through this map.
    logged_end: u64,
    /// The charge for its memory, if any.
    charge: Option<Charge>,
}

impl LiveMap {
    /// Creates the map of a file about which nothing is known yet.
    pub(crate) fn new(block: BlockSize, cluster: ClusterSize) -> Self {
        Self {
            block,
            cluster,
            pending: RunMap::default(),
            known: RunMap::default(),
            reserved_blocks: 0,
            written_bytes: 0,
            logged_end: 0,
            charge: None,
        }
    }

    /// Charges its memory to `account` for its whole lifetime.
    pub(crate) fn charge_to(&mut self, account: &Account) {
        self.charge = Some(account.charge(self.memory_bytes()));
    }

    /// Bytes charged.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Approximate memory of the runs. It grows in steps, so that most changes leave the charge
    /// alone.
    fn memory_bytes(&self) -> u64 {
        ((self.pending.len() + self.known.len()) as u64 * RUN_BYTES).next_multiple_of(CHARGE_STEP_BYTES)
    }

    fn recharge(&mut self) {
        let bytes = self.memory_bytes();
        if let Some(charge) = self.charge.as_mut().filter(|charge| charge.bytes() != bytes) {
            charge.resize(bytes);
        }
    }

    /// Caches runs of the map on disk for a caller that asked for blocks `asked`. All runs that
    /// overlap `asked` are kept, however many, so that a caller that asks again makes progress.
    pub(crate) fn learn(&mut self, asked: BlockRange, runs: &[(BlockRange, Known)]) {
        if self.known.len() + runs.len() > KNOWN_MAX {
            self.known.remove(BlockRange::new(0, asked.start));
            self.known.remove(BlockRange::new(asked.end.max(asked.start), u64::MAX));
        }
        for (range, known) in runs {
            if range.overlaps(asked) || self.known.len() < KNOWN_MAX {
                self.known.insert(*range, *known);
            }
        }
        self.recharge();
    }

    /// Forgets what is known. Pending blocks stay.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.recharge();
    }

    /// Where a reader finds block `at`, and the run of blocks this applies to. `None` if the map
    /// must be loaded. Dirty blocks without data on the device are holes to a reader, since their
    /// pages are in the cache.
    pub(crate) fn read(&self, at: u64) -> Option<(BlockRange, Known)> {
        if let Some((run, pending)) = self.pending.get(at) {
            let known = match pending {
                Pending::Delayed | Pending::InFlight { was: Was::New | Was::Shared, .. } => Known::Hole,
                Pending::Converts(at) => Known::Unwritten(at),
                Pending::Beyond { at, .. } => Known::Written(at),
                Pending::InFlight { to, was: Was::Unwritten, .. } => to.map_or(Known::Hole, Known::Unwritten),
                Pending::InFlight { to, was: Was::Written, .. } => to.map_or(Known::Hole, Known::Written),
            };
            return Some((run, known));
        }
        let (run, known) = self.known.get(at)?;
        let end = self.pending.first_from(at).map_or(run.end, |(next, _)| next.start.min(run.end));
        Some((run.until(end), known))
    }

    /// The first pending block at or after `at`.
    pub(crate) fn next_pending(&self, at: u64) -> Option<u64> {
        self.pending.first_from(at).map(|(run, _)| run.start)
    }

    /// How block `at` is stored, dirty blocks included, and the run of blocks this applies to.
    /// `None` if the map must be loaded.
    pub(crate) fn stored(&self, at: u64) -> Option<(BlockRange, Stored)> {
        let (run, known) = self.read(at)?;
        let is_dirty = self.pending.get(at).is_some();
        let stored = match known {
            Known::Hole if is_dirty => Stored::Delayed,
            Known::Hole | Known::Implied(_) => Stored::Hole,
            Known::Unwritten(at) => Stored::Unwritten { at, is_dirty },
            Known::Written(at) => Stored::Written(at),
        };
        Some((run, stored))
    }

    /// The first block of a range about which nothing is known.
    pub(crate) fn first_unknown(&self, range: BlockRange) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            match self.read(at) {
                Some((run, _)) => at = run.end,
                None => return Some(at),
            }
        }
        None
    }

    /// The reservation needed for a write to a range, all of which is known or pending.
    pub(crate) fn need(&self, range: BlockRange) -> Need {
        let (mut need, mut counted) = (Need::default(), 0);
        let mut at = range.start;
        while at < range.end {
            let Some((run, known)) = self.read(at) else { break };
            let end = run.end.min(range.end);
            let is_pending = self.pending.get(at).is_some();
            match known {
                Known::Hole if !is_pending => {
                    need.delayed_blocks += end - at;
                    need.clusters += self.unreserved_clusters(BlockRange::new(at, end), &mut counted);
                    match need.delayed.last_mut().filter(|last| last.end == at) {
                        Some(last) => last.end = end,
                        None => need.delayed.push(BlockRange::new(at, end)),
                    }
                }
                Known::Unwritten(_) | Known::Implied(_) if !is_pending => need.converted_blocks += end - at,
                _ => {}
            }
            at = end;
        }
        need
    }

    /// Whether a cluster is reserved, or allocated in memory, for delayed blocks or blocks in
    /// flight to a new place.
    fn is_reserved(&self, cluster: BlockRange) -> bool {
        self.pending
            .iter_in(cluster)
            .any(|(_, pending)| matches!(pending, Pending::Delayed | Pending::InFlight { was: Was::New, .. }))
    }

    /// Whether blocks of a cluster are in flight to a place that no transaction contains yet.
    fn is_being_allocated(&self, cluster: BlockRange) -> bool {
        !self.cluster.is_block()
            && self
                .pending
                .iter_in(cluster)
                .any(|(_, pending)| matches!(pending, Pending::InFlight { was: Was::New, .. }))
    }

    fn cluster_of(&self, block: u64) -> BlockRange {
        self.cluster.around(BlockRange::one(block))
    }

    /// Counts the clusters touched by `run` that have no reservation, from block `counted` on, and
    /// moves `counted` to the end of the last one. No block of `run` is pending.
    fn unreserved_clusters(&self, run: BlockRange, counted: &mut u64) -> u64 {
        if self.cluster.is_block() {
            return run.len();
        }
        let mut clusters = self.cluster.around(run);
        clusters.start = clusters.start.max(*counted);
        *counted = clusters.end.max(*counted);
        if !clusters.is_empty() && self.is_reserved(self.cluster_of(clusters.start)) {
            clusters.start += self.cluster.blocks();
        }
        if !clusters.is_empty() && self.is_reserved(self.cluster_of(clusters.end - 1)) {
            clusters.end -= self.cluster.blocks();
        }
        self.cluster.count(clusters)
    }

    /// Notes that the clusters of a run allocated at `to` belong to the file, so their other blocks
    /// are implied.
    fn imply_around(&mut self, run: BlockRange, to: VolumeBlock) {
        if self.cluster.is_block() {
            return;
        }
        let clusters = self.cluster.around(run);
        let first = VolumeBlock(self.cluster.start(to.0));
        let place = |block: u64| VolumeBlock(first.0 + (block - clusters.start));
        for part in [clusters.until(run.start), BlockRange::new(run.end, clusters.end)] {
            let pending: Vec<_> = self.pending.iter_in(part).collect();
            for (blocks, pending) in pending {
                match pending {
                    Pending::Delayed => self.pending.insert(blocks, Pending::Converts(place(blocks.start))),
                    // From now on logged, or failed, like a write over an unwritten block.
                    Pending::InFlight { to, was: Was::Shared, valid_bytes } => {
                        self.pending
                            .insert(blocks, Pending::InFlight { to, was: Was::Unwritten, valid_bytes });
                    }
                    _ => {}
                }
            }
            let known: Vec<_> = self.known.iter_in(part).collect();
            for (blocks, _) in known.into_iter().filter(|(_, known)| *known == Known::Hole) {
                self.known.insert(blocks, Known::Implied(place(blocks.start)));
            }
        }
    }

    /// Marks a range dirty after its space has been reserved. `recorded_bytes` is the file's
    /// recorded size. Returns the parts that were not pending before.
    pub(crate) fn mark_dirty(&mut self, range: BlockRange, recorded_bytes: u64) -> Vec<BlockRange> {
        let mut new: Vec<BlockRange> = Vec::new();
        let covered = recorded_bytes >> self.block.log2();
        let mut at = range.start;
        while at < range.end {
            if let Some((run, _)) = self.pending.get(at) {
                at = run.end;
                continue;
            }
            let Some((run, known)) = self.read(at) else { break };
            let run = run.until(range.end);
            at = run.end;
            let pending_from = match known {
                Known::Written(_) => run.start.max(covered).min(run.end),
                _ => run.start,
            };
            if pending_from < run.end {
                new.push(BlockRange::new(pending_from, run.end));
            }
            match known {
                Known::Hole => {
                    self.reserved_blocks += run.len();
                    self.pending.insert(run, Pending::Delayed);
                }
                Known::Unwritten(at) | Known::Implied(at) => {
                    self.reserved_blocks += run.len();
                    self.pending.insert(run, Pending::Converts(at));
                }
                Known::Written(at) if run.end > covered => {
                    let from = run.start.max(covered);
                    let at = VolumeBlock(at.0 + (from - run.start));
                    self.pending.insert(
                        BlockRange::new(from, run.end),
                        Pending::Beyond { at, valid_bytes: recorded_bytes },
                    );
                }
                Known::Written(_) => {}
            }
        }
        self.recharge();
        new
    }

    /// Clusters in which a range has both a hole and blocks that are delayed or in flight to a
    /// place that no transaction contains yet. They are in order, with adjacent ones joined. All of
    /// the range is known or pending.
    pub(crate) fn contested_clusters(&self, range: BlockRange) -> Vec<BlockRange> {
        let mut found: Vec<BlockRange> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some((run, known)) = self.read(at) else { break };
            let run = run.until(range.end);
            let is_hole = known == Known::Hole && self.pending.get(at).is_none();
            at = run.end;
            // If a hole spans several clusters, only the first and the last can have other blocks.
            for cluster in [self.cluster_of(run.start), self.cluster_of(run.end - 1)] {
                if !is_hole || !self.is_reserved(cluster) {
                    continue;
                }
                match found.last_mut().filter(|last| cluster.start <= last.end) {
                    Some(last) => last.end = cluster.end,
                    None => found.push(cluster),
                }
            }
        }
        found
    }

    /// Marks the holes of a range, whose space is reserved, as about to be allocated without a
    /// write. Skips implied blocks. Returns the runs of holes.
    pub(crate) fn delay_holes(&mut self, range: BlockRange) -> Vec<BlockRange> {
        let mut holes: Vec<BlockRange> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some((run, known)) = self.read(at) else { break };
            let is_pending = self.pending.get(at).is_some();
            let run = run.until(range.end);
            at = run.end;
            if known != Known::Hole || is_pending {
                continue;
            }
            self.reserved_blocks += run.len();
            self.pending.insert(run, Pending::Delayed);
            match holes.last_mut().filter(|last| last.end == run.start) {
                Some(last) => last.end = run.end,
                None => holes.push(run),
            }
        }
        self.recharge();
        holes
    }

    /// The first delayed run of a range.
    pub(crate) fn first_delayed(&self, range: BlockRange) -> Option<BlockRange> {
        let delayed = self.pending.iter_in(range).find(|(_, pending)| *pending == Pending::Delayed);
        delayed.map(|(run, _)| run)
    }

    /// Marks blocks in flight that were allocated without a write as unwritten.
    pub(crate) fn preallocated(&mut self, range: BlockRange) {
        for (run, to, _) in self.in_flight(range) {
            self.reserved_blocks -= run.len();
            self.pending.remove(run);
            self.known.insert(run, Known::Unwritten(to));
            self.imply_around(run, to);
        }
        self.recharge();
    }

    /// Records a new mapping of a range, of which nothing is delayed or in flight.
    pub(crate) fn remap(&mut self, range: BlockRange, known: Known) {
        self.pending.remove(range);
        self.known.insert(range, known);
        self.recharge();
    }

    /// Records that a range is no longer mapped; nothing of it is delayed or in flight. Other
    /// blocks of its first and last clusters have places of their own, or none.
    pub(crate) fn unmap(&mut self, range: BlockRange) {
        self.pending.remove(range);
        match self.cluster.is_block() {
            true => self.known.insert(range, Known::Hole),
            // The map on disk tells whether the file still owns these clusters.
            false => self.known.remove(self.cluster.around(range)),
        }
        self.recharge();
    }

    /// Forgets the map after any of it may have changed. Nothing of the file is delayed or in
    /// flight, and the device has it up to byte `size_bytes`.
    pub(crate) fn reset(&mut self, size_bytes: u64) {
        debug_assert_eq!(self.reserved_blocks, 0, "nothing is dirty");
        self.pending.clear();
        self.known.clear();
        self.written_bytes = size_bytes;
        self.logged_end = self.logged_end.min(self.block.blocks_for(size_bytes));
        self.recharge();
    }

    /// Vouches for every byte below `size_bytes`: each is on the device, pending, or in a hole made
    /// on purpose. Nothing is being written to the file's pages.
    pub(crate) fn vouch(&mut self, size_bytes: u64) {
        self.written_bytes = self.written_bytes.max(size_bytes);
    }

    /// Records that the file's last block is on the device up to its end and its page is clean, so
    /// the file may grow past it.
    pub(crate) fn whole(&mut self, last: u64) {
        if matches!(self.pending.get(last), Some((_, Pending::Beyond { .. }))) {
            self.pending.remove(BlockRange::one(last));
        }
    }

    /// Records that no byte past `size_bytes` is on the device, even if vouched for before.
    pub(crate) fn distrust(&mut self, size_bytes: u64) {
        self.written_bytes = self.written_bytes.min(size_bytes);
    }

    /// The write-back step for the blocks from `at` on, and the run it applies to. `None` if the
    /// map must be loaded.
    pub(crate) fn write_step(&self, at: u64) -> Option<(BlockRange, WriteStep)> {
        if let Some((run, pending)) = self.pending.get(at) {
            let step = match pending {
                // The first write of a cluster allocates it.
                Pending::Delayed if self.is_being_allocated(self.cluster_of(run.start)) => {
                    return Some((run.until(self.cluster.end(run.start + 1)), WriteStep::Share));
                }
                Pending::Delayed if self.is_being_allocated(self.cluster_of(run.end - 1)) => {
                    return Some((run.until(self.cluster.start(run.end - 1)), WriteStep::Allocate));
                }
                Pending::Delayed => WriteStep::Allocate,
                Pending::Converts(to) => WriteStep::InPlace { to, fresh: true },
                Pending::Beyond { at: to, .. } => WriteStep::InPlace { to, fresh: false },
                Pending::InFlight { .. } => WriteStep::Wait,
            };
            return Some((run, step));
        }
        let (run, known) = self.read(at)?;
        let step = match known {
            Known::Written(at) => WriteStep::Overwrite(at),
            Known::Hole | Known::Unwritten(_) | Known::Implied(_) => WriteStep::Zeroes,
        };
        Some((run, step))
    }

    /// Claims dirty blocks of one kind for write-back. No other run takes them until they land or
    /// fail.
    pub(crate) fn claim(&mut self, range: BlockRange) {
        let parts: Vec<_> = self.pending.iter_in(range).collect();
        for (run, pending) in parts {
            let (to, was, valid_bytes) = match pending {
                Pending::Delayed => (None, Was::New, 0),
                Pending::Converts(at) => (Some(at), Was::Unwritten, 0),
                Pending::Beyond { at, valid_bytes } => (Some(at), Was::Written, valid_bytes),
                Pending::InFlight { .. } => continue,
            };
            self.pending.insert(run, Pending::InFlight { to, was, valid_bytes });
        }
    }

    /// As [`Self::claim`], for delayed blocks in a cluster being allocated for the same write-back
    /// run. `to` is the place of the first of them.
    pub(crate) fn share(&mut self, range: BlockRange, to: VolumeBlock) {
        self.pending.insert(range, Pending::InFlight { to: Some(to), was: Was::Shared, valid_bytes: 0 });
    }

    /// Places claimed blocks, which are about to be written.
    pub(crate) fn place(&mut self, range: BlockRange, to: VolumeBlock) {
        let parts: Vec<_> = self.pending.iter_in(range).collect();
        for (run, pending) in parts {
            let Pending::InFlight { to: None, was, valid_bytes } = pending else {
                unreachable!("blocks are claimed before they get a place")
            };
            let to = Some(VolumeBlock(to.0 + (run.start - range.start)));
            self.pending.insert(run, Pending::InFlight { to, was, valid_bytes });
        }
    }

    /// The blocks of a range that are in flight, with their places and previous states.
    pub(crate) fn in_flight(&self, range: BlockRange) -> Vec<(BlockRange, VolumeBlock, Was)> {
        let parts = self.pending.iter_in(range).filter_map(|(run, pending)| match pending {
            Pending::InFlight { to: Some(to), was, .. } => Some((run, to, was)),
            _ => None,
        });
        parts.collect()
    }

    /// Whether block `at` holds bytes, on the device or in memory, rather than reading as zeroes
    /// because it was never written. `None` if the map must be loaded.
    pub(crate) fn has_data(&self, at: u64) -> Option<bool> {
        if self.pending.get(at).is_some() {
            return Some(true);
        }
        self.known.get(at).map(|(_, known)| matches!(known, Known::Written(_)))
    }

    /// A block's place, if it has one.
    pub(crate) fn place_of(&self, block: u64) -> Option<VolumeBlock> {
        match self.pending.get(block) {
            Some((_, Pending::InFlight { to, .. })) => to,
            Some((_, Pending::Converts(at) | Pending::Beyond { at, .. })) => Some(at),
            Some((_, Pending::Delayed)) => None,
            None => match self.known.get(block) {
                Some((_, Known::Written(at) | Known::Unwritten(at) | Known::Implied(at))) => Some(at),
                _ => None,
            },
        }
    }

    /// Marks blocks in flight as being on the device, with what points to them being logged. The
    /// file was `size_bytes` long when their run was taken.
    pub(crate) fn landed(&mut self, range: BlockRange, size_bytes: u64) {
        let parts: Vec<_> = self.pending.iter_in(range).collect();
        for (run, pending) in parts {
            let Pending::InFlight { to: Some(to), was, valid_bytes } = pending else { continue };
            if was != Was::Written {
                self.reserved_blocks -= run.len();
            }
            self.pending.remove(run);
            self.known.insert(run, Known::Written(to));
            if was == Was::New {
                self.imply_around(run, to);
            }
            self.logged_end = self.logged_end.max(run.end);
            // Only to the end of the run: beyond a hole there may be blocks that have not reached
            // the device.
            self.written_bytes = self.written_bytes.max(size_bytes.min(run.end << self.block.log2()));
            // Blocks entirely below the run's size are valid, whatever has been written to them
            // since.
            let from = run.start.max(size_bytes >> self.block.log2());
            if from < run.end {
                let at = VolumeBlock(to.0 + (from - run.start));
                // If a block is larger than a page, a run taken earlier may end later.
                let valid_bytes = valid_bytes.max(size_bytes);
                self.pending.insert(BlockRange::new(from, run.end), Pending::Beyond { at, valid_bytes });
            }
        }
        self.recharge();
    }

    /// The byte up to which the volume has a range whose blocks were written.
    pub(crate) fn logged_until(&self, bytes: ByteRange) -> u64 {
        let blocks = BlockRange::new(bytes.start >> self.block.log2(), self.block.blocks_for(bytes.end));
        let start = |run: BlockRange| (run.start << self.block.log2()).max(bytes.start);
        let mut rest = self.pending.iter_in(blocks).filter(|(_, pending)| {
            !matches!(pending, Pending::Beyond { valid_bytes, .. } if *valid_bytes >= bytes.end)
        });
        rest.next().map_or(bytes.end, |(run, _)| start(run))
    }

    /// Returns blocks in flight that did not reach the device to their previous state. Places
    /// allocated for them are void, as are those of blocks sharing them.
    pub(crate) fn failed(&mut self, range: BlockRange) {
        let parts: Vec<_> = self.pending.iter_in(range).collect();
        for (run, pending) in parts {
            let Pending::InFlight { to, was, valid_bytes } = pending else { continue };
            let before = match (was, to) {
                (Was::Unwritten, Some(at)) => Pending::Converts(at),
                (Was::Written, Some(at)) => Pending::Beyond { at, valid_bytes },
                (Was::New | Was::Shared, _) | (_, None) => Pending::Delayed,
            };
            self.pending.insert(run, before);
            if was == Was::New && !self.cluster.is_block() {
                let around: Vec<_> = self.pending.iter_in(self.cluster.around(run)).collect();
                let shares = |pending| matches!(pending, Pending::InFlight { was: Was::Shared, .. });
                for (blocks, _) in around.into_iter().filter(|(_, pending)| shares(*pending)) {
                    self.pending.insert(blocks, Pending::Delayed);
                }
            }
        }
    }

    /// Drops dirty blocks that will not be written: given up, cut off, or never written to. Returns
    /// the number of clusters reserved only for delayed ones among them.
    pub(crate) fn abandon(&mut self, range: BlockRange) -> u64 {
        let mut parts: Vec<_> = self.pending.iter_in(range).collect();
        for &(run, pending) in &parts {
            match pending {
                Pending::Delayed | Pending::Converts(_) => self.reserved_blocks -= run.len(),
                Pending::Beyond { .. } => {}
                Pending::InFlight { .. } => continue,
            }
            self.pending.remove(run);
        }
        self.recharge();
        parts.retain(|(_, pending)| *pending == Pending::Delayed);
        let mut counted = 0;
        parts.iter().map(|(run, _)| self.unreserved_clusters(*run, &mut counted)).sum()
    }

    /// Cuts the file off before block `from` and at byte `size_bytes`, leaving a hole after it.
    /// Nothing past that is in flight. Returns the same as [`Self::abandon`].
    pub(crate) fn truncate(&mut self, from: u64, size_bytes: u64) -> u64 {
        let delayed = self.abandon(BlockRange::from_block(from));
        debug_assert!(self.pending.first_from(from).is_none(), "nothing that is truncated is in flight");
        if let Some(last) = from.checked_sub(1)
            && let Some((run, Pending::Beyond { at, valid_bytes })) = self.pending.get(last)
        {
            self.pending.insert(run, Pending::Beyond { at, valid_bytes: valid_bytes.min(size_bytes) });
        }
        // The file may own the rest of the last cluster for as long as that cluster is mapped.
        self.known.remove(BlockRange::from_block(from));
        let holes = BlockRange::from_block(self.cluster.end(from));
        if !holes.is_empty() {
            self.known.insert(holes, Known::Hole);
        }
        self.written_bytes = self.written_bytes.min(size_bytes);
        self.logged_end = self.logged_end.min(from);
        self.recharge();
        delayed
    }

    /// The size to record now: it covers what is on the device and nothing more.
    pub(crate) fn recordable_bytes(&self, recorded_bytes: u64) -> u64 {
        let covered = recorded_bytes >> self.block.log2();
        let limit = self.pending.first_from(covered).map_or(u64::MAX, |(run, pending)| {
            let start = run.start << self.block.log2();
            match pending {
                Pending::Beyond { valid_bytes, .. } => start.max(valid_bytes),
                _ => start,
            }
        });
        recorded_bytes.max(self.written_bytes.min(limit))
    }

    /// Whether a block logged as written starts past the recorded size, with earlier blocks still
    /// to be written.
    pub(crate) fn is_ahead(&self, recorded_bytes: u64) -> bool {
        self.logged_end.checked_sub(1).is_some_and(|last| last << self.block.log2() > recorded_bytes)
    }

    /// Most blocks that the tree may have to map anew, and most runs they can be in. The
    /// reservation for nodes is based on these.
    pub(crate) fn reserved(&self) -> (u64, u64) {
        (self.reserved_blocks, if self.reserved_blocks == 0 { 0 } else { self.pending.len() as u64 })
    }

    /// Blocks that the file gains once everything pending is written.
    pub(crate) fn unrecorded_blocks(&self) -> u64 {
        if self.cluster.is_block() {
            return self.reserved_blocks;
        }
        let is_new = |pending| matches!(pending, Pending::Delayed | Pending::InFlight { was: Was::New, .. });
        let (mut counted, mut blocks) = (0, 0);
        for (run, _) in self.pending.iter_in(BlockRange::ALL).filter(|(_, pending)| is_new(*pending)) {
            let clusters = self.cluster.around(run);
            blocks += BlockRange::new(clusters.start.max(counted), clusters.end).len();
            counted = clusters.end;
        }
        blocks
    }

    /// Joins a range with its delayed neighbours; a map of pointers bases its reservation on this.
    pub(crate) fn delayed_around(&self, range: BlockRange) -> BlockRange {
        let mut around = range;
        if let Some(before) = range.start.checked_sub(1)
            && let Some((_, Pending::Delayed)) = self.pending.get(before)
        {
            around.start = self.pending.start_of(before);
        }
        if let Some((run, Pending::Delayed)) = self.pending.get(range.end) {
            around.end = run.end;
        }
        around
    }

    /// Whether the volume has every block that was written, not counting blocks that only wait to
    /// be written again.
    pub(crate) fn is_clean(&self) -> bool {
        let mut all = self.pending.iter_in(BlockRange::ALL);
        all.all(|(_, pending)| matches!(pending, Pending::Beyond { .. }))
    }

    /// Whether a range has blocks, dirty or in flight, whose places the file may own only because
    /// of other blocks.
    pub(crate) fn writes_implied(&self, range: BlockRange) -> bool {
        let is_implied =
            |pending| matches!(pending, Pending::Converts(_) | Pending::InFlight { was: Was::Unwritten, .. });
        self.pending.iter_in(range).any(|(_, pending)| is_implied(pending))
    }
}

#[cfg(test)]
mod tests;

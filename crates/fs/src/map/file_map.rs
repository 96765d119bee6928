//! A file's map in memory: what is known of the map on disk, overlaid with what is dirty or in
//! flight.
//!
//! This code is pure: it answers every question from memory, or answers that something is unknown,
//! so that the caller loads the node that has the answer. Pending blocks are authoritative. What is
//! *known* is a cache and may be forgotten at any time.

use super::block_state::{Need, OnDisk, Stored, WasBefore, WriteStep};
use super::pending::PendingBlocks;
use super::recorded_size::SizeOnDisk;
use super::run_map::RunMap;
use super::shared_clusters::RestOfClusters;
use extant_cache::accounts::{Account, Charge};
use extant_format::{BlockRange, BlockSize, ClusterSize, UintExt, VolumeBlock};

/// Memory of one run, with its share of a tree node.
const RUN_BYTES: u64 = 64;
/// Charges are rounded up to a multiple of this.
const CHARGE_STEP_BYTES: u64 = 1024;

/// One file's map in memory.
#[derive(Debug)]
pub(crate) struct FileMap {
    block: BlockSize,
    cluster: ClusterSize,
    pub(crate) pending: PendingBlocks,
    known: RunMap<OnDisk>,
    pub(crate) size: SizeOnDisk,
    /// Incremented whenever the map on disk changes, so that anything loaded earlier is known to be
    /// stale.
    version: u64,
    /// The charge for its memory, if any.
    charge: Option<Charge>,
}

impl FileMap {
    /// Creates the map of a file about which nothing is known yet.
    pub(crate) fn new(block: BlockSize, cluster: ClusterSize) -> Self {
        Self {
            block,
            cluster,
            pending: PendingBlocks::new(block, cluster),
            known: RunMap::default(),
            size: SizeOnDisk::new(block),
            version: 0,
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
        ((self.pending.len() + self.known.len()).to_u64() * RUN_BYTES).next_multiple_of(CHARGE_STEP_BYTES)
    }

    fn recharge(&mut self) {
        let bytes = self.memory_bytes();
        if let Some(charge) = self.charge.as_mut().filter(|charge| charge.bytes() != bytes) {
            charge.resize(bytes);
        }
    }

    /// The version of the map on disk.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Records that the map on disk has changed.
    pub(crate) fn changed_on_disk(&mut self) {
        self.version += 1;
    }

    /// Caches runs of the map on disk for a caller that asked for blocks `asked`, unless the map
    /// has changed since `version`.
    pub(crate) fn learn(&mut self, version: u64, asked: BlockRange, runs: &[(BlockRange, OnDisk)]) {
        if self.version == version {
            self.known.learn(asked, runs);
            self.recharge();
        }
    }

    /// Forgets what is known. Pending blocks stay.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.recharge();
    }

    /// Where a reader finds block `at`, and the run of blocks this applies to. `None` if the map
    /// must be loaded. Dirty blocks without data on the device are holes to a reader, since their
    /// pages are in the cache.
    pub(crate) fn read(&self, at: u64) -> Option<(BlockRange, OnDisk)> {
        if let Some((run, pending)) = self.pending.get(at) {
            return Some((run, pending.on_disk()));
        }
        let (run, known) = self.known.get(at)?;
        let end = self.pending.next(at).map_or(run.end, |next| next.min(run.end));
        Some((run.until(end), known))
    }

    /// Like [`Self::read`], but stays within `at..end` and also says whether the run is pending.
    /// Moves `at` past it.
    fn read_next(&self, at: &mut u64, end: u64) -> Option<(BlockRange, OnDisk, bool)> {
        if *at >= end {
            return None;
        }
        let (run, known) = self.read(*at)?;
        let is_pending = self.pending.get(*at).is_some();
        *at = run.end;
        Some((run.until(end), known, is_pending))
    }

    /// How block `at` is stored, dirty blocks included, and the run of blocks this applies to.
    /// `None` if the map must be loaded.
    pub(crate) fn stored(&self, at: u64) -> Option<(BlockRange, Stored)> {
        let (run, known) = self.read(at)?;
        Some((run, Stored::of(known, self.pending.get(at).is_some())))
    }

    /// The first block in `range` that is neither known nor pending.
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
        while let Some((run, known, is_pending)) = self.read_next(&mut at, range.end) {
            match known {
                OnDisk::Hole if !is_pending => {
                    need.delayed_blocks += run.len();
                    need.clusters += self.pending.clusters().unreserved(run, &mut counted);
                    match need.delayed.last_mut().filter(|last| last.end == run.start) {
                        Some(last) => last.end = run.end,
                        None => need.delayed.push(run),
                    }
                }
                OnDisk::Unwritten(_) | OnDisk::Implied(_) if !is_pending => {
                    need.converted_blocks += run.len();
                }
                _ => {}
            }
        }
        need
    }

    /// Marks a range dirty after its space has been reserved. `recorded_bytes` is the file's
    /// recorded size. Returns the parts that were not pending before.
    pub(crate) fn mark_dirty(&mut self, range: BlockRange, recorded_bytes: u64) -> Vec<BlockRange> {
        let mut new: Vec<BlockRange> = Vec::new();
        let covered = recorded_bytes >> self.block.log2();
        let mut at = range.start;
        while let Some((run, known, is_pending)) = self.read_next(&mut at, range.end) {
            if is_pending {
                continue;
            }
            match known {
                OnDisk::Hole => self.pending.delay(run),
                OnDisk::Unwritten(at) | OnDisk::Implied(at) => self.pending.convert(run, at),
                OnDisk::Written(at) => {
                    let from = run.start.max(covered);
                    if from < run.end {
                        let beyond = BlockRange::new(from, run.end);
                        let at = VolumeBlock(at.0 + (from - run.start));
                        self.pending.go_beyond(beyond, at, recorded_bytes);
                        new.push(beyond);
                    }
                    continue;
                }
            }
            new.push(run);
        }
        self.recharge();
        new
    }

    /// Clusters in which a range has both a hole and blocks that are delayed or in flight to a
    /// place that no transaction contains yet. They are in order, with adjacent ones joined. All of
    /// the range is known or pending.
    pub(crate) fn contested_clusters(&self, range: BlockRange) -> Vec<BlockRange> {
        let mut at = range.start;
        let runs = std::iter::from_fn(|| self.read_next(&mut at, range.end));
        let holes = runs.filter(|(_, known, is_pending)| *known == OnDisk::Hole && !is_pending);
        self.pending.clusters().contested(holes.map(|(run, ..)| run))
    }

    /// Marks the holes of a range, whose space is reserved, as about to be allocated without a
    /// write. Skips implied blocks. Returns the runs of holes.
    pub(crate) fn delay_holes(&mut self, range: BlockRange) -> Vec<BlockRange> {
        let mut holes: Vec<BlockRange> = Vec::new();
        let mut at = range.start;
        while let Some((run, known, is_pending)) = self.read_next(&mut at, range.end) {
            if known != OnDisk::Hole || is_pending {
                continue;
            }
            self.pending.delay(run);
            match holes.last_mut().filter(|last| last.end == run.start) {
                Some(last) => last.end = run.end,
                None => holes.push(run),
            }
        }
        self.recharge();
        holes
    }

    /// Marks blocks in flight that were allocated without a write as unwritten.
    pub(crate) fn preallocated(&mut self, range: BlockRange) {
        for (run, to, _) in self.pending.in_flight(range) {
            self.pending.allocated(run);
            self.known.insert(run, OnDisk::Unwritten(to));
            self.imply_around(run, to);
        }
        self.recharge();
    }

    /// Notes that the clusters of a run allocated at `to` belong to the file.
    fn imply_around(&mut self, run: BlockRange, to: VolumeBlock) {
        if let Some(rest) = RestOfClusters::around(self.cluster, run, to) {
            self.pending.imply(&rest);
            self.known.imply(&rest);
        }
    }

    /// Records a new mapping of a range, of which nothing is delayed or in flight.
    pub(crate) fn remap(&mut self, range: BlockRange, known: OnDisk) {
        self.pending.remove(range);
        self.known.insert(range, known);
        self.recharge();
    }

    /// Records that a range is no longer mapped; nothing of it is delayed or in flight. Other
    /// blocks of its first and last clusters have places of their own, or none.
    pub(crate) fn unmap(&mut self, range: BlockRange) {
        self.pending.remove(range);
        match self.cluster.is_block() {
            true => self.known.insert(range, OnDisk::Hole),
            // The map on disk tells whether the file still owns these clusters.
            false => self.known.remove(self.cluster.around(range)),
        }
        self.recharge();
    }

    /// Forgets the map after any of it may have changed. Nothing of the file is delayed or in
    /// flight, and the device has it up to byte `size_bytes`.
    pub(crate) fn reset(&mut self, size_bytes: u64) {
        self.pending.clear();
        self.known.clear();
        self.size.reset(size_bytes);
        self.recharge();
    }

    /// The write-back step for the blocks from `at` on, and the run it applies to. `None` if the
    /// map must be loaded.
    pub(crate) fn write_step(&self, at: u64) -> Option<(BlockRange, WriteStep)> {
        self.pending.write_step(at).or_else(|| {
            let (run, known) = self.read(at)?;
            let step = match known {
                OnDisk::Written(at) => WriteStep::Overwrite(at),
                OnDisk::Hole | OnDisk::Unwritten(_) | OnDisk::Implied(_) => WriteStep::Zeroes,
            };
            Some((run, step))
        })
    }

    /// Whether block `at` holds bytes, on the device or in memory, rather than reading as zeroes
    /// because it was never written. `None` if the map must be loaded.
    pub(crate) fn has_data(&self, at: u64) -> Option<bool> {
        if self.pending.get(at).is_some() {
            return Some(true);
        }
        self.known.get(at).map(|(_, known)| matches!(known, OnDisk::Written(_)))
    }

    /// A block's place, if it has one.
    pub(crate) fn place_of(&self, block: u64) -> Option<VolumeBlock> {
        if let Some((_, pending)) = self.pending.get(block) {
            return pending.place();
        }
        match self.known.get(block)?.1 {
            OnDisk::Written(at) | OnDisk::Unwritten(at) | OnDisk::Implied(at) => Some(at),
            OnDisk::Hole => None,
        }
    }

    /// Marks blocks in flight as being on the device, with what points to them being logged. The
    /// file was `size_bytes` long when their run was taken.
    pub(crate) fn landed(&mut self, range: BlockRange, size_bytes: u64) {
        for (run, to, was) in self.pending.in_flight(range) {
            self.pending.landed(run, size_bytes);
            self.known.insert(run, OnDisk::Written(to));
            if was == WasBefore::New {
                self.imply_around(run, to);
            }
            self.size.landed(run, size_bytes);
        }
        self.recharge();
    }

    /// As [`PendingBlocks::abandon`].
    pub(crate) fn abandon(&mut self, range: BlockRange) -> u64 {
        let delayed = self.pending.abandon(range);
        self.recharge();
        delayed
    }

    /// Cuts the file off before block `from` and at byte `size_bytes`, leaving a hole after it.
    /// Nothing past that is in flight. Returns the same as [`Self::abandon`].
    pub(crate) fn truncate(&mut self, from: u64, size_bytes: u64) -> u64 {
        let delayed = self.pending.truncate(from, size_bytes);
        // The file may own the rest of the last cluster for as long as that cluster is mapped.
        self.known.remove(BlockRange::from_block(from));
        let holes = BlockRange::from_block(self.cluster.end(from));
        if !holes.is_empty() {
            self.known.insert(holes, OnDisk::Hole);
        }
        self.size.truncate(from, size_bytes);
        self.changed_on_disk();
        self.recharge();
        delayed
    }

    /// The size to record now: it covers what is on the device and nothing more.
    pub(crate) fn recordable_bytes(&self, recorded_bytes: u64) -> u64 {
        let covered = recorded_bytes >> self.block.log2();
        self.size.may_record(recorded_bytes, self.pending.valid_until(covered))
    }
}

#[cfg(test)]
mod tests;

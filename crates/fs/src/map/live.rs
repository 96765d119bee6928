//! A file's map as it is in memory: what is known of the map on disk, and over it what is dirty or in flight.
//!
//! Pure: every question is answered from memory, and what is not known is said to be unknown, so that the caller loads the
//! node that tells. *Pending* blocks are those whose data, place or coverage by the recorded size the volume does not have
//! yet. They are authoritative; what is *known* is a cache and may be forgotten at any time.
//!
//! ```text
//! hole      --write--> delayed   --claim--> in flight (new), --place--> with a place --end--> written, logged
//! unwritten --write--> converts  --claim--> in flight (unwritten)                     --end--> written, logged
//! written, not covered by the recorded size --write--> beyond --claim--> in flight (written) --end--> size logged
//! ```
//!
//! With `bigalloc` a hole of a cluster that the file has is *implied*, and is written as an unwritten block is. Of a cluster that
//! is delayed, the blocks of one run of write-back are in flight until it is allocated; those of others wait. Where the run has
//! several pieces in the cluster, the first is *new* and the others *share* its place.
//!
//! The block in which a file ended when a write of it was taken stays *beyond* after the write has ended: its bytes past that
//! end may have come to its page since, before or after the write was taken. So the recorded size never grows over bytes that
//! are only in memory, whatever the order of marking, copying, taking and ending.

use super::runs::{RunMap, RunValue};
use extant_cache::ByteRange;
use extant_cache::accounts::{Account, Charge};
use extant_format::{BlockRange, BlockSize, ClusterSize, VolumeBlock};

/// Runs that are remembered of the map on disk.
const KNOWN_MAX: usize = 2048;
/// Memory of a run, with its share of a tree's node.
const RUN_BYTES: u64 = 64;
/// Charges are multiples of this.
const CHARGE_STEP_BYTES: u64 = 1024;

/// A run's state in the map on disk, including changes that are logged and not yet checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Hole,
    Written(VolumeBlock),
    Unwritten(VolumeBlock),
    /// A hole in a cluster of which the file has this block, because others of it are mapped.
    Implied(VolumeBlock),
}

/// The state of a block before its write was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Was {
    /// Delayed: its place was allocated for this write.
    New,
    /// Delayed, in a cluster that is being allocated for a `New` block of the same run of write-back: its place is void if that
    /// block's write fails.
    Shared,
    Unwritten,
    Written,
}

/// Why a block is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Dirty, and nothing allocated; its space is reserved.
    Delayed,
    /// Dirty over an unwritten block.
    Converts(VolumeBlock),
    /// A written block that the recorded size did not cover; its page may be dirty. On the device its bytes are valid up to
    /// this offset in the file.
    Beyond { at: VolumeBlock, valid_bytes: u64 },
    /// Claimed by write-back: being written to its place, or about to get one. On the device its bytes were valid up to this
    /// offset in the file before.
    InFlight { to: Option<VolumeBlock>, was: Was, valid_bytes: u64 },
}

/// How a block's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Hole,
    /// In memory only, with space reserved; or being written to a place that no transaction knows.
    Delayed,
    /// Allocated, and reading as zeroes unless `is_dirty` says that its bytes are in memory.
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

/// The way in which write-back handles a run of dirty blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStep {
    /// Overwrites in place; the map does not change.
    Overwrite(VolumeBlock),
    /// Writes in place, and its end must be logged. The bytes of a *fresh* block outside its dirty ones are undefined.
    InPlace { to: VolumeBlock, fresh: bool },
    /// Needs blocks, for which space is reserved.
    Allocate,
    /// Writes nothing: the page cache zeroed what a truncation cut off, and the block reads as zeroes without that.
    Zeroes,
    /// An earlier write to it has not ended.
    Wait,
    /// A write that allocates its cluster has not ended: one of the same run of write-back shares the place, others wait.
    Share,
}

/// The addition to the file's reservation when a range is marked dirty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Runs of holes that become delayed.
    pub(crate) delayed: Vec<BlockRange>,
    /// Blocks in them.
    pub(crate) delayed_blocks: u64,
    /// Clusters to be allocated for them.
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
    /// Delayed blocks, and dirty or in-flight ones over unwritten blocks.
    reserved_blocks: u64,
    /// The largest size that an ended write-back vouches for.
    written_bytes: u64,
    /// No block from here on was logged as written through this map.
    logged_end: u64,
    /// The charge for its memory, if there is one.
    charge: Option<Charge>,
}

impl LiveMap {
    /// Of a file of which nothing is known.
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

    /// Charges its memory to `account` for as long as it lives.
    pub(crate) fn charge_to(&mut self, account: &Account) {
        self.charge = Some(account.charge(self.memory_bytes()));
    }

    /// Bytes that it is charged with.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Memory of the runs, about. In steps: most changes leave the charge as it is.
    fn memory_bytes(&self) -> u64 {
        ((self.pending.len() + self.known.len()) as u64 * RUN_BYTES).next_multiple_of(CHARGE_STEP_BYTES)
    }

    fn recharge(&mut self) {
        let bytes = self.memory_bytes();
        if let Some(charge) = self.charge.as_mut().filter(|charge| charge.bytes() != bytes) {
            charge.resize(bytes);
        }
    }

    /// Remembers what the map on disk says, for a caller who asks for blocks `asked`: what is known of these stays, however much
    /// it is, so that asking comes to an end.
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

    /// Forgets what is known; pending blocks stay.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.recharge();
    }

    /// Where a reader finds block `at`, and for which blocks that holds; `None` if the map must be loaded. Dirty blocks
    /// without data on the device are holes to a reader: their pages are in the cache.
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

    /// The first pending block from `at` on.
    pub(crate) fn next_pending(&self, at: u64) -> Option<u64> {
        self.pending.first_from(at).map(|(run, _)| run.start)
    }

    /// How block `at` is stored, dirty blocks included, and for which blocks that holds; `None` if the map must be loaded.
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

    /// The first block of a range of which nothing is known.
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

    /// The reservation that a write to a range needs. All of the range is known or pending.
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

    /// Whether a cluster is reserved, or allocated in memory, for blocks that are delayed or that nothing was allocated for
    /// before.
    fn is_reserved(&self, cluster: BlockRange) -> bool {
        self.pending
            .iter_in(cluster)
            .any(|(_, pending)| matches!(pending, Pending::Delayed | Pending::InFlight { was: Was::New, .. }))
    }

    /// Whether blocks of a cluster are in flight to a place that no transaction knows.
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

    /// Clusters with a block of `run`, none of whose blocks is pending, for which nothing is reserved, from block `counted` on;
    /// which is then the end of the last one.
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

    /// The clusters of a run that was allocated at `to` are the file's: their other blocks are implied.
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
                    // Logged or failed from now on as over an unwritten block.
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

    /// Marks a range dirty, whose space is reserved. `recorded_bytes` is the file's recorded size. Gives what of it was not
    /// pending before.
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

    /// Clusters, in order, joined where they adjoin, of which a range has both a hole and blocks that are delayed, or in flight to a
    /// place that no transaction knows. All of the range is known or pending.
    pub(crate) fn contested_clusters(&self, range: BlockRange) -> Vec<BlockRange> {
        let mut found: Vec<BlockRange> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some((run, known)) = self.read(at) else { break };
            let run = run.until(range.end);
            let is_hole = known == Known::Hole && self.pending.get(at).is_none();
            at = run.end;
            // Of a hole of several clusters, only the first and the last have other blocks.
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

    /// Marks the holes of a range, whose space is reserved, as about to be allocated without a write; not implied blocks. Gives
    /// their runs.
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

    /// The first run of a range that is delayed.
    pub(crate) fn first_delayed(&self, range: BlockRange) -> Option<BlockRange> {
        let delayed = self.pending.iter_in(range).find(|(_, pending)| *pending == Pending::Delayed);
        delayed.map(|(run, _)| run)
    }

    /// Blocks in flight were allocated without a write: they are unwritten.
    pub(crate) fn preallocated(&mut self, range: BlockRange) {
        for (run, to, _) in self.in_flight(range) {
            self.reserved_blocks -= run.len();
            self.pending.remove(run);
            self.known.insert(run, Known::Unwritten(to));
            self.imply_around(run, to);
        }
        self.recharge();
    }

    /// The map of a range, of which nothing is delayed or in flight, has changed.
    pub(crate) fn remap(&mut self, range: BlockRange, known: Known) {
        self.pending.remove(range);
        self.known.insert(range, known);
        self.recharge();
    }

    /// A range, of which nothing is delayed or in flight, is not mapped any more. Other blocks of the clusters that it begins and
    /// ends in have places of their own, or none.
    pub(crate) fn unmap(&mut self, range: BlockRange) {
        self.pending.remove(range);
        match self.cluster.is_block() {
            true => self.known.insert(range, Known::Hole),
            // Whether their clusters are still the file's, the map on disk tells.
            false => self.known.remove(self.cluster.around(range)),
        }
        self.recharge();
    }

    /// Forgets the map, all of which may have changed, of a file of which nothing is delayed or in flight and that the
    /// device has up to byte `size_bytes`.
    pub(crate) fn reset(&mut self, size_bytes: u64) {
        debug_assert_eq!(self.reserved_blocks, 0, "nothing is dirty");
        self.pending.clear();
        self.known.clear();
        self.written_bytes = size_bytes;
        self.logged_end = self.logged_end.min(self.block.blocks_for(size_bytes));
        self.recharge();
    }

    /// Every byte below `size_bytes` is on the device, pending or in a hole that was made: nothing is being written to the
    /// file's pages.
    pub(crate) fn vouch(&mut self, size_bytes: u64) {
        self.written_bytes = self.written_bytes.max(size_bytes);
    }

    /// The file's last block is on the device up to its end, and its page is clean: the file may grow over it.
    pub(crate) fn whole(&mut self, last: u64) {
        if matches!(self.pending.get(last), Some((_, Pending::Beyond { .. }))) {
            self.pending.remove(BlockRange::one(last));
        }
    }

    /// No byte behind `size_bytes` is on the device, whatever was vouched for before.
    pub(crate) fn distrust(&mut self, size_bytes: u64) {
        self.written_bytes = self.written_bytes.min(size_bytes);
    }

    /// The step of write-back for the blocks from `at` on, and the run for which it holds. `None` if the map must be loaded.
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

    /// Write-back takes dirty blocks of one kind; no other run takes them until they have landed or failed.
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

    /// As [`Self::claim`], of delayed blocks of one cluster that is being allocated for the same run of write-back, which has
    /// `to` for the first of them.
    pub(crate) fn share(&mut self, range: BlockRange, to: VolumeBlock) {
        self.pending.insert(range, Pending::InFlight { to: Some(to), was: Was::Shared, valid_bytes: 0 });
    }

    /// Claimed blocks got a place and are about to be written to it.
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

    /// The blocks of a range that are in flight, with their places and what they were.
    pub(crate) fn in_flight(&self, range: BlockRange) -> Vec<(BlockRange, VolumeBlock, Was)> {
        let parts = self.pending.iter_in(range).filter_map(|(run, pending)| match pending {
            Pending::InFlight { to: Some(to), was, .. } => Some((run, to, was)),
            _ => None,
        });
        parts.collect()
    }

    /// Whether block `at` holds bytes, on the device or in memory: more than the zeroes as which what was never written reads.
    /// `None` if the map must be loaded.
    pub(crate) fn has_data(&self, at: u64) -> Option<bool> {
        if self.pending.get(at).is_some() {
            return Some(true);
        }
        self.known.get(at).map(|(_, known)| matches!(known, Known::Written(_)))
    }

    /// The place of a block that has one.
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

    /// Blocks in flight are on the device, and what points to them is being logged. Their run was taken when the file was
    /// `size_bytes` long.
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
            // Not over a hole before blocks that did not reach the device.
            self.written_bytes = self.written_bytes.max(size_bytes.min(run.end << self.block.log2()));
            // Blocks wholly below the run's size are valid, whatever was written to them since.
            let from = run.start.max(size_bytes >> self.block.log2());
            if from < run.end {
                let at = VolumeBlock(to.0 + (from - run.start));
                // Of a block larger than a page, a run that was taken earlier may end later.
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

    /// Blocks in flight did not reach the device: they are what they were, and places allocated for them are void, as are those
    /// of blocks that share these.
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

    /// Dirty blocks that will not be written: given up, cut off or never written to. Gives how many clusters were reserved for
    /// delayed ones alone.
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

    /// The file ends before block `from`, and before byte `size_bytes`: what lies behind is a hole. Nothing behind is in
    /// flight. Gives as [`Self::abandon`] does.
    pub(crate) fn truncate(&mut self, from: u64, size_bytes: u64) -> u64 {
        let delayed = self.abandon(BlockRange::from_block(from));
        debug_assert!(self.pending.first_from(from).is_none(), "nothing that is truncated is in flight");
        if let Some(last) = from.checked_sub(1)
            && let Some((run, Pending::Beyond { at, valid_bytes })) = self.pending.get(last)
        {
            self.pending.insert(run, Pending::Beyond { at, valid_bytes: valid_bytes.min(size_bytes) });
        }
        // The rest of the last cluster may be the file's for as long as it is mapped.
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

    /// The size to record now: grown over what is on the device, and no further.
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

    /// Whether a block that was logged as written begins behind the recorded size: blocks before it are still to be written.
    pub(crate) fn is_ahead(&self, recorded_bytes: u64) -> bool {
        self.logged_end.checked_sub(1).is_some_and(|last| last << self.block.log2() > recorded_bytes)
    }

    /// Blocks that the tree may have to map anew, and the runs that they are in, at most: what the reservation for nodes is
    /// made from.
    pub(crate) fn reserved(&self) -> (u64, u64) {
        (self.reserved_blocks, if self.reserved_blocks == 0 { 0 } else { self.pending.len() as u64 })
    }

    /// Blocks that the file gets when what is pending is written.
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

    /// Delayed neighbours of a range, joined with it: what a map of pointers reserves for.
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

    /// Whether the volume has every block that was written, apart from blocks that are only to be written again.
    pub(crate) fn is_clean(&self) -> bool {
        let mut all = self.pending.iter_in(BlockRange::ALL);
        all.all(|(_, pending)| matches!(pending, Pending::Beyond { .. }))
    }

    /// Whether blocks of a range are dirty, or in flight, over places that may be the file's for other blocks' sake.
    pub(crate) fn writes_implied(&self, range: BlockRange) -> bool {
        let is_implied =
            |pending| matches!(pending, Pending::Converts(_) | Pending::InFlight { was: Was::Unwritten, .. });
        self.pending.iter_in(range).any(|(_, pending)| is_implied(pending))
    }
}

#[cfg(test)]
mod tests;

//! A file's pending blocks, and how write-back moves them from state to state.

use super::block_state::{Pending, WasBefore, WriteStep};
use super::run_map::RunMap;
use super::shared_clusters::{PendingClusters, RestOfClusters};
use extant_cache::ByteRange;
use extant_format::{BlockRange, BlockSize, ClusterSize, UintExt, VolumeBlock};

/// The pending blocks of one file.
#[derive(Debug)]
pub(crate) struct PendingBlocks {
    block: BlockSize,
    cluster: ClusterSize,
    runs: RunMap<Pending>,
    /// Delayed blocks, and dirty or in-flight blocks over unwritten ones.
    reserved_blocks: u64,
}

impl PendingBlocks {
    pub(super) fn new(block: BlockSize, cluster: ClusterSize) -> Self {
        Self { block, cluster, runs: RunMap::default(), reserved_blocks: 0 }
    }

    pub(super) fn clusters(&self) -> PendingClusters<'_> {
        PendingClusters { size: self.cluster, pending: &self.runs }
    }

    /// Number of runs.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn get(&self, block: u64) -> Option<(BlockRange, Pending)> {
        self.runs.get(block)
    }

    /// The first pending block at or after `block`.
    pub(crate) fn next(&self, block: u64) -> Option<u64> {
        self.runs.first_from(block).map(|(run, _)| run.start)
    }

    /// Delays a run of holes whose space is reserved.
    pub(super) fn delay(&mut self, run: BlockRange) {
        debug_assert!(self.runs.iter_in(run).next().is_none(), "{run:?} is pending");
        self.reserved_blocks += run.len();
        self.runs.insert(run, Pending::Delayed);
    }

    /// Marks an unwritten run dirty.
    pub(super) fn convert(&mut self, run: BlockRange, at: VolumeBlock) {
        debug_assert!(self.runs.iter_in(run).next().is_none(), "{run:?} is pending");
        self.reserved_blocks += run.len();
        self.runs.insert(run, Pending::Converts(at));
    }

    /// Marks a written run that the recorded size does not cover.
    pub(super) fn go_beyond(&mut self, run: BlockRange, at: VolumeBlock, valid_bytes: u64) {
        self.runs.insert(run, Pending::Beyond { at, valid_bytes });
    }

    /// The first delayed run of a range.
    pub(crate) fn first_delayed(&self, range: BlockRange) -> Option<BlockRange> {
        let delayed = self.runs.iter_in(range).find(|(_, pending)| *pending == Pending::Delayed);
        delayed.map(|(run, _)| run)
    }

    /// Removes a range of which nothing is delayed or in flight.
    pub(super) fn remove(&mut self, range: BlockRange) {
        let reserves = |pending| !matches!(pending, Pending::Beyond { .. });
        debug_assert!(
            self.runs.iter_in(range).all(|(_, pending)| !reserves(pending)),
            "nothing of {range:?} is dirty or in flight"
        );
        self.runs.remove(range);
    }

    /// Removes everything; nothing is delayed or in flight.
    pub(super) fn clear(&mut self) {
        debug_assert_eq!(self.reserved_blocks, 0, "nothing is dirty");
        self.runs.clear();
    }

    /// The write-back step for the pending blocks from `block` on.
    pub(super) fn write_step(&self, block: u64) -> Option<(BlockRange, WriteStep)> {
        let (run, pending) = self.runs.get(block)?;
        let step = match pending {
            // The first write of a cluster allocates it.
            Pending::Delayed if self.clusters().is_being_allocated(run.start) => {
                return Some((run.until(self.cluster.end(run.start + 1)), WriteStep::Share));
            }
            Pending::Delayed if self.clusters().is_being_allocated(run.end - 1) => {
                return Some((run.until(self.cluster.start(run.end - 1)), WriteStep::Allocate));
            }
            Pending::Delayed => WriteStep::Allocate,
            Pending::Converts(to) => WriteStep::InPlace { to, fresh: true },
            Pending::Beyond { at: to, .. } => WriteStep::InPlace { to, fresh: false },
            Pending::InFlight { .. } => WriteStep::Wait,
        };
        Some((run, step))
    }

    /// Claims dirty blocks of one kind for write-back. No other run takes them until they land or
    /// fail.
    pub(crate) fn claim(&mut self, range: BlockRange) {
        let parts: Vec<_> = self.runs.iter_in(range).collect();
        for (run, pending) in parts {
            let (was, valid_bytes) = match pending {
                Pending::Delayed => (WasBefore::New, 0),
                Pending::Converts(_) => (WasBefore::Unwritten, 0),
                Pending::Beyond { valid_bytes, .. } => (WasBefore::Written, valid_bytes),
                Pending::InFlight { .. } => continue,
            };
            self.runs.insert(run, Pending::InFlight { to: pending.place(), was, valid_bytes });
        }
    }

    /// Like [`Self::claim`], but for delayed blocks in a cluster being allocated for the same
    /// write-back run. `to` is the place of the first of them.
    pub(crate) fn share(&mut self, range: BlockRange, to: VolumeBlock) {
        let was = WasBefore::Shared;
        debug_assert!(
            self.runs.iter_in(range).all(|(_, pending)| pending == Pending::Delayed),
            "only delayed blocks share a cluster that is being allocated"
        );
        self.runs.insert(range, Pending::InFlight { to: Some(to), was, valid_bytes: 0 });
    }

    /// Places claimed blocks, which are about to be written.
    pub(crate) fn place(&mut self, range: BlockRange, to: VolumeBlock) {
        let parts: Vec<_> = self.runs.iter_in(range).collect();
        for (run, pending) in parts {
            let Pending::InFlight { to: None, was, valid_bytes } = pending else {
                unreachable!("blocks are claimed before they get a place")
            };
            let to = Some(VolumeBlock(to.0 + (run.start - range.start)));
            self.runs.insert(run, Pending::InFlight { to, was, valid_bytes });
        }
    }

    /// The blocks of a range that are in flight, with their places and previous states.
    pub(crate) fn in_flight(&self, range: BlockRange) -> Vec<(BlockRange, VolumeBlock, WasBefore)> {
        let parts = self.runs.iter_in(range).filter_map(|(run, pending)| match pending {
            Pending::InFlight { to: Some(to), was, .. } => Some((run, to, was)),
            _ => None,
        });
        parts.collect()
    }

    /// Ends the write of blocks in flight of one kind. The file was `size_bytes` long when their
    /// run was taken.
    pub(super) fn landed(&mut self, run: BlockRange, size_bytes: u64) {
        let Some((found, Pending::InFlight { to: Some(to), was, valid_bytes })) = self.runs.get(run.start)
        else {
            unreachable!("they are in flight")
        };
        debug_assert!(run.end <= found.end, "{run:?} is of one kind");
        match was {
            WasBefore::Written => self.runs.remove(run),
            _ => self.allocated(run),
        }
        // Blocks entirely below the run's size are valid, whatever has been written to them since.
        let from = run.start.max(size_bytes >> self.block.log2());
        if from < run.end {
            let at = VolumeBlock(to.0 + (from - run.start));
            // If a block is larger than a page, a run taken earlier may end later.
            self.go_beyond(BlockRange::new(from, run.end), at, valid_bytes.max(size_bytes));
        }
    }

    /// Ends the allocation of blocks in flight without a write.
    pub(super) fn allocated(&mut self, run: BlockRange) {
        debug_assert!(
            self.runs
                .iter_in(run)
                .all(|(_, pending)| matches!(pending, Pending::InFlight { to: Some(_), .. })),
            "{run:?} is in flight to a place"
        );
        self.reserved_blocks -= run.len();
        self.runs.remove(run);
    }

    /// Gives blocks in allocated clusters their places.
    pub(super) fn imply(&mut self, rest: &RestOfClusters) {
        for part in rest.parts() {
            let pending: Vec<_> = self.runs.iter_in(part).collect();
            for (blocks, pending) in pending {
                let implied = match pending {
                    Pending::Delayed => Pending::Converts(rest.place(blocks.start)),
                    // From now on logged, or failed, like a write over an unwritten block.
                    Pending::InFlight { to, was: WasBefore::Shared, valid_bytes } => {
                        Pending::InFlight { to, was: WasBefore::Unwritten, valid_bytes }
                    }
                    _ => continue,
                };
                self.runs.insert(blocks, implied);
            }
        }
    }

    /// Returns blocks in flight that did not reach the device to their previous state. Places
    /// allocated for them are void, as are those of blocks sharing them.
    pub(crate) fn failed(&mut self, range: BlockRange) {
        let parts: Vec<_> = self.runs.iter_in(range).collect();
        for (run, pending) in parts {
            let Pending::InFlight { to, was, valid_bytes } = pending else { continue };
            let before = match (was, to) {
                (WasBefore::Unwritten, Some(at)) => Pending::Converts(at),
                (WasBefore::Written, Some(at)) => Pending::Beyond { at, valid_bytes },
                (WasBefore::New | WasBefore::Shared, _) | (_, None) => Pending::Delayed,
            };
            self.runs.insert(run, before);
            if was == WasBefore::New && !self.cluster.is_block() {
                let around: Vec<_> = self.runs.iter_in(self.cluster.around(run)).collect();
                let shares = |pending| matches!(pending, Pending::InFlight { was: WasBefore::Shared, .. });
                for (blocks, _) in around.into_iter().filter(|(_, pending)| shares(*pending)) {
                    self.runs.insert(blocks, Pending::Delayed);
                }
            }
        }
    }

    /// Drops dirty blocks that will not be written: given up, cut off, or never written to. Returns
    /// the number of clusters reserved only for delayed ones among them.
    pub(super) fn abandon(&mut self, range: BlockRange) -> u64 {
        let mut parts: Vec<_> = self.runs.iter_in(range).collect();
        for &(run, pending) in &parts {
            match pending {
                Pending::Delayed | Pending::Converts(_) => self.reserved_blocks -= run.len(),
                Pending::Beyond { .. } => {}
                Pending::InFlight { .. } => continue,
            }
            self.runs.remove(run);
        }
        parts.retain(|(_, pending)| *pending == Pending::Delayed);
        let mut counted = 0;
        parts.iter().map(|(run, _)| self.clusters().unreserved(*run, &mut counted)).sum()
    }

    /// Cuts the file off before block `from` and at byte `size_bytes`; nothing past that is in
    /// flight. Returns the same as [`Self::abandon`].
    pub(super) fn truncate(&mut self, from: u64, size_bytes: u64) -> u64 {
        let delayed = self.abandon(BlockRange::from_block(from));
        debug_assert!(self.next(from).is_none(), "nothing that is truncated is in flight");
        if let Some(last) = from.checked_sub(1)
            && let Some((run, Pending::Beyond { at, valid_bytes })) = self.runs.get(last)
        {
            self.go_beyond(run, at, valid_bytes.min(size_bytes));
        }
        delayed
    }

    /// Records that the file's last block is on the device up to its end and its page is clean, so
    /// the file may grow past it.
    pub(crate) fn whole(&mut self, last: u64) {
        if matches!(self.runs.get(last), Some((_, Pending::Beyond { .. }))) {
            self.runs.remove(BlockRange::one(last));
        }
    }

    /// The first pending byte of the file at or after the start of `block`; `u64::MAX` if there is
    /// none.
    pub(super) fn valid_until(&self, block: u64) -> u64 {
        self.runs.first_from(block).map_or(u64::MAX, |(run, pending)| {
            let start = run.start << self.block.log2();
            match pending {
                Pending::Beyond { valid_bytes, .. } => start.max(valid_bytes),
                _ => start,
            }
        })
    }

    /// How far the volume has the bytes of a range whose blocks were written: up to the first run
    /// that is still pending, or to the end of the range.
    pub(crate) fn logged_until(&self, bytes: ByteRange) -> u64 {
        let blocks = BlockRange::new(bytes.start >> self.block.log2(), self.block.blocks_for(bytes.end));
        let start = |run: BlockRange| (run.start << self.block.log2()).max(bytes.start);
        let mut rest = self.runs.iter_in(blocks).filter(|(_, pending)| {
            !matches!(pending, Pending::Beyond { valid_bytes, .. } if *valid_bytes >= bytes.end)
        });
        rest.next().map_or(bytes.end, |(run, _)| start(run))
    }

    /// Upper bounds for the blocks that the tree may have to map anew, and for the runs they are
    /// in. The reservation for nodes is based on these.
    pub(crate) fn reserved(&self) -> (u64, u64) {
        (self.reserved_blocks, if self.reserved_blocks == 0 { 0 } else { self.runs.len().to_u64() })
    }

    /// Blocks that the file gains once everything pending is written.
    pub(crate) fn unrecorded_blocks(&self) -> u64 {
        match self.cluster.is_block() {
            true => self.reserved_blocks,
            false => self.clusters().reserved_blocks(),
        }
    }

    /// Joins a range with its delayed neighbours; a map of pointers bases its reservation on this.
    pub(crate) fn delayed_around(&self, range: BlockRange) -> BlockRange {
        let mut around = range;
        if let Some(before) = range.start.checked_sub(1)
            && let Some((_, Pending::Delayed)) = self.runs.get(before)
        {
            around.start = self.runs.start_of(before);
        }
        if let Some((run, Pending::Delayed)) = self.runs.get(range.end) {
            around.end = run.end;
        }
        around
    }

    /// Whether the volume has every block that was written, not counting blocks that only wait to
    /// be written again.
    pub(crate) fn is_clean(&self) -> bool {
        let mut all = self.runs.iter_in(BlockRange::ALL);
        all.all(|(_, pending)| matches!(pending, Pending::Beyond { .. }))
    }

    /// Whether a range has blocks, dirty or in flight, whose places the file may own only because
    /// of other blocks.
    pub(crate) fn writes_implied(&self, range: BlockRange) -> bool {
        let is_implied = |pending| {
            matches!(pending, Pending::Converts(_) | Pending::InFlight { was: WasBefore::Unwritten, .. })
        };
        self.runs.iter_in(range).any(|(_, pending)| is_implied(pending))
    }
}

//! Places for blocks about to be written, by write-back or by a direct write: delayed blocks are
//! allocated, in memory only. Blocks whose write fails give their places up.

use super::contents::{Contents, FileState};
use crate::alloc::{Allocated, Privilege};
use crate::map::block_state::{WasBefore, WriteStep};
use crate::{Cost, Result};
use extant_block::Sector;
use extant_cache::{ByteRange, DirtyRun, Placed, WriteExtent, WriteTo, WrittenExtent};
use extant_format::{BlockRange, UintExt, VolumeBlock};
use std::sync::atomic::Ordering;
use std::task::Waker;

/// Files up to this size are allocated next to each other, as Linux does by default
/// (`mb_stream_req`: 16 blocks of 4 KiB).
const SMALL_BYTES: u64 = 64 << 10;

/// File blocks whose write has ended, their place, and their previous state.
pub(super) type Landed = (BlockRange, VolumeBlock, WasBefore);

/// Blocks being given up: what was allocated for them and the tasks waiting for them.
#[derive(Default)]
struct Failed {
    places: Vec<Allocated>,
    wakers: Vec<Waker>,
    any: bool,
}

impl Failed {
    fn add(&mut self, live: &mut FileState, blocks: BlockRange) {
        self.any = true;
        live.map.pending.failed(blocks);
        self.places.extend(live.places.remove_in(blocks));
    }

    /// Collects the waiters; call before the lock is released.
    fn wake(&mut self, live: &mut FileState) {
        if self.any {
            self.wakers.extend(live.wake());
        }
    }
}

impl Contents {
    /// Places for a run that only overwrites mapped blocks; `None` if it does more.
    pub(super) fn overwrites(&self, run: &DirtyRun<'_>) -> Option<Placed> {
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
    pub(super) async fn place(&self, run: &DirtyRun<'_>, is_journalled: bool) -> Result<Placed> {
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
                    let place = run.and_then(|run| live.places.shared(block, run, cluster));
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
            extent.zero_before = (at - self.bytes_at(block)).fit_u32();
            extent.zero_after = (self.bytes_at(blocks.end) - range.end).fit_u32();
        }
        Ok(Some(extent))
    }

    /// Allocates a place for claimed blocks, for a write-back run if there is one. Returns the
    /// first volume block and how many blocks were placed; the others become delayed again.
    pub(super) async fn allocate(&self, blocks: BlockRange, run: Option<u64>) -> Result<(VolumeBlock, u64)> {
        let cluster = self.sb().cluster_size();
        // No block of the first cluster has a place yet; otherwise these blocks would be implied.
        let want = u32::try_from(cluster.count(blocks)).unwrap_or(u32::MAX);
        let _placing = match self.placing.try_write() {
            Some(held) => held,
            None => Box::pin(self.placing.write()).await,
        };
        let (reservation, goal) = {
            let mut live = self.live.lock();
            (live.reserve.take(want.into()), self.goal(&live, blocks.start))
        };
        let alloc = &self.writer.alloc;
        self.writer.rt.charge(Cost::BlockSearch(1));
        let mut reservation = match reservation {
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
                live.reserve.keep(rest, 0);
            }
            let got = allocated.map(|allocated| {
                let (at, skipped) = (allocated.run(), cluster.offset(blocks.start));
                let placed = BlockRange::at(blocks.start, at.blocks - skipped).until(blocks.end);
                let to = VolumeBlock(at.start.0 + skipped);
                live.map.pending.place(placed, to);
                live.last_placed = Some((placed.end, VolumeBlock(to.0 + placed.len())));
                live.places.add(placed.start, allocated, run);
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

    /// Returns the blocks that were written successfully. Gives up those that failed, along with
    /// all blocks in a cluster allocated for one of them.
    pub(super) fn part_landed(&self, written: &[&WrittenExtent]) -> Vec<Landed> {
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
            let reservation = self.writer.alloc.take_back(place);
            self.live.lock().reserve.keep(reservation, 0);
        }
        failed.wakers.into_iter().for_each(Waker::wake);
    }
}

//! Files whose blocks are allocated as in Linux: when their pages are written, or when the pages
//! are written back.

use super::bios_in_flight::BiosInFlight;
use extant_block::{Bio, Buf, Device, IoError, Op, Sector, StreamId, flush};
use extant_cache::{BackingError, BackingErrorKind, CacheError, Cost as CacheCost};
use extant_history::alloc::{AllocatesAt, BlockAllocator, FileId, Request, Work};
use extant_history::direct::FullVolume;
use extant_rt::Rt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const BLOCK_BYTES: u64 = super::BLOCK_BYTES;

/// A volume's files and allocator.
pub(super) struct PlacedFiles {
    space: Arc<VolumeSpace>,
    files: Mutex<Vec<Arc<PlacedFile>>>,
}

/// The volume under the files.
struct VolumeSpace {
    allocator: Mutex<Box<dyn BlockAllocator>>,
    allocates_at: AllocatesAt,
    device: Arc<dyn Device>,
    /// First block of the group that holds all inodes, which is the root directory's.
    goal: u64,
    /// Work of all searches, and their number.
    searched: Mutex<(Work, u64)>,
}

/// A file written through the page cache; one process has it open.
pub(crate) struct PlacedFile {
    space: Arc<VolumeSpace>,
    id: FileId,
    state: Mutex<PlacedBlocks>,
}

#[derive(Default)]
struct PlacedBlocks {
    /// Length in blocks.
    blocks: u64,
    /// Location of each allocated block.
    map: BTreeMap<u64, u64>,
    dirty: BTreeSet<u64>,
}

/// Maximum number of bios that the flusher keeps in flight (`nr_requests`).
const MOST_UNDER_WAY: usize = 128;
/// Length of the page cache's longest bio in blocks (`BIO_MAX_PAGES`).
const BIO_BLOCKS: u64 = 256;

impl VolumeSpace {
    fn allocate(&self, request: Request) -> Result<(Range<u64>, Work), FullVolume> {
        let (found, work) = self.allocator.lock().allocate(request)?;
        if work != Work::default() {
            let mut searched = self.searched.lock();
            searched.0.add(work, 1);
            searched.1 += 1;
        }
        Ok((found, work))
    }
}

impl PlacedFile {
    /// Writes into the page cache, and charges what that costs.
    pub(super) fn write(&self, rt: &Rt, at: u64, len: u64) -> Result<(), CacheError> {
        let pages = len.div_ceil(BLOCK_BYTES);
        rt.charge(CacheCost::PageCopy(pages));
        rt.charge(CacheCost::PageInsert(pages));
        rt.charge(CacheCost::PageDirty(pages));
        let written = at / BLOCK_BYTES..(at + len).div_ceil(BLOCK_BYTES);
        let mut state = self.state.lock();
        state.blocks = state.blocks.max(written.end);
        for block in written {
            if self.space.allocates_at == AllocatesAt::Write && !state.map.contains_key(&block) {
                let full = |error| CacheError::Backing(BackingError::new(BackingErrorKind::NoSpace, error));
                let (found, work) = self.space.allocate(self.request(&state, block, 1)).map_err(full)?;
                if work != Work::default() {
                    work.costs().into_iter().for_each(|cost| rt.charge(cost));
                }
                state.map.insert(block, found.start);
            }
            state.dirty.insert(block);
        }
        Ok(())
    }

    fn request(&self, state: &PlacedBlocks, block: u64, blocks: u64) -> Request {
        let (file, goal, process) = (self.id, self.space.goal, self.id.0);
        Request { file, block, blocks, goal, file_blocks: state.blocks, process }
    }

    /// Writes back dirty blocks, extent by extent; returns while bios are still in flight.
    async fn write_back(&self, rt: &Rt, under_way: &Arc<BiosInFlight>) -> Result<(), String> {
        let mut dirty = std::mem::take(&mut self.state.lock().dirty);
        while let Some(first) = dirty.first().copied() {
            let (blocks, place) = {
                let state = self.state.lock();
                let place = state.map.get(&first).copied();
                let alike = |block: &u64| {
                    dirty.contains(block)
                        && state.map.get(block).copied() == place.map(|place| place + (block - first))
                };
                (first..(first..).take_while(alike).last().unwrap_or(first) + 1, place)
            };
            let found = match place {
                Some(place) => place..place + (blocks.end - first),
                None => self.find(rt, blocks).await?,
            };
            dirty = dirty.split_off(&(first + (found.end - found.start)));
            for start in found.clone().step_by(BIO_BLOCKS as usize) {
                let bytes = (found.end.min(start + BIO_BLOCKS) - start) * BLOCK_BYTES;
                let sector = Sector(start * (BLOCK_BYTES / Sector::BYTES));
                let mut bio = Bio::new(Op::Write, sector, vec![Buf::zeroed(bytes as usize).into()]);
                bio.stream = StreamId(u64::MAX);
                under_way.submit(&*self.space.device, bio);
                under_way.at_most(rt, MOST_UNDER_WAY).await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Allocates blocks for the start of a range; may return fewer than asked for.
    async fn find(&self, rt: &Rt, blocks: Range<u64>) -> Result<Range<u64>, String> {
        let (found, work) = {
            let mut state = self.state.lock();
            let request = self.request(&state, blocks.start, blocks.end - blocks.start);
            let (found, work) = self.space.allocate(request).map_err(|error| error.to_string())?;
            state.map.extend((blocks.start..).zip(found.clone()));
            (found, work)
        };
        for cost in work.costs() {
            rt.charge(cost);
            // The search yields after each group (`cond_resched()`).
            rt.resched().await;
        }
        Ok(found)
    }

    /// Makes the file durable.
    pub(super) async fn sync(&self, rt: &Rt) -> Result<(), CacheError> {
        let other = |problem: String| {
            let error = std::io::Error::other(problem);
            CacheError::Backing(BackingError::new(BackingErrorKind::Other, error))
        };
        let under_way = Arc::<BiosInFlight>::default();
        self.write_back(rt, &under_way).await.map_err(other)?;
        let end = async {
            under_way.at_most(rt, 0).await?;
            flush(&*self.space.device).await
        };
        end.await.map_err(CacheError::Io)
    }

    /// Called when its process closes the file.
    pub(super) fn close(&self) {
        self.space.allocator.lock().close(self.id);
    }

    /// Its extents on the volume in blocks.
    pub(super) fn runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut next = 0;
        for (block, place) in &self.state.lock().map {
            match runs.last_mut() {
                Some(run) if run.end == *place && next == *block => run.end += 1,
                _ => runs.push(*place..place + 1),
            }
            next = block + 1;
        }
        runs
    }
}

impl PlacedFiles {
    pub(super) fn new(allocator: Box<dyn BlockAllocator>, device: Arc<dyn Device>, goal: u64) -> Self {
        let (allocates_at, searched) = (allocator.allocates_at(), Mutex::default());
        let space = VolumeSpace { allocator: Mutex::new(allocator), allocates_at, device, goal, searched };
        Self { space: Arc::new(space), files: Mutex::default() }
    }

    pub(super) fn make(&self) -> Arc<PlacedFile> {
        let mut files = self.files.lock();
        let id = FileId(files.len() as u64 + 1);
        let file = Arc::new(PlacedFile { space: self.space.clone(), id, state: Mutex::default() });
        files.push(file.clone());
        file
    }

    /// Work of all searches, and their number.
    pub(super) fn work(&self) -> (Work, u64) {
        *self.space.searched.lock()
    }

    /// Writes back all files one after the other, like the volume's flusher.
    pub(super) async fn write_back(&self, rt: &Rt) -> Result<(), String> {
        let failed = |error: IoError| error.to_string();
        let under_way = Arc::<BiosInFlight>::default();
        let files = self.files.lock().clone();
        for file in files {
            file.write_back(rt, &under_way).await?;
        }
        under_way.at_most(rt, 0).await.map_err(failed)?;
        flush(&*self.space.device).await.map_err(failed)
    }
}

//! Reading (kernel: `do_generic_mapping_read`, `mpage_readpages`).

use crate::disks::Submitter;
use crate::host::{ModelledHost, PageCacheCost, ScheduleCaller};
use crate::page_cache::BLOCK_BYTES;
use crate::volume::is_boundary;
use extant_cache::Cost;
use extant_history::read_ahead::ReadAhead;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The longest read-ahead window (kernel: `VM_MAX_READAHEAD`).
const WINDOW_BYTES: u64 = 128 << 10;

/// An open file.
pub(crate) struct ReadHandle {
    file: u32,
    ahead: ReadAhead,
}

impl ReadHandle {
    pub(crate) fn new(host: &ModelledHost, file: u32) -> Self {
        Self { file, ahead: ReadAhead::new(WINDOW_BYTES / host.shape.page_bytes) }
    }
}

/// Pages read by one bio of the file system. The volume may split it; the pages complete together,
/// the last one first.
struct ReadTransfer {
    pages: Vec<(u32, u16)>,
    left: AtomicUsize,
}

/// A contiguous range of the volume: first byte, length, and its frames with the blocks to read
/// into each.
type ReadRun = (u64, u64, Vec<(u32, u16)>);

impl ModelledHost {
    /// Reads a block.
    pub(crate) async fn read(self: &Arc<Self>, open: &mut ReadHandle, block: u64) {
        let (file, page) = (open.file, block / self.shape.page_blocks());
        // Submitting may wait for a full queue, so windows are only collected here.
        let mut windows: Vec<Range<u64>> = Vec::new();
        open.ahead.access(page, &mut |window| {
            if self.stripe.is_congested(false) {
                return 0;
            }
            let end = window.end.min(self.shape.file_pages);
            let window = window.start.min(end)..end;
            let cache = self.cache.lock();
            let fresh = window.clone().filter(|page| cache.find(file, *page).is_none()).count() as u64;
            windows.push(window);
            fresh
        });
        for window in windows {
            self.read_window(file, window).await;
        }
        loop {
            self.rt.charge(Cost::PageLookup(1));
            let found = self.pinned(file, page);
            let Some(frame) = found else {
                open.ahead.missed(page);
                let Some(frame) = self.add(file, page).await else { continue };
                self.read_pages(file, &[(page, frame)]).await;
                self.wait_unlocked(frame).await;
                self.unpin(frame);
                continue;
            };
            if self.is_uptodate(frame) {
                self.rt.charge(Cost::PageCopy(1));
                self.cache.lock().frames[frame as usize].referenced |=
                    block.is_multiple_of(self.shape.page_blocks());
                return self.unpin(frame);
            }
            self.lock_page(frame).await;
            if self.is_uptodate(frame) {
                self.unlock_page(frame);
            } else {
                self.read_pages(file, &[(page, frame)]).await;
                self.wait_unlocked(frame).await;
            }
            self.unpin(frame);
        }
    }

    /// Whether a page may be read. All its blocks must be valid, even if one would do (kernel:
    /// `block_is_partially_uptodate` came later).
    fn is_uptodate(&self, frame: u32) -> bool {
        self.cache.lock().is_uptodate(frame)
    }

    /// Starts reading the pages of a window that are not cached.
    async fn read_window(self: &Arc<Self>, file: u32, window: Range<u64>) {
        let mut pages = Vec::new();
        for page in window {
            let is_cached = self.cache.lock().find(file, page).is_some();
            if is_cached {
                continue;
            }
            // Read-ahead does not wait for memory.
            let added = self.cache.lock().add(file, page);
            if let Some(frame) = added {
                self.rt.charge(Cost::PageInsert(1));
                self.rt.charge(PageCacheCost::PageState(1));
                pages.push((page, frame));
            }
        }
        if !pages.is_empty() {
            self.read_pages(file, &pages).await;
        }
    }

    /// Reads locked pages with one bio per contiguous range of the volume (kernel:
    /// `do_mpage_readpage`).
    async fn read_pages(self: &Arc<Self>, file: u32, pages: &[(u64, u32)]) {
        let (page_bytes, page_blocks) = (self.shape.page_bytes, self.shape.page_blocks());
        let whole = ((1_u32 << page_blocks) - 1) as u16;
        let mut bio: Option<ReadRun> = None;
        for (page, frame) in pages {
            self.rt.charge(Cost::MapLookup(1));
            let missing = whole & !self.cache.lock().frames[*frame as usize].valid;
            let mut places = Vec::new();
            for bit in (0..page_blocks).filter(|bit| missing & 1 << bit != 0) {
                places.push(self.find_block(file, page * page_blocks + bit).await);
            }
            let is_one_run = missing == whole && places.windows(2).all(|pair| pair[0] + 1 == pair[1]);
            if !is_one_run {
                // Block by block, each with its own bio (kernel: `block_read_full_page`).
                self.read_run(file, bio.take()).await;
                let left = AtomicUsize::new(places.len());
                let transfer = Arc::new(ReadTransfer { pages: vec![(*frame, missing)], left });
                for place in places {
                    self.read_part(file, place * BLOCK_BYTES, BLOCK_BYTES, &transfer).await;
                }
                continue;
            }
            let byte = places[0] * BLOCK_BYTES;
            if bio.as_ref().is_some_and(|(from, bytes, _)| from + bytes != byte) {
                self.read_run(file, bio.take()).await;
            }
            let (_, bytes, list) = bio.get_or_insert((byte, 0, Vec::new()));
            *bytes += page_bytes;
            list.push((*frame, whole));
            if is_boundary((page + 1) * page_blocks - 1) {
                self.read_run(file, bio.take()).await;
            }
        }
        self.read_run(file, bio).await;
    }

    async fn read_run(self: &Arc<Self>, file: u32, run: Option<ReadRun>) {
        let Some((byte, bytes, pages)) = run else { return };
        let transfer = Arc::new(ReadTransfer { pages, left: AtomicUsize::new(1) });
        self.read_part(file, byte, bytes, &transfer).await;
    }

    /// Reads part of a transfer, split at chunk boundaries. A thread reads only its own file.
    async fn read_part(self: &Arc<Self>, file: u32, byte: u64, bytes: u64, transfer: &Arc<ReadTransfer>) {
        let pieces = self.stripe.pieces(byte, bytes);
        transfer.left.fetch_add(pieces.len() - 1, Relaxed);
        for piece in pieces {
            let (host, transfer) = (self.clone(), transfer.clone());
            let thread = Submitter::waiting(file);
            self.stripe.submit(piece, false, thread, move || host.part_read(&transfer)).await;
        }
    }

    /// Called in the completion interrupt.
    fn part_read(&self, transfer: &ReadTransfer) {
        if transfer.left.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        for (frame, blocks) in transfer.pages.iter().rev() {
            self.cache.lock().frames[*frame as usize].valid |= blocks;
            self.unlock_page(*frame);
        }
    }

    /// Returns the frame of a cached page, pinned against eviction.
    pub(crate) fn pinned(&self, file: u32, page: u64) -> Option<u32> {
        let mut cache = self.cache.lock();
        let frame = cache.find(file, page)?;
        cache.frames[frame as usize].pins += 1;
        Some(frame)
    }

    pub(crate) fn unpin(&self, frame: u32) {
        self.cache.lock().frames[frame as usize].pins -= 1;
    }

    /// Inserts a page, locked and pinned; `None` if it is cached, or was inserted by another task
    /// meanwhile.
    pub(crate) async fn add(&self, file: u32, page: u64) -> Option<u32> {
        loop {
            {
                let mut cache = self.cache.lock();
                if cache.find(file, page).is_some() {
                    return None;
                }
                if let Some(frame) = cache.add(file, page) {
                    cache.frames[frame as usize].pins += 1;
                    drop(cache);
                    self.rt.charge(Cost::PageInsert(1));
                    self.rt.charge(PageCacheCost::PageState(1));
                    return Some(frame);
                }
            }
            self.stripe.congestion_wait().await;
        }
    }

    pub(crate) async fn lock_page(&self, frame: u32) {
        self.rt.charge(PageCacheCost::PageState(1));
        let ready = || {
            let mut cache = self.cache.lock();
            let state = &mut cache.frames[frame as usize];
            !std::mem::replace(&mut state.locked, true)
        };
        self.sleep(&self.pages, ScheduleCaller::PageLock, u64::from(frame), ready).await;
    }

    /// Unlocks a page and wakes its waiters by the table's rule (kernel: `unlock_page`).
    pub(crate) fn unlock_page(&self, frame: u32) {
        self.rt.charge(PageCacheCost::PageState(1));
        self.cache.lock().frames[frame as usize].locked = false;
        self.wake(&self.pages, std::iter::once(u64::from(frame)));
    }

    async fn wait_unlocked(&self, frame: u32) {
        let ready = || !self.cache.lock().frames[frame as usize].locked;
        self.sleep(&self.pages, ScheduleCaller::PageBit, u64::from(frame), ready).await;
    }
}

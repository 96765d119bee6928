//! Write-back of files' pages (kernel: `writeback_inodes`, `mpage_writepages`,
//! `block_write_full_page`).

use crate::disks::Submitter;
use crate::host::{ModelledHost, PageCacheCost, ScheduleCaller};
use crate::inodes::NextInode;
use crate::page_cache::BLOCK_BYTES;
use crate::volume::is_boundary;
use crate::writeback_control::WritebackControl;
use extant_cache::Cost;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

/// Dirty pages looked up at a time (kernel: `PAGEVEC_SIZE`).
const PAGEVEC: usize = 16;

/// The longest bio (kernel: `MAX_SECTORS` of 2.6).
const BIO_BYTES: u64 = 255 * 512;

/// Pages contiguous on the volume, to be written together (kernel: `struct bio`).
pub(crate) struct PageRun {
    byte: u64,
    bytes: u64,
    frames: Vec<u32>,
}

/// Bios of pages that leave write-back together, when the last one completes.
struct WriteTransfer {
    frames: Vec<u32>,
    left: AtomicUsize,
}

impl ModelledHost {
    pub(crate) fn tick(&self) -> u64 {
        (u128::from(self.rt.now().0) * u128::from(self.hz) / 1_000_000_000) as u64
    }

    /// Writes back dirty files in order, then the block device (kernel: `writeback_inodes`,
    /// `sync_sb_inodes`).
    pub(crate) async fn write_inodes(self: &Arc<Self>, control: &mut WritebackControl) {
        for inodes in [&self.inodes, &self.device_inode] {
            let began = self.tick();
            inodes.lock().begin(control);
            loop {
                let is_congested = self.stripe.is_congested(true);
                let turn = inodes.lock().next(control, began, is_congested);
                let NextInode::Write(file, is_changed) = turn else { break };
                self.write_pages(file, control).await;
                if is_changed {
                    self.write_inode(file, control.submitter, false).await;
                }
                self.end_inode(file, control);
                self.rt.resched().await;
                if control.left <= 0 {
                    return;
                }
            }
        }
    }

    pub(crate) fn end_inode(&self, file: u32, control: &WritebackControl) {
        let has_dirty_pages = !self.cache.lock().dirty[file as usize].is_empty();
        let tick = self.tick();
        let inodes = if file == self.shape.device() { &self.device_inode } else { &self.inodes };
        let waiting = inodes.lock().ended(file, control, has_dirty_pages, tick);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Starts writing a file's dirty pages in order, from where the last write-back ended (kernel:
    /// `mpage_writepages`).
    pub(crate) async fn write_pages(self: &Arc<Self>, file: u32, control: &mut WritebackControl) {
        if control.nonblocking && self.stripe.is_congested(true) {
            control.encountered_congestion = true;
            return;
        }
        let mut index = if control.waits { 0 } else { self.cache.lock().writeback_index[file as usize] };
        let mut bio = None;
        let (mut found_any, mut done) = (control.waits, false);
        loop {
            while !done {
                let pages = self.cache.lock().pin_dirty(file, index, PAGEVEC);
                let Some((last, _)) = pages.last() else { break };
                (index, found_any) = (last + 1, true);
                for (page, frame) in pages {
                    done |= self.write_page(file, page, frame, &mut bio, control).await;
                }
                self.rt.resched().await;
            }
            if found_any || done {
                break;
            }
            // Wrap around once if there was nothing after the starting page.
            (index, found_any) = (0, true);
        }
        self.cache.lock().writeback_index[file as usize] = index;
        self.submit(bio, control.submitter).await;
    }

    /// Writes a page that was found dirty, if it still is. Returns true if the caller should stop.
    async fn write_page(
        self: &Arc<Self>,
        file: u32,
        page: u32,
        frame: u32,
        bio: &mut Option<PageRun>,
        control: &mut WritebackControl,
    ) -> bool {
        self.rt.charge(Cost::PageLookup(1));
        self.lock_page(frame).await;
        if control.waits {
            self.wait_written(frame).await;
        }
        let is_device = file == self.shape.device();
        let Some(dirty) = self.cache.lock().clear_dirty(frame, is_device) else {
            self.unlock_page(frame);
            self.unpin(frame);
            return false;
        };
        self.rt.charge(Cost::PageDirty(1));
        if is_device {
            self.write_buffers(page, frame, dirty, control).await;
        } else {
            self.rt.charge(Cost::MapLookup(1));
            self.map_page(file, page, frame, dirty, bio, control.submitter).await;
        }
        self.unpin(frame);
        control.left -= 1;
        if control.nonblocking && self.stripe.is_congested(true) {
            control.encountered_congestion = true;
            return true;
        }
        control.left <= 0
    }

    /// Adds a page to the bio that it continues, or starts a new one.
    ///
    /// The old bio is submitted first. That may wait for a request while the page is locked
    /// (kernel: `mpage_writepage`).
    async fn map_page(
        self: &Arc<Self>,
        file: u32,
        page: u32,
        frame: u32,
        dirty: u16,
        bio: &mut Option<PageRun>,
        submitter: Submitter,
    ) {
        let valid = self.cache.lock().frames[frame as usize].valid;
        let first = u64::from(page) * self.shape.page_blocks();
        let places: Vec<u64> = {
            let volume = self.volume.lock();
            let blocks = (0..16).filter(|bit| dirty & 1 << bit != 0);
            blocks.map(|bit| volume.place(file, first + bit).expect("the page is mapped")).collect()
        };
        let blocks = places.len() as u64;
        let is_one_run = dirty == valid
            && u64::from(dirty.trailing_ones()) == blocks
            && places.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if !is_one_run {
            // Block by block, each with its own bio (kernel: `block_write_full_page`).
            self.submit(bio.take(), submitter).await;
            self.begin_writeback(file, page, frame);
            let transfer =
                Arc::new(WriteTransfer { frames: vec![frame], left: AtomicUsize::new(places.len()) });
            for place in places {
                self.submit_part(place * BLOCK_BYTES, BLOCK_BYTES, &transfer, submitter).await;
            }
            return;
        }
        let byte = places[0] * BLOCK_BYTES;
        let bytes = blocks * BLOCK_BYTES;
        if bio.as_ref().is_some_and(|bio| bio.byte + bio.bytes != byte || bio.bytes + bytes > BIO_BYTES) {
            self.submit(bio.take(), submitter).await;
        }
        let run = bio.get_or_insert(PageRun { byte, bytes: 0, frames: Vec::new() });
        run.bytes += bytes;
        run.frames.push(frame);
        self.begin_writeback(file, page, frame);
        let is_boundary = is_boundary(first + blocks - 1);
        if is_boundary || blocks < self.shape.page_blocks() {
            self.submit(bio.take(), submitter).await;
        }
        if is_boundary {
            // Also write the pointer block that comes next on the volume (kernel:
            // `write_boundary_block`).
            let block = places[places.len() - 1] + 1;
            let pages = self.shape.page_blocks();
            if let Some(frame) = self.pinned(self.shape.device(), block / pages) {
                let buffer = self.buffer(frame, block);
                if self.is_dirty_buffer(buffer) {
                    self.write_buffer(buffer, submitter).await;
                }
                self.unpin(frame);
            }
        }
    }

    /// Writes the dirty buffers of a page of the block device (kernel: `block_write_full_page`).
    async fn write_buffers(self: &Arc<Self>, page: u32, frame: u32, dirty: u16, control: &WritebackControl) {
        let first = u64::from(page) * self.shape.page_blocks();
        let mut locked = Vec::new();
        for block in (0..16).filter(|block| dirty & 1 << block != 0) {
            let buffer = self.buffer(frame, first + block);
            if !control.nonblocking {
                self.lock_buffer(buffer).await;
            } else if !self.try_lock_buffer(buffer) {
                // The buffer stays dirty.
                continue;
            }
            if self.clean_buffer(buffer) {
                locked.push(buffer);
            } else {
                self.unlock_buffer(buffer);
            }
        }
        self.begin_writeback(self.shape.device(), page, frame);
        let left = Arc::new(AtomicUsize::new(locked.len()));
        if locked.is_empty() {
            self.page_written(frame);
        }
        for buffer in locked {
            let left = left.clone();
            let ended = move |host: &Self| {
                if left.fetch_sub(1, Relaxed) == 1 {
                    host.page_written(buffer.frame);
                }
            };
            self.submit_buffer(buffer, true, control.submitter, ended).await;
        }
    }

    fn begin_writeback(&self, file: u32, page: u32, frame: u32) {
        self.cache.lock().begin_writeback(file, page, frame);
        self.unlock_page(frame);
    }

    async fn submit(self: &Arc<Self>, bio: Option<PageRun>, submitter: Submitter) {
        let Some(PageRun { byte, bytes, frames }) = bio else { return };
        let transfer = Arc::new(WriteTransfer { frames, left: AtomicUsize::new(1) });
        self.submit_part(byte, bytes, &transfer, submitter).await;
    }

    /// Submits part of a transfer, split at chunk boundaries.
    async fn submit_part(
        self: &Arc<Self>,
        byte: u64,
        bytes: u64,
        transfer: &Arc<WriteTransfer>,
        submitter: Submitter,
    ) {
        let pieces = self.stripe.pieces(byte, bytes);
        transfer.left.fetch_add(pieces.len() - 1, Relaxed);
        for piece in pieces {
            let (host, transfer) = (self.clone(), transfer.clone());
            self.stripe.submit(piece, true, submitter, move || host.part_written(&transfer)).await;
        }
    }

    /// Called in the completion interrupt.
    fn part_written(&self, transfer: &WriteTransfer) {
        if transfer.left.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        transfer.frames.iter().rev().for_each(|frame| self.page_written(*frame));
    }

    fn page_written(&self, frame: u32) {
        self.cache.lock().end_writeback(frame);
        self.rt.charge(PageCacheCost::PageState(1));
        self.wake(&self.pages, std::iter::once(u64::from(frame)));
    }

    pub(crate) async fn wait_written(&self, frame: u32) {
        let ready = || !self.cache.lock().frames[frame as usize].writeback;
        self.sleep(&self.pages, ScheduleCaller::PageBit, u64::from(frame), ready).await;
    }
}

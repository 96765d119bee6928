//! Writing and write-back (kernel: `generic_file_aio_write`, `balance_dirty_pages`, `background_writeout`, `mpage_writepages`).

use super::cache::Frame;
use super::disks::Submitter;
use super::{BLOCK_BYTES, Caller, Host, Work};
use extant_cache::Cost;
use extant_rt::{Class, Nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How long a throttled writer waits at most before it looks again (kernel: `HZ / 10` in `blk_congestion_wait`).
pub(super) const CONGESTION_WAIT: Nanos = Nanos::from_millis(100);

/// Pages that a writer dirties before it looks at the limits: below them, and above (kernel: `ratelimit_pages`, of 4 MiB at most).
const RATELIMIT_BYTES: u64 = 4 << 20;
const RATELIMIT_EXCEEDED: u64 = 8;

/// Pages that the background writes of a file before the next has its turn (kernel: `MAX_WRITEBACK_PAGES`).
const TURN: usize = 1024;

/// A run of pages under write-back.
struct Transfer {
    frames: Vec<u32>,
    left: AtomicUsize,
}

impl Host {
    /// Writes a block.
    pub(super) async fn write(self: &Arc<Self>, file: u32, block: u64) {
        let (page, bit) = (block / self.shape.page_blocks(), block % self.shape.page_blocks());
        self.rt.charge(Cost::PageLookup(1));
        let frame = loop {
            if let Some(frame) = self.pinned(file, page) {
                self.lock_page(frame).await;
                break frame;
            }
            if let Some(frame) = self.add(file, page).await {
                break frame;
            }
        };
        self.rt.charge(Cost::PageCopy(1));
        self.rt.charge(Cost::PageDirty(1));
        let was_clean = {
            let mut cache = self.cache.lock();
            cache.place(file, page);
            cache.dirtied(frame, 1 << bit)
        };
        self.unlock_page(frame);
        self.unpin(frame);
        if was_clean {
            self.balance(file).await;
        }
    }

    /// Holds a writer up while too much is dirty.
    async fn balance(self: &Arc<Self>, file: u32) {
        let lane = self.rt.lane() as usize % self.dirtied.len();
        let ratelimit = RATELIMIT_BYTES / self.shape.page_bytes;
        let since = self.dirtied[lane].fetch_add(1, Relaxed) + 1;
        let exceeded = {
            let cache = self.cache.lock();
            cache.dirty_pages + cache.writeback_pages > cache.limit
        };
        if since < if exceeded { RATELIMIT_EXCEEDED } else { ratelimit } {
            return;
        }
        self.dirtied[lane].store(0, Relaxed);
        let chunk = (ratelimit + ratelimit / 2) as usize;
        let mut written = 0;
        loop {
            let (over, starts) = {
                let mut cache = self.cache.lock();
                let over = cache.dirty_pages + cache.writeback_pages > cache.limit;
                let starts = cache.dirty_pages > cache.background && !cache.background_runs;
                cache.background_runs |= starts;
                (over, starts)
            };
            if starts {
                let host = self.clone();
                drop(self.rt.spawn("pdflush", Class::Normal, async move { host.write_background().await }));
            }
            if !over || written >= chunk {
                return;
            }
            // Writers do not queue for requests here: they write what there is room for.
            if !self.stripe.is_congested(true) {
                written += self.write_some(chunk - written, Submitter::throttled(file)).await;
                if written >= chunk {
                    return;
                }
            }
            self.rt.sleep(CONGESTION_WAIT).await;
        }
    }

    async fn write_background(self: Arc<Self>) {
        loop {
            {
                let mut cache = self.cache.lock();
                if cache.dirty_pages <= cache.background {
                    cache.background_runs = false;
                    return;
                }
            }
            if self.stripe.is_congested(true) || self.write_some(TURN, Submitter::PDFLUSH).await == 0 {
                self.rt.sleep(CONGESTION_WAIT).await;
            }
        }
    }

    /// Writes up to so many pages of the file whose turn it is.
    async fn write_some(self: &Arc<Self>, most: usize, submitter: Submitter) -> usize {
        let file = {
            let mut cache = self.cache.lock();
            let Some(file) = cache.dirty_files.pop_front() else { return 0 };
            cache.dirty_files.push_back(file);
            file
        };
        self.write_file(file, most, submitter).await
    }

    /// Starts to write dirty pages of a file, in order; where its end is waited for, so are pages under write-back before.
    async fn write_file(self: &Arc<Self>, file: u32, most: usize, submitter: Submitter) -> usize {
        let pages: Vec<u32> = self.cache.lock().dirty[file as usize].iter().copied().take(most).collect();
        let mut runs: Vec<(u64, u64, Vec<u32>)> = Vec::new();
        let mut taken = 0;
        for page in pages {
            self.rt.charge(Cost::PageLookup(1));
            let Some(frame) = self.pinned(file, u64::from(page)) else { continue };
            self.lock_page(frame).await;
            if submitter.waits() {
                self.wait_written(frame).await;
            }
            let (byte, dirty) = {
                let mut cache = self.cache.lock();
                let byte = cache.byte(file, u64::from(page));
                let Frame { dirty, writeback, .. } = cache.frames[frame as usize];
                if dirty == 0 || writeback {
                    (byte, 0)
                } else {
                    cache.frames[frame as usize].dirty = 0;
                    cache.frames[frame as usize].writeback = true;
                    cache.dirty_pages -= 1;
                    cache.writeback_pages += 1;
                    cache.dirty[file as usize].remove(&page);
                    if cache.dirty[file as usize].is_empty() {
                        cache.dirty_files.retain(|other| *other != file);
                    }
                    (byte, dirty)
                }
            };
            self.unlock_page(frame);
            self.unpin(frame);
            if dirty == 0 {
                continue;
            }
            self.rt.charge(Cost::PageDirty(1));
            taken += 1;
            let first = u64::from(dirty.trailing_zeros());
            let blocks = u64::from(16 - dirty.leading_zeros()) - first;
            let (byte, bytes) = (byte + first * BLOCK_BYTES, blocks * BLOCK_BYTES);
            match runs.last_mut() {
                Some((from, length, list)) if *from + *length == byte => {
                    *length += bytes;
                    list.push(frame);
                }
                _ => {
                    self.send(std::mem::take(&mut runs), submitter).await;
                    runs.push((byte, bytes, vec![frame]));
                }
            }
        }
        self.send(runs, submitter).await;
        taken
    }

    async fn send(self: &Arc<Self>, runs: Vec<(u64, u64, Vec<u32>)>, submitter: Submitter) {
        for (byte, bytes, frames) in runs {
            self.rt.charge(Cost::MapLookup(frames.len() as u64));
            let pieces = self.stripe.pieces(byte, bytes);
            let transfer = Arc::new(Transfer { frames, left: AtomicUsize::new(pieces.len()) });
            for piece in pieces {
                self.stripe.request(piece.disk, true, submitter).await;
                let (host, transfer) = (self.clone(), transfer.clone());
                self.stripe.start(piece, true, submitter, move || host.piece_written(piece.disk, &transfer));
            }
        }
    }

    /// In the interrupt.
    fn piece_written(&self, disk: usize, transfer: &Transfer) {
        self.stripe.ended(disk, true);
        if transfer.left.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        for frame in transfer.frames.iter().rev() {
            {
                let mut cache = self.cache.lock();
                cache.frames[*frame as usize].writeback = false;
                cache.writeback_pages -= 1;
            }
            self.rt.charge(Work::PageState(1));
            self.wake(&self.pages, std::iter::once(u64::from(*frame)));
        }
    }

    /// Makes a file durable: starts its pages, writes its metadata and waits for that, then waits for each page.
    pub(super) async fn fsync(self: &Arc<Self>, file: u32) {
        self.rt.charge(crate::Cost::Syscall(1));
        self.write_file(file, usize::MAX, Submitter::waiting(file)).await;
        self.write_metadata(file).await;
        let frames: Vec<u32> = {
            let cache = self.cache.lock();
            let cached = (0..self.shape.file_pages).filter_map(|page| cache.find(file, page));
            cached.filter(|frame| cache.frames[*frame as usize].writeback).collect()
        };
        for frame in frames {
            self.wait_written(frame).await;
        }
    }

    async fn wait_written(&self, frame: u32) {
        let ready = || !self.cache.lock().frames[frame as usize].writeback;
        self.sleep(&self.pages, Caller::PageBit, u64::from(frame), ready).await;
    }
}

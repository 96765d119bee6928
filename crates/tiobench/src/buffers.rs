//! Buffers in the block device's page cache: bitmaps, inode blocks and pointer blocks (kernel:
//! fs/buffer.c).

use crate::disks::Submitter;
use crate::host::{ModelledHost, ScheduleCaller};
use crate::page_cache::BLOCK_BYTES;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A block of the device in its page's frame, which is pinned (kernel: `struct buffer_head`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferHead {
    pub(crate) block: u64,
    pub(crate) frame: u32,
    /// Its bit within the page.
    bit: u16,
}

impl ModelledHost {
    /// The device page that contains a block, and the block's bit in it.
    fn place_of(&self, block: u64) -> (u64, u16) {
        (block / self.shape.page_blocks(), 1 << (block % self.shape.page_blocks()))
    }

    pub(crate) fn buffer(&self, frame: u32, block: u64) -> BufferHead {
        BufferHead { block, frame, bit: self.place_of(block).1 }
    }

    /// Returns a block's buffer without reading it (kernel: `sb_getblk`).
    pub(crate) async fn getblk(&self, block: u64) -> BufferHead {
        let (page, device) = (self.place_of(block).0, self.shape.device());
        loop {
            if let Some(frame) = self.pinned(device, page) {
                return self.buffer(frame, block);
            }
            if let Some(frame) = self.add(device, page).await {
                self.unlock_page(frame);
                return self.buffer(frame, block);
            }
        }
    }

    /// Returns a block's buffer, and reads the block if necessary (kernel: `sb_bread`).
    pub(crate) async fn bread(self: &Arc<Self>, block: u64, submitter: Submitter) -> BufferHead {
        let buffer = self.getblk(block).await;
        let is_read = || {
            let frame = &mut self.cache.lock().frames[buffer.frame as usize];
            frame.referenced = true;
            frame.valid & buffer.bit != 0
        };
        if !is_read() {
            self.lock_buffer(buffer).await;
            if is_read() {
                self.unlock_buffer(buffer);
            } else {
                self.submit_buffer(buffer, false, submitter, |_| {}).await;
                self.wait_on_buffer(buffer).await;
            }
        }
        buffer
    }

    pub(crate) async fn lock_buffer(&self, buffer: BufferHead) {
        self.sleep(&self.buffers, ScheduleCaller::Buffer, buffer.block, || self.try_lock_buffer(buffer))
            .await;
    }

    pub(crate) fn try_lock_buffer(&self, buffer: BufferHead) -> bool {
        let locked = &mut self.cache.lock().frames[buffer.frame as usize].locked_buffers;
        let is_free = *locked & buffer.bit == 0;
        *locked |= buffer.bit;
        is_free
    }

    pub(crate) fn unlock_buffer(&self, buffer: BufferHead) {
        self.cache.lock().frames[buffer.frame as usize].locked_buffers &= !buffer.bit;
        self.wake(&self.buffers, std::iter::once(buffer.block));
    }

    pub(crate) async fn wait_on_buffer(&self, buffer: BufferHead) {
        let ready = || self.cache.lock().frames[buffer.frame as usize].locked_buffers & buffer.bit == 0;
        self.sleep(&self.buffers, ScheduleCaller::Buffer, buffer.block, ready).await;
    }

    /// Reads or writes a locked buffer. The completion interrupt calls `ended`, then unlocks the
    /// buffer.
    pub(crate) async fn submit_buffer(
        self: &Arc<Self>,
        buffer: BufferHead,
        write: bool,
        submitter: Submitter,
        ended: impl Fn(&Self) + Send + Sync + Clone + 'static,
    ) {
        let pieces = self.stripe.pieces(buffer.block * BLOCK_BYTES, BLOCK_BYTES);
        let left = Arc::new(AtomicUsize::new(pieces.len()));
        for piece in pieces {
            let (host, left, ended) = (self.clone(), left.clone(), ended.clone());
            let all_ended = move || {
                if left.fetch_sub(1, Relaxed) == 1 {
                    host.cache.lock().frames[buffer.frame as usize].valid |= buffer.bit;
                    ended(&host);
                    host.unlock_buffer(buffer);
                }
            };
            self.stripe.submit(piece, write, submitter, all_ended).await;
        }
    }

    /// Marks a buffer dirty (kernel: `mark_buffer_dirty`).
    pub(crate) fn dirty_buffer(&self, buffer: BufferHead) {
        self.cache.lock().dirtied(buffer.frame, buffer.bit);
        let tick = self.tick();
        self.device_inode.lock().dirtied(self.shape.device(), tick, false);
    }

    pub(crate) fn is_dirty_buffer(&self, buffer: BufferHead) -> bool {
        self.cache.lock().frames[buffer.frame as usize].dirty & buffer.bit != 0
    }

    /// Marks a buffer that is about to be written clean; false if it was clean already.
    pub(crate) fn clean_buffer(&self, buffer: BufferHead) -> bool {
        self.cache.lock().clean_block(buffer.frame, buffer.bit)
    }

    /// Starts writing a buffer if it is dirty and not locked (kernel: `ll_rw_block`).
    pub(crate) async fn write_buffer(self: &Arc<Self>, buffer: BufferHead, submitter: Submitter) {
        if !self.try_lock_buffer(buffer) {
            return;
        }
        if self.clean_buffer(buffer) {
            self.submit_buffer(buffer, true, submitter, |_| {}).await;
        } else {
            self.unlock_buffer(buffer);
        }
    }

    /// Writes the dirty pointer blocks of a file and waits for them (kernel: `fsync_buffers_list`).
    pub(crate) async fn write_associated(self: &Arc<Self>, file: u32) {
        let thread = Submitter::waiting(file);
        let mut written = Vec::new();
        let associated = self.volume.lock().take_associated(file);
        for block in associated {
            let (page, _) = self.place_of(block);
            let Some(frame) = self.pinned(self.shape.device(), page) else { continue };
            let buffer = self.buffer(frame, block);
            if self.is_dirty_buffer(buffer) {
                self.wait_on_buffer(buffer).await;
                self.write_buffer(buffer, thread).await;
            }
            written.push(buffer);
        }
        for buffer in written {
            self.wait_on_buffer(buffer).await;
            self.unpin(buffer.frame);
        }
    }

    /// Copies an inode to its block; with `is_durable`, also writes the block and waits (kernel:
    /// `ext2_update_inode`).
    pub(crate) async fn write_inode(self: &Arc<Self>, file: u32, submitter: Submitter, is_durable: bool) {
        let block = self.volume.lock().inode_block(file);
        let buffer = self.bread(block, submitter).await;
        self.dirty_buffer(buffer);
        if is_durable {
            self.lock_buffer(buffer).await;
            if self.clean_buffer(buffer) {
                self.submit_buffer(buffer, true, submitter, |_| {}).await;
                self.wait_on_buffer(buffer).await;
            } else {
                self.unlock_buffer(buffer);
            }
        }
        self.unpin(buffer.frame);
    }
}

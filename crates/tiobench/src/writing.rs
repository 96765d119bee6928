//! Writing and fsync (kernel: `generic_file_aio_write_nolock`, `sys_fsync`).

use crate::disks::Submitter;
use crate::host::{ModelledHost, PageCacheCost};
use crate::writeback_control::WritebackControl;
use extant_cache::Cost;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

impl ModelledHost {
    /// Writes one block.
    pub(crate) async fn write(self: &Arc<Self>, file: u32, block: u64) {
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
        let is_mapped = self.cache.lock().frames[frame as usize].valid & 1 << bit != 0;
        let grows = !is_mapped && self.make_block(file, block).await;
        self.rt.charge(Cost::PageCopy(1));
        self.rt.charge(Cost::PageDirty(1));
        self.cache.lock().dirtied(frame, 1 << bit);
        let tick = self.tick();
        self.inodes.lock().dirtied(file, tick, grows | self.changes_time(file));
        self.unlock_page(frame);
        self.unpin(frame);
        self.balance(file).await;
    }

    /// Whether a write changes the file's timestamp, which has a resolution of one second (kernel:
    /// `inode_update_time`).
    fn changes_time(&self, file: u32) -> bool {
        let now = self.rt.now().0 / 1_000_000_000 + 1;
        self.written[file as usize].swap(now, Relaxed) != now
    }

    /// Makes a file durable: starts writing its pages, writes its metadata and waits for that, then
    /// waits for the pages.
    pub(crate) async fn fsync(self: &Arc<Self>, file: u32) {
        self.rt.charge(PageCacheCost::Syscall(1));
        self.write_pages(file, &mut WritebackControl::integrity(file)).await;
        self.write_associated(file).await;
        let is_dirty = self.inodes.lock().is_dirty(file);
        if is_dirty {
            let is_changed = poll_fn(|cx| match self.inodes.lock().lock(file, cx.waker()) {
                Some(is_changed) => Poll::Ready(is_changed),
                None => Poll::Pending,
            });
            if is_changed.await {
                self.write_inode(file, Submitter::waiting(file), true).await;
            }
            self.wait_pages(file).await;
            self.end_inode(file, &WritebackControl::integrity(file));
        }
        self.wait_pages(file).await;
    }

    /// Waits for all of a file's pages under write-back (kernel: `filemap_fdatawait`).
    async fn wait_pages(&self, file: u32) {
        let frames = self.cache.lock().pin_writeback(file);
        for frame in frames {
            self.wait_written(frame).await;
            self.unpin(frame);
        }
    }
}

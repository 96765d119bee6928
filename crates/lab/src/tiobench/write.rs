//! Writing and fsync (kernel: `generic_file_aio_write_nolock`, `sys_fsync`).

use super::Host;
use super::control::Control;
use extant_cache::Cost;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

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
        {
            let mut cache = self.cache.lock();
            cache.place(file, page);
            cache.dirtied(frame, 1 << bit);
        }
        let tick = self.tick();
        self.inodes.lock().dirtied(file, tick);
        self.unlock_page(frame);
        self.unpin(frame);
        self.balance(file).await;
    }

    /// Makes a file durable: starts its pages, writes its metadata and waits for that, then waits for each page.
    pub(super) async fn fsync(self: &Arc<Self>, file: u32) {
        self.rt.charge(crate::Cost::Syscall(1));
        self.write_pages(file, &mut Control::integrity(file)).await;
        self.write_metadata(file).await;
        if self.inodes.lock().is_dirty(file) {
            // The inode itself is among the metadata.
            poll_fn(|cx| match self.inodes.lock().lock(file, cx.waker()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            self.wait_pages(file).await;
            self.end_inode(file, &Control::integrity(file));
        }
        self.wait_pages(file).await;
    }

    /// Waits for all pages of a file that are under write-back (kernel: `filemap_fdatawait`).
    async fn wait_pages(&self, file: u32) {
        let frames = self.cache.lock().pin_writeback(file);
        for frame in frames {
            self.wait_written(frame).await;
            self.unpin(frame);
        }
    }
}

//! The metadata that an fsync writes, by buffers (kernel: `sync_mapping_buffers`, `wait_on_buffer`).

use super::cache::META_BLOCKS;
use super::disks::{CHUNK_BYTES, Submitter};
use super::{BLOCK_BYTES, Caller, Host};
use std::sync::Arc;

impl Host {
    /// Writes a file's indirect blocks and its inode's block, and waits for each.
    pub(super) async fn write_metadata(self: &Arc<Self>, file: u32) {
        let first = u64::from(file) * META_BLOCKS;
        let meta = u64::from(self.cache.lock().meta[file as usize]) * CHUNK_BYTES;
        let thread = Submitter::waiting(file);
        for n in 0..META_BLOCKS {
            let pieces = self.stripe.pieces(meta + n * BLOCK_BYTES, BLOCK_BYTES);
            for piece in pieces {
                self.cache.lock().meta_locked[(first + n) as usize] = true;
                let host = self.clone();
                let written = move || {
                    host.cache.lock().meta_locked[(first + n) as usize] = false;
                    host.wake(&host.buffers, std::iter::once(first + n));
                };
                self.stripe.submit(piece, true, thread, written).await;
            }
        }
        for n in (first..first + META_BLOCKS).rev() {
            let ready = || !self.cache.lock().meta_locked[n as usize];
            self.sleep(&self.buffers, Caller::Buffer, n, ready).await;
        }
    }
}

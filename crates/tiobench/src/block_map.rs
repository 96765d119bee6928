//! Maps a file's blocks to the volume (kernel: `ext2_get_block`), under the page lock.

use crate::disks::Submitter;
use crate::host::ModelledHost;
use std::sync::Arc;

impl ModelledHost {
    /// Allocates a file's inode.
    pub(crate) async fn create(self: &Arc<Self>, file: u32) {
        let bitmap = self.volume.lock().create(file);
        let buffer = self.bread(bitmap, Submitter::waiting(file)).await;
        self.dirty_buffer(buffer);
        self.unpin(buffer.frame);
    }

    /// Returns the location of a mapped block, reading each pointer block on the way.
    pub(crate) async fn find_block(self: &Arc<Self>, file: u32, block: u64) -> u64 {
        let branch = self.volume.lock().branch(file, block);
        for pointers in branch {
            let buffer = self.bread(pointers, Submitter::waiting(file)).await;
            self.unpin(buffer.frame);
        }
        self.volume.lock().place(file, block).expect("the file has the block")
    }

    /// Allocates a block if none is mapped. Returns true if the inode changed.
    pub(crate) async fn make_block(self: &Arc<Self>, file: u32, block: u64) -> bool {
        let has_place = self.volume.lock().place(file, block).is_some();
        if has_place {
            self.find_block(file, block).await;
            return false;
        }
        let thread = Submitter::waiting(file);
        let branch = self.volume.lock().branch(file, block);
        let mut parent = None;
        for pointers in branch {
            let buffer = self.bread(pointers, thread).await;
            if let Some(before) = parent.replace(buffer) {
                self.unpin(before.frame);
            }
        }
        let grown = self.volume.lock().grow(file, block);
        for bitmap in grown.bitmaps {
            let buffer = self.bread(bitmap, thread).await;
            self.dirty_buffer(buffer);
            self.unpin(buffer.frame);
        }
        let mut dirtied = Vec::from_iter(parent);
        for pointers in grown.pointers {
            // A new pointer block is zeroed under its lock and not read.
            let buffer = self.getblk(pointers).await;
            self.lock_buffer(buffer).await;
            self.unlock_buffer(buffer);
            dirtied.push(buffer);
        }
        for buffer in dirtied {
            self.dirty_buffer(buffer);
            self.volume.lock().associate(file, buffer.block);
            self.unpin(buffer.frame);
        }
        true
    }
}

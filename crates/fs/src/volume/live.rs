//! A volume that is open for writing, as callers see it: its nodes and files, what is free, sync and close.

use super::{Volume, Writer};
use crate::Result;
use crate::alloc::Privilege;
use crate::file::{FileOptions, OpenFile, finish_shrink};
use crate::meta::InodeCell;
use crate::names::{Caller, Capabilities, Node};
use std::sync::Arc;

/// Sizes of a volume, and its free space, in blocks and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Blocks in all, without those of the volume's own structures.
    pub blocks: u64,
    /// Free blocks that no write has reserved.
    pub blocks_free: u64,
    /// Those of them that callers without privilege may use.
    pub blocks_available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl Volume {
    /// Sizes and free space. Never waits.
    pub fn space(&self) -> Space {
        let sb = self.superblock();
        let block_bytes = sb.block_size().bytes();
        match self.writer() {
            Some(writer) => {
                let counts = writer.alloc.statfs();
                Space {
                    block_bytes,
                    blocks: counts.blocks,
                    blocks_free: counts.free,
                    blocks_available: counts.available,
                    inodes: counts.inodes,
                    inodes_free: counts.free_inodes,
                }
            }
            None => {
                let free = sb.free_blocks().saturating_mul(sb.blocks_per_cluster().into());
                let reserved = u64::from(sb.raw().s_r_blocks_count_lo.get());
                Space {
                    block_bytes,
                    blocks: sb.blocks_count(),
                    blocks_free: free,
                    blocks_available: free.saturating_sub(reserved),
                    inodes: sb.inodes_count().into(),
                    inodes_free: sb.raw().s_free_inodes_count.get().into(),
                }
            }
        }
    }

    /// Finishes the orphans that a crash left: inodes without links are deleted, others cut to their size.
    pub(super) async fn finish_orphans(writer: &Arc<Writer>, orphans: Vec<Arc<InodeCell>>) -> Result<()> {
        for cell in orphans {
            match cell.is_live() {
                true => finish_shrink(writer, &cell).await?,
                false => writer.delete_unused(&cell).await?,
            }
        }
        Ok(())
    }
}

impl Node {
    /// Opens a regular file. Permissions are the caller's business: see [`Node::check_access`].
    ///
    /// # Errors
    /// Another kind of file; contents that are encrypted or damaged.
    pub fn open(&self, caller: &Caller, options: FileOptions) -> Result<OpenFile> {
        let writer = self.writer();
        let options = FileOptions {
            reserved_blocks: writer.privilege(caller) == Privilege::Reserved,
            keeps_setid: caller.can(Capabilities::FSETID),
            ..options
        };
        writer.files.open(writer, self.cell(), options)
    }

    /// Makes a directory's names and an inode's attributes durable.
    ///
    /// # Errors
    /// Why writing has ended.
    pub async fn sync(&self) -> Result<()> {
        let (writer, cell) = (self.writer(), self.cell());
        if let Some(tid) = cell.changed_by().filter(|&tid| tid > writer.journal.committed()) {
            return writer.journal.commit(tid).await;
        }
        let device = writer.store.blocks().device();
        if device.limits().volatile_cache { Ok(extant_block::flush(&**device).await?) } else { Ok(()) }
    }
}

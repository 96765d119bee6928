//! A volume open for writing: free space, and orphans left by a crash.

use super::Volume;
use crate::alloc::overhead_blocks;
use crate::file::finish_shrink;
use crate::meta::InodeCell;
use crate::names::Namespace;
use crate::{Error, Result};
use extant_format::{Corrupt, FileKind, Place};
use std::sync::Arc;

/// Size and free space of a volume, in blocks and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Total blocks, excluding the volume's own structures and its journal.
    pub blocks: u64,
    /// Free blocks not reserved by any write.
    pub blocks_free: u64,
    /// Free blocks available to unprivileged callers. Linux also withholds up to 4,096 for its own
    /// extent allocations; here every write makes its own reservation for that.
    pub blocks_available: u64,
    /// Total inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl Volume {
    /// Returns the size and free space. Never waits.
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
                let free = sb.free_blocks();
                Space {
                    block_bytes,
                    blocks: sb.blocks_count() - overhead_blocks(sb),
                    blocks_free: free,
                    blocks_available: free.saturating_sub(sb.reserved_blocks()),
                    inodes: sb.inodes_count().into(),
                    inodes_free: sb.raw().s_free_inodes_count.get().into(),
                }
            }
        }
    }

    /// Finishes the orphans left by a crash: deletes inodes without links, and truncates the others
    /// to their size. Each is finished in transactions of its own. A damaged one stays an orphan
    /// and is recorded as a problem. Returns how many were finished.
    pub(super) async fn finish_orphans(namespace: &Namespace, orphans: Vec<Arc<InodeCell>>) -> Result<u32> {
        let writer = &*namespace.writer;
        let mut finished = 0;
        for cell in orphans {
            let (is_live, kind) = (cell.is_live(), cell.read(|inode| (inode.kind(), inode.mode())));
            let done = match (is_live, kind) {
                (true, (Some(FileKind::Regular), _)) => finish_shrink(writer, &cell).await,
                // Directories have names in all their blocks and are never cut.
                (true, (_, mode)) => {
                    let rule = "that of a regular file, for the inode is to be cut to its size (orphan)";
                    Err(Corrupt::field(Place::Inode(cell.number()), "i_mode", mode.into(), rule).into())
                }
                (false, _) => {
                    namespace.delete_unused(&cell).await;
                    Ok(())
                }
            };
            match done {
                Ok(()) => finished += u32::from(!writer.orphans.contains(cell.number())),
                Err(error @ Error::Corrupt(_)) => {
                    writer.heed(&error).await;
                    writer.keep_problem(error);
                    if writer.journal.failure().is_some() {
                        break;
                    }
                }
                Err(other) => return Err(other),
            }
        }
        Ok(finished)
    }
}

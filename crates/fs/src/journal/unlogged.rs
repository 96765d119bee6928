//! Committing on a volume without a journal: home writes in phases, each flushed before the next, and file data before all.
//!
//! After a crash e2fsck mends the volume without losing what was synced, because an object is there before the names that
//! lead to it and is given up only after them. First everything but names is written, with the inodes and blocks that
//! the transaction freed still in use; then directories; last, where names were written, the freed ones as free.

use super::Inner;
use super::commit::Versions;
use super::log::write_blocks;
use super::state::Running;
use crate::Result;
use crate::meta::MetaKind;
use extant_block::Buf;
use extant_format::{Superblock, set_bits};
use std::sync::Arc;

/// Blocks with their places.
type Writes = Vec<(u64, Arc<Buf>)>;

impl Inner {
    /// Writes the transaction home; durable when this returns.
    pub(super) async fn write_phases(&self, transaction: &Running, versions: &Versions) -> Result<()> {
        let (mut objects, mut names, mut frees) = (Writes::new(), Writes::new(), Writes::new());
        let is_name = |kind| matches!(kind, MetaKind::Directory { .. });
        let has_names = versions.blocks.iter().any(|(block, _)| is_name(block.kind()));
        for (block, version) in &versions.blocks {
            let n = block.number().0;
            if is_name(block.kind()) {
                names.push((n, version.bytes().clone()));
                continue;
            }
            let shape = self.store.shape();
            match has_names
                .then(|| still_in_use(block.kind(), n, version.bytes(), transaction, versions, shape))
            {
                Some(Some(before)) => {
                    objects.push((n, Arc::new(before)));
                    frees.push((n, version.bytes().clone()));
                }
                _ => objects.push((n, version.bytes().clone())),
            }
        }
        let (device, block_bytes) = (self.store.blocks().device(), self.store.blocks().block_bytes());
        // Data first: nothing shows blocks that another file's data are in.
        self.lock().check_alive()?;
        self.flush().await?;
        for phase in [objects, names, frees] {
            if !phase.is_empty() {
                self.lock().check_alive()?;
                write_blocks(&**device, block_bytes, phase).await?;
                self.flush().await?;
            }
        }
        Ok(())
    }
}

/// The block with everything in use that the transaction freed; `None` if it freed nothing there.
fn still_in_use(
    kind: MetaKind,
    n: u64,
    version: &Buf,
    transaction: &Running,
    versions: &Versions,
    sb: &Superblock,
) -> Option<Buf> {
    let mut before: Option<Buf> = None;
    let mut own = |change: &dyn Fn(&mut [u8])| change(before.get_or_insert_with(|| Buf::from_slice(version)));
    match kind {
        MetaKind::InodeTable(_) => {
            for inode in versions.deleted.iter().filter(|inode| inode.table == n) {
                own(&|bytes| bytes[inode.at..inode.at + inode.record.len()].copy_from_slice(&inode.record));
            }
        }
        MetaKind::InodeBitmap(group) => {
            for inode in &versions.deleted {
                if let Some((_, index)) = sb.locate_inode(inode.number).filter(|(of, _)| *of == group) {
                    own(&|bytes| set_bits(bytes, index, index + 1));
                }
            }
        }
        MetaKind::BlockBitmap(group) => {
            let first = sb.group_first_block(group).0;
            let end = first + u64::from(sb.group_blocks(group));
            for run in &transaction.freed {
                let (from, to) = (run.start.0.max(first), run.end().0.min(end));
                if from < to {
                    own(&|bytes| set_bits(bytes, (from - first) as u32, (to - first) as u32));
                }
            }
        }
        _ => {}
    }
    before
}

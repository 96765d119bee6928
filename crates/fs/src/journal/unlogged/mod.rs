//! Committing on a volume without a journal: home writes in phases, each flushed before the next, and file data before all.
//!
//! After a crash e2fsck mends the volume without losing what was synced, because an object is there before the names that
//! lead to it, a name that moves is there at its new place before it leaves the old one (`names`), and an object is given
//! up only after its names. The phases, empty ones left out:
//!
//! 1. file data, and metadata blocks that nothing durable points to yet;
//! 2. everything else but names, with the inodes and blocks that the transaction freed still in use;
//! 3. names added, in blocks that keep the names which moved to other blocks;
//! 4. directory blocks without room for that, and directories that lie in their inodes (`inline_data`);
//! 5. the blocks of phase 3 without the names that moved;
//! 6. freed inodes and blocks as free.
//!
//! A name that moves between two directories in phase 4 may be at neither place after a crash; its file comes into
//! `lost+found`.

mod names;

use super::Inner;
use super::commit::{Before, Versions};
use super::log::write_blocks;
use super::state::Running;
use crate::Result;
use crate::meta::MetaKind;
use extant_block::Buf;
use extant_format::{InodeNumber, Superblock, set_bits};
use names::{Change, Step, steps};
use std::sync::Arc;

/// Blocks with their places.
type Writes = Vec<(u64, Arc<Buf>)>;

/// The writes of each phase.
#[derive(Default)]
struct Phases {
    fresh: Writes,
    objects: Writes,
    added: Writes,
    between: Writes,
    removed: Writes,
    freed: Writes,
}

impl Inner {
    /// Writes the transaction home; durable when this returns.
    pub(super) async fn write_phases(&self, transaction: &Running, versions: &Versions) -> Result<()> {
        let phases = self.phases(transaction, versions);
        // Nothing shows blocks that another file's data are in, nor a node that is not there.
        self.write_phase(phases.fresh).await?;
        self.flush().await?;
        for phase in [phases.objects, phases.added, phases.between, phases.removed, phases.freed] {
            if !phase.is_empty() {
                self.write_phase(phase).await?;
                self.flush().await?;
            }
        }
        Ok(())
    }

    async fn write_phase(&self, phase: Writes) -> Result<()> {
        self.lock().check_alive()?;
        let blocks = self.store.blocks();
        write_blocks(&**blocks.device(), blocks.block_bytes(), phase).await
    }

    fn phases(&self, transaction: &Running, versions: &Versions) -> Phases {
        let mut phases = Phases::default();
        let mut directories = Vec::new();
        let is_fresh = |kind, n| {
            let leads_nowhere = !matches!(
                kind,
                MetaKind::InodeTable(_) | MetaKind::InodeBitmap(_) | MetaKind::BlockBitmap(_)
            );
            leads_nowhere && transaction.fresh.contains(&n)
        };
        let is_name = |kind, n| matches!(kind, MetaKind::Directory { .. }) && !is_fresh(kind, n);
        let has_names = !versions.inline.is_empty()
            || versions.blocks.iter().any(|(block, _)| is_name(block.kind(), block.number().0));
        for (block, version) in &versions.blocks {
            let (kind, n) = (block.kind(), block.number().0);
            if is_name(kind, n) {
                directories.push((block, version));
                continue;
            }
            if is_fresh(kind, n) {
                phases.fresh.push((n, version.bytes().clone()));
                continue;
            }
            let shape = self.store.shape();
            let in_use = has_names
                .then(|| still_in_use(kind, n, version.bytes(), transaction, versions, shape))
                .flatten();
            if in_use.is_some() {
                phases.freed.push((n, version.bytes().clone()));
            }
            let named = in_use.map_or_else(|| version.bytes().clone(), Arc::new);
            match with_records(kind, n, &named, &versions.inline) {
                Some(unnamed) => {
                    phases.objects.push((n, Arc::new(unnamed)));
                    phases.between.push((n, named));
                }
                None => phases.objects.push((n, named)),
            }
        }
        let mut changes = Vec::with_capacity(directories.len());
        for (block, version) in &directories {
            let (n, after) = (block.number().0, &version.bytes()[..]);
            let before = transaction.names_before.get(&n).map_or(after, |before| &before[..]);
            changes.push(Change { block: n, before, after });
        }
        // A name that goes may have come to a directory that lies in its inode.
        let may_stay = |inode: InodeNumber| {
            !versions.inline.is_empty() && versions.deleted.iter().all(|deleted| deleted.number != inode)
        };
        for ((block, version), step) in directories.iter().zip(steps(&changes, may_stay)) {
            let write = (block.number().0, version.bytes().clone());
            match step {
                Step::Added => phases.added.push(write),
                Step::BetweenThem => phases.between.push(write),
                Step::AddedThenRemoved(mut both) => {
                    block.kind().seal(&mut both, block.number(), self.store.shape());
                    phases.added.push((write.0, Arc::new(both)));
                    phases.removed.push(write);
                }
            }
        }
        phases
    }
}

/// A block of the inode table with these records in place of those that it has; `None` if it has none of them.
fn with_records(kind: MetaKind, n: u64, version: &Buf, records: &[Before]) -> Option<Buf> {
    let mut changed: Option<Buf> = None;
    for inode in records.iter().filter(|inode| matches!(kind, MetaKind::InodeTable(_)) && inode.table == n) {
        let bytes = changed.get_or_insert_with(|| Buf::from_slice(version));
        bytes[inode.at..inode.at + inode.record.len()].copy_from_slice(&inode.record);
    }
    changed
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
        MetaKind::InodeTable(_) => return with_records(kind, n, version, &versions.deleted),
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

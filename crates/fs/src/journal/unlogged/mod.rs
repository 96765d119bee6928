//! Committing on a volume without a journal: home writes in phases, each flushed before the next, and file data before all.
//!
//! After a crash e2fsck mends the volume without losing what was synced, because an object is there before the names that
//! lead to it, a name that moves is there at its new place before it leaves the old one (`names`), and an object is given
//! up only after its names. The phases, empty ones left out:
//!
//! 1. file data, and metadata blocks that nothing durable points to yet;
//! 2. group descriptors, if there are new directory blocks among those of phase 1: what points to such a block is in phase 3, and
//!    e2fsck must not find names of inodes behind the mark of those in use (`bg_itable_unused`);
//! 3. everything else but names, with the inodes and blocks that the transaction freed still in use, and files that became
//!    shorter with the size that they had;
//! 4. nodes of extent trees of files and directories whose size changed: e2fsck gives up a written extent that ends behind the size, with what
//!    was synced of it;
//! 5. files that became shorter with their new size;
//! 6. names added, in blocks that keep the names which moved to other blocks, and in inodes (`inline_data`) that no name
//!    leaves;
//! 7. directory blocks without room for that, and inodes that names both come to and leave;
//! 8. the blocks of phase 6 without the names that moved, and inodes that names only leave;
//! 9. freed inodes and blocks as free.
//!
//! Nodes of one extent tree have no order among them: an edit after which a node is responsible for other file blocks copies the nodes
//! that it changes, up to the inode, whose record makes it durable (`map::change`).
//!
//! Of two directories in phase 7 that trade names, one may be at neither place after a crash; its file comes into
//! `lost+found`.

mod inline;
mod names;

use super::Inner;
use super::commit::{Before, Versions};
use super::log::write_blocks;
use super::state::Running;
use crate::Result;
use crate::meta::MetaKind;
use extant_block::Buf;
use extant_format::{InodeNumber, Superblock, set_bits};
use inline::Turn;
use names::{Change, Step, steps};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// Blocks with their places.
type Writes = Vec<(u64, Arc<Buf>)>;

/// The writes of each phase.
#[derive(Default)]
struct Phases {
    fresh: Writes,
    marks: Writes,
    objects: Writes,
    nodes: Writes,
    sizes: Writes,
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
        let Phases { marks, objects, nodes, sizes, added, between, removed, freed, .. } = phases;
        for phase in [marks, objects, nodes, sizes, added, between, removed, freed] {
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
        // Blocks of an inode table among them: the descriptor's mark (`bg_itable_unused`) keeps e2fsck from reading them.
        let is_fresh = |kind, n| {
            let is_bitmap = matches!(kind, MetaKind::InodeBitmap(_) | MetaKind::BlockBitmap(_));
            !is_bitmap && transaction.fresh.contains(&n)
        };
        let is_name = |kind, n| matches!(kind, MetaKind::Directory { .. }) && !is_fresh(kind, n);
        let has_fresh_names = versions.blocks.iter().any(|(block, _)| {
            let (kind, n) = (block.kind(), block.number().0);
            matches!(kind, MetaKind::Directory { .. }) && is_fresh(kind, n)
        });
        let has_names = !versions.inline.is_empty()
            || versions.blocks.iter().any(|(block, _)| is_name(block.kind(), block.number().0));
        // Where all else is fresh, the inode's record is what shows it.
        let resized: FxHashSet<InodeNumber> = versions
            .blocks
            .iter()
            .filter_map(|(block, _)| match block.kind() {
                kind @ MetaKind::ExtentNode { inode, .. } => (!is_fresh(kind, block.number().0)
                    && versions.resized.files.contains(&inode))
                .then_some(inode),
                _ => None,
            })
            .collect();
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
            // The first steps of the removal of an object, which its names may still lead to.
            if let MetaKind::ExtentNode { inode, .. } | MetaKind::Indirect { inode } = kind
                && versions.deleted.iter().any(|deleted| deleted.number == inode)
            {
                phases.freed.push((n, version.bytes().clone()));
                continue;
            }
            if matches!(kind, MetaKind::ExtentNode { inode, .. } if resized.contains(&inode)) {
                phases.nodes.push((n, version.bytes().clone()));
                continue;
            }
            if has_fresh_names && matches!(kind, MetaKind::Descriptors(_)) {
                phases.marks.push((n, version.bytes().clone()));
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
            let turns: Vec<(Turn, &Before)> = records_of(kind, n, &versions.inline)
                .map(|inode| (inline::turn(inode, version.bytes(), &versions.deleted, shape), inode))
                .collect();
            let unnamed = with_records(&named, turns.iter().map(|&(_, inode)| inode));
            let unnamed = unnamed.map_or_else(|| named.clone(), Arc::new);
            let shrunk = records_of(kind, n, &versions.resized.shrunk);
            match with_records(&unnamed, shrunk.filter(|inode| resized.contains(&inode.number))) {
                Some(longer) => {
                    phases.objects.push((n, Arc::new(longer)));
                    phases.sizes.push((n, unnamed));
                }
                None => phases.objects.push((n, unnamed)),
            }
            for (turn, phase) in [
                (Turn::Added, &mut phases.added),
                (Turn::Between, &mut phases.between),
                (Turn::Removed, &mut phases.removed),
            ] {
                if turns.iter().any(|&(of, _)| of == turn) {
                    let later = turns.iter().filter(|&&(of, _)| of > turn).map(|&(_, inode)| inode);
                    phase.push((n, with_records(&named, later).map_or_else(|| named.clone(), Arc::new)));
                }
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

/// Those of the records that lie in block `n`.
fn records_of(kind: MetaKind, n: u64, records: &[Before]) -> impl Iterator<Item = &Before> {
    records.iter().filter(move |inode| matches!(kind, MetaKind::InodeTable(_)) && inode.table == n)
}

/// A block of the inode table with these records in place of those that it has; `None` if there are none.
fn with_records<'b>(version: &Buf, records: impl IntoIterator<Item = &'b Before>) -> Option<Buf> {
    let mut changed: Option<Buf> = None;
    for inode in records {
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
        MetaKind::InodeTable(_) => return with_records(version, records_of(kind, n, &versions.deleted)),
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
                    // Whole clusters are freed.
                    let bit = |block: u64| ((block - first) >> sb.cluster_size().log2()) as u32;
                    own(&|bytes| set_bits(bytes, bit(from), bit(to)));
                }
            }
        }
        _ => {}
    }
    before
}

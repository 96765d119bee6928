//! Commits on a volume without a journal: file data first, then home writes in phases, with a flush
//! after each.
//!
//! After a crash, e2fsck repairs the volume without losing anything synced. This works because an
//! object is written before the names that lead to it, a name that moves is written at its new
//! place before it leaves the old one (`names`), and an object is freed only after its names are
//! gone. Empty phases are skipped:
//!
//! 1. File data, and metadata blocks that nothing durable points to yet.
//! 2. Group descriptors, if phase 1 has new directory blocks. The pointers to those blocks are
//!    written in phase 3, and e2fsck must not find names of inodes beyond the used part of the
//!    inode table (`bg_itable_unused`).
//! 3. Everything else except names. Inodes and blocks that the transaction freed are still in use,
//!    and files that shrank keep their old size.
//! 4. Extent tree nodes of files and directories whose size changed. e2fsck drops a written extent
//!    that ends past the file size, along with the synced data in it.
//! 5. The new sizes of files that shrank.
//! 6. Added names: in blocks, which still keep the names that moved to other blocks, and in inodes
//!    (`inline_data`) that no name leaves.
//! 7. Directory blocks without room for that, and inodes that names both enter and leave.
//! 8. The blocks of phase 6 without the names that moved, and inodes that names only leave.
//! 9. Freed inodes and blocks, now free.
//!
//! Nodes of one extent tree are not ordered among themselves. An edit that changes which file
//! blocks a node covers copies every node it changes, up to the inode, whose record makes the edit
//! durable (`map::change`).
//!
//! If two directories in phase 7 exchange names, a crash may leave one name in neither place.
//! e2fsck then puts its file into `lost+found`.

mod inline_order;
mod names;

use super::Inner;
use super::commit::{Before, Versions};
use super::log::write_blocks;
use super::state::Running;
use crate::Result;
use crate::meta::MetaKind;
use extant_block::Buf;
use extant_format::{InodeNumber, Superblock, UintExt, set_bits};
use inline_order::Turn;
use names::{Change, Step, steps};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// Blocks with their block numbers.
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
    /// Writes the transaction home; it is durable when this returns.
    pub(super) async fn write_phases(&self, transaction: &Running, versions: &Versions) -> Result<()> {
        let phases = self.phases(transaction, versions);
        // First, so that nothing on disk points to another file's data or to a missing node.
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
        // Includes inode table blocks: the descriptor's `bg_itable_unused` keeps e2fsck from
        // reading them.
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
        // If all of a file's nodes are fresh, the inode's record is what makes them reachable.
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
            // First steps of removing an object that names may still lead to.
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
                .map(|inode| (inline_order::turn(inode, version.bytes(), &versions.deleted, shape), inode))
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
        // A removed name may have moved into an inline directory.
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

/// The records that are in block `n`.
fn records_of(kind: MetaKind, n: u64, records: &[Before]) -> impl Iterator<Item = &Before> {
    records.iter().filter(move |inode| matches!(kind, MetaKind::InodeTable(_)) && inode.table == n)
}

/// Returns an inode table block with these records replaced; `None` if there are none.
fn with_records<'b>(version: &Buf, records: impl IntoIterator<Item = &'b Before>) -> Option<Buf> {
    let mut changed: Option<Buf> = None;
    for inode in records {
        let bytes = changed.get_or_insert_with(|| Buf::from_slice(version));
        bytes[inode.at..inode.at + inode.record.len()].copy_from_slice(&inode.record);
    }
    changed
}

/// Returns the block with everything that the transaction freed marked in use; `None` if nothing
/// was freed there.
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
                    // Only whole clusters are freed.
                    let bit = |block: u64| ((block - first) >> sb.cluster_size().log2()).fit_u32();
                    own(&|bytes| set_bits(bytes, bit(from), bit(to)));
                }
            }
        }
        _ => {}
    }
    before
}

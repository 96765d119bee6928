//! Checks a directory once, when an operation first uses it.
//!
//! On a damaged volume a directory may be reachable under two names or in a cycle, or its size may
//! leave out blocks that it maps. Without the check, an operation could remove what another name
//! holds, or map its blocks again.

use super::Namespace;
use super::dir_state::state;
use super::open_dir::{OpenDir, Spot};
use crate::dir::check::{TreeCheck, elsewhere, first_entries, inline_parent, size_in_blocks, too_short};
use crate::dir::edit;
use crate::dir::shape::Blocks;
use crate::inode::InodeCell;
use crate::map::block_state::OnDisk;
use crate::map::change;
use crate::meta::PhysicalRun;
use crate::{Error, Result};
use extant_format::{BlockRange, Corrupt, FileBlock, InodeNumber, Place, UintExt};
use extant_rt::Nanos;
use std::sync::Arc;

/// Trees up to this size are checked before a lookup first says that a name is absent. Larger trees
/// are not, because a lookup should not have to read that much; they are checked before a name is
/// added, and when a name to be removed is not found.
const LOOKED_THROUGH_BYTES: u64 = 1 << 20;
/// Maximum time for which a check may keep its processor.
const STINT: Nanos = Nanos::from_millis(1);

impl<'w> OpenDir<'w> {
    /// Opens the directory of an inode and checks that it is sound. The caller holds the
    /// directory's lock or the rename lock.
    ///
    /// # Errors
    /// The inode is not a directory, or is a damaged one.
    pub(super) async fn open(namespace: &'w Namespace, cell: &Arc<InodeCell>) -> Result<Self> {
        let mut dir = Self::new(namespace, cell)?;
        // A removed directory has neither blocks nor a parent.
        if state(cell).parent.is_none() && cell.is_live() {
            Box::pin(dir.check()).await?;
        }
        Ok(dir)
    }

    async fn check(&mut self) -> Result<()> {
        let (cell, sb) = (self.cell().clone(), self.writer().store.shape());
        let parent = if self.is_inline {
            cell.read(|inode| inline_parent(inode, sb))?
        } else {
            cell.read(|inode| size_in_blocks(inode, sb))?;
            self.check_map().await?;
            let first = self.run(|dir| dir.get(FileBlock(0))).await?;
            first_entries(&first, cell.number(), sb.inodes_count())?
        };
        state(&cell).parent = Some(parent);
        Ok(())
    }

    /// Checks that the directory maps exactly the blocks within its size, each to a different
    /// block.
    async fn check_map(&mut self) -> Result<()> {
        let writer = self.writer();
        let (sb, cell, blocks) = (writer.store.shape(), self.cell().clone(), u64::from(self.shape.blocks));
        let place = |at: u64| Place::DirectoryBlock(cell.number(), FileBlock(at.fit_u32()));
        // Old kernels kept preallocated blocks past a directory's end.
        let kept = u64::from(sb.raw().s_prealloc_dir_blocks);
        let mut runs: Vec<PhysicalRun> = Vec::new();
        let (mut at, mut looks) = (0, 0);
        while at < BlockRange::MAP_END {
            for (range, known) in change::look_up(&writer.store, &writer.alloc, &cell, at).await? {
                let part = BlockRange::new(range.start.max(at), range.end);
                if part.is_empty() {
                    continue;
                }
                at = part.end;
                match known {
                    OnDisk::Written(start) => {
                        if part.end > blocks + kept {
                            return Err(cell.read(too_short).into());
                        }
                        let start = start.0 + (part.start - range.start);
                        let run = PhysicalRun::new(extant_format::VolumeBlock(start), part.len());
                        writer.alloc.check_claim(run, place(part.start))?;
                        state(&cell).learn(part.start.fit_u32(), part.len().fit_u32(), run.start);
                        runs.push(run);
                    }
                    _ if part.start < blocks => {
                        let rule = "0: a directory has no holes";
                        return Err(
                            Corrupt::field(place(part.start), "blocks unmapped", part.len(), rule).into()
                        );
                    }
                    OnDisk::Unwritten(_) => return Err(cell.read(too_short).into()),
                    OnDisk::Hole | OnDisk::Implied(_) => {}
                }
            }
            looks += 1;
            if looks > sb.blocks_count() {
                let rule = "at most the volume's blocks";
                return Err(
                    Corrupt::field(Place::Inode(cell.number()), "nodes of the map", looks, rule).into()
                );
            }
        }
        runs.sort_unstable_by_key(|run| run.start);
        match runs.windows(2).find(|pair| pair[1].start < pair[0].end()) {
            Some([_, run]) => {
                let rule = "a block of one place in the directory";
                Err(Corrupt::field(Place::Inode(cell.number()), "block", run.start.0, rule).into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that `..` names the directory that holds the name that led here.
    ///
    /// # Errors
    /// The directory has another name elsewhere.
    pub(super) fn check_lies_in(&self, parent: InodeNumber) -> Result<()> {
        let known = state(self.cell()).parent;
        match known.filter(|known| *known != parent) {
            Some(known) => Err(elsewhere(self.cell().number(), known).into()),
            None => Ok(()),
        }
    }

    /// Checks that a directory's inode has only one name here. All names are read once, so only the
    /// first of many checks costs time proportional to the directory's size.
    ///
    /// # Errors
    /// It has several.
    pub(super) async fn check_named_once(&self, inode: InodeNumber) -> Result<()> {
        let known = state(self.cell()).doubles.clone();
        let doubles = match known {
            Some(known) => known,
            None => {
                let found = Box::pin(self.doubles()).await?;
                state(self.cell()).doubles = Some(found.clone());
                found
            }
        };
        if doubles.binary_search(&inode).is_err() {
            return Ok(());
        }
        // Names have gone since then, and the number may belong to another inode.
        let now = Box::pin(self.doubles()).await?;
        let is_double = now.binary_search(&inode).is_ok();
        state(self.cell()).doubles = Some(now);
        match is_double {
            true => {
                let rule = "1, for it is a directory";
                Err(Corrupt::field(Place::Inode(inode), "names in its directory", 2, rule).into())
            }
            false => Ok(()),
        }
    }

    /// The inodes that several names here lead to.
    async fn doubles(&self) -> Result<Arc<[InodeNumber]>> {
        let mut all: Vec<InodeNumber> = Vec::new();
        // A second instance, because the blocks pinned here are needed by the caller's next step.
        let mut other = Self::new(self.namespace(), self.cell())?;
        if other.is_inline {
            let names = other.cell().read(|inode| {
                crate::dir::inline::names(other.shape.leaf, inode)
                    .map(|names| names.iter().map(|(inode, ..)| *inode).collect::<Vec<_>>())
            });
            all = names?;
        } else {
            other.begin_scan();
            for at in (0..other.shape.blocks).map(FileBlock) {
                let found = other.run(|dir| {
                    let bytes = dir.get(at)?;
                    let names = edit::names(&dir.shape, at, &bytes)?;
                    let names = names.iter().filter(|entry| entry.name != b"." && entry.name != b"..");
                    Ok(names.map(|entry| InodeNumber(entry.inode)).collect::<Vec<_>>())
                });
                all.append(&mut found.await?);
            }
        }
        all.sort_unstable();
        let mut doubles: Vec<_> =
            all.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        doubles.dedup();
        Ok(doubles.into())
    }

    /// Whether this is a hash tree that [`Self::check_tree`] has not checked.
    pub(super) fn is_tree_unchecked(&self) -> bool {
        self.shape.tree && !state(self.cell()).is_tree_sound
    }

    /// Whether the tree must be checked before a lookup says that a name is absent.
    pub(super) fn may_hide_names(&self) -> bool {
        let bytes = u64::from(self.shape.blocks) * self.shape.block_bytes.to_u64();
        bytes <= LOOKED_THROUGH_BYTES && self.is_tree_unchecked()
    }

    /// Checks once that lookups can find all names of a hash tree. Otherwise a name that only a
    /// scan finds would get a second entry.
    ///
    /// # Errors
    /// A name is in a leaf that its hash does not lead to.
    pub(super) async fn check_tree(&mut self) -> Result<()> {
        if !self.is_tree_unchecked() {
            return Ok(());
        }
        let (number, sound) = (self.cell().number(), &self.namespace().sound_trees);
        if !sound.lock().contains(&number) {
            Box::pin(self.check_all_leaves()).await?;
            sound.lock().insert(number);
        }
        state(self.cell()).is_tree_sound = true;
        Ok(())
    }

    /// Looks up a name that is to be removed. `None` if it is absent.
    ///
    /// # Errors
    /// As [`Self::look`]; also if a tree of any size is damaged, so that it may contain the name.
    pub(super) async fn look_for_removal(&mut self, name: &[u8]) -> Result<Option<Spot>> {
        match self.look(name).await? {
            Ok(spot) => Ok(Some(spot)),
            Err(_) => {
                self.check_tree().await?;
                Ok(None)
            }
        }
    }

    async fn check_all_leaves(&self) -> Result<()> {
        // A second instance, because the blocks pinned here are needed by the caller's next step.
        let mut dir = Self::new(self.namespace(), self.cell())?;
        dir.begin_scan();
        let mut check = TreeCheck::default();
        let mut budget = self.writer().rt.budget(STINT);
        while dir.run(|dir| check.step(&dir.shape, dir)).await? {
            budget.resched().await;
        }
        Ok(())
    }
}

/// The directory from which another one was looked up, to be compared with the latter's `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    from: InodeNumber,
    /// How often the directory had moved at the time of the lookup.
    moves: u32,
}

impl Way {
    /// The way from `from` to a directory. The caller holds the lock of one of the two.
    pub(super) fn new(namespace: &Namespace, from: InodeNumber, to: &InodeCell) -> Self {
        Self { from, moves: namespace.moves_of(to.number()) }
    }

    /// Checks the way against an open directory.
    ///
    /// # Errors
    /// The directory has another name elsewhere.
    pub(super) fn check(self, dir: &OpenDir<'_>) -> Result<()> {
        let (number, parent) = (dir.cell().number(), state(dir.cell()).parent);
        match parent.filter(|parent| *parent != self.from) {
            // If the counters differ, a rename has moved it since.
            Some(parent) if dir.namespace().moves_of(number) == self.moves => {
                Err(Error::from(elsewhere(number, parent)))
            }
            _ => Ok(()),
        }
    }
}

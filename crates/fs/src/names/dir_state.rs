//! State cached for a directory while its inode is in memory.

use crate::dir::linear_index::NameIndex;
use crate::dir::shape::Form;
use crate::inode::InodeCell;
use extant_format::{FileBlock, Group, InodeNumber, UintExt, VolumeBlock};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// State cached for a directory while its inode is in memory. A directory's blocks never move, and
/// none is freed before the directory.
#[derive(Debug, Default)]
pub(crate) struct DirState {
    /// Known extents as (first file block, length, first volume block), in order.
    runs: Vec<(u32, u32, VolumeBlock)>,
    pub(super) index: Option<NameIndex>,
    /// The index was used since the shrinker last looked at it.
    pub(super) index_used: bool,
    /// The directory is in the list of directories with an index.
    pub(super) index_listed: bool,
    /// Group of the last new file, because the directory's own group may be full.
    pub(super) last_group: Option<Group>,
    /// The inode was deleted.
    gone: bool,
    /// The target of `..`, set once the directory was found to be sound.
    pub(super) parent: Option<InodeNumber>,
    /// Blocks of a hash tree found to be sound leaves.
    leaves: BlockSet,
    nodes: BlockSet,
    /// The tree was checked as a whole, or was created by us.
    pub(super) is_tree_sound: bool,
    /// Inodes that had several names here when all names were last read, sorted. Operations never
    /// add a second name for a directory.
    pub(super) doubles: Option<Arc<[InodeNumber]>>,
}

/// A set of a directory's blocks.
#[derive(Debug, Default)]
struct BlockSet(Vec<u64>);

impl BlockSet {
    fn contains(&self, at: FileBlock) -> bool {
        self.0.get(at.0.to_usize() / 64).is_some_and(|word| word >> (at.0 % 64) & 1 == 1)
    }

    fn insert(&mut self, at: FileBlock) {
        let word = at.0.to_usize() / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (at.0 % 64);
    }
}

impl DirState {
    pub(super) const fn is_gone(&self) -> bool {
        self.gone
    }

    pub(super) fn set_gone(&mut self) {
        *self = Self { gone: true, ..Self::default() };
    }

    /// The directory was created by us, with one block and no names.
    pub(super) fn set_made(&mut self, parent: InodeNumber, at: VolumeBlock) {
        (self.parent, self.doubles) = (Some(parent), Some(Arc::default()));
        self.learn(0, 1, at);
    }

    pub(super) fn is_sound(&self, at: FileBlock, form: Form) -> bool {
        match form {
            Form::Leaf => self.leaves.contains(at),
            Form::Node => self.nodes.contains(at),
        }
    }

    pub(super) fn set_sound(&mut self, at: FileBlock, form: Form) {
        match form {
            Form::Leaf => self.leaves.insert(at),
            Form::Node => self.nodes.insert(at),
        }
    }

    pub(super) fn place(&self, at: FileBlock) -> Option<VolumeBlock> {
        let n = self.runs.partition_point(|(start, ..)| *start <= at.0).checked_sub(1)?;
        let (start, blocks, place) = self.runs[n];
        (at.0 - start < blocks).then(|| VolumeBlock(place.0 + u64::from(at.0 - start)))
    }

    pub(super) fn learn(&mut self, start: u32, blocks: u32, place: VolumeBlock) {
        let n = self.runs.partition_point(|(known, ..)| *known < start);
        if let Some((before, len, at)) = n.checked_sub(1).map(|n| self.runs[n]) {
            if before + len > start {
                return;
            }
            if before + len == start && at.0 + u64::from(len) == place.0 {
                self.runs[n - 1].1 += blocks;
                return;
            }
        }
        if self.runs.get(n).is_none_or(|(next, ..)| start + blocks <= *next) {
            self.runs.insert(n, (start, blocks, place));
        }
    }
}

/// The cached state of an inode that is or was a directory.
pub(super) fn state(cell: &InodeCell) -> MutexGuard<'_, DirState> {
    cell.attached::<Mutex<DirState>>().lock()
}

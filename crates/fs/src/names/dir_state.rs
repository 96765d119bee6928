//! State that is kept of a directory while its inode is in memory.

use crate::dir::index::NameIndex;
use crate::inode::InodeCell;
use extant_format::{FileBlock, Group, VolumeBlock};
use parking_lot::{Mutex, MutexGuard};

/// State cached for a directory while its inode is in memory. A directory's blocks never move and are never freed before
/// the directory.
#[derive(Debug, Default)]
pub(crate) struct DirState {
    /// First block, length and place of the runs of blocks that are known, in order.
    runs: Vec<(u32, u32, VolumeBlock)>,
    pub(super) index: Option<NameIndex>,
    /// The index was used since the last look for one to drop.
    pub(super) index_used: bool,
    /// The directory is in the list of those with an index.
    pub(super) index_listed: bool,
    /// Where the last new file was put, since the directory's own group may be full.
    pub(super) last_group: Option<Group>,
    /// The inode was deleted.
    gone: bool,
}

impl DirState {
    pub(super) const fn is_gone(&self) -> bool {
        self.gone
    }

    pub(super) fn set_gone(&mut self) {
        *self = Self { gone: true, ..Self::default() };
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

//! Volumes and files to test allocators with.

use super::seam::{BlockAllocator, FileId, FreeSpace, Geometry, Request};
use std::collections::BTreeSet;
use std::ops::Range;

pub(super) const GROUP: u64 = 32_768;

/// A volume of four groups with this free space.
pub(super) fn space(free: impl IntoIterator<Item = Range<u64>>) -> FreeSpace {
    let geometry = Geometry { first_block: 0, group_blocks: GROUP, groups: 4, flex_groups: 1 };
    FreeSpace { geometry, free: free.into_iter().collect(), stripe_blocks: 0 }
}

/// An empty volume: the first 100 blocks of each group are metadata.
pub(super) fn empty() -> FreeSpace {
    space((0..4).map(|group| group * GROUP + 100..(group + 1) * GROUP))
}

/// The layout of files that have grown.
pub(super) struct Grown {
    /// Number of runs of each file on the volume.
    pub(super) extents: Vec<u64>,
    all: BTreeSet<u64>,
}

impl Grown {
    /// Grows `files` files to `blocks` blocks, one block each in turn.
    pub(super) fn in_turns(allocator: &mut dyn BlockAllocator, files: u64, blocks: u64) -> Self {
        let mut grown = Self { extents: vec![0; files as usize], all: BTreeSet::new() };
        let mut last = vec![u64::MAX - 1; files as usize];
        for block in 0..blocks {
            for file in 0..files {
                let (found, _) = allocator.allocate(Request::append(FileId(file), block, 0)).unwrap();
                assert_eq!(found.end - found.start, 1);
                assert!(grown.all.insert(found.start), "{found:?} was given twice");
                let file = file as usize;
                grown.extents[file] += u64::from(last[file] + 1 != found.start);
                last[file] = found.start;
            }
        }
        grown
    }

    /// Whether all blocks are contiguous from `first` on.
    pub(super) fn starts_from(&self, first: u64) -> bool {
        self.all.iter().copied().eq(first..first + self.all.len() as u64)
    }
}

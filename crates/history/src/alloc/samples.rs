//! Volumes and files that allocators are tried on.

use super::seam::{BlockAllocator, FileId, FreeSpace, Geometry, Request};
use std::collections::BTreeSet;
use std::ops::Range;

pub(super) const GROUP: u64 = 32_768;

/// A volume of four groups with this free space.
pub(super) fn space(free: impl IntoIterator<Item = Range<u64>>) -> FreeSpace {
    let geometry = Geometry { first_block: 0, group_blocks: GROUP, groups: 4, flex_groups: 1 };
    FreeSpace { geometry, free: free.into_iter().collect(), stripe_blocks: 0 }
}

/// A new volume: the first 100 blocks of each group are its metadata.
pub(super) fn empty() -> FreeSpace {
    space((0..4).map(|group| group * GROUP + 100..(group + 1) * GROUP))
}

/// Files after they grew.
pub(super) struct Grown {
    /// Runs of each file on the volume.
    pub(super) extents: Vec<u64>,
    all: BTreeSet<u64>,
}

impl Grown {
    /// So many files grow by a block each in turns.
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

    /// The blocks lie in a row from this one on.
    pub(super) fn starts_from(&self, first: u64) -> bool {
        self.all.iter().copied().eq(first..first + self.all.len() as u64)
    }
}

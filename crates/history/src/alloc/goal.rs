//! The block that the next one of a file is wanted at, as ext2 and ext3 find it (`ext2_find_goal`, `ext3_find_goal`).

use std::collections::BTreeMap;

/// The blocks of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Goals {
    /// First block of each run of the file, to its place and its length.
    runs: BTreeMap<u64, (u64, u64)>,
    /// The block that was given a place last (`i_next_alloc_block`, `i_next_alloc_goal`).
    last: Option<(u64, u64)>,
}

impl Goals {
    /// The goal of a block: behind the last one for the next in order, else the nearest block before it; `first` for the
    /// file's first.
    ///
    /// Linux looks for the nearest block in the block of pointers that will point to it, and then takes that block's own
    /// place; here pointers have no blocks, and the nearest of the whole file is taken.
    pub(super) fn find(&self, block: u64, first: u64) -> u64 {
        if let Some((last, at)) = self.last
            && last + 1 == block
        {
            return at + 1;
        }
        let before = self.runs.range(..block).next_back();
        before.map_or(first, |(begin, (at, length))| at + (block - 1 - begin).min(length - 1))
    }

    /// A block has its place.
    pub(super) fn note(&mut self, block: u64, at: u64) {
        self.last = Some((block, at));
        if let Some((begin, (place, length))) = self.runs.range_mut(..block).next_back()
            && begin + *length == block
            && *place + *length == at
        {
            *length += 1;
            return;
        }
        self.runs.insert(block, (at, 1));
    }
}

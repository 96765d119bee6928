//! The goal of a file's next block, as found by ext2 and ext3 (`ext2_find_goal`, `ext3_find_goal`).

use std::collections::BTreeMap;

/// The blocks of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Goals {
    /// The file's runs: first file block to position on the volume and length.
    runs: BTreeMap<u64, (u64, u64)>,
    /// The last allocated block, in the file and on the volume (`i_next_alloc_block`,
    /// `i_next_alloc_goal`).
    last: Option<(u64, u64)>,
}

impl Goals {
    /// The goal for a file block: after the last allocation if it is the next in order, else the
    /// position of the nearest block before it; `first` for the file's first block.
    ///
    /// Linux looks for the nearest block in the pointer block that will point to the new one, and
    /// falls back to the position of the pointer block itself. Here there are no pointer blocks, so
    /// the whole file is searched.
    pub(super) fn find(&self, block: u64, first: u64) -> u64 {
        if let Some((last, at)) = self.last
            && last + 1 == block
        {
            return at + 1;
        }
        let before = self.runs.range(..block).next_back();
        before.map_or(first, |(begin, (at, length))| at + (block - 1 - begin).min(length - 1))
    }

    /// Records where a block was allocated.
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

//! Attribute blocks by content hash, so that inodes with the same attributes can share one (Linux:
//! mbcache).

use extant_format::VolumeBlock;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of blocks to keep track of.
const KEPT: usize = 4096;

/// Attribute blocks in use. A block that is rewritten or freed must be reported at once. A block
/// that is missing here is merely not shared.
#[derive(Debug, Default)]
pub(crate) struct SharedBlocks {
    hashes: BTreeMap<VolumeBlock, u32>,
    blocks: BTreeMap<u32, Vec<VolumeBlock>>,
    /// In the order in which they were added, with their hash at that time. Some may have been
    /// forgotten since.
    order: VecDeque<(VolumeBlock, u32)>,
}

impl SharedBlocks {
    /// Records that block `at` has the hash `hash` (`h_hash`); 0 means that it must not be shared.
    pub(crate) fn note(&mut self, at: VolumeBlock, hash: u32) {
        if self.hashes.get(&at) == Some(&hash) {
            return;
        }
        self.forget(at);
        if hash == 0 {
            return;
        }
        self.hashes.insert(at, hash);
        self.blocks.entry(hash).or_default().push(at);
        self.order.push_back((at, hash));
        if self.order.len() > 2 * KEPT {
            let hashes = &self.hashes;
            self.order.retain(|(at, hash)| hashes.get(at) == Some(hash));
        }
        while self.hashes.len() > KEPT {
            let Some((oldest, hash)) = self.order.pop_front() else { break };
            if self.hashes.get(&oldest) == Some(&hash) {
                self.forget(oldest);
            }
        }
    }

    /// Forgets a block.
    pub(crate) fn forget(&mut self, at: VolumeBlock) {
        let Some(hash) = self.hashes.remove(&at) else { return };
        if let Some(blocks) = self.blocks.get_mut(&hash) {
            blocks.retain(|&block| block != at);
            if blocks.is_empty() {
                self.blocks.remove(&hash);
            }
        }
    }

    /// Blocks with this hash, in the order they were recorded.
    pub(crate) fn of(&self, hash: u32) -> Vec<VolumeBlock> {
        self.blocks.get(&hash).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_changes_often_does_not_drive_out_the_others() {
        let mut blocks = SharedBlocks::default();
        blocks.note(VolumeBlock(1), 7);
        (0..3 * KEPT as u32).for_each(|n| blocks.note(VolumeBlock(2), 100 + n));
        assert_eq!(blocks.of(7), [VolumeBlock(1)]);
        assert!(blocks.order.len() <= 2 * KEPT);
    }

    #[test]
    fn blocks_are_known_by_their_last_hash_and_never_too_many() {
        let mut shared = SharedBlocks::default();
        shared.note(VolumeBlock(1), 7);
        shared.note(VolumeBlock(2), 7);
        shared.note(VolumeBlock(1), 8);
        assert_eq!((shared.of(7), shared.of(8)), (vec![VolumeBlock(2)], vec![VolumeBlock(1)]));
        shared.note(VolumeBlock(2), 0);
        assert!(shared.of(7).is_empty() && shared.of(0).is_empty());
        for n in 0..3 * KEPT as u64 {
            shared.note(VolumeBlock(n), 9);
        }
        assert!(shared.of(9).len() <= KEPT && shared.hashes.len() <= KEPT);
    }
}

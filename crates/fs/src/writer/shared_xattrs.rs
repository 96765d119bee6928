//! Attribute blocks by the hash of what they hold, so that inodes with the same attributes share one (Linux: mbcache).

use extant_format::VolumeBlock;
use std::collections::{BTreeMap, VecDeque};

/// Blocks that are known at most.
const KEPT: usize = 4096;

/// Attribute blocks in use. A block that is rewritten or freed is told at once; one that is not known is only not shared.
#[derive(Debug, Default)]
pub(crate) struct SharedBlocks {
    hashes: BTreeMap<VolumeBlock, u32>,
    blocks: BTreeMap<u32, Vec<VolumeBlock>>,
    /// In the order in which they became known; some may be forgotten since.
    order: VecDeque<VolumeBlock>,
}

impl SharedBlocks {
    /// Notes that the block `at` has the hash `hash` (`h_hash`); 0 means that it must not be shared.
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
        self.order.push_back(at);
        while self.order.len() > KEPT {
            if let Some(oldest) = self.order.pop_front() {
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

    /// Blocks of this hash, the one known longest first.
    pub(crate) fn of(&self, hash: u32) -> Vec<VolumeBlock> {
        self.blocks.get(&hash).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Data after the zero blocks that end an archive.

use super::header::{BLOCK, Header};

/// Result of scanning the blocks after an archive's end.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// Offset of the first block that is not all zeros.
    pub(super) first: Option<u64>,
    /// Offset of the first header.
    pub(super) header: Option<u64>,
}

impl Behind {
    /// Scans bytes at offset `at`, a block boundary.
    pub(super) fn look(&mut self, at: u64, bytes: &[u8]) {
        for (at, block) in (at..).step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
            if self.header.is_some() {
                return;
            }
            if !is_zero(block) {
                self.first.get_or_insert(at);
                self.header =
                    <&[u8; BLOCK]>::try_from(block).is_ok_and(|b| Header(b).checksum_holds()).then_some(at);
            }
        }
    }
}

pub(super) fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

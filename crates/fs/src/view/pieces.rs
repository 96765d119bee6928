//! Reads what it can of a block that cannot be read as a whole.

use super::View;
use crate::{BlockRef, Error};
use extant_block::Sector;
use extant_format::{UintExt, VolumeBlock};
use std::ops::Range;

/// Length in bytes of the pieces in which a block is read again; no disk has larger sectors.
const PIECE_BYTES: usize = 4096;

impl View {
    /// Reads a block in pieces after reading it failed with `error`. Returns byte ranges of the
    /// block in order, with their contents. Together they cover the whole block.
    pub(crate) async fn pieces(
        &self,
        at: VolumeBlock,
        error: Error,
    ) -> Vec<(Range<usize>, Result<BlockRef, Error>)> {
        let block = self.superblock().block_size();
        let (len, start) = (block.byte_len(), at.0 << block.log2());
        let capacity = self.device().limits().capacity_bytes;
        let end = capacity.saturating_sub(start).min(len.to_u64()).to_usize();
        // The journal's copy is elsewhere.
        let is_home = self.buffers().clean_run(at, 1) == 1;
        if !is_home || (end == len && len <= PIECE_BYTES) {
            return vec![(0..len, Err(error))];
        }
        let mut pieces = Vec::new();
        let mut from = 0;
        while from < end {
            let to = (from + PIECE_BYTES).min(end);
            let sector = Sector::containing(start + from.to_u64());
            let read = extant_block::read(&**self.device(), sector, to - from).await;
            pieces.push((from..to, read.map(BlockRef::from).map_err(Error::from)));
            from = to;
        }
        if end < len {
            pieces.push((end..len, Err(error)));
        }
        pieces
    }
}

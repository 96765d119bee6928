//! Discarding free space on the device (`FITRIM`).

use super::Volume;
use crate::alloc::Free;
use crate::journal::discard_held;
use crate::{Error, Result};
use extant_block::{IoErrorKind, Sector};
use extant_format::{UintExt, VolumeBlock};
use std::ops::Range;

impl Volume {
    /// Discards the free space in a range of the device, in bytes, and returns how many bytes were
    /// discarded. Skips runs of fewer than `min_bytes`.
    ///
    /// Waits until space that was freed before the call is durably free. If the device is a file,
    /// this punches holes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range past the volume's end or shorter than a block, and for a
    /// minimum longer than a group; [`Error::NotSupported`] if the device cannot discard;
    /// [`Error::ReadOnly`], also if the volume is closed meanwhile; errors from the device or the
    /// journal.
    pub async fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        let Some(writer) = self.writer() else { return Err(Error::ReadOnly) };
        let sb = self.superblock();
        let bits = sb.block_size().log2();
        let min_blocks = (min_bytes >> bits).max(1);
        let first = range.start >> bits;
        let is_short = range.end.saturating_sub(range.start) < u64::from(sb.block_size().bytes());
        if is_short || first >= sb.blocks_count() || min_blocks > sb.blocks_per_group().into() {
            return Err(Error::Invalid("a range to be trimmed without whole blocks of the volume".into()));
        }
        writer.journal.commit(writer.journal.running()).await?;
        writer.journal.released().await?;
        let end = VolumeBlock((range.end >> bits).min(sb.blocks_count()));
        let mut at = VolumeBlock(first.max(sb.first_data_block().0));
        let mut trimmed_bytes = 0;
        while let Some(free) = writer.alloc.take_free(at, end, min_blocks.fit_u32()).await {
            at = match free {
                Free::Taken(taken) => {
                    let run = taken.run();
                    let bytes = run.blocks << bits;
                    let start = Sector(run.start.0 << (bits - 9));
                    let under_way = writer.journal.keep_open()?;
                    // No writer can use the blocks until the discard has ended.
                    match discard_held(&**self.device(), start, bytes, (taken, under_way)).await {
                        Ok(()) => trimmed_bytes += bytes,
                        Err(error) if error.kind == IoErrorKind::Unsupported => {
                            return Err(Error::NotSupported("discarding space of this device".into()));
                        }
                        Err(error) => return Err(error.into()),
                    }
                    run.end()
                }
                Free::Promised(next) => next,
            };
        }
        Ok(trimmed_bytes)
    }
}

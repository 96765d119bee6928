//! Committing on a volume without a journal: home writes in phases, each flushed before the next.
//!
//! A crash leaves what e2fsck can mend without losing what was synced: what names lead to is there before the names, and
//! is given up only after them. Bitmaps, inodes and maps go first, with everything in use that was so before or is so
//! now; directories follow; last, what was freed.

use super::Inner;
use super::commit::Versions;
use super::log::write_blocks;
use super::state::Running;
use crate::Result;
use crate::meta::MetaKind;

impl Inner {
    /// Writes the transaction home; durable when this returns.
    pub(super) async fn write_phases(&self, _: &Running, versions: &Versions) -> Result<()> {
        let (device, block_bytes) = (self.store.blocks().device(), self.store.blocks().block_bytes());
        for names in [false, true] {
            let is_name = |kind| matches!(kind, MetaKind::Directory { .. });
            let phase = versions.blocks.iter().filter(|(block, _)| is_name(block.kind()) == names);
            let list: Vec<_> = phase.map(|(block, version)| (block.number().0, version.clone())).collect();
            if list.is_empty() {
                continue;
            }
            write_blocks(&**device, block_bytes, list).await?;
            extant_block::flush(&**device).await?;
        }
        Ok(())
    }
}

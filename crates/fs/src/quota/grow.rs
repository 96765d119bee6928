//! Growing a quota file.

use super::{FILE_BYTES_MAX, QuotaFile};
use crate::alloc::{Allocated, Privilege};
use crate::journal::Credits;
use crate::map::change::{self, Change, PinnedNodes, written};
use crate::map::growth::{TreeShape, pointer_growth, tree_growth};
use crate::meta::MetaKind;
use crate::writer::Writer;
use crate::{Error, Result};
use extant_format::{BlockRange, InodeFlags, UintExt, VolumeBlock};

/// Minimum growth of a quota file at a time, in bytes.
const STEP_BYTES: usize = 16 << 10;

impl QuotaFile {
    /// Extends the file, in a transaction of its own, until there is room for an entry of `id`, and
    /// keeps that room.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Quota`] if the file must not grow; why the journal was aborted.
    pub(super) async fn grow_for(&self, writer: &Writer, id: u32) -> Result<()> {
        let _growing = self.growing.write().await;
        while !self.expect(id) {
            self.grow(writer, id).await?;
        }
        Ok(())
    }

    async fn grow(&self, writer: &Writer, id: u32) -> Result<()> {
        let (sb, cell) = (writer.store.shape(), &self.cell);
        let block_bytes = sb.block_size().byte_len();
        let (first, missing, goal) = {
            let state = self.state.lock();
            let missing = state.tree.missing_bytes(state.expected.len() + 1);
            (state.blocks.len(), missing, state.blocks.last().map(|last| VolumeBlock(last.number().0 + 1)))
        };
        // A longer file would be refused when the volume is next opened.
        let room = FILE_BYTES_MAX.saturating_sub((first * block_bytes).to_u64()).to_usize() / block_bytes;
        if missing.div_ceil(block_bytes) > room {
            return Err(Error::Quota(format!("{} {id}: the list of owners is full", self.kind)));
        }
        let new = missing.max(STEP_BYTES).div_ceil(block_bytes).min(room).to_u64();
        let range = BlockRange::at(first.to_u64(), new);
        let nodes = cell.read(|inode| match inode.flags().contains(InodeFlags::EXTENTS) {
            true => {
                let [_, _, entries_lo, entries_hi, _, _, depth_lo, depth_hi, ..] = *inode.map();
                let shape = TreeShape {
                    depth: u16::from_le_bytes([depth_lo, depth_hi]),
                    entries: u16::from_le_bytes([entries_lo, entries_hi]),
                };
                tree_growth(shape, new, 1, sb.block_size())
            }
            false => pointer_growth(range, sb.block_size()),
        });
        // The rest of the last block's cluster already belongs to the file.
        let cluster = sb.cluster_size();
        let implied = BlockRange::new(range.start, cluster.end(range.start).min(range.end));
        let clusters = cluster.count(BlockRange::new(implied.end, range.end));
        let mut reservation =
            writer.alloc.reserve_waiting(&writer.journal, clusters, nodes, Privilege::Reserved).await?;
        let (mut allocated, mut places, mut extents) = (Vec::<Allocated>::new(), Vec::new(), Vec::new());
        if let Some(at) = goal.filter(|_| !implied.is_empty()) {
            extents.push(written(implied, at));
            places.extend((at.0..at.0 + implied.len()).map(VolumeBlock));
        }
        let goal = goal.unwrap_or_else(|| writer.alloc.data_goal(cell.number(), None));
        let mut data_blocks = 0;
        while (places.len().to_u64()) < new {
            let at = places.last().map_or(goal, |last: &VolumeBlock| VolumeBlock(last.0 + 1));
            let missing = BlockRange::new(range.start + places.len().to_u64(), range.end);
            let piece = writer.alloc.blocks(at, cluster.count(missing).fit_u32(), &mut reservation).await?;
            let run = piece.run();
            let got = missing.until(missing.start + run.blocks);
            extents.push(written(got, run.start));
            places.extend((run.start.0..run.start.0 + got.len()).map(VolumeBlock));
            data_blocks += run.blocks;
            allocated.push(piece);
        }
        let mut pinned = PinnedNodes::of(cell, sb);
        let change = Change::Map(&extents);
        let planned = change::plan(&writer.store, &writer.alloc, cell, &mut pinned, &change).await?;
        let mut news = Vec::new();
        while news.len().fit_u32() < planned.new_nodes {
            let at = *places.last().expect("a growing file gets blocks");
            let piece =
                writer.alloc.blocks(at, planned.new_nodes - news.len().fit_u32(), &mut reservation).await?;
            news.extend(piece.firsts());
            allocated.push(piece);
        }
        let credits = new.fit_u32() + planned.credits() + allocated.len().fit_u32() * Allocated::CREDITS + 1;
        let mut handle = writer.journal.start(Credits(credits)).await?;
        for piece in allocated {
            writer.alloc.log(&mut handle, piece);
        }
        let blocks: Vec<_> = places.iter().map(|&at| handle.create(at, MetaKind::Raw)).collect();
        planned.apply(&mut handle, cell, &pinned, &news, data_blocks, sb);
        handle.inode(cell).set_size(range.end * block_bytes.to_u64());
        // While the handle is open: a commit that expects room for an owner needs that room in its
        // own transaction or an earlier one.
        let mut state = self.state.lock();
        state.blocks.extend(blocks);
        state.tree.extend_to(range.end.to_usize() * block_bytes);
        Ok(())
    }
}

//! Looks up where a file's blocks are, in memory or else in the map on the volume.

use super::contents::{Contents, FileState};
use crate::map::Unmapped;
use crate::map::block_state::OnDisk;
use crate::map::change::{look_up, look_up_damaged, maps_nothing};
use crate::meta::PhysicalRun;
use crate::writer::Writer;
use crate::{Result, Run, RunState};
use extant_cache::{ByteRange, ReadExtent, ReadFrom};
use extant_format::{BlockRange, FileKind, Place, VolumeBlock};

/// Smallest unit of a cache read, in bytes.
const PAGE_BYTES: u64 = extant_cache::PAGE_BYTES as u64;

impl Contents {
    /// Loads what the map says about a range of blocks.
    ///
    /// # Errors
    /// The map is damaged or unreadable.
    pub(super) async fn know(&self, blocks: BlockRange) -> Result<()> {
        loop {
            let (unknown, version) = {
                let live = self.live.lock();
                (live.map.first_unknown(blocks), live.map.version())
            };
            let Some(unknown) = unknown else { return Ok(()) };
            let found = match self.look_up(unknown).await {
                Ok(found) => found,
                // A node read here may have been freed and reused meanwhile. Retry with changes
                // locked out; that answer is final.
                Err(_) => Box::pin(self.look_up_alone(unknown)).await?,
            };
            self.live.lock().map.learn(version, blocks, &found);
        }
    }

    /// Like [`Self::look_up`], but with map changes locked out.
    async fn look_up_alone(&self, block: u64) -> Result<Vec<(BlockRange, OnDisk)>> {
        let _edits = self.edits.write().await;
        self.look_up(block).await
    }

    /// Looks up the runs around a block in the map on the volume.
    ///
    /// # Errors
    /// The map is damaged or unreadable, or claims the volume's own metadata.
    async fn look_up(&self, block: u64) -> Result<Vec<(BlockRange, OnDisk)>> {
        if self.is_emptied() || self.cell.read(|inode| maps_nothing(inode, self.sb())) {
            return Ok(vec![(BlockRange::ALL, OnDisk::Hole)]);
        }
        let Writer { store, alloc, .. } = &*self.writer;
        let found = look_up(store, alloc, &self.cell, block).await?;
        for (range, known) in &found {
            if let OnDisk::Written(at) | OnDisk::Unwritten(at) = *known {
                alloc.check_claim(PhysicalRun::new(at, range.len()), Place::Inode(self.number()))?;
            }
        }
        Ok(found)
    }

    /// Finds where a block and its successors are when [`Self::know`] fails, so that damage nearby
    /// does not make them unreadable.
    ///
    /// # Errors
    /// Blocks that the map does not account for.
    pub(super) async fn know_damaged(&self, block: u64) -> std::result::Result<Run, Unmapped> {
        let _edits = self.edits.write().await;
        let Writer { store, alloc, .. } = &*self.writer;
        let mut run = look_up_damaged(store, alloc, &self.cell, block).await?;
        // The blocks after it may exist only in memory.
        if let Some(pending) = self.live.lock().map.pending.next(block) {
            run.blocks = run.blocks.min(pending.saturating_sub(block).max(1));
        }
        Ok(run)
    }

    /// End of the unreadable range that starts at byte `at`: the map does not account for it, or
    /// the device cannot read it.
    pub(super) async fn unreadable_end(&self, at: u64) -> u64 {
        match self.know_damaged(at >> self.block.log2()).await {
            Err(unmapped) => self.bytes_at(unmapped.blocks.end),
            Ok(_) => (at / PAGE_BYTES + 1) * PAGE_BYTES,
        }
    }

    /// Place of the start of a range, if the in-memory map has it.
    pub(super) fn read_extent(&self, range: ByteRange) -> Option<ReadExtent> {
        let (run, known) = self.live.lock().map.read(range.start >> self.block.log2())?;
        let written = if let OnDisk::Written(at) = known { Some(at) } else { None };
        Some(self.extent(range, run.end, written))
    }

    /// Like [`Self::read_extent`], but for a damaged map.
    pub(super) async fn damaged_extent(&self, range: ByteRange) -> Result<ReadExtent> {
        let run = self.know_damaged(range.start >> self.block.log2()).await?;
        let written = if let RunState::Written(at) = run.state { Some(at) } else { None };
        Ok(self.extent(range, run.end(), written))
    }

    /// Place of the start of a range, which is in a run of blocks that ends before block `end`. Its
    /// first block is at `written`, or reads as zeroes.
    fn extent(&self, range: ByteRange, end: u64, written: Option<VolumeBlock>) -> ReadExtent {
        let end = self.bytes_at(end);
        let from = match written {
            Some(at) if self.is_journalled() => {
                return self.newest(at, ByteRange::new(range.start, end.min(range.end)));
            }
            Some(at) => {
                let block = self.bytes_at(range.start >> self.block.log2());
                ReadFrom::Device(self.sector(at, range.start - block))
            }
            None => ReadFrom::Hole,
        };
        ReadExtent { from, bytes: end - range.start }
    }

    /// Whether byte `end` is inside a block that holds, or will hold, data.
    pub(super) async fn ends_in_data(&self, end: u64) -> Result<bool> {
        if end.is_multiple_of(self.block.bytes().into()) {
            return Ok(false);
        }
        self.has_data(end >> self.block.log2()).await
    }

    /// Whether a block holds, or will hold, data.
    pub(super) async fn has_data(&self, block: u64) -> Result<bool> {
        loop {
            // A concurrent reader's lookup may evict what this one has found.
            self.know(BlockRange::one(block)).await?;
            if let Some(has_data) = self.live.lock().map.has_data(block) {
                return Ok(has_data);
            }
        }
    }

    /// Preferred place for nodes of the map.
    pub(super) fn near(&self, block: u64) -> VolumeBlock {
        let live = self.live.lock();
        self.goal(&live, block)
    }

    /// Preferred place for the next block of the file.
    pub(super) fn goal(&self, live: &FileState, block: u64) -> VolumeBlock {
        if let Some(before) = block.checked_sub(1)
            && let Some(at) = live.map.place_of(before)
        {
            return VolumeBlock(at.0 + 1);
        }
        match live.last_placed {
            Some((logical, at)) if logical <= block => {
                let goal = VolumeBlock(at.0.saturating_add(block - logical));
                if self.sb().is_valid_block(goal) { goal } else { at }
            }
            _ => self.writer.alloc.data_goal(self.number(), Some(FileKind::Regular)),
        }
    }
}

//! Files with data=journal (kernel document: *Journal (jbd2)*): data go through the log together
//! with the metadata that map them.
//!
//! Pages become dirty with delayed allocation, as for other files. Write-back passes their bytes to
//! the end of the run. There one handle puts them into journal blocks and logs allocation, map and
//! size with them, so a crash preserves a block's write entirely or not at all. Only checkpoints
//! write to the blocks' own places. Until then only memory has the newest contents, and readers get
//! them from there. The journal pins such blocks in memory, so a block that is not in memory is up
//! to date at its own place.
//!
//! Blocks freed from such a file are revoked. Before data=journal is turned on or off for a file,
//! its dirty pages are written in the old mode and the log is checkpointed, so that neither a write
//! in flight nor a replay can overwrite newer data.

use super::contents::Contents;
use super::map_logging::{DataBlock, NODES_PER_HANDLE, RUNS_PER_HANDLE};
use super::open_file::OpenFile;
use super::placement::Landed;
use crate::journal::STINT;
use crate::map::block_state::{Stored, WasBefore};
use crate::map::growth::pointer_growth;
use crate::meta::{MetaKind, PhysicalRun};
use crate::view::journals_data;
use crate::{Error, Result};
use extant_block::Sector;
use extant_cache::{ByteRange, ReadExtent, ReadFrom, WriteExtent, WriteTo, WrittenExtent};
use extant_format::{BlockRange, UintExt, VolumeBlock};

/// Maximum number of data blocks logged by one handle. With the metadata of their runs they stay
/// below a journal's largest operation.
const DATA_PER_HANDLE: u64 = 64;
/// Maximum number of data bytes logged by one handle, except for a single larger block; they are
/// copied in one step.
const BYTES_PER_HANDLE: u64 = 256 << 10;
/// Maximum number of blocks whose in-memory copies are forgotten in one step.
const FORGET_BLOCKS: u64 = 1024;
/// Maximum number of bytes returned to a reader from memory, not counting the last block.
const ANSWER_BYTES: usize = 64 << 10;

impl Contents {
    /// Whether the file's data go through the log. Changes only under the inode's lock and while
    /// the file is clean.
    pub(super) fn is_journalled(&self) -> bool {
        self.cell.read(|inode| journals_data(inode, self.sb()))
    }

    /// Whether the bytes of an extent go through the log. Zeroes over a hole are also passed to the
    /// backing, but have no place.
    pub(super) fn is_data(extent: &WriteExtent) -> bool {
        extent.to == WriteTo::Backing && extent.note != 0
    }

    /// End, at most `end`, of the data from byte `at` on that one handle can log.
    pub(super) fn logged_together_end(&self, at: u64, end: u64) -> u64 {
        end.min(self.bytes_at((at >> self.block.log2()) + self.data_per_handle()))
    }

    fn data_per_handle(&self) -> u64 {
        (BYTES_PER_HANDLE >> self.block.log2()).clamp(1, DATA_PER_HANDLE)
    }

    /// Redirects an extent to the backing and notes its first block.
    pub(super) fn through_log(&self, extent: WriteExtent) -> WriteExtent {
        match extent.to {
            WriteTo::Device(sector) => {
                let note = sector.0 >> (self.block.log2() - 9);
                let extent = WriteExtent::new(extent.range, Sector(0));
                WriteExtent { to: WriteTo::Backing, note, ..extent }
            }
            WriteTo::Backing => extent,
        }
    }

    /// Where a reader finds the first bytes of a range, which is in adjacent volume blocks starting
    /// at `at`.
    pub(super) fn newest(&self, at: VolumeBlock, range: ByteRange) -> ReadExtent {
        let blocks = self.blocks_of(range);
        let skip = (range.start - self.bytes_at(blocks.start)).to_usize();
        let changed = |block: u64| self.writer.store.changed(VolumeBlock(at.0 + (block - blocks.start)));
        let Some(first) = changed(blocks.start) else {
            let behind = (blocks.start + 1..blocks.end).find(|&block| changed(block).is_some());
            let bytes = self.bytes_at(behind.unwrap_or(blocks.end)) - range.start;
            return ReadExtent { from: ReadFrom::Device(self.sector(at, skip.to_u64())), bytes };
        };
        let mut bytes = first[skip..].to_vec();
        for block in blocks.start + 1..blocks.end {
            match changed(block).filter(|_| bytes.len() < ANSWER_BYTES) {
                Some(more) => bytes.extend_from_slice(&more),
                None => break,
            }
        }
        ReadExtent { bytes: bytes.len().to_u64(), from: ReadFrom::Inline(bytes.into()) }
    }

    /// Logs data together with their mapping; gives up what fails.
    pub(super) async fn log_data(&self, written: &[&WrittenExtent], size_bytes: u64) -> Result<()> {
        let mut rest = written;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(self.data_together(rest));
            if let Err(error) = self.log_data_part(part, size_bytes).await {
                self.give_up(rest.iter().map(|written| self.blocks_of(written.extent.range)));
                return Err(error);
            }
            rest = behind;
        }
        Ok(())
    }

    /// How many of these extents one handle can log.
    fn data_together(&self, written: &[&WrittenExtent]) -> usize {
        let (mut blocks, mut nodes) = (0, 0);
        let fits = |written: &&&WrittenExtent| {
            let range = self.blocks_of(written.extent.range);
            blocks += range.len();
            nodes += if self.uses_extents() { 0 } else { pointer_growth(range, self.block) };
            blocks <= self.data_per_handle() && nodes <= NODES_PER_HANDLE
        };
        written.iter().take(RUNS_PER_HANDLE).take_while(fits).count().max(1)
    }

    async fn log_data_part(&self, part: &[&WrittenExtent], size_bytes: u64) -> Result<()> {
        let landed: Vec<Landed> = {
            let live = self.live.lock();
            part.iter()
                .flat_map(|written| live.map.pending.in_flight(self.blocks_of(written.extent.range)))
                .collect()
        };
        let is_fresh = |block: u64| {
            landed.iter().any(|(blocks, _, was)| *was != WasBefore::Written && blocks.contains(block))
        };
        let store = &self.writer.store;
        let mut data = Vec::new();
        for written in part {
            let (range, blocks) = (written.extent.range, self.blocks_of(written.extent.range));
            let bytes = written.bytes.as_deref().ok_or(Error::Defect)?;
            for block in blocks.blocks() {
                let start = self.bytes_at(block);
                let (from, until) = (range.start.max(start), range.end.min(self.bytes_at(block + 1)));
                let bytes = &bytes[(from - range.start).to_usize()..(until - range.start).to_usize()];
                let to = VolumeBlock(written.extent.note + (block - blocks.start));
                let held = match is_fresh(block) {
                    true => None,
                    false if bytes.len() == self.block.byte_len() => store.get(to, MetaKind::Raw)?,
                    false => Some(store.read(to, MetaKind::Raw).await?),
                };
                data.push(DataBlock { to, at: (from - start).to_usize(), bytes, held });
            }
        }
        let Some(near) = data.first().map(|block| block.to) else { return Ok(()) };
        self.log(&landed, near, size_bytes, &data).await
    }

    /// Forgets the journal's in-memory copies of the file's blocks, none of which is dirty there.
    async fn forget_blocks(&self) -> Result<()> {
        let mut budget = self.writer.rt.budget(STINT);
        let mut at = 0;
        while at < BlockRange::MAP_END {
            self.know(BlockRange::one(at)).await?;
            let Some((run, stored)) = self.live.lock().map.stored(at) else { continue };
            let run = match stored {
                Stored::Hole | Stored::Delayed => run,
                Stored::Written(to) | Stored::Unwritten { at: to, .. } => {
                    let run = run.until(at + FORGET_BLOCKS);
                    self.writer.store.forget(PhysicalRun::new(to, run.len()));
                    run
                }
            };
            at = run.end;
            budget.resched().await;
        }
        Ok(())
    }
}

impl OpenFile {
    /// Prepares the file for turning data=journal on or off. The caller holds the inode's lock for
    /// writing until the inode has the new flag.
    ///
    /// # Errors
    /// Write-back fails; the map is damaged; the journal gave up.
    pub(crate) async fn prepare_journalling_change(&self) -> Result<()> {
        let contents = &*self.contents;
        self.write_out(ByteRange::ALL).await?;
        contents.log_emptied().await?;
        self.mapping.wait_written(ByteRange::ALL).await;
        match contents.is_journalled() {
            // From now on the file's blocks are written directly, and a replay must not overwrite
            // them.
            true => contents.writer.journal.commit_home().await,
            // Memory may hold the blocks as they were before the last writes, which bypassed it.
            false => contents.forget_blocks().await,
        }
    }
}

//! The metadata of one volume that is open for writing.

use super::Tid;
use super::{Groups, MetaBlock, MetaKind, PhysicalRun, Versioned};
use crate::Result;
use extant_cache::blocks::{BlockBytes, Blocks, Frozen};
use extant_format::{Corrupt, Group, Place, SUPERBLOCK_BYTES, Superblock, VolumeBlock};
use extant_rt::{Rt, WaitConfig, WaitTable};
use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// What one step of a removal takes at most, so that it fits a transaction. A larger removal takes several, with a file that a
/// crash leaves as an orphan between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalStep {
    /// Groups that it frees blocks of, and nodes of the map that it changes.
    pub groups: u32,
    /// Blocks of data that it frees.
    pub data_blocks: u32,
    /// Blocks that it frees of which the journal may hold copies: each takes a revoke record.
    pub metadata_blocks: u32,
}

impl Default for RemovalStep {
    /// 1,024 records are nine blocks of the log with blocks of 1 KiB.
    fn default() -> Self {
        Self { groups: 48, data_blocks: u32::MAX, metadata_blocks: 1024 }
    }
}

/// Blocks, descriptors and superblock of a volume that is open for writing.
#[derive(Debug)]
pub(crate) struct MetaStore {
    blocks: Blocks,
    /// As the volume was opened: its shape, which never changes while it is open.
    shape: Superblock,
    groups: Groups,
    superblock: Mutex<Versioned<Superblock>>,
    superblock_home: MetaBlock,
    removal_step: RemovalStep,
    /// Waiters for the locks of inodes, and for others of the volume that are held across waits.
    locks: Arc<WaitTable>,
}

impl MetaStore {
    /// Loads descriptors and superblock.
    pub(crate) async fn load(rt: &Rt, blocks: Blocks, sb: &Superblock) -> Result<Self> {
        let groups = Groups::load(&blocks, sb).await?;
        let home = blocks.read(1024 / blocks.block_bytes() as u64).await?;
        Ok(Self {
            groups,
            shape: sb.clone(),
            superblock: Mutex::new(Versioned::new(sb.clone())),
            superblock_home: MetaBlock::new(home, MetaKind::Superblock),
            blocks,
            removal_step: RemovalStep::default(),
            locks: Arc::new(WaitTable::new(rt, WaitConfig::new("locks"))),
        })
    }

    /// With steps of this size.
    pub(crate) fn with_removal_step(self, removal_step: RemovalStep) -> Self {
        Self { removal_step, ..self }
    }

    /// What one step of a removal takes at most.
    pub(crate) fn removal_step(&self) -> RemovalStep {
        self.removal_step
    }

    /// Where those wait who take a lock that is held across waits.
    pub(crate) fn locks(&self) -> &Arc<WaitTable> {
        &self.locks
    }

    /// The blocks in memory.
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The superblock as it was when the volume was opened: for its shape (sizes, features, seeds), not for its counts.
    pub(crate) fn shape(&self) -> &Superblock {
        &self.shape
    }

    /// The descriptors.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The superblock as it is now; its free counts are brought up to date by commits and at close only.
    pub(crate) fn superblock(&self) -> Superblock {
        self.superblock.lock().live().clone()
    }

    /// Reads a block, or finds it in memory; its checksum is verified once.
    ///
    /// # Errors
    /// The device fails, the number is beyond the volume, or the checksum is wrong.
    pub(crate) async fn read(&self, n: VolumeBlock, kind: MetaKind) -> Result<MetaBlock> {
        self.check_range(n)?;
        let block = match self.blocks.get(n.0) {
            Some(block) => block,
            None => Box::pin(self.blocks.read(n.0)).await?,
        };
        let block = MetaBlock::new(block, kind);
        self.verify(&block)?;
        Ok(block)
    }

    /// The block if it is in memory, without waiting.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn get(&self, n: VolumeBlock, kind: MetaKind) -> Result<Option<MetaBlock>> {
        let Some(block) = self.blocks.get(n.0) else { return Ok(None) };
        let block = MetaBlock::new(block, kind);
        self.verify(&block)?;
        Ok(Some(block))
    }

    /// The contents of a block that was changed since the volume was opened, if they are in memory. They are as long as the device
    /// has older ones.
    pub(crate) fn changed(&self, n: VolumeBlock) -> Option<BlockBytes> {
        let block = self.blocks.get(n.0)?;
        (block.epoch() > 0).then(|| block.bytes())
    }

    /// Reads what is not in memory of these blocks, many at a time; errors surface when a block is read.
    pub(crate) async fn prefetch(&self, ns: impl Iterator<Item = VolumeBlock>) {
        self.blocks.prefetch(ns.map(|n| n.0)).await;
    }

    /// A block that has just been allocated, as zeroes; for journal handles.
    pub(crate) fn create(&self, n: VolumeBlock, kind: MetaKind) -> MetaBlock {
        let block = self.blocks.create(n.0);
        block.set_role(kind.role());
        MetaBlock::new(block, kind)
    }

    /// These blocks were freed.
    pub(crate) fn forget(&self, run: PhysicalRun) {
        (run.start.0..run.end().0).for_each(|n| self.blocks.forget(n));
    }

    fn check_range(&self, n: VolumeBlock) -> Result<()> {
        // Block 0 holds the superblock where blocks are larger than 1 KiB.
        if n.0 < self.shape.blocks_count() {
            return Ok(());
        }
        Err(Corrupt::field(Place::Superblock, "block", n.0, "a block of the volume").into())
    }

    fn verify(&self, block: &MetaBlock) -> Result<()> {
        let (kind, number) = (block.kind, block.number());
        let descriptor = |group: Group| self.groups.get(group);
        block.block.verify_as(kind.role(), |bytes| kind.verify(bytes, number, &self.shape, descriptor))?;
        Ok(())
    }

    /// The superblock to be changed by `tid`, and whether that is its first change of it.
    pub(crate) fn edit_superblock(&self, tid: Tid) -> (SuperblockEdit<'_>, bool) {
        let mut superblock = self.superblock.lock();
        let (_, first) = superblock.edit(tid);
        (SuperblockEdit { superblock }, first)
    }

    /// The superblock as `tid` left it.
    pub(crate) fn take_superblock(&self, tid: Tid) -> Superblock {
        self.superblock.lock().take(tid)
    }

    /// The superblock to be changed outside of transactions: by opening and closing alone.
    pub(crate) fn superblock_unlogged(&self) -> SuperblockEdit<'_> {
        SuperblockEdit { superblock: self.superblock.lock() }
    }

    /// The block that holds the superblock, and the superblock's range in it.
    pub(crate) fn superblock_home(&self) -> (&MetaBlock, std::ops::Range<usize>) {
        let at = 1024 % self.blocks.block_bytes();
        (&self.superblock_home, at..at + SUPERBLOCK_BYTES)
    }

    /// The version of `block` that `tid` left, with its checksum; a bitmap's is noted for its descriptor.
    pub(crate) fn take(&self, block: &MetaBlock, tid: Tid) -> Frozen {
        let version = block.block.take(tid.0, |bytes| block.kind.seal(bytes, block.number(), &self.shape));
        if let Some((group, sum)) = block.kind.bitmap_sum(version.bytes(), &self.shape) {
            self.groups.note_sum(group, sum);
        }
        version
    }
}

/// The superblock under change. Its checksum is filled in by the commit.
#[derive(Debug)]
pub(crate) struct SuperblockEdit<'a> {
    superblock: MutexGuard<'a, Versioned<Superblock>>,
}

impl Deref for SuperblockEdit<'_> {
    type Target = Superblock;
    fn deref(&self) -> &Superblock {
        self.superblock.live()
    }
}

impl DerefMut for SuperblockEdit<'_> {
    fn deref_mut(&mut self) -> &mut Superblock {
        self.superblock.live_mut()
    }
}

//! The metadata of a volume open for writing.

use super::Tid;
use super::{Groups, MetaBlock, MetaKind, PhysicalRun, Versioned};
use crate::Result;
use extant_cache::blocks::{BlockBytes, Blocks, Frozen};
use extant_format::{Corrupt, Group, Place, SUPERBLOCK_BYTES, Superblock, UintExt, VolumeBlock};
use extant_rt::{Rt, WaitConfig, WaitTable};
use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Limits for one step of a removal, so that it fits in a transaction. A larger removal takes
/// several steps, between which a crash leaves the file as an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalStep {
    /// Groups in which it frees blocks; also the map nodes that it changes.
    pub groups: u32,
    /// Data blocks that it frees.
    pub data_blocks: u32,
    /// Freed blocks that the journal may hold copies of. Each needs a revoke record.
    pub metadata_blocks: u32,
}

impl Default for RemovalStep {
    /// 1,024 records take nine blocks of the log if blocks have 1 KiB.
    fn default() -> Self {
        Self { groups: 48, data_blocks: u32::MAX, metadata_blocks: 1024 }
    }
}

/// Blocks, descriptors and superblock of a volume open for writing.
#[derive(Debug)]
pub(crate) struct MetaStore {
    blocks: Blocks,
    /// The superblock at the time the volume was opened, for its geometry, which never changes.
    shape: Superblock,
    groups: Groups,
    superblock: Mutex<Versioned<Superblock>>,
    superblock_home: MetaBlock,
    removal_step: RemovalStep,
    /// Waiters for inode locks and other locks of the volume that are held across awaits.
    locks: Arc<WaitTable>,
}

impl MetaStore {
    /// Loads the descriptors and the superblock.
    pub(crate) async fn load(rt: &Rt, blocks: Blocks, sb: &Superblock) -> Result<Self> {
        let groups = Groups::load(&blocks, sb).await?;
        let home = blocks.read(1024 / blocks.block_bytes().to_u64()).await?;
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

    /// Sets the limits of removal steps.
    pub(crate) fn with_removal_step(self, removal_step: RemovalStep) -> Self {
        Self { removal_step, ..self }
    }

    /// The limits of a removal step.
    pub(crate) fn removal_step(&self) -> RemovalStep {
        self.removal_step
    }

    /// The wait table for locks that are held across awaits.
    pub(crate) fn locks(&self) -> &Arc<WaitTable> {
        &self.locks
    }

    /// The blocks in memory.
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The superblock at the time the volume was opened. Use it for sizes, features and seeds, not
    /// for counts.
    pub(crate) fn shape(&self) -> &Superblock {
        &self.shape
    }

    /// The descriptors.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The current superblock. Its free counts are only updated by commits and at close.
    pub(crate) fn superblock(&self) -> Superblock {
        self.superblock.lock().live().clone()
    }

    /// Returns a block, from the cache or the device. Its checksum is verified once.
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

    /// Returns the block if it is in memory, without waiting.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn get(&self, n: VolumeBlock, kind: MetaKind) -> Result<Option<MetaBlock>> {
        let Some(block) = self.blocks.get(n.0) else { return Ok(None) };
        let block = MetaBlock::new(block, kind);
        self.verify(&block)?;
        Ok(Some(block))
    }

    /// Returns the contents of a block that changed since the volume was opened, if it is in
    /// memory. It always is while the device has an older version.
    pub(crate) fn changed(&self, n: VolumeBlock) -> Option<BlockBytes> {
        let block = self.blocks.get(n.0)?;
        (block.epoch() > 0).then(|| block.bytes())
    }

    /// Reads those of the blocks that are not in memory, many at a time; errors surface when a
    /// block is read.
    pub(crate) async fn prefetch(&self, ns: impl Iterator<Item = VolumeBlock>) {
        self.blocks.prefetch(ns.map(|n| n.0)).await;
    }

    /// Creates a zeroed block that has just been allocated. For journal handles.
    pub(crate) fn create(&self, n: VolumeBlock, kind: MetaKind) -> MetaBlock {
        let block = self.blocks.create(n.0);
        block.set_role(kind.role());
        MetaBlock::new(block, kind)
    }

    /// Forgets blocks that were freed.
    pub(crate) fn forget(&self, run: PhysicalRun) {
        (run.start.0..run.end().0).for_each(|n| self.blocks.forget(n));
    }

    fn check_range(&self, n: VolumeBlock) -> Result<()> {
        // Block 0 holds the superblock if blocks are larger than 1 KiB.
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

    /// Begins an edit of the superblock by `tid`. Also returns whether it is the transaction's
    /// first edit of it.
    pub(crate) fn edit_superblock(&self, tid: Tid) -> (SuperblockEdit<'_>, bool) {
        let mut superblock = self.superblock.lock();
        let (_, first) = superblock.edit(tid);
        (SuperblockEdit { superblock }, first)
    }

    /// Takes the superblock as `tid` left it.
    pub(crate) fn take_superblock(&self, tid: Tid) -> Superblock {
        self.superblock.lock().take(tid)
    }

    /// Looks at the superblock as it is now.
    pub(crate) fn with_superblock<T>(&self, look: impl FnOnce(&Superblock) -> T) -> T {
        look(self.superblock.lock().live())
    }

    /// Begins an edit of the superblock outside any transaction. Only for opening and closing.
    pub(crate) fn superblock_unlogged(&self) -> SuperblockEdit<'_> {
        SuperblockEdit { superblock: self.superblock.lock() }
    }

    /// The block that holds the superblock, and the superblock's range in it.
    pub(crate) fn superblock_home(&self) -> (&MetaBlock, std::ops::Range<usize>) {
        let at = 1024 % self.blocks.block_bytes();
        (&self.superblock_home, at..at + SUPERBLOCK_BYTES)
    }

    /// Takes the version of `block` that `tid` left, with its checksum. A bitmap's checksum is
    /// noted for its descriptor.
    pub(crate) fn take(&self, block: &MetaBlock, tid: Tid) -> Frozen {
        let version = block.block.take(tid.0, |bytes| block.kind.seal(bytes, block.number(), &self.shape));
        if let Some((group, sum)) = block.kind.bitmap_sum(version.bytes(), &self.shape) {
            self.groups.note_sum(group, sum);
        }
        version
    }
}

/// The superblock being edited. The commit fills in its checksum.
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

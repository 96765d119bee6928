//! Removes blocks from a file's map and frees them, in steps that each fit one transaction.

use crate::Result;
use crate::alloc::Pins;
use crate::journal::{Credits, Handle, STINT};
use crate::map::change::{Change, PinnedNodes, Planned, frees_metadata, plan};
use crate::meta::InodeCell;
use crate::writer::Writer;
use extant_format::{BlockRange, Place, Superblock};
use std::sync::Arc;

/// Position of a step within a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeingStep {
    /// No step came before it.
    pub(crate) first: bool,
    /// No step follows it.
    pub(crate) last: bool,
}

/// Unmaps and frees the file's blocks from block `from` on, in as many transactions as needed, at
/// least one. In each of them, `beside` may make further changes that cost at most `credits`. The
/// caller must keep others from changing the map, and write-back of these blocks must have ended.
/// Nothing is awaited after the last transaction, so the future cannot be dropped between finishing
/// the work and returning.
///
/// # Errors
/// The map or a bitmap is damaged or unreadable; why the journal gave up. Blocks freed before the
/// error stay freed.
pub(crate) async fn free_from(
    writer: &Writer,
    cell: &Arc<InodeCell>,
    from: u64,
    credits: Credits,
    mut beside: impl FnMut(&mut Handle, FreeingStep),
) -> Result<()> {
    let sb = writer.store.shape();
    let mut rest = Some(BlockRange::from_block(from));
    let mut first = true;
    let mut budget = writer.rt.budget(STINT);
    while let Some(range) = rest.take() {
        let mut removal = Removal::of(writer, cell, range).await?;
        rest = removal.planned.rest.take();
        {
            let mut handle = writer.journal.start(Credits(removal.credits(sb) + credits.0)).await?;
            removal.apply(writer, &mut handle, cell);
            beside(&mut handle, FreeingStep { first, last: rest.is_none() });
        }
        first = false;
        if rest.is_some() {
            budget.resched().await;
        }
    }
    Ok(())
}

/// Checks that [`free_from`] can unmap and free all blocks of a file: reads the whole map and the
/// bitmaps of its blocks. The caller must keep others from changing the map.
///
/// # Errors
/// The map or a bitmap is damaged or unreadable.
pub(crate) async fn check_freeing(writer: &Writer, cell: &Arc<InodeCell>) -> Result<()> {
    let mut rest = Some(BlockRange::from_block(0));
    let mut budget = writer.rt.budget(STINT);
    while let Some(range) = rest.take() {
        rest = Removal::of(writer, cell, range).await?.planned.rest.take();
        if rest.is_some() {
            budget.resched().await;
        }
    }
    Ok(())
}

/// One step of a removal, with everything it needs in memory.
pub(super) struct Removal {
    planned: Planned,
    nodes: PinnedNodes,
    pins: Pins,
    /// Whether the journal may hold copies of the data.
    metadata: bool,
}

impl Removal {
    /// Plans the removal of everything from block `from` on, or as much of its end as fits one
    /// step.
    pub(super) async fn plan(writer: &Writer, cell: &Arc<InodeCell>, from: u64) -> Result<Self> {
        Self::of(writer, cell, BlockRange::from_block(from)).await
    }

    async fn of(writer: &Writer, cell: &Arc<InodeCell>, range: BlockRange) -> Result<Self> {
        let mut nodes = PinnedNodes::of(cell, writer.store.shape());
        let planned = plan(&writer.store, &writer.alloc, cell, &mut nodes, &Change::Remove(range)).await?;
        let place = Place::Inode(cell.number());
        let pins = writer.alloc.pin(planned.freed(), place).await?;
        let metadata = cell.read(|inode| frees_metadata(inode, writer.store.shape()));
        Ok(Self { planned, nodes, pins, metadata })
    }

    /// Whether nothing remains to be removed after this step.
    pub(super) fn is_whole(&self) -> bool {
        self.planned.rest.is_none()
    }

    /// Number of blocks this step frees.
    pub(super) fn blocks(&self) -> u64 {
        self.planned.freed_blocks()
    }

    /// Credits that [`Self::apply`] needs.
    pub(super) fn credits(&self, sb: &Superblock) -> u32 {
        self.planned.credits() + self.pins.credits() + self.planned.revoke_blocks(self.metadata, sb)
    }

    /// Removes the blocks from the map and frees them.
    pub(super) fn apply(self, writer: &Writer, handle: &mut Handle, cell: &Arc<InodeCell>) {
        let Self { planned, nodes, pins, metadata } = self;
        planned.apply(handle, cell, &nodes, &[], 0, writer.store.shape());
        drop(nodes);
        planned.free(handle, &writer.alloc, &pins, metadata);
    }
}

//! Taking blocks out of a file's map and freeing them, in steps that each fit one transaction.

use crate::Result;
use crate::alloc::Pins;
use crate::journal::{Credits, Handle, STINT};
use crate::map::change::{Change, PinnedNodes, Planned, frees_metadata, plan};
use crate::meta::InodeCell;
use crate::writer::Writer;
use extant_format::{BlockRange, Place, Superblock};
use std::sync::Arc;

/// Where a step of a removal stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Nothing was freed before.
    pub(crate) first: bool,
    /// Nothing is left.
    pub(crate) last: bool,
}

/// Unmaps and frees what a file maps from block `from` on, in as many transactions as that takes; at least one. `beside` adds
/// changes of at most `credits` to each. The caller keeps others from changing the map, and write-back of the blocks has
/// ended. After the last transaction nothing is waited for: a caller that leaves has it whole or not.
///
/// # Errors
/// A damaged map or bitmap, or one that cannot be read; why the journal gave up. Blocks freed before the error stay freed.
pub(crate) async fn free_from(
    writer: &Writer,
    cell: &Arc<InodeCell>,
    from: u64,
    credits: Credits,
    mut beside: impl FnMut(&mut Handle, Step),
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
            beside(&mut handle, Step { first, last: rest.is_none() });
        }
        first = false;
        if rest.is_some() {
            budget.resched().await;
        }
    }
    Ok(())
}

/// A step of a removal, with everything that it needs.
pub(super) struct Removal {
    planned: Planned,
    nodes: PinnedNodes,
    pins: Pins,
    /// The journal may hold copies of the data.
    metadata: bool,
}

impl Removal {
    /// The removal of all from block `from` on, or of the end of that.
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

    /// Whether nothing is left after it.
    pub(super) fn is_whole(&self) -> bool {
        self.planned.rest.is_none()
    }

    /// The blocks that it frees.
    pub(super) fn blocks(&self) -> u64 {
        self.planned.freed_blocks()
    }

    /// Credits of [`Self::apply`].
    pub(super) fn credits(&self, sb: &Superblock) -> u32 {
        self.planned.credits() + self.pins.credits() + self.planned.revoke_blocks(self.metadata, sb)
    }

    /// Takes it out of the map and frees it.
    pub(super) fn apply(self, writer: &Writer, handle: &mut Handle, cell: &Arc<InodeCell>) {
        let Self { planned, nodes, pins, metadata } = self;
        planned.apply(handle, cell, &nodes, &[], 0, writer.store.shape());
        drop(nodes);
        planned.free(handle, &writer.alloc, &pins, metadata);
    }
}

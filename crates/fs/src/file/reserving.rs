//! Reserves space before a write or an allocation is acknowledged, so that write-back never finds
//! the volume full.

use super::contents::Contents;
use super::reserve::{MapForm, nodes_for_holes};
use crate::alloc::{Privilege, Reservation};
use crate::map::growth::TreeShape;
use crate::writer::Writer;
use crate::{Error, Result};
use extant_format::{BlockRange, InodeFlags, UintExt};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The purpose of reserved blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// All of them are about to become dirty.
    Dirty,
    /// Like `Dirty`, but for a caller that keeps others from giving space back: fails with
    /// [`Error::NoSpace`] even if a wait might help.
    DirtyNow,
    /// Holes to be allocated without a write.
    Holes,
}

/// The result of an attempt to reserve.
enum Attempt {
    /// The runs that [`Contents::reserve_as`] returns.
    Reserved(Vec<BlockRange>),
    /// The map of some block is not known.
    Unknown,
    /// This many clusters are not free now.
    Short { data: u64, nodes: u64 },
}

impl Contents {
    /// Reserves what copying bytes to these blocks may need, starting at byte `at`.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) async fn reserve_for_copy(
        &self,
        blocks: BlockRange,
        at: u64,
        privilege: Privilege,
    ) -> Result<ReservedWrite<'_>> {
        let pending = self.reserve(blocks, privilege).await?;
        Ok(ReservedWrite { contents: self, pending, at, copied_bytes: AtomicUsize::new(0) })
    }

    /// Reserves what writing to these blocks may need, and marks them dirty. Returns the blocks
    /// that were not pending before, for [`Self::unreserve_all`] if no page of them becomes dirty.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing marked; errors of [`Self::know`]; why the journal gave up.
    pub(super) async fn reserve(&self, blocks: BlockRange, privilege: Privilege) -> Result<Vec<BlockRange>> {
        self.reserve_as(blocks, privilege, Mark::Dirty).await
    }

    /// Like [`Self::reserve`], but for blocks that are marked as `mark` says. Returns the runs of
    /// holes that become delayed if these alone are marked.
    pub(super) async fn reserve_as(
        &self,
        blocks: BlockRange,
        privilege: Privilege,
        mark: Mark,
    ) -> Result<Vec<BlockRange>> {
        let mut in_hand = None;
        loop {
            self.know(blocks).await?;
            let (data, nodes) = match self.reserve_known(blocks, privilege, mark, &mut in_hand)? {
                Attempt::Reserved(pending) => return Ok(pending),
                Attempt::Unknown => continue,
                Attempt::Short { data, nodes } => (data, nodes),
            };
            let Writer { alloc, journal, .. } = &*self.writer;
            let reservation = alloc.reserve_waiting(journal, data, nodes, privilege).await?;
            in_hand = Some((reservation, data, nodes));
        }
    }

    /// Like [`Self::reserve_for_copy`], but without waiting; `None` if it would have to wait, or is
    /// refused.
    pub(super) fn try_reserve_for_copy(
        &self,
        blocks: BlockRange,
        at: u64,
        privilege: Privilege,
    ) -> Option<ReservedWrite<'_>> {
        match self.reserve_known(blocks, privilege, Mark::Dirty, &mut None) {
            Ok(Attempt::Reserved(pending)) => {
                Some(ReservedWrite { contents: self, pending, at, copied_bytes: AtomicUsize::new(0) })
            }
            _ => None,
        }
    }

    /// Reserves for blocks whose map is known. `in_hand` is a reservation that is used first, with
    /// its numbers of clusters for data and for nodes.
    fn reserve_known(
        &self,
        blocks: BlockRange,
        privilege: Privilege,
        mark: Mark,
        in_hand: &mut Option<(Reservation, u64, u64)>,
    ) -> Result<Attempt> {
        let mut live = self.live.lock();
        if live.map.first_unknown(blocks).is_some() {
            return Ok(Attempt::Unknown);
        }
        let need = live.map.need(blocks);
        let nodes = match mark {
            _ if need.is_empty() => 0,
            Mark::Dirty | Mark::DirtyNow => {
                live.reserve.nodes_for(&live.map, &need, self.map_form(), self.block)
            }
            Mark::Holes => nodes_for_holes(&need, self.tree_shape(), self.block),
        };
        let reserved = match in_hand.take() {
            Some((reservation, data, for_nodes)) if need.clusters <= data && nodes <= for_nodes => {
                Ok(Some((reservation, for_nodes)))
            }
            _ if need.clusters + nodes == 0 => Ok(None),
            _ => self
                .writer
                .alloc
                .reserve(need.clusters, nodes, privilege)
                .map(|reservation| Some((reservation, nodes))),
        };
        match reserved {
            Ok(reserved) => {
                if let Some((reservation, for_nodes)) = reserved {
                    live.reserve.keep(reservation, for_nodes);
                }
                Ok(Attempt::Reserved(match mark {
                    Mark::Dirty | Mark::DirtyNow => live.map.mark_dirty(blocks, self.recorded_bytes()),
                    Mark::Holes => live.map.delay_holes(blocks),
                }))
            }
            Err(Error::NoSpace) if mark != Mark::DirtyNow => {
                Ok(Attempt::Short { data: need.clusters, nodes })
            }
            Err(other) => Err(other),
        }
    }

    fn map_form(&self) -> MapForm {
        if self.uses_extents() { MapForm::Tree(self.tree_shape()) } else { MapForm::Pointers }
    }

    pub(super) fn tree_shape(&self) -> TreeShape {
        if self.is_emptied() {
            return TreeShape::default();
        }
        self.cell.read(|inode| {
            if inode.flags().contains(InodeFlags::INLINE_DATA) {
                return TreeShape::default();
            }
            let word = |at: usize| u16::from_le_bytes([inode.map()[at], inode.map()[at + 1]]);
            TreeShape { depth: word(6), entries: word(2) }
        })
    }

    /// Drops the reservation of blocks that were marked dirty but will not be written.
    pub(super) fn unreserve(&self, blocks: BlockRange) {
        let given_back = {
            let mut live = self.live.lock();
            let delayed = live.map.abandon(blocks);
            live.give_back(delayed)
        };
        drop(given_back);
    }

    /// Drops the reservation of a failed write's blocks, as returned by [`Self::reserve`], from
    /// block `from` on.
    pub(super) fn unreserve_all(&self, pending: &[BlockRange], from: u64) {
        for blocks in pending.iter().filter(|blocks| blocks.end > from) {
            self.unreserve(BlockRange::new(blocks.start.max(from), blocks.end));
        }
    }
}

/// Blocks reserved for copying bytes. On drop, including after an error or a dropped future, blocks
/// past the copied bytes return to their previous state. If they stayed pending without a dirty
/// page, the recorded size could never grow past them.
pub(super) struct ReservedWrite<'a> {
    contents: &'a Contents,
    /// The blocks that were not pending before.
    pending: Vec<BlockRange>,
    at: u64,
    /// Bytes copied so far, starting at `at`.
    pub(super) copied_bytes: AtomicUsize,
}

impl ReservedWrite<'_> {
    pub(super) fn copied(&self) -> usize {
        self.copied_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for ReservedWrite<'_> {
    fn drop(&mut self) {
        let from = match self.copied() {
            0 => 0,
            copied => self.contents.block.blocks_for(self.at + copied.to_u64()),
        };
        self.contents.unreserve_all(&self.pending, from);
    }
}

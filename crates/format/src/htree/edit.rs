//! Changes nodes in place.
//!
//! Changes leave the checksum stale. [`write_dx_checksum`](super::write_dx_checksum) updates it,
//! once for all changes to a block, before the block is written to disk.

use super::{
    DxEntries, DxEntry, DxRootInfo, ENTRY_LEN, HtreeContext, NODE_ENTRIES, ROOT_ENTRIES, RawDxCountLimit,
    RawDxEntry, write_entries, write_node_head, write_root_head,
};
use crate::{Corrupt, FileBlock, InodeNumber, UintExt};
use std::mem::offset_of;
use zerocopy::FromBytes;

/// Mutable entries of a root or inner node.
#[derive(Debug)]
pub struct DxEntriesMut<'a> {
    /// All slots. The hash of the first one holds limit and count.
    raw: &'a mut [RawDxEntry],
    count: usize,
}

impl<'a> DxEntriesMut<'a> {
    /// The entries of the block described by `context`; those of the root if it is the directory's
    /// first block.
    ///
    /// # Errors
    /// A wrong limit or count, as in [`DxRoot::parse`](super::DxRoot::parse). The order is not
    /// checked.
    pub fn open(block: &'a mut [u8], context: &HtreeContext) -> Result<Self, Corrupt> {
        let at = context.entries_at();
        let (count, limit) = DxEntries::head(block, at, context)?;
        let needed = at + limit * ENTRY_LEN;
        let len = block.len();
        match <[RawDxEntry]>::mut_from_prefix_with_elems(&mut block[at..], limit) {
            Ok((raw, _)) => Ok(Self { raw, count }),
            Err(_) => Err(Corrupt::truncated(context.place(), needed, len)),
        }
    }

    /// Number of entries.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Maximum number of entries.
    pub const fn limit(&self) -> usize {
        self.raw.len()
    }

    /// Inserts `entry` at `index`, which is at least 1: the first entry stays first.
    ///
    /// # Panics
    /// If the node is full, or `index` is 0 or beyond the end.
    pub fn insert(&mut self, index: usize, entry: DxEntry) {
        assert!(self.count < self.raw.len(), "the node is full");
        assert!((1..=self.count).contains(&index), "entry {index} of {}", self.count);
        self.raw.copy_within(index..self.count, index + 1);
        self.raw[index] = RawDxEntry { hash: entry.hash.into(), block: entry.block.0.into() };
        self.set_count(self.count + 1);
    }

    /// Drops all entries after the first `count`, which is at least 1.
    ///
    /// # Panics
    /// If there are fewer entries, or `count` is 0.
    pub fn truncate(&mut self, count: usize) {
        assert!((1..=self.count).contains(&count), "{count} of {} entries", self.count);
        self.raw[count..].fill(RawDxEntry::default());
        self.set_count(count);
    }

    /// Points the first entry, which has no hash, to `block`.
    pub fn set_first(&mut self, block: FileBlock) {
        self.raw[0].block = block.0.into();
    }

    fn set_count(&mut self, count: usize) {
        self.count = count;
        let head = RawDxCountLimit { limit: self.raw.len().fit_u16().into(), count: count.fit_u16().into() };
        self.raw[0].hash = zerocopy::transmute!(head);
    }
}

/// Fills `block` with a root; its checksum is stale.
///
/// # Panics
/// Same as [`write_dx_root`](super::write_dx_root).
pub fn init_dx_root(
    block: &mut [u8],
    context: &HtreeContext,
    info: &DxRootInfo,
    entries: impl ExactSizeIterator<Item = DxEntry>,
) {
    write_root_head(block, info);
    write_entries(block, ROOT_ENTRIES, entries, context.checksums);
}

/// Fills `block` with an inner node; its checksum is stale.
///
/// # Panics
/// Same as [`write_dx_node`](super::write_dx_node).
pub fn init_dx_node(
    block: &mut [u8],
    context: &HtreeContext,
    entries: impl ExactSizeIterator<Item = DxEntry>,
) {
    write_node_head(block);
    write_entries(block, NODE_ENTRIES, entries, context.checksums);
}

/// Sets the number of levels of inner nodes between a root and its leaves.
pub fn set_dx_levels(root: &mut [u8], levels: u8) {
    root[offset_of!(super::RawDxRoot, indirect_levels)] = levels;
}

/// Sets the parent in `..` in a directory's first block: that of a hash tree's root, or of a linear
/// directory whose `.` has the usual 12 bytes.
pub fn set_dotdot(first_block: &mut [u8], parent: InodeNumber) {
    let at = offset_of!(super::RawDxRoot, dotdot);
    first_block[at..at + 4].copy_from_slice(&parent.0.to_le_bytes());
}

//! Changes of a node in place.
//!
//! Checksums go stale with a change. [`write_dx_checksum`](super::write_dx_checksum) brings a block's up to date, once for
//! all of its changes, before the block goes to disk.

use super::{
    DxEntries, DxEntry, DxRootInfo, ENTRY_LEN, HtreeContext, NODE_ENTRIES, ROOT_ENTRIES, RawDxCountLimit,
    RawDxEntry, write_entries, write_node_head, write_root_head,
};
use crate::{Corrupt, FileBlock, InodeNumber};
use std::mem::offset_of;
use zerocopy::FromBytes;

/// The entries of a root or inner node, to be changed.
#[derive(Debug)]
pub struct DxEntriesMut<'a> {
    /// As many as there is room for. The first one's hash holds limit and count.
    raw: &'a mut [RawDxEntry],
    count: usize,
}

impl<'a> DxEntriesMut<'a> {
    /// The entries of the block that `context` names: of the root, if it is the directory's first.
    ///
    /// # Errors
    /// Refuses a wrong limit or count, as [`DxRoot::parse`](super::DxRoot::parse) does; trusts the order.
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

    /// How many entries there are.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// How many entries there is room for.
    pub const fn limit(&self) -> usize {
        self.raw.len()
    }

    /// Inserts `entry` so that it gets `index`, which is at least 1: the first entry stays the first.
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

    /// Drops all entries from `count` on, which is at least 1.
    ///
    /// # Panics
    /// If there are fewer, or `count` is 0.
    pub fn truncate(&mut self, count: usize) {
        assert!((1..=self.count).contains(&count), "{count} of {} entries", self.count);
        self.raw[count..].fill(RawDxEntry::default());
        self.set_count(count);
    }

    /// Makes the first entry, which leads to names of any hash, lead to `block`.
    pub fn set_first(&mut self, block: FileBlock) {
        self.raw[0].block = block.0.into();
    }

    fn set_count(&mut self, count: usize) {
        self.count = count;
        let head = RawDxCountLimit { limit: (self.raw.len() as u16).into(), count: (count as u16).into() };
        self.raw[0].hash = zerocopy::transmute!(head);
    }
}

/// Fills `block` with a root, its checksum stale.
///
/// # Panics
/// As [`write_dx_root`](super::write_dx_root).
pub fn init_dx_root(
    block: &mut [u8],
    context: &HtreeContext,
    info: &DxRootInfo,
    entries: impl ExactSizeIterator<Item = DxEntry>,
) {
    write_root_head(block, info);
    write_entries(block, ROOT_ENTRIES, entries, context.checksums);
}

/// Fills `block` with an inner node, its checksum stale.
///
/// # Panics
/// As [`write_dx_node`](super::write_dx_node).
pub fn init_dx_node(
    block: &mut [u8],
    context: &HtreeContext,
    entries: impl ExactSizeIterator<Item = DxEntry>,
) {
    write_node_head(block);
    write_entries(block, NODE_ENTRIES, entries, context.checksums);
}

/// Sets the levels of inner nodes between a root and its leaves.
pub fn set_dx_levels(root: &mut [u8], levels: u8) {
    root[offset_of!(super::RawDxRoot, indirect_levels)] = levels;
}

/// Sets the parent that `..` names in a directory's first block: of a tree's root, and of a linear directory whose `.` has
/// the usual 12 bytes.
pub fn set_dotdot(first_block: &mut [u8], parent: InodeNumber) {
    let at = offset_of!(super::RawDxRoot, dotdot);
    first_block[at..at + 4].copy_from_slice(&parent.0.to_le_bytes());
}

//! What edits of extent trees and of indirect maps have in common.
//!
//! An edit is planned on copies of the nodes on its path and written later. Until
//! [`Edit::new_nodes`] blocks are allocated and every node that it names is pinned, nothing has
//! changed. After that, nothing can fail.

use extant_format::{BlockRange, Corrupt, Extent, UintExt, VolumeBlock};
use std::ops::Deref;

/// A node of a file's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeAt {
    /// The 60 bytes in the inode.
    Root,
    /// A block of the volume.
    Block(VolumeBlock),
    /// A block to be allocated for the edit: an index into the blocks that will be passed to it.
    New(u32),
}

impl NodeAt {
    /// The block of an existing node.
    pub(crate) fn block(self) -> Option<VolumeBlock> {
        match self {
            Self::Block(at) => Some(at),
            Self::Root | Self::New(_) => None,
        }
    }

    /// The node's block once new ones have been allocated; `None` for the root.
    pub(crate) fn resolve(self, news: &[VolumeBlock]) -> Option<VolumeBlock> {
        match self {
            Self::Root => None,
            Self::Block(at) => Some(at),
            Self::New(n) => Some(news[n.to_usize()]),
        }
    }
}

/// Why an edit could not be planned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// This node's block must first be loaded into memory.
    Missing(VolumeBlock),
    /// The map is damaged.
    Corrupt(Corrupt),
    /// The map cannot address the range, or would become deeper than Linux accepts.
    TooBig,
}

impl From<Corrupt> for Stop {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// The nodes that are in memory.
pub(crate) trait Nodes {
    /// A node's bytes.
    type Bytes: Deref<Target = [u8]>;

    /// The bytes of the node in block `at`; `None` if they must be loaded.
    fn node(&self, at: VolumeBlock) -> Option<Self::Bytes>;

    /// Whether no durable node or inode points to the node in block `at`, so that a crash between
    /// two writes cannot expose it.
    fn is_fresh(&self, at: VolumeBlock) -> bool;
}

/// A change of one node.
#[derive(Clone, Debug)]
pub(crate) struct NodeWrite<T> {
    /// The node.
    pub(crate) at: NodeAt,
    /// The change.
    pub(crate) change: T,
}

/// A planned edit. `T` describes how a node of the map changes.
#[derive(Clone, Debug)]
pub(crate) struct Edit<T> {
    /// The nodes that change, including new ones; each appears once.
    pub(crate) writes: Vec<NodeWrite<T>>,
    /// Number of blocks to allocate for new nodes.
    pub(crate) new_nodes: u32,
    /// Blocks of nodes that left the map: to be freed and revoked.
    pub(crate) freed_nodes: Vec<VolumeBlock>,
    /// Mappings in the range that the edit removed or changed. A removal frees these blocks.
    pub(crate) replaced: Vec<Extent>,
    /// Some node now covers different file blocks, so the in-place changes must become durable all
    /// together or not at all.
    pub(crate) reshapes: bool,
    /// How many of the new nodes are copies of nodes that must not change in place.
    pub(crate) copies: u32,
}

/// Bounds one step of a removal so that it fits one handle: groups touched and metadata blocks
/// freed.
#[derive(Debug)]
pub(crate) struct Budget {
    blocks_per_group: u64,
    groups: std::collections::BTreeSet<u64>,
    nodes: u32,
    most: u32,
    /// Blocks that may still be freed. Limits how much of one extent is freed to what fits in
    /// `most` groups; each metadata block also takes a revoke record in the log.
    blocks_left: u32,
}

impl Budget {
    /// Allows at most `most` groups and nodes together. At least one run always passes.
    pub(crate) fn new(blocks_per_group: u32, most: u32) -> Self {
        let (groups, nodes) = (Default::default(), 0);
        let blocks_left = most.saturating_mul(blocks_per_group);
        Self { blocks_per_group: blocks_per_group.into(), groups, nodes, most, blocks_left }
    }

    /// Like [`Self::new`], but also limited to `blocks` blocks.
    pub(crate) fn of_blocks(blocks_per_group: u32, most: u32, blocks: u32) -> Self {
        let all = Self::new(blocks_per_group, most);
        Self { blocks_left: blocks.min(all.blocks_left), ..all }
    }

    /// Blocks that may still be freed.
    pub(crate) fn blocks_left(&self) -> u32 {
        self.blocks_left
    }

    fn spent(&self) -> u32 {
        self.groups.len().fit_u32() + self.nodes
    }

    /// Whether `blocks` blocks from `at` on may also be freed. If so, records them.
    pub(crate) fn take(&mut self, at: VolumeBlock, blocks: u32) -> bool {
        let (first, last) =
            (at.0 / self.blocks_per_group, (at.0 + u64::from(blocks) - 1) / self.blocks_per_group);
        let more = (first..=last).filter(|group| !self.groups.contains(group)).count().fit_u32();
        if !self.groups.is_empty() && self.spent() + more > self.most {
            return false;
        }
        let Some(left) = self.blocks_left.checked_sub(blocks) else { return false };
        self.blocks_left = left;
        self.groups.extend(first..=last);
        true
    }

    /// Records a node that changes or is freed.
    pub(crate) fn node(&mut self, freed: Option<VolumeBlock>) {
        self.nodes += 1;
        if let Some(at) = freed {
            self.groups.insert(at.0 / self.blocks_per_group);
        }
    }

    /// Whether nothing more fits.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent() >= self.most || self.blocks_left == 0
    }
}

/// The part of a removal's range that remains after one step.
pub(crate) type RemainingRange = Option<BlockRange>;

//! Fixtures for tests of map edits: a superblock and a store of nodes.

use super::node_edit::{Edit, NodeAt, Nodes};
use extant_format::{InodeNumber, RoCompat, Superblock, UintExt, VolumeBlock};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const INODE: InodeNumber = InodeNumber(12);
/// Blocks from here on are nodes.
pub(crate) const NODES_AT: u64 = 40_000_000;

/// A volume of 48 Mi blocks of 1 KiB, so that nodes are small and trees become deep.
pub(crate) fn superblock() -> Superblock {
    let bytes = include_bytes!("../../../format/tests/data/superblock.bin");
    let mut raw = *Superblock::parse(bytes).unwrap().raw();
    raw.s_log_block_size = 0.into();
    raw.s_first_data_block = 1.into();
    raw.s_blocks_per_group = 8192.into();
    raw.s_clusters_per_group = 8192.into();
    raw.s_blocks_count_lo = (8192 * 6144 + 1).into();
    raw.s_reserved_gdt_blocks = 0.into();
    raw.s_inodes_count = (raw.s_inodes_per_group.get() * 6144).into();
    Superblock::from_raw(raw).unwrap()
}

/// Like [`superblock`], but with clusters of four blocks (`bigalloc`).
pub(crate) fn clustered() -> Superblock {
    let mut raw = *superblock().raw();
    let blocks = raw.s_blocks_count_lo.get() - 1;
    raw.s_feature_ro_compat = (raw.s_feature_ro_compat.get() | RoCompat::BIGALLOC.bits()).into();
    raw.s_log_cluster_size = 2.into();
    raw.s_first_data_block = 0.into();
    raw.s_clusters_per_group = 8192.into();
    raw.s_blocks_per_group = 32768.into();
    raw.s_blocks_count_lo = blocks.into();
    raw.s_inodes_count = (raw.s_inodes_per_group.get() * (blocks / 32768)).into();
    Superblock::from_raw(raw).unwrap()
}

/// A file's map in memory.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) root: [u8; 60],
    pub(crate) nodes: BTreeMap<u64, Vec<u8>>,
    next: u64,
    /// Nodes that nothing durable points to.
    pub(crate) fresh: BTreeSet<u64>,
    block_bytes: usize,
}

impl Nodes for Store {
    type Bytes = Vec<u8>;

    fn node(&self, at: VolumeBlock) -> Option<Vec<u8>> {
        Some(self.nodes.get(&at.0).unwrap_or_else(|| panic!("block {at} is no node")).clone())
    }

    fn is_fresh(&self, at: VolumeBlock) -> bool {
        self.fresh.contains(&at.0)
    }
}

impl Store {
    pub(crate) fn new(root: [u8; 60], sb: &Superblock) -> Self {
        Self {
            root,
            nodes: BTreeMap::new(),
            next: NODES_AT,
            fresh: BTreeSet::new(),
            block_bytes: sb.block_size().byte_len(),
        }
    }

    /// Writes an edit, as a transaction would.
    pub(crate) fn apply<T>(&mut self, edit: &Edit<T>, write: impl Fn(&T, &mut [u8], &[VolumeBlock])) {
        let news: Vec<_> = (0..u64::from(edit.new_nodes)).map(|n| VolumeBlock(self.next + n)).collect();
        self.next += news.len().to_u64();
        for at in &news {
            self.nodes.insert(at.0, vec![0; self.block_bytes]);
            self.fresh.insert(at.0);
        }
        for change in &edit.writes {
            let bytes = match change.at.resolve(&news) {
                Some(at) => self.nodes.get_mut(&at.0).expect("only living nodes change"),
                None => &mut self.root[..],
            };
            assert!(change.at != NodeAt::Root || bytes.len() == 60);
            write(&change.change, bytes, &news);
        }
        for at in &edit.freed_nodes {
            assert!(self.nodes.remove(&at.0).is_some(), "node {at} is freed once");
        }
    }
}

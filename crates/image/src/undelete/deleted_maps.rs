//! Maps of deleted files, whose nodes may be only in the log.

use super::deleted_inodes::bytes_of;
use super::unused_blocks::Space;
use extant_format::{
    DIRECT_POINTERS, ExtentContext, ExtentNode, Inode, InodeFlags, Place, UintExt, VolumeBlock,
    parse_indirect, verify_extent_checksum,
};
use extant_fs::{OldCopy, Volume};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of nodes of one map to look at.
const NODES_MAX: usize = 1 << 20;

/// The blocks and nodes of a map.
#[derive(Debug, Default)]
pub(super) struct Map {
    /// Blocks of contents and of the map's nodes.
    pub(super) blocks: Vec<Range<u64>>,
    /// Nodes that are no longer on the volume, with their bytes from the log.
    pub(super) nodes: Vec<(VolumeBlock, Vec<u8>)>,
}

/// Finds the nodes of maps.
pub(super) struct Maps<'a> {
    volume: &'a Volume,
    space: &'a Space,
    /// Copies of blocks in the log, the newest first.
    copies: BTreeMap<VolumeBlock, Vec<OldCopy>>,
}

impl<'a> Maps<'a> {
    pub(super) fn new(volume: &'a Volume, space: &'a Space, history: &[OldCopy]) -> Self {
        let mut copies: BTreeMap<VolumeBlock, Vec<OldCopy>> = BTreeMap::new();
        for copy in history {
            copies.entry(copy.home).or_default().push(*copy);
        }
        Self { volume, space, copies }
    }

    /// Reads the map of a deleted inode.
    pub(super) async fn of(&self, inode: &Inode) -> Map {
        let flags = inode.flags();
        let mut map = Map::default();
        if flags.contains(InodeFlags::INLINE_DATA) || inode.is_fast_symlink(self.volume.superblock()) {
            return map;
        }
        match flags.contains(InodeFlags::EXTENTS) {
            true => self.of_tree(inode, &mut map).await,
            false => self.of_pointers(inode, &mut map).await,
        }
        map
    }

    /// A node that satisfies `is_right`: the block on the volume if it is free, else the newest
    /// such copy in the log.
    async fn node(
        &self,
        at: VolumeBlock,
        map: &mut Map,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        map.blocks.push(at.0..at.0 + 1);
        if self.space.is_free(at)
            && let Ok(block) = self.volume.block(at).await
            && is_right(&block)
        {
            return Some(block.to_vec());
        }
        for copy in self.copies.get(&at)? {
            if let Some(bytes) = bytes_of(self.volume, copy).await
                && is_right(&bytes)
            {
                map.nodes.push((at, bytes.clone()));
                return Some(bytes);
            }
        }
        None
    }

    async fn of_tree(&self, inode: &Inode, map: &mut Map) {
        let sb = self.volume.superblock();
        let seed = sb.checksum_seed().map(|seed| inode.checksum_seed(seed));
        let mut todo = vec![(ExtentContext::root(sb, inode.number), inode.map().to_vec())];
        let mut nodes = 0;
        while let Some((context, bytes)) = todo.pop() {
            nodes += 1;
            match ExtentNode::salvage(&bytes, &context) {
                Ok((ExtentNode::Leaf(extents), _)) => {
                    let places = extents.iter().map(|e| e.physical.0..e.physical.0 + u64::from(e.blocks));
                    map.blocks.extend(places);
                }
                Ok((ExtentNode::Index { depth, entries }, _)) if nodes < NODES_MAX => {
                    for n in 0..entries.len() {
                        let child = context.child(depth, &entries, n);
                        let is_right = |bytes: &[u8]| {
                            let place = Place::ExtentNode(inode.number, child.block);
                            let is_whole =
                                seed.is_none_or(|seed| verify_extent_checksum(bytes, seed, place).is_ok());
                            // A deletion leaves nodes without entries.
                            let has_entries = match ExtentNode::parse(bytes, &child) {
                                Ok(ExtentNode::Leaf(extents)) => !extents.is_empty(),
                                Ok(ExtentNode::Index { entries, .. }) => !entries.is_empty(),
                                Err(_) => false,
                            };
                            is_whole && has_entries
                        };
                        if let Some(bytes) = self.node(entries[n].child, map, is_right).await {
                            todo.push((child, bytes));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    async fn of_pointers(&self, inode: &Inode, map: &mut Map) {
        let sb = self.volume.superblock();
        let mut todo = Vec::new();
        for n in 0..15 {
            let at = inode.block_pointer(n);
            if at.0 > 0 && sb.is_valid_block(at) {
                todo.push((at, (n + 1).saturating_sub(DIRECT_POINTERS.to_usize())));
            }
        }
        let mut nodes = 0;
        while let Some((at, levels)) = todo.pop() {
            if levels == 0 || nodes == NODES_MAX {
                map.blocks.push(at.0..at.0 + 1);
                continue;
            }
            nodes += 1;
            let is_right = |bytes: &[u8]| {
                bytes.iter().any(|&b| b != 0)
                    && parse_indirect(bytes, sb, inode.number, at).all(|pointer| pointer.is_ok())
            };
            let Some(bytes) = self.node(at, map, is_right).await else { continue };
            let below = parse_indirect(&bytes, sb, inode.number, at).flatten();
            todo.extend(below.filter(|at| at.0 > 0).map(|at| (at, levels - 1)));
        }
    }
}

//! A quota file in memory: entries by owner, looked up and added as in fs/quota/quota_tree.c. No
//! I/O.

use crate::journal::Charge;
use extant_format::{
    Corrupt, FileBlock, InodeNumber, Place, QUOTA_BLOCK_BYTES, QUOTA_LEAF_ENTRIES, QUOTA_TREE_DEPTH,
    QUOTA_TREE_ROOT, QuotaEntry, QuotaHeader, QuotaKind, QuotaLeaf, QuotaTreeNode, UintExt,
    next_free_quota_block, write_quota_leaf,
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of blocks that a new entry takes: inner nodes of the tree, and a leaf.
const ENTRY_BLOCKS: usize = QUOTA_TREE_DEPTH;

/// A quota file. Its blocks have 1 KiB, whatever the volume's block size.
#[derive(Debug)]
pub(super) struct QuotaTree {
    inode: InodeNumber,
    header: QuotaHeader,
    /// The file's bytes, including blocks past the header's count that it may grow into.
    image: Vec<u8>,
    /// The leaf of each owner.
    leaves: BTreeMap<u32, u32>,
    /// Blocks changed since the last write.
    changed: BTreeSet<u32>,
}

impl QuotaTree {
    /// Parses the quota file `inode`.
    pub(super) fn parse(image: Vec<u8>, kind: QuotaKind, inode: InodeNumber) -> Result<Self, Corrupt> {
        let header = QuotaHeader::parse(&image, inode)?;
        let place = Place::Quota(inode, FileBlock(0));
        if header.kind != kind {
            return Err(Corrupt::field(place, "dqh_magic", header.kind.magic().into(), "that of its kind"));
        }
        if header.blocks.to_usize() > image.len() / QUOTA_BLOCK_BYTES {
            return Err(Corrupt::field(place, "dqi_blocks", header.blocks.into(), "blocks of the file"));
        }
        let (leaves, changed) = Default::default();
        let mut tree = Self { inode, header, image, leaves, changed };
        let mut nodes = vec![QUOTA_TREE_ROOT];
        for _ in 1..QUOTA_TREE_DEPTH {
            nodes = tree.below(&nodes)?;
        }
        for leaf in tree.below(&nodes)? {
            let ids: Vec<u32> = tree.leaf(leaf)?.entries().map(|entry| entry.id).collect();
            tree.leaves.extend(ids.into_iter().map(|id| (id, leaf.0)));
        }
        tree.check_lists()?;
        Ok(tree)
    }

    /// Walks the lists that new entries take blocks and leaves from, so that no charge can fail on
    /// them later.
    fn check_lists(&self) -> Result<(), Corrupt> {
        let mut seen: BTreeSet<u32> = self.leaves.values().copied().collect();
        let mut at = self.header.free_block;
        while let Some(block) = at {
            if !seen.insert(block.0) {
                let place = Place::Quota(self.inode, FileBlock(0));
                return Err(Corrupt::field(
                    place,
                    "dqi_free_blk",
                    block.0.into(),
                    "a list of free blocks, each once",
                ));
            }
            at = self.next_free(block)?;
        }
        let (mut at, mut listed) = (self.header.free_leaf, BTreeSet::new());
        while let Some(leaf) = at {
            let found = self.leaf(leaf)?;
            if !listed.insert(leaf.0) || found.entries().count() >= QUOTA_LEAF_ENTRIES {
                let place = Place::Quota(self.inode, FileBlock(0));
                let rule = "a list of leaves with a free entry, each once";
                return Err(Corrupt::field(place, "dqi_free_entry", leaf.0.into(), rule));
            }
            at = found.next_free;
        }
        Ok(())
    }

    fn next_free(&self, block: FileBlock) -> Result<Option<FileBlock>, Corrupt> {
        next_free_quota_block(self.bytes(block), self.inode, block, self.header.blocks)
    }

    /// The blocks below nodes of one level, without duplicates.
    fn below(&self, nodes: &[FileBlock]) -> Result<Vec<FileBlock>, Corrupt> {
        let mut below = BTreeSet::new();
        for &node in nodes {
            below.extend(self.node(node)?.children());
        }
        Ok(below.into_iter().collect())
    }

    fn bytes(&self, at: FileBlock) -> &[u8] {
        &self.image[at.0.to_usize() * QUOTA_BLOCK_BYTES..][..QUOTA_BLOCK_BYTES]
    }

    fn bytes_mut(&mut self, at: FileBlock) -> &mut [u8] {
        self.changed.insert(at.0);
        &mut self.image[at.0.to_usize() * QUOTA_BLOCK_BYTES..][..QUOTA_BLOCK_BYTES]
    }

    fn node(&self, at: FileBlock) -> Result<QuotaTreeNode<'_>, Corrupt> {
        QuotaTreeNode::parse(self.bytes(at), self.inode, at, self.header.blocks)
    }

    fn leaf(&self, at: FileBlock) -> Result<QuotaLeaf<'_>, Corrupt> {
        QuotaLeaf::parse(self.bytes(at), self.inode, at, self.header.blocks)
    }

    /// Whether `id` has an entry.
    pub(super) fn has(&self, id: u32) -> bool {
        self.leaves.contains_key(&id)
    }

    /// Whether this many new entries fit in the file as it is, whatever their ids.
    pub(super) fn has_room_for(&self, entries: usize) -> bool {
        self.image.len() / QUOTA_BLOCK_BYTES - self.header.blocks.to_usize() >= entries * ENTRY_BLOCKS
    }

    /// Records that the file was extended with zeros.
    pub(super) fn extend_to(&mut self, bytes: usize) {
        self.image.resize(bytes.max(self.image.len()), 0);
    }

    /// Bytes by which the file must grow for this many new entries.
    pub(super) fn missing_bytes(&self, entries: usize) -> usize {
        let needed = (self.header.blocks.to_usize() + entries * ENTRY_BLOCKS) * QUOTA_BLOCK_BYTES;
        needed.saturating_sub(self.image.len())
    }

    /// Changes the usage of `id`. Creates a missing entry, for which the caller has made room.
    /// Usage that would become negative, which only happens in an incorrect file, becomes 0. A
    /// damaged leaf is left unchanged.
    pub(super) fn charge(&mut self, id: u32, charge: Charge) {
        let leaf = match self.leaves.get(&id) {
            Some(&leaf) => FileBlock(leaf),
            None => match self.insert(id) {
                Ok(leaf) => leaf,
                // The lists were sound when the file was read, and only this code has changed them
                // since.
                Err(error) => {
                    debug_assert!(false, "a quota entry of {id}: {error}");
                    return;
                }
            },
        };
        self.edit_leaf(leaf, |entries| {
            for entry in entries.iter_mut().filter(|entry| entry.id == id) {
                entry.space_bytes = entry.space_bytes.saturating_add_signed(charge.space_bytes);
                entry.inodes = entry.inodes.saturating_add_signed(charge.inodes);
            }
        });
    }

    /// Changes the entries of a leaf, if it is sound.
    fn edit_leaf(&mut self, at: FileBlock, change: impl FnOnce(&mut Vec<QuotaEntry>)) {
        let Ok(leaf) = self.leaf(at) else { return };
        let (links, mut entries) = ([leaf.next_free, leaf.previous_free], leaf.entries().collect::<Vec<_>>());
        change(&mut entries);
        write_quota_leaf(self.bytes_mut(at), links, &entries);
    }

    /// Creates an entry of `id` without usage; returns its leaf.
    fn insert(&mut self, id: u32) -> Result<FileBlock, Corrupt> {
        let leaf = match self.header.free_leaf {
            Some(leaf) => leaf,
            None => {
                let leaf = self.take_block()?;
                self.header.free_leaf = Some(leaf);
                leaf
            }
        };
        let found = self.leaf(leaf)?;
        let next = found.next_free;
        let count = found.entries().count();
        if count >= QUOTA_LEAF_ENTRIES {
            let place = Place::Quota(self.inode, leaf);
            return Err(Corrupt::field(
                place,
                "dqdh_entries",
                count.to_u64(),
                "fewer than a leaf has room for",
            ));
        }
        self.edit_leaf(leaf, |entries| entries.push(QuotaEntry { id, ..QuotaEntry::default() }));
        if count + 1 == QUOTA_LEAF_ENTRIES {
            self.unlink_full(leaf, next);
        }
        self.link(id, leaf)?;
        self.leaves.insert(id, leaf.0);
        self.write_header();
        Ok(leaf)
    }

    /// Removes the first leaf from the list of leaves with a free entry, because it is now full.
    fn unlink_full(&mut self, leaf: FileBlock, next: Option<FileBlock>) {
        self.set_links(leaf, [None, None]);
        self.header.free_leaf = next;
        if let Some(next) = next
            && let Ok(second) = self.leaf(next)
        {
            let links = [second.next_free, None];
            self.set_links(next, links);
        }
    }

    fn set_links(&mut self, leaf: FileBlock, links: [Option<FileBlock>; 2]) {
        let Ok(found) = self.leaf(leaf) else { return };
        let entries: Vec<_> = found.entries().collect();
        write_quota_leaf(self.bytes_mut(leaf), links, &entries);
    }

    /// Makes the tree lead to the leaf of `id`.
    fn link(&mut self, id: u32, leaf: FileBlock) -> Result<(), Corrupt> {
        let mut node = QUOTA_TREE_ROOT;
        for level in 0..QUOTA_TREE_DEPTH {
            let child = match self.node(node)?.child(id, level) {
                Some(child) => child,
                None => {
                    let child = if level + 1 == QUOTA_TREE_DEPTH { leaf } else { self.take_block()? };
                    let at = usize::from(id.to_be_bytes()[level]) * 4;
                    self.bytes_mut(node)[at..at + 4].copy_from_slice(&child.0.to_le_bytes());
                    child
                }
            };
            node = child;
        }
        Ok(())
    }

    /// Takes a zeroed block: the first free one, or one after the last.
    fn take_block(&mut self) -> Result<FileBlock, Corrupt> {
        let block = match self.header.free_block {
            Some(block) => {
                self.header.free_block = self.next_free(block)?;
                block
            }
            None => {
                let block = FileBlock(self.header.blocks);
                if (block.0.to_usize() + 1) * QUOTA_BLOCK_BYTES > self.image.len() {
                    let place = Place::Quota(self.inode, FileBlock(0));
                    return Err(Corrupt::field(
                        place,
                        "dqi_blocks",
                        block.0.into(),
                        "fewer than the file has",
                    ));
                }
                self.header.blocks += 1;
                block
            }
        };
        self.bytes_mut(block).fill(0);
        Ok(block)
    }

    fn write_header(&mut self) {
        let header = self.header;
        header.write_to(self.bytes_mut(FileBlock(0)));
    }

    /// Returns the volume blocks, of `block_bytes` each, changed since the last call, with their
    /// index in the file.
    pub(super) fn take_changed(&mut self, block_bytes: usize) -> Vec<(usize, Box<[u8]>)> {
        let changed = std::mem::take(&mut self.changed);
        let blocks: BTreeSet<usize> =
            changed.into_iter().map(|at| at.to_usize() * QUOTA_BLOCK_BYTES / block_bytes).collect();
        let bytes = |at: usize| {
            let there = &self.image[at * block_bytes..];
            // The file may end within its last volume block.
            let mut block = vec![0; block_bytes];
            let len = there.len().min(block_bytes);
            block[..len].copy_from_slice(&there[..len]);
            (at, block.into())
        };
        blocks.into_iter().map(bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> QuotaTree {
        let header = QuotaHeader {
            kind: QuotaKind::User,
            space_grace_s: 604_800,
            inode_grace_s: 604_800,
            blocks: 2,
            free_block: None,
            free_leaf: None,
        };
        let mut image = vec![0; 2 * QUOTA_BLOCK_BYTES];
        header.write_to(&mut image[..QUOTA_BLOCK_BYTES]);
        QuotaTree::parse(image, QuotaKind::User, InodeNumber(3)).unwrap()
    }

    /// Space and inodes by owner, parsed from the bytes.
    fn read_back(tree: &QuotaTree) -> BTreeMap<u32, (u64, u64)> {
        let parsed = QuotaTree::parse(tree.image.clone(), QuotaKind::User, InodeNumber(3)).unwrap();
        let entry = |(&id, &leaf): (&u32, &u32)| {
            let entry = parsed.leaf(FileBlock(leaf)).unwrap().get(id).unwrap();
            (id, (entry.space_bytes, entry.inodes))
        };
        parsed.leaves.iter().map(entry).collect()
    }

    #[test]
    fn owners_of_any_number_are_found_again_with_what_they_use() {
        let mut tree = empty();
        let mut expected: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut rng = extant_rt::Rng::new(11);
        for n in 0..500u32 {
            let id = match n % 3 {
                0 => n / 3,
                1 => u32::MAX - n,
                _ => rng.below(1 << 32) as u32,
            };
            if !tree.has(id) && !tree.has_room_for(1) {
                tree.extend_to(tree.image.len() + tree.missing_bytes(1).next_multiple_of(4096));
            }
            let space = rng.below(1 << 40) as i64;
            tree.charge(id, Charge { space_bytes: space, inodes: 1 });
            let entry = expected.entry(id).or_default();
            *entry = (entry.0 + space as u64, entry.1 + 1);
        }
        assert_eq!(read_back(&tree), expected);
        for id in expected.keys().copied().collect::<Vec<_>>() {
            let (space, inodes) = expected[&id];
            tree.charge(id, Charge { space_bytes: -(space as i64), inodes: -(inodes as i64) - 5 });
        }
        assert!(read_back(&tree).values().all(|usage| *usage == (0, 0)), "no usage becomes negative");
    }

    #[test]
    fn a_leaf_that_linux_freed_is_taken_although_its_last_entry_is_still_in_it() {
        let mut tree = empty();
        tree.extend_to(32 << 10);
        for id in 0..15 {
            tree.charge(id, Charge { space_bytes: 1024, inodes: 1 });
        }
        // As free_dqentry leaves the second leaf once its only owner, 14, is gone: removed from the
        // tree, with no entries counted, but the bytes still there.
        let second = tree.leaves[&14];
        let node = (0..tree.header.blocks).find(|&node| {
            let links = tree.bytes(FileBlock(node)).chunks(4).nth(14);
            node > 1
                && links == Some(&second.to_le_bytes()[..])
                && !tree.leaves.values().any(|&leaf| leaf == node)
        });
        tree.bytes_mut(FileBlock(node.unwrap()))[14 * 4..15 * 4].fill(0);
        tree.bytes_mut(FileBlock(second))[8..10].fill(0);
        tree.header.free_block = Some(FileBlock(second));
        tree.header.free_leaf = None;
        tree.write_header();
        let mut tree = QuotaTree::parse(tree.image, QuotaKind::User, InodeNumber(3)).unwrap();
        tree.charge(1000, Charge { space_bytes: 2048, inodes: 1 });
        let found = read_back(&tree);
        assert_eq!((found.len(), found.get(&1000)), (15, Some(&(2048, 1))));
        // A cyclic list is rejected before anything is charged.
        let again = second.to_le_bytes();
        tree.bytes_mut(FileBlock(second))[..4].copy_from_slice(&again);
        tree.header.free_block = Some(FileBlock(second));
        tree.write_header();
        assert!(QuotaTree::parse(tree.image, QuotaKind::User, InodeNumber(3)).is_err());
    }

    #[test]
    fn only_what_changed_is_written() {
        let mut tree = empty();
        tree.extend_to(16 << 10);
        tree.charge(7, Charge { space_bytes: 4096, inodes: 1 });
        assert_eq!(tree.take_changed(1024).len(), 6, "header, four nodes and a leaf");
        tree.charge(7, Charge { space_bytes: 4096, inodes: 0 });
        let changed = tree.take_changed(1024);
        assert_eq!(changed.len(), 1);
        assert!(tree.take_changed(1024).is_empty());
    }
}

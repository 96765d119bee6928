//! Checks before a directory is trusted: its size, its first two entries, and that each name in a
//! hash tree is in the leaf its hash leads to.
//!
//! A lookup through a tree reads one leaf, so a name in the wrong leaf would get a second entry.
//! Each leaf is checked once ([`Blocks::is_sound`]), because our own changes never misplace a name.

use super::hash_tree::{HashRange, Path};
use super::inline;
use super::leaf::{RawEntry, is_node};
use super::shape::{Blocks, Form, Shape, Stop};
use crate::xattr::in_inode;
use extant_format::{
    Corrupt, DIRENT_HEADER_BYTES, DxNode, FileBlock, HashVersion, INLINE_HEAD_BYTES, Inode, InodeNumber,
    NameHash, Place, Superblock, UintExt, XattrName, decode_record_bytes, dirent_bytes,
};
use std::collections::BTreeMap;

/// Checks that all names of a tree's leaf belong there.
pub(crate) fn check_leaf(
    shape: &Shape,
    blocks: &impl Blocks,
    at: FileBlock,
    version: HashVersion,
    range: HashRange,
) -> Result<(), Stop> {
    if blocks.is_sound(at, Form::Leaf) {
        return Ok(());
    }
    let bytes = blocks.get(at)?;
    // Parsed as entries, a node without a checksum looks like an empty leaf.
    if is_node(&bytes) && DxNode::open(&bytes, &shape.context(at)).is_ok() {
        return Err(shape.bad_block(at, "a leaf of the tree, which a node leads to"));
    }
    let entries: Result<Vec<RawEntry<'_>>, _> = shape.leaf.entries(&bytes).collect();
    for entry in shape.checked(at, &bytes, entries)?.iter().filter(|entry| !entry.is_free()) {
        let hash = shape.hash(version, entry.name).map_or(0, |hash| hash.major);
        if !range.holds(hash) {
            let rule = "one of those that the tree has in this block; run e2fsck -fD";
            let place = Place::DirectoryBlock(shape.dir, at);
            return Err(Corrupt::field(place, "hash of a name", hash.into(), rule).into());
        }
    }
    blocks.set_sound(at, Form::Leaf);
    Ok(())
}

/// The role of a block in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Node,
    Leaf(HashRange),
}

/// Checks all blocks of a tree. First it collects from the nodes which hashes each leaf may hold.
/// Then it reads each block once, in file order, because leaves with neighbouring hashes lie far
/// apart.
#[derive(Debug, Default)]
pub(crate) struct TreeCheck {
    /// The path to the next leaf to collect.
    path: Option<Path>,
    /// The nodes and leaves that the tree leads to. The root is not among them.
    parts: BTreeMap<FileBlock, Part>,
    /// Once all leaves are collected, the tree's hash version and the next block to check.
    checking: Option<(HashVersion, FileBlock)>,
}

impl TreeCheck {
    /// Does the next step and returns whether there are more. A step that stopped at a block that
    /// is not in memory can be repeated.
    pub(crate) fn step(&mut self, shape: &Shape, blocks: &impl Blocks) -> Result<bool, Stop> {
        let Some((version, at)) = self.checking else {
            self.collect(shape, blocks)?;
            return Ok(true);
        };
        if at.0 >= shape.blocks {
            return Ok(false);
        }
        match self.parts.get(&at) {
            Some(Part::Node) => {}
            Some(Part::Leaf(range)) => check_leaf(shape, blocks, at, version, *range)?,
            None => check_left(shape, blocks, at)?,
        }
        self.checking = Some((version, FileBlock(at.0 + 1)));
        Ok(true)
    }

    /// Collects the next leaf, and the nodes that lead to it.
    fn collect(&mut self, shape: &Shape, blocks: &impl Blocks) -> Result<(), Stop> {
        let path = match self.path {
            Some(path) => path,
            None => Path::find(shape, blocks, |_| Some(NameHash { major: 0, minor: 0 }))?.0,
        };
        let mut next = path;
        let has_next = next.next(shape, blocks, None)?.is_some();
        let nodes = path.nodes().filter(|at| at.0 > 0).map(|at| (at, Part::Node));
        for (at, part) in nodes.chain([(path.leaf, Part::Leaf(path.hashes()))]) {
            // A node appears on the paths of several leaves.
            match self.parts.insert(at, part) {
                None => {}
                Some(Part::Node) if part == Part::Node => {}
                Some(_) => return Err(shape.bad_block(at, "led to once")),
            }
        }
        self.path = Some(next);
        if !has_next {
            self.checking = Some((path.version, FileBlock(1)));
        }
        Ok(())
    }
}

/// Checks a block that the tree does not lead to; only a scan would see its names.
fn check_left(shape: &Shape, blocks: &impl Blocks, at: FileBlock) -> Result<(), Stop> {
    let bytes = blocks.get(at)?;
    if !shape.is_node(at, &bytes) && !shape.checked(at, &bytes, shape.leaf.is_empty(&bytes))? {
        let rule = "one that the tree leads to; run e2fsck -fD";
        let place = Place::HtreeNode(shape.dir, at);
        return Err(Corrupt::field(place, "block", at.0.into(), rule).into());
    }
    Ok(())
}

/// Returns the directory that `..` names. The first block of any directory, including a tree, must
/// begin with `.` and `..`.
pub(crate) fn first_entries(block: &[u8], dir: InodeNumber, max_inode: u32) -> Result<InodeNumber, Corrupt> {
    let place = Place::DirectoryBlock(dir, FileBlock(0));
    let bad = |field, value: u32, rule| Err(Corrupt::field(place, field, value.into(), rule));
    let entry = |at: usize, name: &[u8]| {
        let rest = block.get(at..).filter(|rest| rest.len() >= dirent_bytes(name.len()))?;
        let inode = u32::from_le_bytes(*rest.first_chunk()?);
        let record = decode_record_bytes(u16::from_le_bytes([rest[4], rest[5]]), block.len());
        let fits = record.is_multiple_of(4) && dirent_bytes(name.len()) <= record && record <= rest.len();
        let is_named = usize::from(rest[6]) == name.len() && rest[DIRENT_HEADER_BYTES..].starts_with(name);
        (fits && is_named).then_some((inode, record))
    };
    let Some((own, record)) = entry(0, b".") else {
        return bad("first entry", 0, "that of `.`");
    };
    if own != dir.0 {
        return bad("inode of `.`", own, "the directory's own");
    }
    match entry(record, b"..") {
        None => bad("second entry", 0, "that of `..`"),
        Some((0, _)) => bad("inode of `..`", 0, "a directory of the volume"),
        Some((parent, _)) if parent > max_inode => bad("inode of `..`", parent, "a directory of the volume"),
        Some((parent, _)) => {
            let parent = InodeNumber(parent);
            if dir == InodeNumber::ROOT && parent != dir {
                return bad("inode of `..`", parent.0, "2, for the directory is the root");
            }
            Ok(parent)
        }
    }
}

/// Like [`first_entries`], for an inline directory. Also checks its size.
pub(crate) fn inline_parent(dir: &Inode, sb: &Superblock) -> Result<InodeNumber, Corrupt> {
    let value = in_inode(dir)?.value_range_in_inode(XattrName::INLINE_DATA).map_or(0, |range| range.len());
    let room = (INLINE_HEAD_BYTES + value).to_u64();
    if dir.size() != room {
        let rule = "that of the room for names in the inode";
        return Err(Corrupt::field(Place::Inode(dir.number), "i_size", dir.size(), rule));
    }
    let parent = inline::parent(dir);
    let is_root = dir.number == InodeNumber::ROOT;
    if parent.0 == 0 || parent.0 > sb.inodes_count() || (is_root && parent != dir.number) {
        let rule = "a directory of the volume";
        return Err(Corrupt::field(Place::InlineData(dir.number), "..", parent.0.into(), rule));
    }
    Ok(parent)
}

/// The number of blocks of a directory, from its size.
pub(crate) fn size_in_blocks(dir: &Inode, sb: &Superblock) -> Result<u32, Corrupt> {
    let block = u64::from(sb.block_size().bytes());
    let bad = |rule| Corrupt::field(Place::Inode(dir.number), "i_size", dir.size(), rule);
    if dir.size() == 0 || !dir.size().is_multiple_of(block) {
        return Err(bad("a number of whole blocks, and at least one"));
    }
    dir.size_in_blocks(sb).map(|blocks| blocks.0).ok_or_else(|| bad("within what a map can address"))
}

/// The error for a directory that maps blocks past its size.
pub(crate) fn too_short(dir: &Inode) -> Corrupt {
    let rule = "that of all blocks that the directory maps";
    Corrupt::field(Place::Inode(dir.number), "i_size", dir.size(), rule)
}

/// The error for a directory reached through a directory other than the one that `..` names.
pub(crate) fn elsewhere(dir: InodeNumber, parent: InodeNumber) -> Corrupt {
    let rule = "the directory of the name that leads here: one directory has two names";
    Corrupt::field(Place::Inode(dir), "..", parent.0.into(), rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::{FileKind, write_dirent};

    #[test]
    fn a_first_block_begins_with_the_dots() {
        let dir = InodeNumber(12);
        let block = |own: u32, dot: &[u8], parent: u32, dotdot: &[u8]| {
            let mut block = vec![0; 1024];
            write_dirent(&mut block[..12], InodeNumber(own), dot, Some(FileKind::Directory));
            write_dirent(&mut block[12..], InodeNumber(parent), dotdot, Some(FileKind::Directory));
            first_entries(&block, dir, 100).map_err(|corrupt| corrupt.to_string())
        };
        assert_eq!(block(12, b".", 2, b".."), Ok(InodeNumber::ROOT));
        for (own, dot, parent, dotdot) in [
            (13, &b"."[..], 2, &b".."[..]),
            (12, b"x", 2, b".."),
            (12, b".", 2, b"xy"),
            (12, b".", 0, b".."),
            (12, b".", 101, b".."),
        ] {
            assert!(block(own, dot, parent, dotdot).is_err(), "{own} {dot:?} {parent} {dotdot:?}");
        }
        assert!(first_entries(&[0; 1024], dir, 100).is_err());
        assert!(first_entries(&[], dir, 100).is_err());
    }
}

//! Looking up, removing and changing names in a directory of blocks; adding them is in
//! [`insert`](super::insert).
//!
//! [`look`] reads and decides. It stops at a block that is not in memory, without having changed
//! anything. The entry it found, or the place for a new name, is then changed in blocks that are
//! all pinned, so the change cannot fail.

use super::check::check_leaf;
use super::hash_tree::{Path, held};
use super::leaf::{Entry, RawEntry, Scan};
use super::linear_index::NameIndex;
use super::shape::{Blocks, BlocksMut, Form, Shape, Stop};
use extant_format::{FileBlock, FileKind, HashVersion, InodeNumber, dirent_bytes, set_dotdot};

/// An entry and the block that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) block: FileBlock,
    pub(crate) entry: Entry,
}

/// The result of [`look`] for a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Looked {
    Found(Found),
    /// There is no such name; it can be added here.
    Absent(Gap),
}

/// Where a name may be added.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    /// In a record with enough room.
    Room { block: FileBlock, at: u32 },
    /// In a new block of a linear directory.
    Append,
    /// In a directory of one full block, which becomes a tree with this hash version.
    Plant(HashVersion),
    /// In one half of a full leaf, with `nodes` new nodes above it.
    Split { path: Path, nodes: u32 },
    /// Nowhere: the tree or the directory cannot grow.
    Full,
}

impl Gap {
    /// Blocks by which the directory grows; `None` if it cannot.
    pub(crate) fn new_blocks(&self, shape: &Shape) -> Option<u32> {
        let new = match self {
            Self::Room { .. } => 0,
            Self::Append => 1,
            Self::Plant(_) => 2,
            Self::Split { nodes, .. } => nodes + 1,
            Self::Full => return None,
        };
        (new == 0 || shape.blocks.saturating_add(new) <= shape.blocks_max()).then_some(new)
    }
}

/// Looks up `name`. `index` is the index of a linear directory; without one, all blocks are read.
pub(crate) fn look(
    shape: &Shape,
    blocks: &impl Blocks,
    name: &[u8],
    index: Option<&NameIndex>,
) -> Result<Looked, Stop> {
    if shape.has_nodes && (name == b"." || name == b"..") {
        return dots(shape, blocks, name);
    }
    if shape.tree {
        return look_in_tree(shape, blocks, name);
    }
    let need = dirent_bytes(name.len());
    let scan = |at: FileBlock| {
        let bytes = blocks.get(at)?;
        if shape.is_node(at, &bytes) {
            return Ok(Scan::NOTHING);
        }
        shape.checked(at, &bytes, shape.leaf.scan(&bytes, name, need))
    };
    if let Some(index) = index {
        for at in index.candidates(name) {
            if let Some(entry) = scan(at)?.entry {
                return Ok(Looked::Found(Found { block: at, entry }));
            }
        }
        let Some(block) = index.block_with_room(need) else { return Ok(Looked::Absent(Gap::Append)) };
        return match scan(block)?.room {
            Some(at) => Ok(Looked::Absent(Gap::Room { block, at })),
            None => Err(shape.bad_block(block, "a block with the room that it had")),
        };
    }
    let mut room = None;
    for block in (0..shape.blocks).map(FileBlock) {
        let scan = scan(block)?;
        if let Some(entry) = scan.entry {
            return Ok(Looked::Found(Found { block, entry }));
        }
        room = room.or(scan.room.map(|at| Gap::Room { block, at }));
    }
    Ok(Looked::Absent(room.unwrap_or(match shape.new_tree {
        Some(version) if shape.blocks == 1 => Gap::Plant(version),
        _ => Gap::Append,
    })))
}

/// Like [`look`], for a name whose block is in memory although others may not be.
pub(crate) fn look_at_hand(
    shape: &Shape,
    blocks: &impl Blocks,
    name: &[u8],
    index: Option<&NameIndex>,
) -> Option<Found> {
    if let Some(index) = index
        && !shape.tree
    {
        // A block with another name of the same hash may have been evicted.
        return index.candidates(name).into_iter().find_map(|block| {
            let bytes = blocks.get(block).ok()?;
            let entry = shape.leaf.scan(&bytes, name, dirent_bytes(name.len())).ok()?.entry?;
            Some(Found { block, entry })
        });
    }
    match look(shape, blocks, name, index) {
        Ok(Looked::Found(found)) => Some(found),
        _ => None,
    }
}

fn look_in_tree(shape: &Shape, blocks: &impl Blocks, name: &[u8]) -> Result<Looked, Stop> {
    let (first, hash) = Path::find(shape, blocks, |version| shape.hash(version, name))?;
    let mut path = first;
    let mut room = None;
    // More leaves than the directory has blocks mean a cycle.
    for _ in 0..shape.blocks {
        let bytes = blocks.get(path.leaf)?;
        let scan =
            shape.checked(path.leaf, &bytes, shape.leaf.scan(&bytes, name, dirent_bytes(name.len())))?;
        if let Some(entry) = scan.entry {
            return Ok(Looked::Found(Found { block: path.leaf, entry }));
        }
        check_leaf(shape, blocks, path.leaf, path.version, path.hashes())?;
        room = room.or(scan.room.map(|at| Gap::Room { block: path.leaf, at }));
        if path.next(shape, blocks, Some(hash))?.is_none() {
            let split = || match first.new_nodes(shape) {
                Some(nodes) => Gap::Split { path: first, nodes },
                None => Gap::Full,
            };
            return Ok(Looked::Absent(room.unwrap_or_else(split)));
        }
    }
    Err(shape.bad_block(path.leaf, "passed once"))
}

/// In a tree, `.` and `..` are in the root, at the same offsets as in a linear directory.
fn dots(shape: &Shape, blocks: &impl Blocks, name: &[u8]) -> Result<Looked, Stop> {
    let bytes = blocks.get(FileBlock(0))?;
    let info = extant_format::DxRoot::open(&bytes, &shape.context(FileBlock(0)))?.info;
    let kind = shape.leaf.filetype.then_some(FileKind::Directory);
    let entry = match name {
        b"." => Entry { inode: info.dir, kind, offset: 0, previous: None },
        _ => Entry { inode: info.parent, kind, offset: 12, previous: Some(0) },
    };
    Ok(Looked::Found(Found { block: FileBlock(0), entry }))
}

/// Removes an entry that [`look`] found.
pub(crate) fn remove(
    shape: &Shape,
    blocks: &mut impl BlocksMut,
    found: &Found,
    name: &[u8],
    index: Option<&mut NameIndex>,
) {
    blocks.edit(found.block, Form::Leaf, |bytes| shape.leaf.remove(bytes, &found.entry));
    if let Some(index) = index {
        let room = shape.leaf.most_room(&held(blocks, found.block)).unwrap_or(0);
        index.removed(found.block, name, room);
    }
}

/// Makes an entry that [`look`] found refer to another inode.
pub(crate) fn set(
    shape: &Shape,
    blocks: &mut impl BlocksMut,
    found: &Found,
    inode: InodeNumber,
    kind: FileKind,
) {
    blocks.edit(found.block, Form::Leaf, |bytes| {
        shape.leaf.set(bytes, found.entry.offset, inode, kind);
    });
}

/// The inode that `..` names.
pub(crate) fn parent(shape: &Shape, blocks: &impl Blocks) -> Result<InodeNumber, Stop> {
    let mut first = *shape;
    first.blocks = 1;
    match look(&first, blocks, b"..", None)? {
        Looked::Found(found) => Ok(found.entry.inode),
        Looked::Absent(_) => Err(shape.bad_block(FileBlock(0), "one with an entry for `..`")),
    }
}

/// Makes `..` refer to another directory. The first block must have been read by [`look`] or
/// [`parent`].
pub(crate) fn set_parent(shape: &Shape, blocks: &mut impl BlocksMut, parent: InodeNumber) {
    if shape.has_nodes {
        blocks.edit(FileBlock(0), Form::Node, |bytes| set_dotdot(bytes, parent));
        return;
    }
    let first = FileBlock(0);
    let scan = shape.leaf.scan(&held(blocks, first), b"..", 0);
    if let Ok(Some(entry)) = scan.map(|scan| scan.entry) {
        blocks.edit(first, Form::Leaf, |bytes| {
            shape.leaf.set(bytes, entry.offset, parent, FileKind::Directory);
        });
    }
}

/// Whether a directory has no names except `.` and `..`. Tree nodes, which look like a deleted
/// entry, contain none.
pub(crate) fn is_empty(shape: &Shape, blocks: &impl Blocks) -> Result<bool, Stop> {
    for at in (0..shape.blocks).map(FileBlock) {
        let bytes = blocks.get(at)?;
        if shape.is_node(at, &bytes) {
            continue;
        }
        if !shape.checked(at, &bytes, shape.leaf.is_empty(&bytes))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The names in a block, in storage order.
pub(crate) fn names<'a>(shape: &Shape, at: FileBlock, bytes: &'a [u8]) -> Result<Vec<RawEntry<'a>>, Stop> {
    if shape.is_node(at, bytes) {
        // A root has `.` and `..`, whose records fill the block.
        let dots = shape.leaf.inline().entries(bytes).take(2).filter(|_| at.0 == 0).collect();
        return shape.checked(at, bytes, dots);
    }
    let list: Result<Vec<_>, _> = shape.leaf.entries(bytes).collect();
    let mut list = shape.checked(at, bytes, list)?;
    list.retain(|entry| !entry.is_free());
    Ok(list)
}

//! Adding a name to a directory of blocks: in a block with room, in a new block, or in one half of
//! a leaf that is split.

use super::edit::{Gap, parent};
use super::hash_tree::held;
use super::leaf::{Damaged, SplitLeaf};
use super::linear_index::NameIndex;
use super::shape::{BlocksMut, Form, Shape, Stop};
use crate::Error;
use extant_format::{
    DxEntry, DxRootInfo, FileBlock, FileKind, HashVersion, InodeNumber, dirent_bytes, init_dx_root,
};

/// Adds a name where [`look`](super::edit::look) found a place for it. Returns whether the
/// directory became a tree; its inode then needs `EXT4_INDEX_FL`.
///
/// The blocks counted by [`Gap::new_blocks`] must be available. If the directory turns out to be
/// malformed only now, the error is returned before anything has changed.
pub(crate) fn insert(
    shape: &Shape,
    blocks: &mut impl BlocksMut,
    gap: &Gap,
    inode: InodeNumber,
    name: &[u8],
    kind: FileKind,
    index: Option<&mut NameIndex>,
) -> Result<bool, Error> {
    let leaf = shape.leaf;
    match *gap {
        Gap::Room { block, at } => {
            blocks.edit(block, Form::Leaf, |bytes| {
                leaf.insert(bytes, at, inode, name, kind);
            });
            if let Some(index) = index {
                index.added(block, name, leaf.most_room(&held(blocks, block)).unwrap_or(0));
            }
            Ok(false)
        }
        Gap::Append => {
            let block = FileBlock(shape.blocks);
            blocks.create(block, Form::Leaf, |bytes| {
                leaf.init_empty(bytes);
                leaf.insert(bytes, 0, inode, name, kind);
            });
            if let Some(index) = index {
                index.added(block, name, leaf.most_room(&held(blocks, block)).unwrap_or(0));
            }
            Ok(false)
        }
        Gap::Plant(version) => {
            let first = FileBlock(0);
            let bytes = held(blocks, first);
            let parent = match parent(shape, blocks) {
                Ok(parent) => parent,
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Missing(at)) => unreachable!("block {at} has been looked at"),
            };
            let (low, high) = (FileBlock(1), FileBlock(2));
            let halves = split(shape, first, &bytes, version, inode, name, kind)?;
            drop(bytes);
            let info = DxRootInfo {
                dir: shape.dir,
                parent,
                filetype: leaf.filetype,
                hash_version: version,
                levels: 0,
            };
            let entries = [DxEntry { hash: 0, block: low }, DxEntry { hash: halves.hash, block: high }];
            blocks.edit(first, Form::Node, |bytes| {
                init_dx_root(bytes, &shape.context(first), &info, entries.into_iter());
            });
            blocks.create(low, Form::Leaf, |bytes| bytes.copy_from_slice(&halves.low));
            blocks.create(high, Form::Leaf, |bytes| bytes.copy_from_slice(&halves.high));
            blocks.set_sound(low, Form::Leaf);
            blocks.set_sound(high, Form::Leaf);
            Ok(true)
        }
        Gap::Split { path, .. } => {
            let bytes = held(blocks, path.leaf);
            let halves = split(shape, path.leaf, &bytes, path.version, inode, name, kind)?;
            drop(bytes);
            let high = FileBlock(shape.blocks);
            blocks.create(high, Form::Leaf, |bytes| bytes.copy_from_slice(&halves.high));
            blocks.set_sound(high, Form::Leaf);
            blocks.edit(path.leaf, Form::Leaf, |bytes| bytes.copy_from_slice(&halves.low));
            path.add_leaf(shape, blocks, FileBlock(high.0 + 1), halves.hash, high);
            Ok(false)
        }
        Gap::Full => Err(shape.full()),
    }
}

/// Splits a full leaf and adds the new entry to the correct half.
fn split(
    shape: &Shape,
    at: FileBlock,
    bytes: &[u8],
    version: HashVersion,
    inode: InodeNumber,
    name: &[u8],
    kind: FileKind,
) -> Result<SplitLeaf, Error> {
    let hash = |name: &[u8]| shape.hash(version, name).expect("a hash that the way down has computed");
    let failed = |_| Error::from(shape.leaf.diagnose(bytes, shape.dir, at));
    let mut halves = shape.leaf.split(bytes, hash).map_err(failed)?;
    let half = if hash(name).major >= halves.hash & !1 { &mut halves.high } else { &mut halves.low };
    let scan = shape.leaf.scan(half, name, dirent_bytes(name.len())).map_err(failed)?;
    // A half of a sound block has room for any name, because the largest entry is less than half of
    // the smallest block.
    let room = scan.room.ok_or(Damaged).map_err(failed)?;
    shape.leaf.insert(half, room, inode, name, kind);
    Ok(halves)
}

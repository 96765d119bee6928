//! Lists all blocks in an inode's map.

use super::View;
use crate::Error;
use extant_format::{
    Corrupt, DIRECT_POINTERS, ExtentContext, ExtentNode, Inode, InodeFlags, Place, UintExt, VolumeBlock,
    check_pointer, parse_indirect,
};
use std::ops::Range;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Levels of pointer blocks below each of an inode's pointers after the direct ones.
const LEVELS: [u32; 3] = [1, 2, 3];

impl View {
    /// The blocks in an inode's map: those of its contents, regardless of the inode's size, and its
    /// own nodes.
    ///
    /// # Errors
    /// A part of the map is damaged or unreadable.
    pub(crate) async fn blocks_of(&self, inode: &Inode) -> Result<Vec<Range<VolumeBlock>>> {
        self.map_blocks(inode, false).await
    }

    /// Like [`Self::blocks_of`], but leaves out damaged and unreadable parts of the map. A reader
    /// of the file finds the same blocks.
    ///
    /// # Errors
    /// The map has more nodes than the volume has blocks.
    pub(crate) async fn readable_blocks_of(&self, inode: &Inode) -> Result<Vec<Range<VolumeBlock>>> {
        self.map_blocks(inode, true).await
    }

    async fn map_blocks(&self, inode: &Inode, skip_damage: bool) -> Result<Vec<Range<VolumeBlock>>> {
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Ok(Vec::new());
        }
        match inode.flags().contains(InodeFlags::EXTENTS) {
            true => in_tree(self, inode, skip_damage).await,
            false => in_pointers(self, inode, skip_damage).await,
        }
    }
}

/// Fails if the map has more nodes than the volume has blocks.
fn check_count(view: &View, inode: &Inode, nodes: u64) -> Result<()> {
    if nodes <= view.superblock().blocks_count() {
        return Ok(());
    }
    let rule = "at most the volume's blocks: some are mapped twice";
    Err(Corrupt::field(Place::Inode(inode.number), "nodes of the map", nodes, rule).into())
}

/// The value, or `None` in place of damage that is to be skipped.
fn or_skip<T>(read: Result<T, impl Into<Error>>, skip_damage: bool) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(_) if skip_damage => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn in_tree(view: &View, inode: &Inode, skip_damage: bool) -> Result<Vec<Range<VolumeBlock>>> {
    let sb = view.superblock();
    let mut blocks = Vec::new();
    let mut todo = vec![(ExtentContext::root(sb, inode.number), inode.map().to_vec())];
    let mut nodes = 0;
    while let Some((context, bytes)) = todo.pop() {
        nodes += 1;
        check_count(view, inode, nodes)?;
        let node = match skip_damage {
            true => ExtentNode::salvage(&bytes, &context).map(|(node, _)| node),
            false => ExtentNode::parse(&bytes, &context),
        };
        match or_skip(node, skip_damage)? {
            Some(ExtentNode::Leaf(extents)) => blocks.extend(
                extents
                    .iter()
                    .map(|extent| extent.physical..VolumeBlock(extent.physical.0 + u64::from(extent.blocks))),
            ),
            Some(ExtentNode::Index { depth, entries }) => {
                for n in 0..entries.len() {
                    let at = entries[n].child;
                    // A salvaged node keeps children outside the volume.
                    if !sb.is_valid_block(at) {
                        continue;
                    }
                    blocks.push(at..VolumeBlock(at.0 + 1));
                    if let Some(block) = or_skip(view.buffers().block(at).await, skip_damage)? {
                        todo.push((context.child(depth, &entries, n), block.to_vec()));
                    }
                }
            }
            None => {}
        }
    }
    Ok(blocks)
}

async fn in_pointers(view: &View, inode: &Inode, skip_damage: bool) -> Result<Vec<Range<VolumeBlock>>> {
    let sb = view.superblock();
    let mut blocks: Vec<Range<VolumeBlock>> = Vec::new();
    let mut add = |at: VolumeBlock| match blocks.last_mut() {
        Some(last) if last.end == at => last.end.0 += 1,
        _ => blocks.push(at..VolumeBlock(at.0 + 1)),
    };
    // A damaged pointer that is skipped counts as 0.
    let pointer = |n: usize| {
        let pointer = check_pointer(inode.block_pointer(n), sb, Place::Inode(inode.number));
        or_skip(pointer, skip_damage).map(Option::unwrap_or_default)
    };
    for n in 0..DIRECT_POINTERS.to_usize() {
        let at = pointer(n)?;
        if at.0 > 0 {
            add(at);
        }
    }
    let mut todo = Vec::new();
    for (n, levels) in (DIRECT_POINTERS.to_usize()..).zip(LEVELS) {
        todo.push((pointer(n)?, levels));
    }
    let mut nodes = 0;
    while let Some((at, levels)) = todo.pop() {
        if at.0 == 0 {
            continue;
        }
        add(at);
        if levels == 0 {
            continue;
        }
        nodes += 1;
        check_count(view, inode, nodes)?;
        let Some(block) = or_skip(view.buffers().block(at).await, skip_damage)? else { continue };
        let mut below = Vec::new();
        for pointer in parse_indirect(&block, sb, inode.number, at) {
            below.extend(or_skip(pointer, skip_damage)?.filter(|at| at.0 > 0));
        }
        // The first one is popped first, so that runs stay together.
        todo.extend(below.into_iter().rev().map(|at| (at, levels - 1)));
    }
    Ok(blocks)
}

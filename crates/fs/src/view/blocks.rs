//! Lists all blocks in an inode's map.

use super::View;
use crate::Result;
use extant_format::{
    Corrupt, DIRECT_POINTERS, ExtentContext, ExtentNode, Inode, InodeFlags, Place, VolumeBlock,
    check_pointer, parse_indirect,
};
use std::ops::Range;

/// Levels of pointer blocks below each of an inode's pointers after the direct ones.
const LEVELS: [u32; 3] = [1, 2, 3];

impl View {
    /// The blocks in an inode's map: those of its contents, regardless of the inode's size, and its
    /// own nodes.
    pub(crate) async fn blocks_of(&self, inode: &Inode) -> Result<Vec<Range<VolumeBlock>>> {
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Ok(Vec::new());
        }
        match inode.flags().contains(InodeFlags::EXTENTS) {
            true => in_tree(self, inode).await,
            false => in_pointers(self, inode).await,
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

async fn in_tree(view: &View, inode: &Inode) -> Result<Vec<Range<VolumeBlock>>> {
    let mut blocks = Vec::new();
    let mut todo = vec![(ExtentContext::root(view.superblock(), inode.number), inode.map().to_vec())];
    let mut nodes = 0;
    while let Some((context, bytes)) = todo.pop() {
        nodes += 1;
        check_count(view, inode, nodes)?;
        match ExtentNode::parse(&bytes, &context)? {
            ExtentNode::Leaf(extents) => blocks.extend(
                extents
                    .iter()
                    .map(|extent| extent.physical..VolumeBlock(extent.physical.0 + u64::from(extent.blocks))),
            ),
            ExtentNode::Index { depth, entries } => {
                for n in 0..entries.len() {
                    let at = entries[n].child;
                    blocks.push(at..VolumeBlock(at.0 + 1));
                    let bytes = view.buffers().block(at).await?.to_vec();
                    todo.push((context.child(depth, &entries, n), bytes));
                }
            }
        }
    }
    Ok(blocks)
}

async fn in_pointers(view: &View, inode: &Inode) -> Result<Vec<Range<VolumeBlock>>> {
    let sb = view.superblock();
    let mut blocks: Vec<Range<VolumeBlock>> = Vec::new();
    let mut add = |at: VolumeBlock| match blocks.last_mut() {
        Some(last) if last.end == at => last.end.0 += 1,
        _ => blocks.push(at..VolumeBlock(at.0 + 1)),
    };
    let pointer = |n: usize| check_pointer(inode.block_pointer(n), sb, Place::Inode(inode.number));
    for n in 0..DIRECT_POINTERS as usize {
        let at = pointer(n)?;
        if at.0 > 0 {
            add(at);
        }
    }
    let mut todo = Vec::new();
    for (n, levels) in (DIRECT_POINTERS as usize..).zip(LEVELS) {
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
        let block = view.buffers().block(at).await?;
        let below =
            parse_indirect(&block, sb, inode.number, at).collect::<std::result::Result<Vec<_>, _>>()?;
        // The first one is popped first, so that runs stay together.
        todo.extend(below.into_iter().filter(|at| at.0 > 0).rev().map(|at| (at, levels - 1)));
    }
    Ok(blocks)
}

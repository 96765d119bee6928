//! Blocks with several owners: one keeps a block, the others get copies.

use super::editor::Editor;
use super::{Policy, maps, own};
use crate::finding::Finding;
use crate::owners::Contested;
use extant_format::{
    ExtentContext, ExtentNode, FileBlock, FileKind, Inode, InodeFlags, InodeNumber, Place, VolumeBlock,
    verify_dirent_checksum, verify_extent_checksum, write_extent_checksum,
};
use std::collections::BTreeSet;

/// Number of pointers to data blocks in an inode. Pointers to indirect blocks follow them.
const DIRECT: usize = 12;

/// What proves that a contested block belongs to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// The block's checksum is the owner's.
    Checksum,
    /// The block looks like part of the owner's map or attributes, which would be lost with it.
    Structure,
    Directory,
    Data,
}

/// Copies contested blocks for all owners but one; returns whether anything changed.
pub(super) async fn repair(editor: &mut Editor<'_>, findings: &[&Finding]) -> bool {
    if editor.policy == Policy::Safe {
        return false;
    }
    let mut changed = false;
    for contested in editor.survey.contested.clone() {
        let is_its = |finding: &&&Finding| finding.spot.block == Some(contested.blocks.0);
        let Some(finding) = findings.iter().find(is_its).or_else(|| findings.first()) else { break };
        one_run(editor, &contested).await;
        changed |= editor.end_step(finding);
    }
    changed
}

async fn one_run(editor: &mut Editor<'_>, contested: &Contested) {
    let range = contested.blocks.0..contested.blocks.1;
    let is_own = editor.ctx.own.within(range.start, range.end).next().is_some();
    let mut ranked = Vec::new();
    for &owner in &contested.owners {
        let number = InodeNumber(owner);
        let Some(inode) = editor.inode(number).await else { continue };
        ranked.push((proof(editor, &inode, &range).await, owner));
    }
    ranked.sort_unstable();
    // The volume's own structures keep their blocks, and nothing is to lie in a bad one.
    let is_bad = contested.owners.contains(&InodeNumber::BAD_BLOCKS.0);
    let keeper = if is_own || is_bad { None } else { ranked.first().map(|first| first.1) };
    let mut copied = Vec::new();
    for (_, owner) in ranked {
        let keeps = Some(owner) == keeper;
        if !copy(editor, InodeNumber(owner), &range, keeps).await {
            let is_journals = editor.sb.journal_inode().is_some_and(|log| contested.owners.contains(&log.0));
            if is_journals {
                super::volume::give_empty_journal_up(editor).await;
            }
            return;
        }
        if !keeps {
            copied.push(format!("inode {owner}"));
        }
    }
    let whom = if copied.is_empty() { "further use by the same file".into() } else { copied.join(", ") };
    editor.say(format!("copy the blocks for {whom}"), "");
}

/// Returns the proof that blocks belong to an inode.
async fn proof(editor: &Editor<'_>, inode: &Inode, range: &std::ops::Range<u64>) -> Proof {
    let map = maps::read(editor, inode).await;
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    let mut has_node = false;
    for node in map.nodes.iter().filter(|node| range.contains(node)) {
        has_node = true;
        let place = Place::ExtentNode(inode.number, Some(VolumeBlock(*node)));
        if let (Some(seed), Some(block)) = (seed, editor.block(*node).await)
            && inode.flags().contains(InodeFlags::EXTENTS)
            && verify_extent_checksum(&block, seed, place).is_ok()
        {
            return Proof::Checksum;
        }
    }
    if has_node || inode.xattr_block().is_some_and(|at| range.contains(&at.0)) {
        return Proof::Structure;
    }
    if inode.kind() != Some(FileKind::Directory) {
        return Proof::Data;
    }
    let logical = map.extents.iter().find_map(|extent| {
        let at = range.start.max(extent.physical.0);
        let end = extent.physical.0 + u64::from(extent.blocks);
        (at < range.end.min(end))
            .then_some((at, extent.logical.0 + u32::try_from(at - extent.physical.0).ok()?))
    });
    if let (Some((at, logical)), Some(seed)) = (logical, seed)
        && let Some(block) = editor.block(at).await
    {
        let place = Place::DirectoryBlock(inode.number, FileBlock(logical));
        if verify_dirent_checksum(&block, seed, place).is_ok() {
            return Proof::Checksum;
        }
    }
    Proof::Directory
}

/// Gives an inode copies of the blocks in a range. An inode that keeps the blocks gets copies only
/// where it uses one of them a second time. Returns false if there is no space.
async fn copy(
    editor: &mut Editor<'_>,
    number: InodeNumber,
    range: &std::ops::Range<u64>,
    keeps: bool,
) -> bool {
    let Some(mut inode) = editor.inode(number).await else { return true };
    if number == InodeNumber::RESIZE {
        if !keeps {
            own::resize_inode(editor).await;
        }
        return true;
    }
    if number == InodeNumber::BAD_BLOCKS {
        return true;
    }
    let mut seen = BTreeSet::new();
    if let Some(at) = inode.xattr_block().filter(|at| range.contains(&at.0))
        && (!keeps || !seen.insert(at.0))
    {
        let Some(new) = editor.allocate(at.0) else { return false };
        let Some(mut block) = editor.block(at.0).await else { return true };
        if let Some(seed) = editor.seed() {
            extant_format::write_xattr_checksum(&mut block, VolumeBlock(new), seed);
        }
        editor.set_block(new, &block).await;
        inode.set_xattr_block(VolumeBlock(new));
    }
    let map = maps::read(editor, &inode).await;
    for &node in &map.nodes {
        if range.contains(&node)
            && (!keeps || !seen.insert(node))
            && !move_node(editor, &mut inode, node).await
        {
            return false;
        }
    }
    let mut map = maps::read(editor, &inode).await;
    let per_cluster = u64::from(editor.sb.blocks_per_cluster());
    let mut changes = Vec::new();
    let mut clusters = std::collections::BTreeMap::new();
    for extent in &map.extents {
        for n in 0..extent.blocks {
            let at = extent.physical.0 + u64::from(n);
            if range.contains(&at) && (!keeps || !seen.insert(at)) {
                changes.push((extent.logical.0 + n, at));
            }
        }
    }
    // Indirect blocks get copies when pointers are written.
    let is_tree = inode.flags().contains(InodeFlags::EXTENTS);
    let moves_nodes = !is_tree && !keeps && map.nodes.iter().any(|node| range.contains(node));
    if changes.is_empty() && !moves_nodes {
        editor.set_inode(&inode).await;
        return true;
    }
    for (logical, at) in changes {
        let cluster = u64::from(logical) / per_cluster;
        let first = match clusters.get(&cluster) {
            Some(&first) => first,
            None => {
                let Some(first) = editor.allocate(at) else { return false };
                clusters.insert(cluster, first);
                first
            }
        };
        let new = first + u64::from(logical) % per_cluster;
        if let Some(block) = editor.block(at).await {
            editor.set_block(new, &block).await;
        }
        map.replace(logical, new);
    }
    if !maps::write(editor, &mut inode, &map).await {
        return false;
    }
    if moves_nodes {
        // The remaining pointers do not lead to anything valid.
        maps::cut_pointers(editor, &inode, range).await;
        for bytes in inode.raw.i_block.chunks_exact_mut(4).skip(DIRECT) {
            let at = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            if range.contains(&u64::from(at)) {
                bytes.fill(0);
            }
        }
    }
    editor.set_inode(&inode).await;
    true
}

/// Moves a node of an extent tree to another block. Block pointers are moved when they are written.
async fn move_node(editor: &mut Editor<'_>, inode: &mut Inode, node: u64) -> bool {
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        return true;
    }
    let Some(block) = editor.block(node).await else { return true };
    let Some(new) = editor.allocate(node) else { return false };
    editor.set_block(new, &block).await;
    let sb = editor.sb.clone();
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    let mut todo = vec![(ExtentContext::root(&sb, inode.number), inode.map().to_vec())];
    while let Some((cx, mut bytes)) = todo.pop() {
        let Ok((ExtentNode::Index { depth, mut entries }, _)) = ExtentNode::salvage(&bytes, &cx) else {
            continue;
        };
        if let Some(n) = entries.iter().position(|entry| entry.child.0 == node) {
            entries[n].child = VolumeBlock(new);
            let changed = ExtentNode::Index { depth, entries };
            changed.write_to(&mut bytes);
            match cx.block {
                None => inode.raw.i_block.copy_from_slice(&bytes),
                Some(at) => {
                    if let Some(seed) = seed {
                        write_extent_checksum(&mut bytes, seed);
                    }
                    editor.set_block(at.0, &bytes).await;
                }
            }
            return true;
        }
        for n in 0..entries.len() {
            if depth > 1
                && let Some(block) = editor.block(entries[n].child.0).await
            {
                todo.push((cx.child(depth, &entries, n), block));
            }
        }
    }
    true
}

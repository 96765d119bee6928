//! Maps of files: repairs maps in place, and rewrites whole trees.

use super::editor::Editor;
use super::flips;
use crate::context::root_pointers;
use extant_format::{
    BlockRange, DIRECT_POINTERS, EXTENT_MAGIC, Extent, ExtentContext, ExtentIndex, ExtentNode, FileBlock,
    Inode, InodeFlags, InodeNumber, Place, VolumeBlock, check_pointer, parse_indirect, pointers_per_block,
    verify_extent_checksum, write_extent_checksum,
};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;

/// A file's blocks, and the blocks of the map itself.
#[derive(Debug, Default)]
pub(super) struct Map {
    pub(super) extents: Vec<Extent>,
    pub(super) nodes: Vec<u64>,
}

impl Map {
    /// One past the last file block.
    pub(super) fn end(&self) -> u64 {
        self.extents.iter().map(Extent::logical_end).max().unwrap_or(0)
    }

    /// One past the last file block that was written.
    pub(super) fn written_end(&self) -> u64 {
        let written = self.extents.iter().filter(|extent| !extent.unwritten);
        written.map(Extent::logical_end).max().unwrap_or(0)
    }

    /// The place of a file block.
    pub(super) fn place(&self, logical: u32) -> Option<u64> {
        let extent = self.extents.iter().find(|extent| {
            extent.range().start <= u64::from(logical) && u64::from(logical) < extent.logical_end()
        })?;
        Some(extent.physical.0 + u64::from(logical - extent.logical.0))
    }

    /// Adds a run behind the existing ones.
    pub(super) fn push(&mut self, logical: u64, physical: u64, blocks: u32, unwritten: bool) {
        let Ok(first) = u32::try_from(logical) else { return };
        if let Some(last) = self.extents.last_mut()
            && last.logical_end() == logical
            && last.physical.0 + u64::from(last.blocks) == physical
            && last.unwritten == unwritten
            && last.blocks + blocks <= extant_format::UNWRITTEN_MAX_BLOCKS
        {
            last.blocks += blocks;
            return;
        }
        let extent = Extent { logical: FileBlock(first), physical: VolumeBlock(physical), blocks, unwritten };
        self.extents.push(extent);
    }

    /// Gives one file block another place.
    pub(super) fn replace(&mut self, logical: u32, physical: u64) {
        let old = std::mem::take(&mut self.extents);
        let (at, mut is_done) = (u64::from(logical), false);
        for extent in old {
            let (start, end) = (extent.range().start, extent.logical_end());
            if !is_done && at < start {
                self.push(at, physical, 1, false);
                is_done = true;
            }
            if is_done || at >= end {
                self.push(start, extent.physical.0, extent.blocks, extent.unwritten);
                continue;
            }
            let before = u32::try_from(at - start).unwrap_or(0);
            if before > 0 {
                self.push(start, extent.physical.0, before, extent.unwritten);
            }
            self.push(at, physical, 1, extent.unwritten);
            is_done = true;
            let after = extent.blocks - before - 1;
            if after > 0 {
                self.push(at + 1, extent.physical.0 + u64::from(before) + 1, after, extent.unwritten);
            }
        }
        if !is_done {
            self.push(at, physical, 1, false);
        }
    }
}

/// Maximum number of map nodes to read for one file.
const NODES_MAX: usize = 1 << 16;

/// Reads a file's map, as far as it makes sense.
pub(super) async fn read(editor: &Editor<'_>, inode: &Inode) -> Map {
    let mut map = Map::default();
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return map;
    }
    let mut visited = BTreeSet::new();
    if inode.flags().contains(InodeFlags::EXTENTS) {
        let mut todo = vec![(ExtentContext::root(&editor.sb, inode.number), inode.map().to_vec())];
        while let Some((cx, bytes)) = todo.pop() {
            match ExtentNode::salvage(&bytes, &cx) {
                Ok((ExtentNode::Leaf(extents), _)) => map.extents.extend(extents),
                Ok((ExtentNode::Index { depth, entries }, _)) => {
                    for n in 0..entries.len() {
                        let child = entries[n].child.0;
                        if map.nodes.len() < NODES_MAX
                            && editor.sb.is_valid_block(entries[n].child)
                            && visited.insert(child)
                            && let Some(block) = editor.block(child).await
                        {
                            map.nodes.push(child);
                            todo.push((cx.child(depth, &entries, n), block));
                        }
                    }
                }
                Err(_) => {}
            }
        }
        map.extents.sort_by_key(|extent| extent.logical.0);
        return map;
    }
    let per_block = u64::from(pointers_per_block(editor.sb.block_size()));
    let roots = root_pointers(&editor.sb, inode);
    let mut todo: Vec<_> = roots.map(|root| (root.logical, root.at, root.levels)).collect();
    todo.reverse();
    while let Some((logical, at, levels)) = todo.pop() {
        if at.0 == 0 || !editor.sb.is_valid_block(at) {
            continue;
        }
        if levels == 0 {
            map.push(logical, at.0, 1, false);
            continue;
        }
        if map.nodes.len() >= NODES_MAX || !visited.insert(at.0) {
            continue;
        }
        let Some(block) = editor.block(at.0).await else { continue };
        map.nodes.push(at.0);
        let step = per_block.pow(levels - 1);
        let below = (0..).zip(parse_indirect(&block, &editor.sb, inode.number, at));
        let first = todo.len();
        todo.extend(below.filter_map(|(n, to): (u64, _)| Some((logical + n * step, to.ok()?, levels - 1))));
        todo[first..].reverse();
    }
    map
}

/// Repairs an inode's map in place: what makes no sense becomes a hole. The inode is changed in
/// memory only.
pub(super) async fn mend(editor: &mut Editor<'_>, inode: &mut Inode) {
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return;
    }
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        return mend_pointers(editor, inode).await;
    }
    let sb = editor.sb.clone();
    let cx = ExtentContext::root(&sb, inode.number);
    let bytes = inode.map().to_vec();
    let is_sound = ExtentNode::parse(&bytes, &cx).is_ok();
    let seen = &mut BTreeSet::new();
    match mend_node(editor, inode, bytes, cx, seen).await {
        Some((node, changed)) if changed || !is_sound => {
            let mut map = [0; 60];
            node.write_to(&mut map);
            inode.raw.i_block = map;
        }
        Some(_) => {}
        None => {
            let mut map = [0; 60];
            ExtentNode::Leaf(Vec::new()).write_to(&mut map);
            inode.raw.i_block = map;
        }
    }
}

type Mended<'a> = Pin<Box<dyn Future<Output = Option<(ExtentNode, bool)>> + Send + 'a>>;

/// Repairs a node and those below it. Returns the node, and whether it changed; `None` if nothing
/// in it makes sense.
fn mend_node<'a>(
    editor: &'a mut Editor<'_>,
    inode: &'a Inode,
    bytes: Vec<u8>,
    cx: ExtentContext<'a>,
    seen: &'a mut BTreeSet<u64>,
) -> Mended<'a> {
    Box::pin(async move {
        let (node, damaged) = match ExtentNode::salvage(&bytes, &cx) {
            Ok(read) => read,
            Err(_) => sorted(&bytes, &cx)?,
        };
        let mut changed = !damaged.is_empty() || ExtentNode::parse(&bytes, &cx).ok().as_ref() != Some(&node);
        // e2fsck expects room for all entries that fit, or for up to two fewer.
        let room = ExtentNode::capacity(bytes.len(), false);
        changed |= ExtentNode::stored_capacity(&bytes) + 2 < room;
        let (depth, entries) = match node {
            ExtentNode::Leaf(mut extents) => {
                if !damaged.is_empty() {
                    extents = in_disk_order(&bytes, &cx);
                }
                let is_directory = inode.kind() == Some(extant_format::FileKind::Directory);
                if is_directory && extents.iter().any(|extent| extent.unwritten) {
                    extents.iter_mut().for_each(|extent| extent.unwritten = false);
                    changed = true;
                }
                let is_empty = extents.is_empty() && cx.block.is_some();
                return (!is_empty).then_some((ExtentNode::Leaf(extents), changed));
            }
            ExtentNode::Index { depth, entries } => (depth, entries),
        };
        let mut kept: Vec<ExtentIndex> = Vec::new();
        for n in 0..entries.len() {
            let (child, below) = (entries[n].child, cx.child(depth, &entries, n));
            if !editor.sb.is_valid_block(child) || !seen.insert(child.0) {
                changed = true;
                continue;
            }
            if editor.is_contested(child.0) {
                // The other owners get copies first.
                kept.push(entries[n]);
                continue;
            }
            // The node's first block may lie before the start that its parent says, but not within
            // its previous sibling.
            let start = kept.last().map_or(cx.range.start, |last| u64::from(last.logical.0) + 1);
            let below = ExtentContext { range: BlockRange::new(start, below.range.end), ..below };
            let Some(block) = editor.block(child.0).await else {
                changed = true;
                continue;
            };
            let Some((mended, is_new)) = mend_node(editor, inode, block.clone(), below, seen).await else {
                changed = true;
                continue;
            };
            let first = match &mended {
                ExtentNode::Leaf(extents) => extents.first().map(|extent| extent.logical),
                ExtentNode::Index { entries, .. } => entries.first().map(|entry| entry.logical),
            };
            let logical = first.unwrap_or(entries[n].logical);
            write_node(editor, inode, child.0, block, &mended, is_new).await;
            changed |= logical != entries[n].logical;
            kept.push(ExtentIndex { logical, child });
        }
        if kept.is_empty() {
            return cx.block.is_none().then(|| (ExtentNode::Leaf(Vec::new()), true));
        }
        Some((ExtentNode::Index { depth, entries: kept }, changed))
    })
}

/// Writes a node if it changed, or if its checksum is wrong.
async fn write_node(
    editor: &mut Editor<'_>,
    inode: &Inode,
    at: u64,
    mut block: Vec<u8>,
    node: &ExtentNode,
    is_new: bool,
) {
    if is_new {
        node.write_to(&mut block);
    }
    if let Some(seed) = editor.seed().map(|seed| inode.checksum_seed(seed)) {
        let place = Place::ExtentNode(inode.number, Some(VolumeBlock(at)));
        if verify_extent_checksum(&block, seed, place).is_err() {
            if !is_new {
                node.write_to(&mut block);
            }
            write_extent_checksum(&mut block, seed);
        }
    }
    editor.set_block(at, &block).await;
}

/// Returns the extents of a leaf that lie within the volume. If two map the same blocks of the
/// file, the one that comes first on the disk wins, as in e2fsck.
fn in_disk_order(bytes: &[u8], cx: &ExtentContext<'_>) -> Vec<Extent> {
    let count = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    let mut kept: Vec<Extent> = Vec::new();
    for chunk in bytes[12..].chunks_exact(12).take(count) {
        // Parse each extent alone, so that it cannot contradict its neighbours.
        let mut alone = [0; 60];
        alone[..12].copy_from_slice(&[0x0a, 0xf3, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        alone[12..24].copy_from_slice(chunk);
        let own = ExtentContext { block: None, depth: None, ..*cx };
        let Ok(ExtentNode::Leaf(mut rest)) = ExtentNode::parse(&alone, &own) else { continue };
        let mut pieces: Vec<Extent> = Vec::new();
        while let Some(extent) = rest.pop() {
            let (start, end) = (extent.range().start, extent.logical_end());
            let other = kept.iter().find(|other| other.range().start < end && start < other.logical_end());
            let Some(other) = other else {
                pieces.push(extent);
                continue;
            };
            let part = |from: u64, to: u64| {
                let skip = u32::try_from(from - start).ok()?;
                let blocks = u32::try_from(to.checked_sub(from)?).ok().filter(|&blocks| blocks > 0)?;
                Some(Extent {
                    logical: FileBlock(extent.logical.0 + skip),
                    physical: VolumeBlock(extent.physical.0 + u64::from(skip)),
                    blocks,
                    ..extent
                })
            };
            rest.extend(part(start, other.range().start));
            rest.extend(part(other.logical_end().max(start), end));
        }
        if kept.len() + pieces.len() <= ExtentNode::capacity(bytes.len(), cx.block.is_some()) {
            kept.extend(pieces);
        }
    }
    kept.sort_by_key(|extent| extent.logical.0);
    kept
}

/// All extents below a root, whatever depth its nodes claim.
pub(super) async fn gather(editor: &Editor<'_>, inode: &Inode) -> Vec<Extent> {
    let sb = editor.sb.clone();
    let cx = ExtentContext::root(&sb, inode.number);
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    let mut todo = vec![inode.map().to_vec()];
    while let Some(node) = todo.pop() {
        if node[..2] != EXTENT_MAGIC.to_le_bytes() {
            continue;
        }
        if node[6..8] == [0, 0] {
            found.extend(in_disk_order(&node, &cx));
            continue;
        }
        let count = usize::from(u16::from_le_bytes([node[2], node[3]]));
        for entry in node[12..].chunks_exact(12).take(count) {
            let low = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let high = u16::from_le_bytes([entry[8], entry[9]]);
            let at = u64::from(high) << 32 | u64::from(low);
            if editor.sb.is_valid_block(VolumeBlock(at))
                && seen.len() < NODES_MAX
                && seen.insert(at)
                && let Some(block) = editor.block(at).await
            {
                todo.push(block);
            }
        }
    }
    found.sort_by_key(|extent| extent.logical.0);
    found.dedup_by(|later, first| u64::from(later.logical.0) < first.logical_end());
    found
}

/// A leaf whose extents are sound but not in order.
fn sorted(bytes: &[u8], cx: &ExtentContext<'_>) -> Option<(ExtentNode, Vec<extant_format::DamagedRange>)> {
    let mut bytes = bytes.to_vec();
    let count = usize::from(u16::from_le_bytes([*bytes.get(2)?, *bytes.get(3)?]));
    let end = 12 + count.checked_mul(12)?;
    let body = bytes.get_mut(12..end)?;
    let mut entries: Vec<[u8; 12]> =
        body.chunks_exact(12).filter_map(|chunk| chunk.try_into().ok()).collect();
    entries.sort_by_key(|entry| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
    for (to, from) in body.chunks_exact_mut(12).zip(&entries) {
        to.copy_from_slice(from);
    }
    ExtentNode::salvage(&bytes, cx).ok()
}

async fn mend_pointers(editor: &mut Editor<'_>, inode: &mut Inode) {
    let sb = editor.sb.clone();
    let roots: Vec<_> = root_pointers(&sb, inode).map(|root| (root.at, root.levels)).collect();
    let mut todo = Vec::new();
    // A pointer to the volume's own structures was never valid, except for reserved descriptors.
    let (ctx, may_be_own) = (editor.ctx, inode.number == InodeNumber::RESIZE);
    let is_own = |at: VolumeBlock, levels: u32| levels > 0 && !may_be_own && ctx.own.contains(at.0);
    for (n, (at, levels)) in roots.into_iter().enumerate() {
        if check_pointer(at, &sb, Place::Inode(inode.number)).is_err() || is_own(at, levels) {
            inode.raw.i_block[n * 4..n * 4 + 4].fill(0);
        } else if at.0 != 0 && levels > 0 {
            todo.push((at, levels));
        }
    }
    let mut visited = BTreeSet::new();
    while let Some((at, levels)) = todo.pop() {
        if visited.len() >= NODES_MAX || !visited.insert(at.0) || editor.is_contested(at.0) {
            continue;
        }
        let Some(mut block) = editor.block(at.0).await else { continue };
        let found: Vec<_> = parse_indirect(&block, &sb, inode.number, at).collect();
        for (pointer, bytes) in found.iter().zip(block.chunks_exact_mut(4)) {
            match pointer {
                Ok(VolumeBlock(0)) => {}
                Ok(to) if is_own(*to, levels - 1) => bytes.fill(0),
                Ok(to) if levels > 1 => todo.push((*to, levels - 1)),
                Ok(_) => {}
                Err(_) => bytes.fill(0),
            }
        }
        editor.set_block(at.0, &block).await;
    }
}

/// Rewrites a file's map. Reuses the blocks of the old map that no other file claims. Returns
/// false if there is no space; nothing has changed then.
pub(super) async fn write(editor: &mut Editor<'_>, inode: &mut Inode, map: &Map) -> bool {
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        return write_pointers(editor, inode, map).await;
    }
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    let is_free = |at: &u64| !editor.is_contested(*at);
    let mut spare: Vec<u64> = map.nodes.iter().copied().filter(is_free).collect();
    spare.reverse();
    let per_node = ExtentNode::capacity(editor.block_bytes(), seed.is_some());
    let mut level: Vec<ExtentNode> = match map.extents.len() <= ExtentNode::capacity(60, false) {
        true => vec![ExtentNode::Leaf(map.extents.clone())],
        false => map.extents.chunks(per_node).map(|extents| ExtentNode::Leaf(extents.to_vec())).collect(),
    };
    let mut writes = Vec::new();
    let mut depth = 0;
    let in_root = |node: &ExtentNode| match node {
        ExtentNode::Leaf(extents) => extents.len() <= 4,
        ExtentNode::Index { entries, .. } => entries.len() <= 4,
    };
    while level.len() > 1 || !level.first().is_some_and(in_root) {
        let mut entries = Vec::new();
        for node in level {
            let goal = map.extents.first().map_or(0, |extent| extent.physical.0);
            let Some(at) = spare.pop().or_else(|| editor.allocate(goal)) else { return false };
            let logical = match &node {
                ExtentNode::Leaf(extents) => extents.first().map(|extent| extent.logical),
                ExtentNode::Index { entries, .. } => entries.first().map(|entry| entry.logical),
            };
            entries.push(ExtentIndex { logical: logical.unwrap_or(FileBlock(0)), child: VolumeBlock(at) });
            writes.push((at, node));
        }
        depth += 1;
        let most = if entries.len() <= 4 { 4 } else { per_node };
        level = entries
            .chunks(most)
            .map(|entries| ExtentNode::Index { depth, entries: entries.to_vec() })
            .collect();
    }
    for (at, node) in writes {
        let mut block = vec![0; editor.block_bytes()];
        node.write_to(&mut block);
        if let Some(seed) = seed {
            write_extent_checksum(&mut block, seed);
        }
        editor.set_block(at, &block).await;
    }
    if let Some(root) = level.first() {
        let mut bytes = [0; 60];
        root.write_to(&mut bytes);
        inode.raw.i_block = bytes;
    }
    true
}

/// Writes the block pointers that differ, with indirect blocks that no other file claims.
async fn write_pointers(editor: &mut Editor<'_>, inode: &mut Inode, map: &Map) -> bool {
    let now = read(editor, inode).await;
    let shared: BTreeSet<u64> = now.nodes.iter().copied().filter(|&at| editor.is_contested(at)).collect();
    for extent in &map.extents {
        for n in 0..extent.blocks {
            let (logical, to) = (extent.logical.0 + n, extent.physical.0 + u64::from(n));
            if (now.place(logical) != Some(to) || !shared.is_empty())
                && !set_pointer(editor, inode, logical, to, &shared).await
            {
                return false;
            }
        }
    }
    true
}

/// Clears pointers to indirect blocks in a range that other indirect blocks hold.
pub(super) async fn cut_pointers(editor: &mut Editor<'_>, inode: &Inode, range: &std::ops::Range<u64>) {
    let roots = root_pointers(&editor.sb, inode).filter(|root| root.levels > 1);
    let mut todo: Vec<_> = roots.map(|root| (root.at, root.levels)).collect();
    let mut seen = BTreeSet::new();
    while let Some((at, levels)) = todo.pop() {
        let may_change = at.0 != 0 && editor.sb.is_valid_block(at) && !editor.is_contested(at.0);
        if !may_change || seen.len() >= NODES_MAX || !seen.insert(at.0) {
            continue;
        }
        let Some(mut block) = editor.block(at.0).await else { continue };
        for bytes in block.chunks_exact_mut(4) {
            let to = u64::from(bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)));
            if range.contains(&to) {
                bytes.fill(0);
            } else if levels > 2 {
                todo.push((VolumeBlock(to), levels - 1));
            }
        }
        editor.set_block(at.0, &block).await;
    }
}

/// Sets one pointer. Indirect blocks on the way are made, or copied if others claim them.
async fn set_pointer(
    editor: &mut Editor<'_>,
    inode: &mut Inode,
    logical: u32,
    to: u64,
    shared: &BTreeSet<u64>,
) -> bool {
    let Ok(pointer) = u32::try_from(to) else { return false };
    let per_block = u64::from(pointers_per_block(editor.sb.block_size()));
    let mut rest = u64::from(logical);
    let direct = u64::from(DIRECT_POINTERS);
    if let Ok(n) = usize::try_from(rest)
        && rest < direct
    {
        inode.raw.i_block[n * 4..n * 4 + 4].copy_from_slice(&pointer.to_le_bytes());
        return true;
    }
    rest -= direct;
    let (mut slot, mut levels) = (12_usize, 1);
    while rest >= per_block.pow(levels) {
        rest -= per_block.pow(levels);
        (slot, levels) = (slot + 1, levels + 1);
        if levels > 3 {
            return false;
        }
    }
    let own = |at: u64| at != 0 && !shared.contains(&at);
    let mut at = inode.block_pointer(slot).0;
    if !own(at) {
        let Some(new) = editor.allocate(to) else { return false };
        let old = if at == 0 { None } else { editor.block(at).await };
        editor.set_block(new, &old.unwrap_or_else(|| vec![0; editor.block_bytes()])).await;
        let Ok(bytes) = u32::try_from(new) else { return false };
        inode.raw.i_block[slot * 4..slot * 4 + 4].copy_from_slice(&bytes.to_le_bytes());
        at = new;
    }
    while levels > 0 {
        let step = per_block.pow(levels - 1);
        let n = usize::try_from(rest / step).unwrap_or(0);
        rest %= step;
        let Some(mut block) = editor.block(at).await else { return false };
        let mut next = pointer;
        if levels > 1 {
            let below = block[n * 4..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            next = below;
            if !own(below.into()) {
                let Some(new) = editor.allocate(to) else { return false };
                let old = if below == 0 { None } else { editor.block(below.into()).await };
                editor.set_block(new, &old.unwrap_or_else(|| vec![0; editor.block_bytes()])).await;
                let Ok(new) = u32::try_from(new) else { return false };
                next = new;
            }
        }
        block[n * 4..n * 4 + 4].copy_from_slice(&next.to_le_bytes());
        editor.set_block(at, &block).await;
        (at, levels) = (next.into(), levels - 1);
    }
    true
}

/// Restores one field of a node, if exactly one field makes its checksum right and the node
/// sensible.
pub(super) fn restored(
    bytes: &[u8],
    cx: &ExtentContext<'_>,
    inode: &Inode,
    editor: &Editor<'_>,
) -> Option<Vec<u8>> {
    let seed = inode.checksum_seed(editor.seed()?);
    let place = Place::ExtentNode(inode.number, cx.block);
    // The location of the checksum depends on this field.
    let mut block = bytes.to_vec();
    let room = ExtentNode::capacity(bytes.len(), true);
    let max = u16::try_from(room).ok()?;
    block[4..6].copy_from_slice(&max.to_le_bytes());
    let is_right = |block: &[u8]| {
        verify_extent_checksum(block, seed, place).is_ok() && ExtentNode::parse(block, cx).is_ok()
    };
    if is_right(&block) {
        return Some(block);
    }
    let at = 12 + room * 12;
    let stored = block[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let off = seed.over(&block[..at]).0 ^ stored;
    let mut found = None;
    for (byte, change) in flips::of_fields(off, at) {
        let mut candidate = block.clone();
        for (to, change) in candidate[byte..byte + 4].iter_mut().zip(change.to_le_bytes()) {
            *to ^= change;
        }
        if !is_right(&candidate) {
            continue;
        }
        let is_plausible = match ExtentNode::parse(&candidate, cx) {
            // The node may not map blocks that are the volume's own.
            Ok(ExtentNode::Leaf(extents)) => extents.iter().all(|extent| {
                let end = extent.physical.0 + u64::from(extent.blocks);
                editor.ctx.own.within(extent.physical.0, end).next().is_none()
            }),
            Ok(ExtentNode::Index { entries, .. }) => {
                entries.iter().all(|entry| !editor.ctx.own.contains(entry.child.0))
            }
            Err(_) => false,
        };
        if is_plausible {
            if found.is_some() {
                return None;
            }
            found = Some(candidate);
        }
    }
    found
}

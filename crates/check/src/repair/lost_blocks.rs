//! Finds blocks that lost their parent, and puts them back into their file.
//!
//! A block in use that no inode claims is either leaked or lost. With `metadata_csum`, checksums of
//! extent nodes and directory blocks cover the inode's number and generation, so they identify the
//! owner. A node is put back only if all blocks that it maps are lost too, and if the file maps
//! nothing else there. This rules out old copies of nodes that are still in use.

use super::dir_blocks;
use super::editor::Editor;
use super::maps::{self, Map};
use super::unclaimed::{BySeed, Candidates, Lost};
use crate::Code;
use crate::finding::Finding;
use crate::listing::htree_context;
use extant_format::{
    BlockRange, EXTENT_MAGIC, Extent, ExtentContext, ExtentNode, FileBlock, FileKind, Group, GroupFlags,
    Incompat, Inode, InodeFlags, InodeNumber, Place, VolumeBlock, dirent_checksum_seed, dx_checksum_seed,
    extent_checksum_seed, is_dx_block, verify_dirent_checksum, verify_dx_checksum, verify_extent_checksum,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of lost blocks to search for nodes: 4 GiB with blocks of 4 KiB.
const READ_MAX: u64 = 1 << 20;

/// Finds the lost clusters, in the groups where findings report leaked blocks.
pub(super) async fn survey(editor: &mut Editor<'_>, findings: &[Finding]) {
    let is_leak = |finding: &&Finding| finding.code == Code::BlockBitmapLeaked;
    let groups: BTreeSet<u32> = findings.iter().filter(is_leak).filter_map(|f| f.spot.group).collect();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for group in groups {
        let info = usize::try_from(group).ok().and_then(|n| editor.ctx.groups.get(n).copied());
        let Some(info) = info.filter(|info| info.bitmaps && !info.has(&editor.sb, GroupFlags::BLOCK_UNINIT))
        else {
            continue;
        };
        let Some(bitmap) = editor.block(info.gd.block_bitmap.0).await else { continue };
        let claims = &editor.ctx.claims;
        let first = claims.cluster(editor.sb.group_first_block(Group(group)));
        let bits = u64::from(editor.sb.group_clusters(Group(group)));
        let mut claimed = claims.words(group).into_iter().flatten();
        for (n, chunk) in (0..).zip(bitmap.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let mut lost = u64::from_le_bytes(word) & !claimed.next().unwrap_or(0);
            while lost != 0 {
                let bit = lost.trailing_zeros();
                let len = (lost >> bit).trailing_ones();
                lost &= !((u64::MAX >> (64 - len)) << bit);
                let start = n * 64 + u64::from(bit);
                let end = (start + u64::from(len)).min(bits);
                match runs.last_mut() {
                    _ if start >= end => {}
                    Some(last) if last.1 == first + start => last.1 = first + end,
                    _ => runs.push((first + start, first + end)),
                }
            }
        }
    }
    editor.unclaimed = Lost { runs, read: None };
}

/// Reads the lost blocks once, and lists those that look like extent leaves or directory blocks, by
/// the owner's checksum seed.
async fn candidates(editor: &mut Editor<'_>) -> Arc<Candidates> {
    if let Some(read) = &editor.unclaimed.read {
        return read.clone();
    }
    let (mut leaves, mut dirs) = (Vec::new(), Vec::new());
    let mut left = READ_MAX;
    let max = ExtentNode::capacity(editor.block_bytes(), true);
    let max = u16::try_from(max).unwrap_or(u16::MAX).to_le_bytes();
    let any_dir = htree_context(editor.ctx, 0, 0);
    for (first, end) in editor.unclaimed.runs.clone() {
        let blocks = editor.ctx.claims.block(first)..editor.ctx.claims.block(end);
        for at in blocks {
            if left == 0 {
                break;
            }
            left -= 1;
            let Some(block) = editor.block(at).await else { continue };
            if block[..2] == EXTENT_MAGIC.to_le_bytes() && block[4..6] == max && block[6..8] == [0, 0] {
                leaves.extend(extent_checksum_seed(&block).map(|seed| (seed.0, at)));
                continue;
            }
            let index = is_dx_block(&block).then(|| dx_checksum_seed(&block, &any_dir).ok()).flatten();
            let seeds = index.into_iter().chain(dirent_checksum_seed(&block));
            dirs.extend(seeds.map(|seed| (seed.0, at)));
        }
    }
    let found = Arc::new(Candidates { leaves: BySeed::new(leaves), dirs: BySeed::new(dirs) });
    editor.unclaimed.read = Some(found.clone());
    found
}

/// Puts lost extent leaves, and lost blocks of a directory, back into an inode's map. The inode is
/// changed in memory only. Returns false if there is nothing to put back.
pub(super) async fn restore(editor: &mut Editor<'_>, inode: &mut Inode) -> bool {
    let Some(seed) = editor.seed().map(|seed| inode.checksum_seed(seed)) else { return false };
    if editor.unclaimed.runs.is_empty() || inode.links() == 0 {
        return false;
    }
    let has_map = matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
    if !has_map || inode.flags().contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    let found = candidates(editor).await;
    if found.leaves.of(seed).len() == 0 && found.dirs.of(seed).len() == 0 {
        return false;
    }
    let mut map = maps::read(editor, inode).await;
    let leaves = lost_leaves(editor, inode, &map).await;
    let nodes = leaves.len();
    for leaf in leaves {
        // The leaf's block is used again for the new tree.
        let cluster = editor.ctx.claims.cluster(VolumeBlock(leaf.at));
        editor.ctx.claims.claim(cluster, 1);
        editor.unclaimed.take(cluster, cluster + 1);
        map.nodes.push(leaf.at);
        map.extents.extend(leaf.extents);
    }
    map.extents.sort_by_key(|extent| extent.logical.0);
    let blocks = match inode.kind() {
        // With bigalloc, it is unknown which blocks belong together.
        Some(FileKind::Directory) if editor.sb.blocks_per_cluster() == 1 => {
            lost_dir_blocks(editor, inode, &map).await
        }
        _ => Vec::new(),
    };
    for &(logical, at) in &blocks {
        map.replace(logical, at);
    }
    if nodes == 0 && blocks.is_empty() {
        return false;
    }
    for extent in &map.extents {
        let claims = &editor.ctx.claims;
        let first = claims.cluster(extent.physical);
        let last = claims.cluster(VolumeBlock(extent.physical.0 + u64::from(extent.blocks) - 1));
        if editor.unclaimed.has(first, last + 1) {
            claims.claim(first, last + 1 - first);
            editor.unclaimed.take(first, last + 1);
        }
    }
    let mut whole = inode.clone();
    if !maps::write(editor, &mut whole, &map).await {
        return false;
    }
    *inode = whole;
    let what = match (nodes, blocks.len()) {
        (0, n) => format!("{n} blocks of the directory"),
        (n, 0) => format!("what {n} nodes of the map lead to"),
        (n, m) => format!("what {n} nodes of the map lead to, and {m} blocks of the directory"),
    };
    editor.say(format!("put {what} back, which nothing led to: their checksums name the inode"), "");
    true
}

/// A leaf of an extent tree.
struct Leaf {
    at: u64,
    extents: Vec<Extent>,
}

impl Leaf {
    /// Whether both leaves map the same block, or one maps the block of the other.
    fn clashes(&self, other: &Self) -> bool {
        let places = |extent: &Extent| extent.physical.0..extent.physical.0 + u64::from(extent.blocks);
        let holds = |leaf: &Self, at: u64| leaf.extents.iter().any(|extent| places(extent).contains(&at));
        let shares = |own: &Extent| holds(other, own.physical.0);
        holds(self, other.at)
            || holds(other, self.at)
            || self.extents.iter().any(shares)
            || other.extents.iter().any(|extent| holds(self, extent.physical.0))
    }

    fn meets(&self, others: &[Extent]) -> bool {
        self.extents.iter().any(|own| {
            let (start, end) = (own.range().start, own.logical_end());
            others.iter().any(|other| other.range().start < end && start < other.logical_end())
        })
    }
}

/// Lost leaves of an inode's extent tree that fit between the remaining ones.
async fn lost_leaves(editor: &mut Editor<'_>, inode: &Inode, map: &Map) -> Vec<Leaf> {
    let Some(seed) = editor.seed().map(|seed| inode.checksum_seed(seed)) else { return Vec::new() };
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        return Vec::new();
    }
    let sb = editor.sb.clone();
    let mut found: Vec<Leaf> = Vec::new();
    for at in candidates(editor).await.leaves.of(seed) {
        let Some(block) = editor.block(at).await else { continue };
        let at = VolumeBlock(at);
        if verify_extent_checksum(&block, seed, Place::ExtentNode(inode.number, Some(at))).is_err() {
            continue;
        }
        let cx = ExtentContext {
            block: Some(at),
            depth: Some(0),
            range: BlockRange::ALL,
            ..ExtentContext::root(&sb, inode.number)
        };
        let Ok(ExtentNode::Leaf(extents)) = ExtentNode::parse(&block, &cx) else { continue };
        let is_lost = |extent: &Extent| {
            let claims = &editor.ctx.claims;
            let first = claims.cluster(extent.physical);
            let last = claims.cluster(VolumeBlock(extent.physical.0 + u64::from(extent.blocks) - 1));
            editor.unclaimed.has(first, last + 1)
        };
        // Extents beyond the size may have been truncated away.
        let is_within = |extent: &Extent| {
            extent.unwritten || u64::from(extent.logical.0) * editor.block_len() < inode.size()
        };
        let leaf = Leaf { at: at.0, extents };
        let own = editor.ctx.claims.cluster(at);
        if !leaf.extents.is_empty()
            && editor.unclaimed.has(own, own + 1)
            && !leaf.clashes(&Leaf { at: leaf.at, extents: Vec::new() })
            && leaf.extents.iter().all(is_within)
            && leaf.extents.iter().all(is_lost)
            && !leaf.meets(&map.extents)
        {
            found.push(leaf);
        }
    }
    // If two leaves map the same range, one is stale, and it is unknown which.
    let is_apart = |leaf: &Leaf, other: &Leaf| !leaf.meets(&other.extents) && !leaf.clashes(other);
    let is_alone =
        |n: usize| found.iter().enumerate().all(|(other, leaf)| other == n || is_apart(leaf, &found[n]));
    let alone: Vec<bool> = (0..found.len()).map(is_alone).collect();
    found.into_iter().zip(alone).filter(|(_, is_alone)| *is_alone).map(|(leaf, _)| leaf).collect()
}

/// Lost blocks of a directory, each with a hole to put it into. Index blocks may end up in another
/// order.
async fn lost_dir_blocks(editor: &mut Editor<'_>, inode: &Inode, map: &Map) -> Vec<(u32, u64)> {
    let Some(seed) = editor.seed().map(|seed| inode.checksum_seed(seed)) else { return Vec::new() };
    let blocks = u32::try_from(inode.size() / editor.block_len()).unwrap_or(0);
    let mut free = (0..blocks).filter(|&logical| map.place(logical).is_none()).peekable();
    if free.peek().is_none() {
        return Vec::new();
    }
    let is_mapped = |at: u64| {
        map.extents.iter().any(|e| (e.physical.0..e.physical.0 + u64::from(e.blocks)).contains(&at))
    };
    let mut known: BTreeSet<Vec<u8>> = BTreeSet::new();
    for logical in 0..blocks {
        if let Some(at) = map.place(logical)
            && let Some(block) = editor.block(at).await
        {
            known.extend(names_of(editor, &block));
        }
    }
    let (mut first, mut rest) = (None, Vec::new());
    for at in candidates(editor).await.dirs.of(seed) {
        let cluster = editor.ctx.claims.cluster(VolumeBlock(at));
        let is_free = editor.unclaimed.has(cluster, cluster + 1) && !is_mapped(at);
        let Some(block) = editor.block(at).await.filter(|_| is_free) else { continue };
        let begins = block[..4] == inode.number.0.to_le_bytes() && block[4..9] == [12, 0, 1, 2, b'.'];
        let cx = htree_context(editor.ctx, inode.number.0, if begins { 0 } else { 1 });
        let place = Place::DirectoryBlock(inode.number, FileBlock(cx.block.0));
        let is_index = is_dx_block(&block) && verify_dx_checksum(&block, &cx, seed).is_ok();
        if !is_index && verify_dirent_checksum(&block, seed, place).is_err() {
            continue;
        }
        if !is_index && !dir_blocks::salvage(editor, &block).is_whole {
            continue;
        }
        // A block with names that are already known is a stale copy.
        let names = names_of(editor, &block);
        if names.iter().any(|name| known.contains(name)) {
            continue;
        }
        known.extend(names);
        match begins {
            true if first.is_none() => first = Some(at),
            true => {}
            false => rest.push(at),
        }
    }
    let mut found = Vec::new();
    if free.peek() == Some(&0) {
        // A directory whose first block is lost gets a new one; its other blocks are still good.
        free.next();
        found.extend(first.map(|at| (0, at)));
    }
    found.extend(free.zip(rest));
    found
}

/// The names in a directory block, without `.` and `..`.
fn names_of(editor: &Editor<'_>, block: &[u8]) -> Vec<Vec<u8>> {
    let names = dir_blocks::salvage(editor, block).entries.into_iter().map(|entry| entry.name);
    names.filter(|name| !matches!(&name[..], b"." | b"..")).collect()
}

/// Finds the root directory by its blocks. Its generation is zero, as mke2fs makes it.
pub(super) async fn root(editor: &mut Editor<'_>) -> Option<Inode> {
    let mut root = Inode::new(InodeNumber::ROOT, &editor.sb);
    root.raw.i_mode = (FileKind::Directory.mode_bits() | 0o755).into();
    root.raw.i_links_count = 2.into();
    if editor.sb.incompat().contains(Incompat::EXTENTS) {
        root.raw.i_flags = InodeFlags::EXTENTS.bits().into();
    }
    let seed = editor.seed().map(|seed| root.checksum_seed(seed))?;
    let blocks = u64::try_from(candidates(editor).await.dirs.of(seed).len()).unwrap_or(0);
    root.set_size(blocks * editor.block_len());
    if !restore(editor, &mut root).await {
        return None;
    }
    let map = maps::read(editor, &root).await;
    map.place(0)?;
    root.set_size(map.end() * editor.block_len());
    Some(root)
}

//! Directory indexes: a damaged index is dropped, the entries are repaired, and the index is built
//! again at the end.

use super::dir_blocks::{self, Entry};
use super::editor::Editor;
use super::maps;
use crate::listing::htree_context;
use crate::{Code, Finding, Spot};
use extant_format::{
    CharSign, Compat, DxEntry, DxRootInfo, FileBlock, HashVersion, Incompat, Inode, InodeFlags, InodeNumber,
    UintExt, has_dirent_tail, hash_name, write_dx_node, write_dx_root,
};
use std::collections::BTreeSet;

/// Makes an indexed directory linear. Linux and e2fsck can still read it.
pub(super) async fn drop_index(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some(mut inode) = editor.inode(number).await else { return };
    if !inode.flags().contains(InodeFlags::INDEX) {
        return;
    }
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    let map = maps::read(editor, &inode).await;
    for extent in &map.extents {
        for n in 0..extent.blocks {
            let (logical, at) = (extent.logical.0 + n, extent.physical.0 + u64::from(n));
            let Some(block) = editor.block(at).await else { continue };
            let salvaged = dir_blocks::salvage(editor, &block);
            let is_empty = salvaged.entries.iter().all(|entry| entry.name == b"." || entry.name == b"..");
            if logical == 0 && is_empty {
                let parent = salvaged.entries.iter().find(|entry| entry.name == b"..");
                let parent = match parent.map(|entry| InodeNumber(entry.inode)) {
                    Some(parent) if editor.ctx.inodes.kind(parent).is_directory() => parent,
                    _ => dir_blocks::parent_of(editor, number),
                };
                let new = dir_blocks::empty(editor, Some((number, parent)), seed);
                editor.set_block(at, &new).await;
            } else if logical != 0 && is_empty && !has_dirent_tail(&block) {
                let new = dir_blocks::empty(editor, None, seed);
                editor.set_block(at, &new).await;
            }
        }
    }
    let flags = inode.flags() - InodeFlags::INDEX;
    inode.raw.i_flags = flags.bits().into();
    editor.set_inode(&inode).await;
    editor.unindexed.insert(number);
    editor.say("drop the index", "");
}

/// Builds the indexes of directories that have lost theirs. Returns whether anything changed.
/// Nothing else may be wrong with these directories.
pub(super) async fn build_all(editor: &mut Editor<'_>, dirs: &BTreeSet<InodeNumber>) -> bool {
    let mut changed = false;
    for &number in dirs {
        build(editor, number).await;
        changed |= editor.end_step(&Finding {
            code: Code::HtreeRoot,
            spot: Spot::inode(number.0),
            name: None,
            path: None,
            found: "no index".into(),
            expected: "one".into(),
            value: None,
            suspected: false,
        });
    }
    changed
}

/// A name with its hash, major and minor.
struct Hashed {
    hash: (u32, u32),
    entry: Entry,
}

async fn build(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some(mut inode) = editor.inode(number).await else { return };
    let not_here = InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT | InodeFlags::CASEFOLD | InodeFlags::INDEX;
    if !editor.sb.compat().contains(Compat::DIR_INDEX) || inode.flags().intersects(not_here) {
        return;
    }
    let map = maps::read(editor, &inode).await;
    let Some((parent, names, version)) = hashed(editor, &inode, &map).await else { return };
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    let (mut leaves, mut lowest) = (Vec::new(), Vec::new());
    let entries: Vec<Entry> = names.iter().map(|name| name.entry.clone()).collect();
    let mut rest = &entries[..];
    while !rest.is_empty() {
        let first = entries.len() - rest.len();
        let hash = names[first].hash.0;
        let continues = first > 0 && names[first - 1].hash.0 == hash;
        let (leaf, left) = dir_blocks::pack(editor, rest, seed);
        lowest.push(hash | u32::from(continues));
        leaves.push(leaf);
        rest = left;
    }
    let info = DxRootInfo {
        dir: number,
        parent,
        filetype: editor.sb.incompat().contains(Incompat::FILETYPE),
        hash_version: version,
        levels: 0,
    };
    // One block needs no index.
    if leaves.len() < 2 {
        return;
    }
    let Some(mut blocks) = nodes(editor, info, &lowest, seed) else { return };
    blocks.extend(leaves);
    let Some(new) = places(editor, &map, blocks.len()) else { return };
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        inode.raw.i_block = [0; 60];
    }
    if !maps::write(editor, &mut inode, &new).await {
        return;
    }
    for (logical, block) in (0..).zip(&blocks) {
        let Some(at) = new.place(logical) else { return };
        editor.set_block(at, block).await;
    }
    inode.set_size(blocks.len().to_u64() * editor.block_len());
    inode.raw.i_flags = (inode.flags() | InodeFlags::INDEX).bits().into();
    editor.set_inode(&inode).await;
    editor.say("build the index of the directory anew", "");
}

/// Returns the parent of a directory, its names ordered by hash, and the hash function.
async fn hashed(
    editor: &Editor<'_>,
    inode: &Inode,
    map: &maps::Map,
) -> Option<(InodeNumber, Vec<Hashed>, HashVersion)> {
    let version = HashVersion::from_number(editor.sb.raw().s_def_hash_version)?;
    let sign = if editor.sb.unsigned_dir_hash() { CharSign::Unsigned } else { CharSign::Signed };
    let hash_seed = editor.sb.hash_seed();
    let (mut parent, mut names) = (None, Vec::new());
    for logical in 0..u32::try_from(inode.size() / editor.block_len()).ok()? {
        let block = editor.block(map.place(logical)?).await?;
        let found = dir_blocks::salvage(editor, &block);
        if !found.is_whole {
            return None;
        }
        for entry in found.entries {
            match &entry.name[..] {
                b"." => {}
                b".." => parent = Some(InodeNumber(entry.inode)),
                name => {
                    let hash = hash_name(version, sign, &hash_seed, name)?;
                    names.push(Hashed { hash: (hash.major, hash.minor), entry });
                }
            }
        }
    }
    names.sort_unstable_by(|a, b| (a.hash, &a.entry.name).cmp(&(b.hash, &b.entry.name)));
    Some((parent?, names, version))
}

/// Builds the root and nodes of an index; `lowest` contains the lowest hash of each leaf. Returns
/// `None` if there are more leaves than an index can hold.
fn nodes(
    editor: &Editor<'_>,
    mut info: DxRootInfo,
    lowest: &[u32],
    seed: Option<extant_format::ChecksumSeed>,
) -> Option<Vec<Vec<u8>>> {
    let cx = htree_context(editor.ctx, info.dir.0, 0);
    let len = editor.block_bytes();
    let (in_root, in_node) = (cx.root_limit(len), cx.node_limit(len));
    // Number of nodes on each level below the root, top first.
    let mut levels: Vec<usize> = Vec::new();
    while levels.first().copied().unwrap_or(lowest.len()) > in_root {
        levels.insert(0, levels.first().copied().unwrap_or(lowest.len()).div_ceil(in_node));
    }
    info.levels = u8::try_from(levels.len()).ok().filter(|&n| n <= 1 + u8::from(cx.large_dir))?;
    let mut blocks = Vec::new();
    let mut next = 1;
    for depth in 0..=levels.len() {
        let count = if depth == 0 { 1 } else { levels[depth - 1] };
        let below = levels.get(depth).copied().unwrap_or(lowest.len());
        let each = if depth == 0 { below } else { in_node };
        let leaves_of_child = in_node.pow((levels.len() - depth).fit_u32());
        for node in 0..count {
            let children = node * each..((node + 1) * each).min(below);
            let entries: Vec<DxEntry> = children
                .map(|child| DxEntry {
                    hash: lowest[child * leaves_of_child],
                    block: FileBlock((next + child).fit_u32()),
                })
                .collect();
            let mut block = vec![0; len];
            match depth {
                0 => write_dx_root(&mut block, &info, entries.into_iter(), seed),
                _ => write_dx_node(&mut block, entries.into_iter(), seed),
            }
            blocks.push(block);
        }
        next += below;
    }
    Some(blocks)
}

/// Returns the first blocks of a directory, followed by new ones; `None` if there is no space.
fn places(editor: &mut Editor<'_>, map: &maps::Map, blocks: usize) -> Option<maps::Map> {
    let mut new = maps::Map { nodes: map.nodes.clone(), ..maps::Map::default() };
    for logical in 0..u32::try_from(blocks).ok()? {
        let at = match map.place(logical) {
            Some(at) => at,
            // Each new block would take a whole cluster.
            None if editor.sb.blocks_per_cluster() > 1 => return None,
            None => editor.allocate(new.extents.last().map_or(0, |extent| extent.physical.0))?,
        };
        new.push(logical.into(), at, 1, false);
    }
    Some(new)
}

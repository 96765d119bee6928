//! Realigns files whose maps break the cluster rules (`bigalloc`).

use super::editor::Editor;
use super::maps::{self, Map};
use extant_format::{FileKind, Inode, InodeFlags};
use std::collections::BTreeMap;

/// Maximum size of a file to realign, in blocks.
const BLOCKS_MAX: u64 = 1 << 20;

/// Moves each cluster of a file into one cluster of the volume, and copies the blocks that lie
/// elsewhere. Block pointers become extents. The inode is changed in memory only.
pub(super) async fn align(editor: &mut Editor<'_>, inode: &mut Inode) {
    let per_cluster = u64::from(editor.sb.blocks_per_cluster());
    let has_map = matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
    let map = maps::read(editor, inode).await;
    let count: u64 = map.extents.iter().map(|extent| u64::from(extent.blocks)).sum();
    if !has_map || per_cluster == 1 || count > BLOCKS_MAX {
        return;
    }
    let mut clusters: BTreeMap<u64, Vec<(u64, u64, bool)>> = BTreeMap::new();
    for extent in &map.extents {
        for n in 0..u64::from(extent.blocks) {
            let (logical, at) = (u64::from(extent.logical.0) + n, extent.physical.0 + n);
            clusters.entry(logical / per_cluster).or_default().push((logical, at, extent.unwritten));
        }
    }
    let mut new = Map { nodes: map.nodes, ..Map::default() };
    for blocks in clusters.into_values() {
        let base = |&(logical, at, _): &(u64, u64, bool)| at.checked_sub(logical % per_cluster);
        let first = blocks.first().and_then(base).filter(|first| first.is_multiple_of(per_cluster));
        let is_right = first.is_some() && blocks.iter().all(|block| base(block) == first);
        let Some(to) = (if is_right { first } else { editor.allocate(blocks[0].1) }) else { return };
        for (logical, at, is_unwritten) in blocks {
            let new_at = to + logical % per_cluster;
            if new_at != at && !is_unwritten {
                // An unreadable block cannot be copied; the finding stays.
                let Some(block) = editor.block(at).await else { return };
                editor.set_block(new_at, &block).await;
            }
            new.push(logical, new_at, 1, is_unwritten);
        }
    }
    let mut whole = inode.clone();
    if !whole.flags().contains(InodeFlags::EXTENTS) {
        whole.raw.i_flags = (whole.flags() | InodeFlags::EXTENTS).bits().into();
        whole.raw.i_block = [0; 60];
        new.nodes.clear();
    }
    if maps::write(editor, &mut whole, &new).await {
        *inode = whole;
        editor.say("copy what does not lie in its cluster as it must", "");
    }
}

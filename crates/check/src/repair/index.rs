//! Indexes of directories are dropped, not mended.

use super::editor::Editor;
use super::{dir_blocks, maps};
use extant_format::{InodeFlags, InodeNumber, has_dirent_tail};

/// Makes an indexed directory linear. Linux and e2fsck read it all the same.
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
    editor.say("drop the index, so that the directory is searched in order", "");
}

//! /lost+found: its own name, and the names that lost inodes get there.

use super::super::dir_blocks::{self, Entry};
use super::super::editor::Editor;
use super::super::{index, maps};
use super::{add_entry, look_up, new_directory, remove_entry};
use extant_format::{DirEntries, FileBlock, FileKind, Inode, InodeFlags, InodeNumber};

/// The name of the directory for what has no other.
const LOST_FOUND: &[u8] = b"lost+found";

/// Gives an inode a name in /lost+found.
pub(super) async fn attach(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some(inode) = editor.inode(number).await else { return };
    let Some(kind) = inode.kind() else { return };
    let found = lost_found(editor).await;
    let is_full = found.is_none();
    // Without space for /lost+found, the root has to do.
    let found = match found {
        None => editor.inode(InodeNumber::ROOT).await,
        found => found,
    };
    let Some(mut lost_found) = found.filter(|dir| dir.kind() == Some(FileKind::Directory)) else { return };
    if lost_found.number == number {
        return name_lost_found(editor, number).await;
    }
    let name = format!("#{number}");
    let entry = Entry::new(number, name.as_bytes(), kind);
    if add_entry(editor, &mut lost_found, &entry).await {
        let folder = if is_full { "" } else { "/lost+found" };
        editor.say(format!("give it the name {folder}/{name}"), "");
    }
}

/// The lost+found that has lost its own name.
async fn name_lost_found(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some(mut root) = editor.inode(InodeNumber::ROOT).await else { return };
    let entry = Entry::new(number, LOST_FOUND, FileKind::Directory);
    add_entry(editor, &mut root, &entry).await;
}

/// /lost+found, which is made if it is not there.
async fn lost_found(editor: &mut Editor<'_>) -> Option<Inode> {
    let mut root =
        editor.inode(InodeNumber::ROOT).await.filter(|root| root.kind() == Some(FileKind::Directory))?;
    if let Some(number) = look_up(editor, &root, LOST_FOUND).await {
        let inode = editor.inode(number).await?;
        if inode.kind() != Some(FileKind::Directory) {
            return None;
        }
        // Names in an encrypted one need its key.
        if !inode.flags().contains(InodeFlags::ENCRYPT) {
            return Some(inode);
        }
        remove_entry(editor, &root, |entry| entry.name == LOST_FOUND).await;
    }
    let inode = new_directory(editor, None, InodeNumber::ROOT).await?;
    let entry = Entry::new(inode.number, LOST_FOUND, FileKind::Directory);
    add_entry(editor, &mut root, &entry).await.then_some(inode)
}

/// A file with the name of /lost+found gets another one.
pub(super) async fn rename_file(editor: &mut Editor<'_>) {
    let Some(root) = editor.inode(InodeNumber::ROOT).await else { return };
    let seed = editor.seed().map(|seed| root.checksum_seed(seed));
    let map = maps::read(editor, &root).await;
    for extent in &map.extents {
        for n in 0..extent.blocks {
            let at = extent.physical.0 + u64::from(n);
            let Some(mut block) = editor.block(at).await else { continue };
            let entries =
                DirEntries::new(&block, false, u32::MAX, root.number, FileBlock(extent.logical.0 + n));
            let found = entries.map_while(Result::ok).find(|e| e.inode.0 != 0 && e.name == LOST_FOUND);
            if let Some(offset) = found.map(|entry| entry.offset) {
                // A name of the same length.
                block[offset + 8..offset + 18].copy_from_slice(b"lost+foun~");
                dir_blocks::seal(&mut block, seed);
                editor.set_block(at, &block).await;
                if root.flags().contains(InodeFlags::INDEX) {
                    index::drop_index(editor, root.number).await;
                }
                return editor.say("give the file another name", "");
            }
        }
    }
}

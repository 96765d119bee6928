//! A repair finds lost extent nodes and directory blocks by their checksums.

use crate::repairs::repaired;
use crate::survivors::{Reached, Tree, tree};
use crate::testbed::{change, debugfs, inode, number, u32_at, volume};
use std::fs;
use std::path::{Path, PathBuf};

/// A volume with a file of so many extents that its tree has two levels below the inode.
fn sound(folder: &Path) -> (PathBuf, Vec<u8>) {
    let options = ["-t", "ext4", "-b", "1024", "-O", "^has_journal", "-N", "192"];
    let image = volume(folder, "lost", 4 << 10, &options);
    let contents: Vec<u8> =
        (0..1_u32 << 18).flat_map(|n| (n.wrapping_mul(0x9e37_79b9)).to_le_bytes()).collect();
    let deep = folder.join("contents");
    fs::write(&deep, contents).unwrap();
    let mut commands = vec![format!("write {} deep", deep.display())];
    commands.extend((0..512).map(|n| format!("punch /deep {} {}", 2 * n, 2 * n)));
    debugfs(&image, &commands.iter().map(String::as_str).collect::<Vec<_>>());
    let _ = extant_testbed::command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
    let bytes = fs::read(&image).unwrap();
    (image, bytes)
}

/// Paths whose contents differ between two trees.
fn missing<'a>(tree: &'a Tree, other: &'a Tree) -> impl Iterator<Item = (&'a Vec<u8>, &'a Reached)> {
    tree.iter().filter(|(path, file)| other.get(*path) != Some(file))
}

#[test]
fn lost_nodes_and_blocks_come_back() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, sound) = sound(folder.path());
    let was = tree(sound.clone());
    let (deep, many) = (number(&image, "/deep"), number(&image, "/many"));
    let map = inode(&sound, deep) + 40;
    assert_eq!(sound[map + 6], 2, "the depth of the tree");
    let index = u32_at(&sound, map + 16) as usize * 1024;
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut Vec<u8>));
    let damages: [Damage<'_>; 5] = [
        ("the pointer to the index block", &|bytes| {
            change(bytes, deep, |inode| inode.raw.i_block[16..20].fill(0xee));
        }),
        ("the index block", &|bytes| bytes[index..index + 1024].fill(0)),
        ("the root of the tree", &|bytes| change(bytes, deep, |inode| inode.raw.i_block.fill(0x77))),
        ("the map of a directory", &|bytes| {
            change(bytes, many, |inode| {
                inode.raw.i_block[2] = 0;
                inode.raw.i_block[12..].fill(0);
            });
        }),
        ("the inode of the root directory", &|bytes| {
            let at = inode(bytes, 2);
            bytes[at..at + 256].fill(0);
        }),
    ];
    for (what, damage) in damages {
        let mut bytes = sound.clone();
        damage(&mut bytes);
        // e2fsck and a second check are silent, and the repair can be undone.
        let after = repaired(what, &bytes, &image).unwrap_or_else(|said| panic!("{said}"));
        let now = tree(after);
        let differ: Vec<_> = missing(&was, &now).chain(missing(&now, &was)).collect();
        assert!(differ.is_empty(), "{what}: {differ:?}");
    }
}

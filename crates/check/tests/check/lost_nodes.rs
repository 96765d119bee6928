//! A repair finds lost extent nodes and directory blocks by their checksums.

use crate::repairs::{NOW, repaired, rt};
use crate::survivors::{Reached, Tree, tree};
use crate::testbed::{change, debugfs, inode, number, u32_at, volume};
use extant_block::{Bio, Claim, Device, IoError, Limits, MemDevice, Op, Sector};
use extant_check::Options;
use extant_check::repair::{Policy, plan};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A volume with a file that has enough extents for a tree with two levels below the inode.
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
        // e2fsck and a second check find nothing, and the repair can be undone.
        let after = repaired(what, &bytes, &image).unwrap_or_else(|said| panic!("{said}"));
        let now = tree(after);
        let differ: Vec<_> = missing(&was, &now).chain(missing(&now, &was)).collect();
        assert!(differ.is_empty(), "{what}: {differ:?}");
    }
}

/// A device that counts reads of one of its sectors.
#[derive(Debug)]
struct Watched {
    inner: MemDevice,
    sector: Sector,
    reads: AtomicU64,
}

impl Device for Watched {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let sectors = bio.start.0..bio.start.0 + bio.bytes / 512;
        if bio.op == Op::Read && sectors.contains(&self.sector.0) {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.submit(bio);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.inner.claim()
    }
}

/// A lost node is read once, even if many inodes lack a node.
#[test]
fn lost_blocks_are_searched_once_in_each_check() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    const DAMAGED: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let (image, mut bytes) = sound(folder.path());
    let (deep, first) = (number(&image, "/deep"), number(&image, "/many/name-with-some-length-000"));
    let map = inode(&bytes, deep) + 40;
    let index = u32_at(&bytes, map + 16) as usize * 1024;
    let leaf = u32_at(&bytes, index + 16);
    change(&mut bytes, deep, |inode| inode.raw.i_block[16..20].fill(0xee));
    for number in first..first + DAMAGED {
        // More entries than the node has.
        change(&mut bytes, number, |inode| inode.raw.i_block[2] = 1);
    }
    let sector = Sector(u64::from(leaf) * 2);
    let device = Arc::new(Watched { inner: MemDevice::from_bytes(bytes), sector, reads: AtomicU64::new(0) });
    let options = Options { now: Some(NOW), ..Options::default() };
    let plan = rt().block_on(plan(rt(), device.clone(), options, Policy::All)).unwrap().unwrap();
    assert!(plan.is_complete());
    assert!(plan.steps.len() > DAMAGED, "{} steps", plan.steps.len());
    let reads = device.reads.load(Ordering::Relaxed);
    assert!(reads < DAMAGED as u64 / 2, "{reads} reads of a lost block");
}

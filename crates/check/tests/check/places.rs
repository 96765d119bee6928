//! Files and directories with blocks that are mapped in the wrong place.

use crate::repairs::repaired;
use crate::survivors::tree;
use crate::testbed::{change, codes, debugfs, examine, inode, list, number, place, run, u32_at, volume};
use extant_check::Code;
use std::fs;
use std::path::Path;

const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^has_journal", "-N", "192"];
const BIGALLOC: &[&str] =
    &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,^resize_inode,^has_journal"];

/// Repairs a volume, after which e2fsck and a second check find nothing.
fn repair(what: &str, bytes: &[u8], image: &Path) -> Vec<u8> {
    repaired(what, bytes, image).unwrap_or_else(|said| panic!("{said}"))
}

#[test]
fn a_directory_whose_block_is_far_away_keeps_its_names() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "far", 4 << 10, EXT4);
    let sound = fs::read(&image).unwrap();
    for far in [65_536_u32, 0x8000_0000] {
        let mut bytes = sound.clone();
        change(&mut bytes, number(&image, "/dir"), |inode| {
            inode.raw.i_block[12..16].copy_from_slice(&far.to_le_bytes());
        });
        let scratch = folder.path().join("scratch");
        assert_eq!(tree(repair("far", &bytes, &scratch)), tree(sound.clone()));
    }
}

#[test]
fn blocks_in_wrong_places_of_clusters_are_copied() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "clusters", 8 << 10, BIGALLOC);
    let mut bytes = fs::read(&image).unwrap();
    let file = number(&image, "/large");
    let read = |image: &Path| run("debugfs", &["-R", "cat /large", image.to_str().unwrap()]);
    let was = read(&image);
    // The file's first extent begins a block too late.
    change(&mut bytes, file, |inode| {
        let at = u32::from_le_bytes(inode.raw.i_block[20..24].try_into().unwrap());
        inode.raw.i_block[20..24].copy_from_slice(&(at + 1).to_le_bytes());
    });
    repair("clusters", &bytes, &image);
    // Everything that the extent maps is kept: the file, and at its end what follows it on the
    // disk.
    let now = read(&image);
    assert!(now.len() == was.len() && now[..200_000] == was[..200_000]);
}

#[test]
fn a_cluster_of_a_file_lies_in_one_of_the_volume() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "clusters", 8 << 10, BIGALLOC);
    let mut bytes = fs::read(&image).unwrap();
    change(&mut bytes, number(&image, "/large"), |inode| {
        let map = &mut inode.raw.i_block;
        assert_eq!(map[2], 1, "its extents");
        let place = u32::from_le_bytes(map[20..24].try_into().unwrap());
        // Two blocks as before, and two of the next cluster after them.
        (map[2], map[16], map[17]) = (2, 2, 0);
        let second = [2, 2, place + 6];
        for (to, word) in map[24..36].chunks_exact_mut(4).zip(second) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    });
    let found = examine(bytes.clone()).unwrap();
    assert!(found.counts.contains_key(&Code::MapCluster), "{}", list(&found));
    repair("clusters", &bytes, &image);
}

#[test]
fn a_journal_that_maps_more_than_its_size_is_found() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "journal", 8 << 10, &["-t", "ext4", "-b", "1024", "-N", "192"]);
    let mut bytes = fs::read(&image).unwrap();
    change(&mut bytes, 8, |inode| {
        // The length of the file's last extent.
        let at = 12 * usize::from(inode.raw.i_block[2]) + 4;
        inode.raw.i_block[at] += 2;
    });
    let found = examine(bytes.clone()).unwrap();
    assert!(found.counts.contains_key(&Code::InodeSize), "{}", list(&found));
    repair("journal", &bytes, &image);
}

/// debugfs commands that make a map point into other structures. Only the file itself may change.
#[test]
fn what_a_wrong_pointer_leads_to_is_kept() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ext2 = volume(folder.path(), "ext2", 2 << 10, &["-t", "ext2", "-b", "1024", "-N", "192"]);
    let ext3 = volume(folder.path(), "ext3", 4 << 10, &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
    let image = folder.path().join("image");
    let (file, dir) = (place(&ext2, "/file", 0), place(&ext3, "/dir", 0));
    let bytes = fs::read(&ext2).unwrap();
    let reserved = u32_at(&bytes, inode(&bytes, 7) + 40 + 4 * 13);
    assert_ne!(reserved, 0, "the map of reserved blocks");
    let cases = [
        (&ext2, "/large", format!("sif /large block[3] {reserved}")),
        (&ext2, "/large", "sif /large block[IND] 1".to_owned()),
        (&ext2, "/large", "sif /large block[DIND] 2".to_owned()),
        (&ext2, "/large", format!("sif /large block[IND] {file}")),
        (&ext2, "/large", format!("sif /large block[DIND] {file}")),
        (&ext2, "/long", format!("sif /long block[0] {file}")),
        (&ext3, "/", format!("sif <8> block[0] {dir}")),
        (&ext3, "/", "sif <8> block[0] 3000".to_owned()),
    ];
    for (base, damaged, command) in cases {
        fs::copy(base, &image).unwrap();
        debugfs(&image, &[&command]);
        let now = tree(repair(&command, &fs::read(&image).unwrap(), &image));
        let was = tree(fs::read(base).unwrap());
        let others = was.iter().filter(|(path, _)| *path != damaged.as_bytes());
        let lost: Vec<_> = others.filter(|(path, file)| now.get(*path) != Some(file)).collect();
        assert!(lost.is_empty(), "{command}: {lost:?}");
    }
}

/// The mode, flags or links of an inode are overwritten. The inode survives, and the volume gets no
/// features that nothing on it uses.
#[test]
fn an_inode_that_lost_one_field_is_kept() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "flags", 4 << 10, EXT4);
    let sound = fs::read(&image).unwrap();
    let flags =
        [0xff_0000_u32, 0xb7_0000, 0xff00_0000, 0x5020_0000].map(|flags| ("/file", 32, flags.to_le_bytes()));
    let modes = ["/file", "/dir", "/many", "/short"].map(|path| (path, 0, [0xc9, 0x04, 0, 0]));
    let links = ["/file", "/dir", "/many", "/short"].map(|path| (path, 26, [0; 4]));
    for (path, offset, field) in flags.into_iter().chain(modes).chain(links) {
        let mut bytes = sound.clone();
        // The checksum is not updated, so it is wrong, too.
        let at = inode(&bytes, number(&image, path)) + offset;
        bytes[at..at + 4].copy_from_slice(&field);
        let what = format!("{path}, {field:x?} at {offset}");
        let scratch = folder.path().join("scratch");
        let after = repair(&what, &bytes, &scratch);
        assert_eq!(after[1024 + 0x60..][..4], sound[1024 + 0x60..][..4], "features, {what}");
        assert_eq!(tree(after), tree(sound.clone()), "{what}");
    }
}

/// A link's target is not mapped at the beginning. Directory entries follow an entry whose length
/// is wrong, in a block and in an inode.
#[test]
fn targets_and_names_behind_damage_are_kept() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,inline_data,^has_journal", "-N", "192"];
    let inline = volume(folder.path(), "inline", 4 << 10, &options);
    let blocks = volume(folder.path(), "blocks", 4 << 10, EXT4);
    let scratch = folder.path().join("scratch");
    let root = place(&blocks, "/", 0) as usize * 1024;
    let (long, dir) = (number(&blocks, "/long"), number(&inline, "/dir"));
    type Damage<'a> = (&'a Path, &'a dyn Fn(&mut Vec<u8>));
    let damages: [Damage<'_>; 3] = [
        (&blocks, &|bytes| change(bytes, long, |inode| inode.raw.i_block[12..16].fill(3))),
        // The name of the first entry is empty, and its length leads over some others.
        (&blocks, &|bytes| bytes[root + 4..root + 8].copy_from_slice(&[0x78, 0, 0, 0])),
        // The second entry of an inline directory; the first one follows the parent's number.
        (&inline, &|bytes| {
            let first = inode(bytes, dir) + 40 + 4;
            let second = first + usize::from(bytes[first + 4]);
            bytes[second + 4..second + 6].copy_from_slice(&31_504_u16.to_le_bytes());
        }),
    ];
    for (n, (image, damage)) in damages.into_iter().enumerate() {
        let sound = fs::read(image).unwrap();
        let mut bytes = sound.clone();
        damage(&mut bytes);
        assert_eq!(tree(repair(&format!("damage {n}"), &bytes, &scratch)), tree(sound), "damage {n}");
    }
}

#[test]
fn files_make_room_for_bad_blocks_and_tables() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext2", "-b", "1024", "-N", "192"];
    let image = volume(folder.path(), "ext2", 2 << 10, &options);
    let sound = fs::read(&image).unwrap();
    let scratch = folder.path().join("scratch");
    // A bad block that a directory is in.
    let at = place(&image, "/dir", 0);
    let mut bytes = sound.clone();
    change(&mut bytes, 1, |inode| {
        inode.raw.i_block[..4].copy_from_slice(&at.to_le_bytes());
        inode.raw.i_blocks_lo = 2.into();
    });
    let after = repair("a bad block", &bytes, &scratch);
    assert_eq!(tree(after), tree(sound.clone()));
    assert_ne!(place(&scratch, "/dir", 0), at);
    // A pointer to an indirect block that leads to the end of the inode table, to zeros.
    let mut bytes = sound.clone();
    let large = inode(&bytes, number(&image, "/large"));
    let double = u32_at(&bytes, large + 40 + 13 * 4) as usize * 1024;
    let table = u32_at(&bytes, 2 * 1024 + 8);
    let inode_bytes = usize::from(u16::from_le_bytes([bytes[1024 + 88], bytes[1024 + 89]]));
    let last = table + (192 * inode_bytes / 1024) as u32 - 1;
    assert!(double > 0 && bytes[double + 4..double + 8] == [0; 4]);
    bytes[double + 4..double + 8].copy_from_slice(&last.to_le_bytes());
    assert!(codes(&examine(bytes.clone()).unwrap()).contains(&"block-overlaps-metadata"));
    assert_eq!(tree(repair("an indirect block", &bytes, &scratch)), tree(sound));
}

/// Linux takes all blocks of such a group for free but the group's own structures.
#[test]
fn a_table_in_a_group_without_a_bitmap_is_marked_as_used() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options =
        ["-t", "ext4", "-b", "1024", "-g", "512", "-O", "meta_bg,^resize_inode,^has_journal", "-N", "256"];
    let image = volume(folder.path(), "groups", 4 << 10, &options);
    let said = run("dumpe2fs", &[image.to_str().unwrap()]);
    let third = said.split("Group ").find(|group| group.starts_with("3:")).unwrap();
    assert!(third.contains("BLOCK_UNINIT"), "{third}");
    debugfs(&image, &["set_bg 7 inode_table 1793", "set_bg 7 checksum calc"]);
    let bytes = fs::read(&image).unwrap();
    let checked = examine(bytes.clone()).unwrap();
    assert!(codes(&checked).contains(&"block-free-in-use"), "{}", list(&checked));
    repair("a table", &bytes, &image);
}

//! Quota files, the orphan file, and their numbers in the superblock.

use crate::repairs::repaired;
use crate::survivors::tree;
use crate::testbed::{codes, complains, debugfs, e2fsck, examine, list, number, place, run, u32_at, volume};
use extant_check::Code;
use extant_format::Superblock;
use std::fs;
use std::path::Path;

const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^has_journal", "-N", "192"];

/// Blocks of a group quota file with few ids: header, four nodes and a leaf.
fn group_quota(image: &Path) -> [usize; 6] {
    std::array::from_fn(|logical| place(image, "<4>", logical as u32) as usize * 1024)
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Offset of the first entry in a leaf, and of a limit in it.
const ENTRY: usize = 16;
const HARD_KIB: usize = 0x20;

#[test]
fn trees_of_quota_files_are_followed_as_linux_does() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-O", "quota,^has_journal", "-N", "192"];
    let image = volume(folder.path(), "quota", 2 << 10, &options);
    let _ = extant_testbed::command("e2fsck").arg("-fy").arg(&image).output().unwrap();
    let mut sound = fs::read(&image).unwrap();
    let [header, _, _, third, fourth, leaf] = group_quota(&image);
    assert_eq!(u32_at(&sound, leaf + ENTRY), 0, "the first entry is of id 0");
    put(&mut sound, leaf + ENTRY + HARD_KIB, 12_345);
    fs::write(&image, &sound).unwrap();
    let checked = examine(sound.clone()).unwrap();
    assert!(checked.is_clean() && !complains(&e2fsck(&image)), "{}", list(&checked));
    type Damage<'a> = (&'a str, bool, &'a dyn Fn(&mut [u8]));
    let damages: [Damage<'_>; 6] = [
        // e2fsck then reads the third node as a leaf, and finds an entry of id 0 in it.
        ("a second way to a node", true, &|bytes| put(bytes, third + 4 * 10, 2)),
        ("an id whose leaf lacks it", false, &|bytes| put(bytes, fourth + 4 * 200, 5)),
        ("an id that is there twice", true, &|bytes| {
            let used = u32_at(bytes, leaf + 8);
            put(bytes, leaf + 8, used + 1);
            put(bytes, leaf + ENTRY + 72 * used as usize + 0x18, 2);
        }),
        ("a wrong count of entries", false, &|bytes| put(bytes, leaf + 8, 9)),
        ("more blocks than the file has", true, &|bytes| put(bytes, header + 0x14, 7)),
        ("a block that the header does not count", true, &|bytes| {
            put(bytes, header + 0x14, 5);
        }),
    ];
    for (what, is_known, damage) in damages {
        let mut bytes = sound.clone();
        damage(&mut bytes);
        fs::write(&image, &bytes).unwrap();
        let checked = examine(bytes.clone()).unwrap();
        assert_eq!(codes(&checked), ["quota-file"], "{what}: {}", list(&checked));
        assert_eq!(complains(&e2fsck(&image)), is_known, "{what}");
        let after = repaired(what, &bytes, &image).unwrap_or_else(|said| panic!("{said}"));
        let limit = u32_at(&after, leaf + ENTRY + HARD_KIB);
        assert_eq!(limit, 12_345, "{what}");
    }
}

/// debugfs commands that damage a volume, and the code of the finding.
type Named<'a> = (&'a Path, &'a str, String, Code);

#[test]
fn files_that_the_superblock_names_wrongly_are_kept() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let plain = volume(folder.path(), "plain", 2 << 10, EXT4);
    let with = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file", "-N", "192"];
    let with = volume(folder.path(), "with", 4 << 10, &with);
    let image = folder.path().join("image");
    let file = number(&plain, "/large");
    let dir = number(&with, "/dir");
    let other = number(&with, "/large");
    let cases: [Named<'_>; 9] = [
        (&with, "present, and nothing in it", "feature orphan_present".into(), Code::OrphanFile),
        (&with, "a file", format!("ssv orphan_file_inum {other}"), Code::OrphanFile),
        (&with, "a directory", format!("ssv orphan_file_inum {dir}"), Code::OrphanFile),
        (&with, "no inode", "ssv orphan_file_inum 100000".into(), Code::OrphanFile),
        (&plain, "present without the file", "feature orphan_present".into(), Code::OrphanFile),
        (&plain, "a file, not the feature", format!("ssv orphan_file_inum {file}"), Code::OrphanFile),
        (&plain, "without a journal", "feature orphan_file".into(), Code::OrphanFile),
        (&plain, "a project quota", format!("ssv prj_quota_inum {file}"), Code::QuotaInode),
        (&plain, "a user quota", format!("ssv usr_quota_inum {file}"), Code::QuotaInode),
    ];
    for (base, what, command, code) in cases {
        fs::copy(base, &image).unwrap();
        debugfs(&image, &[&command]);
        let bytes = fs::read(&image).unwrap();
        let checked = examine(bytes.clone()).unwrap();
        assert!(checked.counts.contains_key(&code), "{what}: {}", list(&checked));
        let theirs = e2fsck(&image);
        assert!(complains(&theirs), "{what}: {theirs:?}");
        let after = repaired(what, &bytes, &image).unwrap_or_else(|said| panic!("{said}"));
        let (was, now) = (tree(fs::read(base).unwrap()), tree(after));
        let lost: Vec<_> = was.iter().filter(|(path, file)| now.get(*path) != Some(file)).collect();
        assert!(lost.is_empty(), "{what}: {lost:?}");
    }
}

/// debugfs commands that damage a volume, the code of the finding, and whether e2fsck knows it.
type Contradiction<'a> = (&'a Path, &'a [&'a str], Code, bool);

#[test]
fn own_files_lose_no_more_than_a_flag() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let new = |name, kib, options: &[&str]| {
        volume(folder.path(), name, kib, &[&["-b", "1024", "-N", "192"], options].concat())
    };
    let ext4 = new("ext4", 4 << 10, &["-t", "ext4", "-J", "size=1"]);
    // The superblock has a copy of the journal's block pointers.
    let ext3 = new("ext3", 4 << 10, &["-t", "ext3", "-J", "size=1"]);
    let folds = new("folds", 2 << 10, &["-t", "ext4", "-O", "casefold,^has_journal"]);
    let folding = folder.path().join("folding");
    fs::copy(&folds, &folding).unwrap();
    debugfs(&folding, &["sif /dir/sub flags 0x40080000"]);
    let cases: [Contradiction<'_>; 16] = [
        (&ext4, &["sif <8> flags 0x80800"], Code::InodeFlags, true),
        (&ext3, &["sif <8> flags 0x800"], Code::InodeFlags, false),
        (&ext4, &["sif <8> flags 0x81000"], Code::InodeFlags, true),
        (&ext4, &["sif <8> flags 0x40080000"], Code::InodeFlags, true),
        (&ext4, &["sif <8> flags 0x280000"], Code::InodeFlags, false),
        (&ext4, &["sif <8> flags 0x10080000"], Code::MapForm, true),
        (&ext3, &["sif <9> flags 0x1000"], Code::InodeFlags, true),
        (&ext3, &["sif <3> flags 0x40000000"], Code::InodeFlags, true),
        (&ext4, &["sif <10> flags 0x10080000"], Code::MapForm, true),
        (
            &ext3,
            &["feature -large_file", "sif <5> mode 0100644", "sif <5> size 5000000000"],
            Code::FeatureMissing,
            true,
        ),
        (&ext3, &["feature -large_file", "sif <7> size 5000000000"], Code::FeatureMissing, true),
        (&folds, &["ssv encoding 7"], Code::SuperblockField, true),
        (&folds, &["ssv encoding 0"], Code::SuperblockField, true),
        (&folding, &["ssv encoding 0"], Code::SuperblockField, true),
        (&folding, &["ssv encoding 7"], Code::SuperblockField, true),
        (&ext3, &["sif <6> file_acl 77777"], Code::XattrPointer, false),
    ];
    let image = folder.path().join("image");
    for (base, commands, code, is_known) in cases {
        let what = format!("{commands:?}");
        fs::copy(base, &image).unwrap();
        debugfs(&image, commands);
        let bytes = fs::read(&image).unwrap();
        let checked = examine(bytes.clone()).unwrap();
        assert!(checked.counts.contains_key(&code), "{what}: {}", list(&checked));
        let theirs = e2fsck(&image);
        assert_eq!(complains(&theirs), is_known, "{what}: {theirs:?}");
        let after = repaired(&what, &bytes, &image).unwrap_or_else(|said| panic!("{said}"));
        let sb = |bytes: &[u8]| Superblock::parse(&bytes[1024..]).unwrap();
        let before = sb(&fs::read(base).unwrap());
        assert_eq!(sb(&after).journal_inode(), before.journal_inode(), "{what}");
        assert_eq!(tree(after.clone()), tree(fs::read(base).unwrap()), "{what}");
        if base == folding {
            assert_eq!(sb(&after).raw().s_encoding.get(), 1, "{what}");
        }
    }
}

#[test]
fn attribute_blocks_are_kept_if_the_volume_has_lost_their_feature() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let base = volume(folder.path(), "short", 2 << 10, &[EXT4, &["-I", "128"]].concat());
    let image = folder.path().join("image");
    let cases: [(&[&str], Code, bool); 3] = [
        (&["ea_set /file user.one first", "feature -ext_attr"], Code::FeatureMissing, true),
        // A block that holds none.
        (&["feature -ext_attr", "sif /file file_acl 1500"], Code::FeatureMissing, false),
        (&["feature -ext_attr", "sif <9> file_acl 1500"], Code::XattrPointer, false),
    ];
    for (commands, code, is_kept) in cases {
        let what = format!("{commands:?}");
        fs::copy(&base, &image).unwrap();
        debugfs(&image, commands);
        let bytes = fs::read(&image).unwrap();
        let checked = examine(bytes.clone()).unwrap();
        assert!(checked.counts.contains_key(&code), "{what}: {}", list(&checked));
        assert_eq!(complains(&e2fsck(&image)), code == Code::FeatureMissing, "{what}");
        repaired(&what, &bytes, &image).unwrap_or_else(|said| panic!("{said}"));
        let said = run("debugfs", &["-R", "ea_get /file user.one", image.to_str().unwrap()]);
        assert_eq!(said.contains("first"), is_kept, "{what}: {said}");
    }
}

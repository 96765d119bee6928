//! One case of damage of each kind, made with debugfs or by changing bytes.

use crate::testbed::{codes, complains, debugfs, e2fsck, examine, is_known_to_e2fsck, list, volume};
use extant_check::Code;
use std::fs;

pub(crate) const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^has_journal"];
pub(crate) const EXT2: &[&str] = &["-t", "ext2", "-b", "1024", "-g", "2048"];

/// debugfs commands, and the code that their damage must be found as.
pub(crate) const WITH_DEBUGFS: [(&[&str], &[&str], Code); 46] = [
    (EXT4, &["sif /file links_count 5"], Code::LinkCount),
    (EXT4, &["sif /file mode 0"], Code::InodeMode),
    (EXT4, &["sif /file size 1"], Code::InodeSize),
    (EXT4, &["sif /dir size 5000"], Code::InodeSize),
    (EXT4, &["sif /file blocks 77"], Code::InodeBlocks),
    (EXT4, &["sif /file dtime 0x5fffffff"], Code::InodeDtime),
    (EXT4, &["sif /file flags 0x880000"], Code::InodeUnknownFlags),
    (EXT4, &["sif /file flags 0x82000"], Code::InodeFlags),
    (EXT4, &["sif /file atime_extra 0xfffffff0"], Code::InodeTime),
    (EXT4, &["sif /file flags 0"], Code::MapForm),
    (EXT4, &["sif /short size 7"], Code::Symlink),
    (EXT4, &["sif /long size 50000"], Code::Symlink),
    (EXT4, &["sif /long block[3] 7"], Code::Symlink),
    (EXT4, &["clri /dir/inner"], Code::EntryUnused),
    (EXT4, &["clri /dir/sub"], Code::EntryUnused),
    (EXT4, &["unlink /short"], Code::InodeUnattached),
    (EXT4, &["unlink /dir"], Code::DirectoryUnreachable),
    (EXT4, &["ln /dir /dir2"], Code::EntryDirectoryLink),
    (EXT4, &["freeb 5 1"], Code::BlockBitmapFree),
    (EXT4, &["setb 5500 5"], Code::BlockBitmapLeaked),
    (EXT4, &["freei /file"], Code::InodeBitmapFree),
    (EXT4, &["seti <200>"], Code::InodeBitmapLeaked),
    (EXT4, &["ssv free_blocks_count 5"], Code::SuperblockFreeBlocks),
    (EXT4, &["ssv free_inodes_count 5"], Code::SuperblockFreeInodes),
    (EXT4, &["set_bg 0 free_blocks_count 3", "set_bg 0 checksum calc"], Code::DescriptorFreeBlocks),
    (EXT4, &["set_bg 0 free_inodes_count 3", "set_bg 0 checksum calc"], Code::DescriptorFreeInodes),
    (EXT4, &["set_bg 0 used_dirs_count 9", "set_bg 0 checksum calc"], Code::DescriptorDirectories),
    (EXT4, &["set_bg 0 checksum 1"], Code::DescriptorChecksum),
    (EXT4, &["ssv error_count 3"], Code::ErrorRecord),
    (EXT2, &["ssv uuid clear"], Code::SuperblockUuid),
    (EXT4, &["ssv min_extra_isize 4000"], Code::SuperblockField),
    (EXT2, &["sif /large block[IND] 7777777"], Code::MapPointer),
    (EXT2, &["sif /file block[0] 3"], Code::BlockOverlap),
    (EXT2, &["sif /dir faddr 9"], Code::InodeObsolete),
    (EXT2, &["sif <6> blocks 2", "sif <6> block[0] 5"], Code::InodeReserved),
    (EXT2, &["sif <9> dtime 65"], Code::OrphanList),
    (EXT2, &["ssv prj_quota_inum 56320"], Code::QuotaInode),
    (EXT2, &["ssv usr_quota_inum 56320"], Code::QuotaInode),
    (EXT2, &["sif <5> file_acl 300"], Code::InodeReserved),
    (EXT2, &["sif <7> file_acl 300"], Code::XattrBlock),
    (EXT2, &["sif /long size 21474836580"], Code::InodeObsolete),
    (EXT2, &["sif <9> size 785979015168"], Code::InodeReserved),
    (EXT2, &["sif <7> block[2] 700"], Code::ResizeInode),
    (
        EXT2,
        &["feature -resize_inode", "ssv reserved_gdt_blocks 0", "clri <7>", "sif <7> mode 3"],
        Code::InodeMode,
    ),
    (EXT2, &["ssv reserved_gdt_blocks 0", "sif <7> block[DIND] 0"], Code::ResizeInode),
    (EXT2, &["sif <7> size 99999999999999"], Code::ResizeInode),
];

/// The root directory is read before the one that `..` names.
#[test]
fn of_two_names_of_a_directory_the_one_that_dotdot_agrees_with_is_right() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "image", 6 << 10, EXT4);
    debugfs(&image, &["mkdir /dir/deep", "ln /dir/deep /again"]);
    let checked = examine(fs::read(&image).unwrap()).unwrap();
    let links: Vec<_> =
        checked.findings.iter().filter(|finding| finding.code == Code::EntryDirectoryLink).collect();
    let [link] = links[..] else { panic!("{}", list(&checked)) };
    assert_eq!((link.spot.inode, link.spot.file_block), (Some(2), Some(0)), "{}", list(&checked));
    assert!(link.found.contains("is also named in directory"), "{}", list(&checked));
    let said = e2fsck(&image).1;
    assert!(said.contains("/again") && !said.contains("Unconnected"), "{said}");
}

#[test]
fn each_damage_is_found_under_its_code() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ext4 = fs::read(volume(folder.path(), "ext4", 6 << 10, EXT4)).unwrap();
    let ext2 = fs::read(volume(folder.path(), "ext2", 6 << 10, EXT2)).unwrap();
    let mut wrong = Vec::new();
    for (options, commands, code) in WITH_DEBUGFS {
        let image = folder.path().join("image");
        fs::write(&image, if options == EXT2 { &ext2 } else { &ext4 }).unwrap();
        debugfs(&image, commands);
        let checked = examine(fs::read(&image).unwrap()).unwrap();
        if !checked.counts.contains_key(&code) {
            wrong.push(format!(
                "{commands:?}: {code} is not among {:?}\n{}",
                codes(&checked),
                list(&checked)
            ));
        }
        let theirs = e2fsck(&image);
        let known = checked.counts.keys().any(|&code| is_known_to_e2fsck(code));
        if complains(&theirs) != known {
            let (exit, said) = theirs;
            wrong.push(format!("{commands:?}: e2fsck ends with {exit}: {said}\n{}", list(&checked)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Finds bytes that must be there.
fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|window| window == what).unwrap()
}

/// Changes bytes of a volume without checksums.
type Change = fn(&mut [u8]);

#[test]
fn damage_that_e2fsck_misses_is_found() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-g",
        "2048",
        "-I",
        "128",
        "-O",
        "^metadata_csum,^has_journal,^dir_index,^64bit",
    ];
    let image = volume(folder.path(), "base", 6 << 10, &options);
    debugfs(&image, &["ea_set /file user.aaa one", "ea_set /file user.bbb two", "ea_set /file user.ccc six"]);
    let base = fs::read(&image).unwrap();
    let header = [0, 0, 2, 0xea, 1, 0, 0, 0, 1, 0, 0, 0];
    let at = find(&base, &header);
    let changes: [(&str, Code, Change); 8] = [
        ("a backup of the superblock", Code::BackupSuperblock, |bytes| {
            bytes[2049 * 1024 + 56..][..2].fill(0);
        }),
        ("a backup of the descriptors", Code::BackupDescriptors, |bytes| bytes[2050 * 1024] ^= 0x10),
        ("the same name in two blocks", Code::EntryDuplicateAcross, |bytes| {
            let at = find(bytes, b"name-with-some-length-119");
            let other = find(bytes, b"name-with-some-length-001");
            assert_ne!(at / 1024, other / 1024);
            bytes[at + 22..at + 25].copy_from_slice(b"001");
        }),
        ("attributes out of order", Code::XattrOrder, |bytes| {
            let at = find(bytes, b"aaa");
            bytes[at..at + 3].copy_from_slice(b"zzz");
        }),
        ("an attribute twice", Code::XattrDuplicate, |bytes| {
            let at = find(bytes, b"bbb\0");
            bytes[at..at + 3].copy_from_slice(b"aaa");
        }),
        ("an unknown prefix", Code::XattrIndex, |bytes| {
            let at = find(bytes, b"ccc\0");
            bytes[at - 15] = 77;
        }),
        ("a hash of all attributes", Code::XattrBlockHash, |bytes| {
            let at = find(bytes, &[0, 0, 2, 0xea, 1, 0, 0, 0, 1, 0, 0, 0]);
            bytes[at + 12] ^= 1;
        }),
        ("an access list", Code::XattrAcl, |bytes| {
            let at = find(bytes, b"ccc\0");
            bytes[at - 15] = 2;
        }),
    ];
    assert!(at > 0);
    let mut wrong = Vec::new();
    for (what, code, change) in changes {
        let mut bytes = base.clone();
        change(&mut bytes);
        let checked = examine(bytes).unwrap();
        if !checked.counts.contains_key(&code) {
            wrong.push(format!("{what}: {code} is not among {:?}\n{}", codes(&checked), list(&checked)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_documentation_lists_each_code() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md")).unwrap();
    for code in Code::ALL {
        let row = format!("| `{code}` | {} | {} |", code.severity(), code.meaning());
        assert!(page.contains(&row), "docs/check.md lacks: {row}");
    }
}

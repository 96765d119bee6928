//! Volumes without damage.

use crate::testbed::{debugfs, e2fsck, examine, list, run, volume};
use extant_block::{Bio, Device, Limits, MemDevice};
use extant_check::{Code, Options, check};
use extant_rt::Rt;
use std::fs;
use std::sync::{Arc, Mutex};

const PROFILES: [(&str, u32, &[&str]); 18] = [
    ("ext4", 6 << 10, &["-t", "ext4", "-b", "1024"]),
    ("ext4-4k", 16 << 10, &["-t", "ext4", "-b", "4096"]),
    ("ext2", 4 << 10, &["-t", "ext2", "-b", "1024"]),
    ("ext3", 8 << 10, &["-t", "ext3", "-b", "1024", "-J", "size=1"]),
    ("plain", 6 << 10, &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^64bit,^metadata_csum,^flex_bg"]),
    ("uninit", 6 << 10, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"]),
    ("groups", 8 << 10, &["-t", "ext4", "-b", "1024", "-g", "1024", "-G", "4"]),
    ("no-flex", 8 << 10, &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^flex_bg,^resize_inode"]),
    // The second meta block group is shorter than the first.
    ("meta-bg", 7 << 10, &["-t", "ext4", "-b", "1024", "-g", "256", "-O", "meta_bg,^resize_inode"]),
    ("sparse2", 8 << 10, &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "sparse_super2,^resize_inode"]),
    ("not-sparse", 8 << 10, &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^sparse_super,^resize_inode"]),
    ("bigalloc", 16 << 10, &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,^resize_inode"]),
    // Bitmaps of several groups lie in one cluster, with gaps between them.
    (
        "bigalloc-64k",
        32 << 10,
        &["-t", "ext4", "-b", "1024", "-C", "65536", "-N", "2048", "-O", "bigalloc,^resize_inode"],
    ),
    ("inline", 8 << 10, &["-t", "ext4", "-b", "1024", "-O", "inline_data"]),
    (
        "quota",
        8 << 10,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "quota,project,ea_inode",
            "-E",
            "quotatype=usrquota:grpquota:prjquota",
        ],
    ),
    ("orphan-file", 8 << 10, &["-t", "ext4", "-b", "1024", "-O", "orphan_file"]),
    ("mmp", 8 << 10, &["-t", "ext4", "-b", "1024", "-O", "mmp,ea_inode,large_dir,encrypt,casefold,verity"]),
    ("no-journal", 4 << 10, &["-t", "ext4", "-b", "2048", "-O", "^has_journal,metadata_csum_seed"]),
];

#[test]
fn healthy_volumes_have_no_findings() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let value = folder.path().join("value");
    fs::write(&value, [b'v'; 3000]).unwrap();
    let large = format!("ea_set -f {} /file user.large", value.display());
    for (name, kib, options) in PROFILES {
        let image = volume(folder.path(), name, kib, options);
        for step in ["new", "changed", "reindexed"] {
            match step {
                "changed" => debugfs(
                    &image,
                    &[
                        "ea_set /file user.first one",
                        "ea_set /file user.second two",
                        "ea_set /dir user.third three",
                        "mkdir /made",
                        "rm /empty",
                        // The value inode counts for the owner of the file.
                        if name == "quota" { &large } else { "" },
                    ],
                ),
                "reindexed" => {
                    let _ = extant_testbed::command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
                }
                _ => {}
            }
            let (code, said) = e2fsck(&image);
            let checked = examine(fs::read(&image).unwrap()).unwrap();
            // Neither mke2fs -d nor debugfs counts files in quota files.
            if code != 0 {
                assert_eq!(name, "quota", "{step}: {said}");
                assert_ne!(step, "reindexed", "{said}");
                // debugfs does not charge the file for a value in another inode, either.
                let blocks = said.contains("i_blocks is").then_some(&Code::InodeBlocks);
                let expected: Vec<_> = blocks.into_iter().chain([&Code::QuotaUsage]).collect();
                assert_eq!(checked.counts.keys().collect::<Vec<_>>(), expected, "{said}");
                continue;
            }
            assert!(checked.is_clean(), "{name}, {step}:\n{}", list(&checked));
        }
    }
}

#[test]
fn what_e2fsck_accepts_of_bad_blocks_and_journals_is_no_damage() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad");
    // Three blocks of one cluster, and one of another.
    fs::write(&bad, "9000\n9001\n9002\n9100\n").unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,^resize_inode", "-l"];
    let with_bad = [&options[..], &[bad.to_str().unwrap()]].concat();
    let bad = volume(folder.path(), "bigalloc", 16 << 10, &with_bad);
    // Like `tune2fs -j` does on a mounted volume.
    let named = volume(folder.path(), "named", 8 << 10, &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
    debugfs(&named, &["write /dev/null .journal", "copy_inode <8> .journal", "clri <8>"]);
    let said = debugfs_says(&named, "stat .journal");
    let number = said.split_whitespace().nth(1).unwrap();
    debugfs(&named, &[&format!("ssv journal_inum {number}")]);
    for image in [bad, named] {
        assert_eq!(e2fsck(&image).0, 0);
        let checked = examine(fs::read(&image).unwrap()).unwrap();
        assert!(checked.is_clean(), "{}:\n{}", image.display(), list(&checked));
    }
}

fn debugfs_says(image: &std::path::Path, command: &str) -> String {
    run("debugfs", &["-R", command, image.to_str().unwrap()])
}

#[test]
fn the_order_does_not_depend_on_tasks() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "image", 8 << 10, &["-t", "ext4", "-b", "1024", "-g", "1024"]);
    debugfs(&image, &["sif /file links_count 9", "sif /large blocks 3", "clri /dir/inner", "unlink /short"]);
    let bytes = fs::read(&image).unwrap();
    let with = |tasks| {
        let options = extant_check::Options { tasks, ..Default::default() };
        list(&crate::testbed::examine_with(bytes.clone(), options).unwrap())
    };
    let one = with(1);
    assert!(one.contains("/dir/again") || one.contains("/file"), "paths are known: {one}");
    for tasks in [2, 3, 8] {
        assert_eq!(with(tasks), one);
    }
}

/// A device that lists its reads. They complete at once or after a while.
#[derive(Debug)]
struct Counted {
    inner: Arc<MemDevice>,
    rt: Option<Rt>,
    /// The first sectors.
    reads: Mutex<Vec<u64>>,
}

impl Counted {
    fn new(bytes: &[u8], rt: Option<Rt>) -> Arc<Self> {
        let inner = Arc::new(MemDevice::from_bytes(bytes.to_vec()));
        Arc::new(Self { inner, rt, reads: Mutex::default() })
    }
}

impl Device for Counted {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        self.reads.lock().unwrap().push(bio.start.0);
        let inner = self.inner.clone();
        match &self.rt {
            Some(rt) => drop(rt.spawn_blocking("a slow device", move || inner.submit(bio))),
            None => inner.submit(bio),
        }
    }
}

/// Cached blocks are read from the page cache, other blocks past it, and the findings are the same.
#[test]
fn blocks_are_read_past_a_memory_that_lacks_them() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Tables and bitmaps are far apart, and all of them are read.
    let options = ["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "8192"];
    let options = [&options[..], &["-O", "^flex_bg,^metadata_csum,^uninit_bg"]].concat();
    let image = volume(folder.path(), "image", 8 << 10, &options);
    debugfs(&image, &["sif /file links_count 9", "unlink /short"]);
    let bytes = fs::read(&image).unwrap();
    let expected = list(&examine(bytes.clone()).unwrap());
    let rt = Rt::real(Default::default());
    for in_memory in [true, false] {
        let device = Counted::new(&bytes, (!in_memory).then(|| rt.clone()));
        let uncached = Counted::new(&bytes, Some(rt.clone()));
        let options = Options { uncached: Some(uncached.clone()), ..Options::default() };
        let checked = rt.block_on(check(&rt, device.clone(), options)).unwrap().unwrap();
        assert_eq!(list(&checked), expected);
        let [near, far] = [&device, &uncached].map(|device| device.reads.lock().unwrap().len());
        assert_eq!(far == 0, in_memory, "{near} reads, and {far} past the memory");
    }
}

/// The backups of a group lie next to each other: one sweep over the disk reads all of them.
#[test]
fn backups_are_read_in_one_sweep() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // In each of 64 groups, a superblock and four blocks of descriptors.
    let options = ["-t", "ext4", "-b", "1024", "-g", "256", "-N", "1024"];
    let options = [&options[..], &["-O", "^flex_bg,^sparse_super,^resize_inode,64bit"]].concat();
    let bytes = fs::read(volume(folder.path(), "image", 16 << 10, &options)).unwrap();
    let device = Counted::new(&bytes, None);
    let rt = Rt::real(Default::default());
    let checked = rt.block_on(check(&rt, device.clone(), Options::default())).unwrap().unwrap();
    assert!(checked.is_clean());
    let blocks = device.reads.lock().unwrap().iter().map(|sector| sector / 2).collect::<Vec<_>>();
    let of_backups = blocks.into_iter().filter(|block| *block > 256 && (block - 1) % 256 < 5);
    assert_eq!(of_backups.collect::<Vec<_>>(), (1..64).map(|group| 1 + 256 * group).collect::<Vec<_>>());
}

/// The blocks reserved for descriptors lie next to each other, too.
#[test]
fn reserved_descriptor_blocks_are_read_in_one_sweep() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-E", "resize=4194304"];
    let bytes = fs::read(volume(folder.path(), "image", 16 << 10, &options)).unwrap();
    let reserved = u64::from(u16::from_le_bytes([bytes[1024 + 0xce], bytes[1024 + 0xcf]]));
    assert!(reserved > 16, "{reserved} blocks");
    let device = Counted::new(&bytes, None);
    let rt = Rt::real(Default::default());
    let checked = rt.block_on(check(&rt, device.clone(), Options::default())).unwrap().unwrap();
    assert!(checked.is_clean());
    // Behind the superblock and one block of descriptors. They are compared with what they should
    // hold, and are read again as the map of an inode.
    let reads = device.reads.lock().unwrap().iter().map(|sector| sector / 2).collect::<Vec<_>>();
    let of_reserved = reads.iter().filter(|block| (3..3 + reserved).contains(*block));
    assert_eq!(of_reserved.count(), 2, "{reads:?}");
}

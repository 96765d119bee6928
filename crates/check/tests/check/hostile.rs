//! Hostile volumes: work and memory stay in proportion to the volume.

use crate::testbed::{debugfs, examine_on, examine_with, inode, list, number, u32_at, volume};
use extant_block::{Bio, Device, Limits, MemDevice};
use extant_check::{Cancel, CheckError, Checked, Code, Incomplete, Options};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: usize = 1024;

/// Counts the bytes that are read.
#[derive(Debug)]
struct Counting {
    inner: MemDevice,
    bytes: AtomicU64,
}

impl Device for Counting {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        self.bytes.fetch_add(bio.bytes, Ordering::Relaxed);
        self.inner.submit(bio);
    }
}

/// Checks a volume; also returns how many times its size was read.
fn measured(bytes: &[u8], options: Options) -> (Checked, f64) {
    let device =
        Arc::new(Counting { inner: MemDevice::from_bytes(bytes.to_vec()), bytes: AtomicU64::new(0) });
    let checked = examine_on(device.clone(), options).unwrap();
    (checked, device.bytes.load(Ordering::Relaxed) as f64 / bytes.len() as f64)
}

fn base(folder: &Path, options: &[&str]) -> Vec<u8> {
    fs::read(volume(folder, "image", 6 << 10, options)).unwrap()
}

const EXT2: &[&str] = &["-t", "ext2", "-b", "1024", "-O", "^resize_inode,^dir_index"];

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Gives a file a triple indirect block whose pointers all lead to the same blocks, 2^24 in all.
fn fold_map(bytes: &mut [u8], number: usize) {
    let blocks = u32_at(bytes, BLOCK + 4);
    let at = inode(bytes, number);
    let ends: Vec<u32> = (1..=3).map(|n| blocks - 100 - n).collect();
    for (&block, &to) in ends.iter().zip(&ends[1..]) {
        (0..BLOCK / 4).for_each(|n| put(bytes, block as usize * BLOCK + 4 * n, to));
    }
    (0..BLOCK / 4).for_each(|n| put(bytes, ends[2] as usize * BLOCK + 4 * n, blocks - 50));
    put(bytes, at + 40 + 14 * 4, ends[0]);
}

fn same_with_any_tasks(bytes: &[u8], options: &Options) -> Checked {
    let with =
        |tasks, depth| examine_with(bytes.to_vec(), Options { tasks, depth, ..options.clone() }).unwrap();
    let one = with(1, 1);
    let other = with(3, 12);
    assert_eq!(list(&other), list(&one));
    assert_eq!((&other.counts, other.incomplete), (&one.counts, one.incomplete));
    one
}

#[test]
fn maps_that_share_their_blocks_are_not_followed_without_end() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = base(folder.path(), EXT2);
    let image = folder.path().join("image");
    let numbers: Vec<usize> = ["file", "large", "dir/inner"].map(|path| number(&image, path)).into();
    for number in numbers {
        fold_map(&mut bytes, number);
    }
    let (checked, times) = measured(&bytes, Options::default());
    assert!(matches!(checked.incomplete, Some(Incomplete::Repeats { .. })), "{}", list(&checked));
    assert!(!checked.is_clean());
    assert!(times < 40.0, "the volume was read {times} times");
    same_with_any_tasks(&bytes, &Options::default());
}

#[test]
fn directories_that_share_their_blocks_are_not_listed_without_end() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = base(folder.path(), EXT2);
    let image = folder.path().join("image");
    for path in ["dir", "many"] {
        let number = number(&image, path);
        // Double indirect: 65,536 times the same block.
        let (block, at) = (u32_at(&bytes, BLOCK + 4) - 200 - 2 * number as u32, inode(&bytes, number));
        (0..BLOCK / 4).for_each(|n| put(&mut bytes, block as usize * BLOCK + 4 * n, block + 1));
        let shared = u32_at(&bytes, at + 40);
        (0..BLOCK / 4).for_each(|n| put(&mut bytes, (block as usize + 1) * BLOCK + 4 * n, shared));
        put(&mut bytes, at + 40 + 13 * 4, block);
        put(&mut bytes, at + 4, (12 + 256 + 65_536) << 10);
    }
    let (checked, times) = measured(&bytes, Options::default());
    assert!(matches!(checked.incomplete, Some(Incomplete::Repeats { .. })), "{}", list(&checked));
    assert!(times < 20.0, "the volume was read {times} times");
    same_with_any_tasks(&bytes, &Options::default());
}

#[test]
fn inode_tables_in_one_place_are_read_once() {
    if !extant_testbed::have(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext2", "-b", "1024", "-g", "256", "-N", "6000", "-O", "^resize_inode"];
    let sound = base(folder.path(), &options);
    let groups = (sound.len() / BLOCK).div_ceil(256);
    let table = u32_at(&sound, 2 * BLOCK + 8);
    // The tables overlap in the descriptors, and in all of their copies.
    let overlap = |copies: &[usize]| {
        let mut bytes = sound.clone();
        for copy in copies {
            for group in 1..groups {
                put(&mut bytes, (copy * 256 + 2) * BLOCK + group * 32 + 8, table);
            }
        }
        bytes
    };
    let all: Vec<usize> = (0..groups).collect();
    let has_backup = |group: &&usize| [0, 1, 3, 5, 7, 9].contains(*group);
    let all: Vec<usize> = all.iter().filter(has_backup).copied().collect();
    let (checked, times) = measured(&overlap(&all), Options::default());
    assert!(checked.counts[&Code::DescriptorPlace] >= groups as u64 - 1);
    assert!(times < 4.0, "the volume was read {times} times");
    // A copy of the descriptors says where the tables are, so nothing else is wrong.
    let checked = examine_with(overlap(&[0]), Options::default()).unwrap();
    let codes: Vec<_> = checked.counts.keys().copied().collect();
    assert_eq!(codes, [Code::DescriptorPlace], "{}", list(&checked));
}

#[test]
fn memory_is_limited_and_says_so() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bytes = base(folder.path(), EXT2);
    let with = |memory: u64| Options { memory_bytes: Some(memory), ..Options::default() };
    let enough = same_with_any_tasks(&bytes, &with(25 << 20));
    assert!(enough.is_clean(), "{}", list(&enough));
    // Memory that is not enough for descriptors, bits, inodes or directories.
    let mut short = 0;
    for limit_bytes in ((24 << 20)..).step_by(1200) {
        let checked = same_with_any_tasks(&bytes, &with(limit_bytes));
        // What could not be checked is not reported as damage.
        assert!(checked.findings.is_empty(), "{limit_bytes}: {}", list(&checked));
        if checked.is_clean() {
            break;
        }
        assert_eq!(checked.incomplete, Some(Incomplete::Memory { limit_bytes }));
        short += 1;
    }
    assert!(short > 5, "{short}");
}

#[test]
fn findings_are_limited_and_told_once() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    volume(folder.path(), "image", 6 << 10, EXT2);
    let image = folder.path().join("image");
    let spoiled: Vec<String> =
        (0..100).map(|n| format!("sif /many/name-with-some-length-{n:03} links_count 9")).collect();
    debugfs(&image, &spoiled.iter().map(String::as_str).collect::<Vec<_>>());
    let bytes = fs::read(&image).unwrap();
    let all = examine_with(bytes.clone(), Options::default()).unwrap();
    assert_eq!((all.findings.len(), all.counts[&Code::LinkCount]), (100, 100));
    let told = Arc::new(AtomicU64::new(0));
    let hear = told.clone();
    let options = Options {
        most_per_code: 50,
        most_findings: 30,
        on_finding: Some(Arc::new(move |_| {
            hear.fetch_add(1, Ordering::Relaxed);
        })),
        ..Options::default()
    };
    let some = examine_with(bytes.clone(), options).unwrap();
    assert_eq!(some.counts, all.counts);
    assert_eq!(some.findings, all.findings[..30]);
    assert!((30..=100).contains(&told.load(Ordering::Relaxed)));

    let cancel = Cancel::default();
    let on_finding: extant_check::OnFinding = {
        let cancel = cancel.clone();
        Arc::new(move |_| cancel.cancel())
    };
    let ended = examine_with(bytes, Options { cancel, on_finding: Some(on_finding), ..Options::default() });
    assert!(matches!(ended, Err(CheckError::Cancelled)));
}

/// Pointers of a triple indirect block to file blocks beyond 32 bits are not mistaken for those of
/// the low 32 bits.
#[test]
fn pointers_past_the_last_file_block_fill_no_hole() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    const BLOCK: usize = 65536;
    const SLOTS: u64 = BLOCK as u64 / 4;
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext2", "-b", "65536", "-O", "^resize_inode,^dir_index"];
    let image = volume(folder.path(), "image", 32 << 10, &options);
    let blocks = (fs::metadata(&image).unwrap().len() / BLOCK as u64) as u32;
    let ends: Vec<u32> = (1..=4).map(|n| blocks - n).collect();
    let size = format!("sif dir size {}", 2 * BLOCK);
    debugfs(&image, &[&size, &format!("sif dir block[TIND] {}", ends[0])]);
    let mut bytes = fs::read(&image).unwrap();
    // File block 2^32 + 1, below three levels.
    let rest = (1 << 32) + 1 - 12 - SLOTS - SLOTS * SLOTS;
    for (n, step) in [SLOTS * SLOTS, SLOTS, 1].into_iter().enumerate() {
        let slot = (rest / step % SLOTS) as usize;
        put(&mut bytes, ends[n] as usize * BLOCK + 4 * slot, ends[n + 1]);
    }
    // One unused entry takes the whole block.
    put(&mut bytes, ends[3] as usize * BLOCK + 4, 0xffff);
    let checked = examine_with(bytes, Options::default()).unwrap();
    assert!(checked.counts.contains_key(&Code::DirectoryHole), "{}", list(&checked));
}

//! Orphans left behind by a crash: e2fsck finishes them and finds nothing else.

use super::Orphan;
use crate::journal::Credits;
use crate::testbed::{Bed, check_is_silent, have_tools, make, run};
use crate::{OpenOptions, recover};
use extant_block::{FileDevice, FileOptions};
use extant_format::{InodeNumber, RoCompat};
use extant_rt::{Rng, Rt};
use std::path::Path;
use std::sync::Arc;

/// Sets the feature that marks a mounted volume with an orphan file.
async fn mark_in_use(bed: &Bed) {
    let mut handle = bed.journal.start(Credits(1)).await.unwrap();
    let mut sb = handle.superblock();
    if sb.orphan_file().is_some() {
        let bits = sb.raw().s_feature_ro_compat.get() | RoCompat::ORPHAN_PRESENT.bits();
        sb.raw_mut().s_feature_ro_compat = bits.into();
    }
}

/// Adds and removes orphans in random order, then leaves `count` of them as in a crash.
async fn leave_orphans(rt: &Rt, image: &Path, seed: u64, count: usize) -> Vec<InodeNumber> {
    let bed = Bed::open(rt, image).await;
    assert!(bed.left.is_empty());
    let mut rng = Rng::new(seed);
    let mut live = Vec::new();
    while live.len() < count {
        if let Some(node) = bed.create(&mut rng, false).await {
            let mut handle = bed.journal.start(Credits(4)).await.unwrap();
            handle.inode(&node.cell).raw.i_links_count = 0.into();
            bed.orphans.add(&mut handle, &node.cell, Orphan::Unnamed);
            drop(handle);
            live.push(node);
        }
        if live.len() > 3 && rng.below(3) == 0 {
            let node = live.swap_remove(rng.below(live.len() as u64) as usize);
            bed.delete(node).await;
        }
    }
    mark_in_use(&bed).await;
    bed.commit().await;
    assert_eq!(bed.alloc.problems().len(), 0);
    let mut numbers: Vec<_> = live.iter().map(|node| node.cell.number()).collect();
    numbers.sort_unstable();
    numbers
}

fn orphans_are_understood(args: &str, seed: u64, count: usize) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 32, args);
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let left = leave_orphans(&rt, &image, seed, count).await;
        let bed = Bed::open(&rt, &image).await;
        let mut found: Vec<_> = bed.left.iter().map(|cell| cell.number()).collect();
        found.sort_unstable();
        assert_eq!(found, left, "{args}: what was left is found");
    })
    .unwrap();
    let path = image.to_str().unwrap();
    let said = run("e2fsck", &["-fy", path]);
    let cleared = said.lines().filter(|line| line.starts_with("Clearing orphaned inode")).count();
    assert_eq!(cleared, count, "{args}: {said}");
    let expected = |line: &str| {
        // e2fsck empties the file on its own after processing its entries.
        ["Clearing orphaned", "Orphan file (", "Clear?", "Free ", "Fix", "Pass", "e2fsck"]
            .iter()
            .any(|start| line.starts_with(start))
            || line.is_empty()
            || line.contains("FILE SYSTEM WAS MODIFIED")
            || line.contains(" blocks")
    };
    let others: Vec<_> = said.lines().filter(|line| !expected(line)).collect();
    assert!(others.is_empty(), "{args}: {others:#?}");
    check_is_silent(&image, args);
}

#[test]
fn e2fsck_finishes_what_stands_on_the_orphan_list() {
    if have_tools() {
        orphans_are_understood("-t ext4 -b 1024 -N 512 -O ^orphan_file", 1, 40);
        orphans_are_understood("-t ext3 -b 1024 -N 512", 2, 40);
    }
}

#[test]
fn e2fsck_finishes_what_stands_in_the_orphan_file_and_what_did_not_fit() {
    if have_tools() {
        orphans_are_understood("-t ext4 -b 4096 -N 512 -O orphan_file", 3, 40);
        // More than fit in the file's 4 blocks.
        orphans_are_understood("-t ext4 -b 1024 -N 2048 -O orphan_file -E orphan_file_size=4", 4, 1100);
    }
}

/// As a sync would that began before the deletion and reaches the file after it.
#[test]
fn a_deleted_inode_that_is_still_held_is_not_logged_over_its_successor() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 8, "-t ext4 -b 1024 -N 512");
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let bed = Bed::open(&rt, &image).await;
        let mut rng = Rng::new(5);
        let old = loop {
            if let Some(node) = bed.create(&mut rng, false).await {
                break node;
            }
        };
        let held = old.cell.clone();
        bed.delete(old).await;
        bed.commit().await;
        bed.inodes.forget(&held);
        let new = loop {
            let node = bed.create(&mut rng, false).await;
            if let Some(node) = node.filter(|node| node.cell.number() == held.number()) {
                break node;
            }
        };
        bed.commit().await;
        drop(bed.journal.start(Credits(2)).await.unwrap().inode(&held));
        bed.commit().await;
        drop(held);
        let number = new.cell.number();
        drop(new);
        drop_unused(&bed);
        let read = bed.inodes.get(number).await.unwrap();
        assert!(read.is_live(), "inode {number} is the new one");
    })
    .unwrap();
}

fn drop_unused(bed: &Bed) {
    bed.inodes.shrink(u64::MAX);
}

#[test]
fn unused_inodes_are_dropped_when_memory_is_wanted_and_changed_ones_stay() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 8, "-t ext4 -b 1024 -N 512");
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let bed = Bed::open(&rt, &image).await;
        let charged = |bed: &Bed| bed.inodes.account().unwrap().charged_bytes();
        // Those made by mke2fs.
        for number in 1..=11 {
            bed.inodes.get(InodeNumber(number)).await.unwrap();
        }
        let changed = bed.inodes.get(InodeNumber::ROOT).await.unwrap();
        {
            let mut handle = bed.journal.start(Credits(1)).await.unwrap();
            handle.inode(&changed).raw.i_atime = 1_700_000_000.into();
        }
        drop(changed);
        assert!(charged(&bed) >= 11 * 256);
        // Twice, because an inode used since the last pass is spared once.
        (0..2).for_each(|_| drop_unused(&bed));
        assert_eq!(bed.inodes.len(), 1, "the changed one");
        bed.commit().await;
        (0..2).for_each(|_| drop_unused(&bed));
        assert_eq!((bed.inodes.len(), charged(&bed)), (0, 0));
    })
    .unwrap();
}

/// Files (named later) whose truncation was cut short by a crash.
async fn leave_truncations(rt: &Rt, image: &Path, seed: u64, count: usize) -> Vec<InodeNumber> {
    let bed = Bed::open(rt, image).await;
    let mut rng = Rng::new(seed);
    let mut left = Vec::new();
    while left.len() < count {
        let Some(node) = bed.create(&mut rng, false).await else { continue };
        let mut handle = bed.journal.start(Credits(4)).await.unwrap();
        {
            let mut inode = handle.inode(&node.cell);
            let size = rng.below(inode.size() + 1);
            inode.set_size(size);
        }
        bed.orphans.add(&mut handle, &node.cell, Orphan::Shrinking);
        left.push(node.cell.number());
    }
    mark_in_use(&bed).await;
    bed.commit().await;
    left
}

fn recovery_finishes_orphans(args: &str, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 32, args);
    let rt = Rt::real(Default::default());
    let truncated = rt
        .block_on(async {
            let truncated = leave_truncations(&rt, &image, seed, 20).await;
            let options = FileOptions { write: true, ..FileOptions::default() };
            let device = Arc::new(FileDevice::open(&image, options).unwrap());
            let done = recover(&rt, device, OpenOptions::default()).await.unwrap();
            assert_eq!((done.orphans, done.has_orphans), (20, false), "{args}: truncations");
            let left = leave_orphans(&rt, &image, seed, 30).await;
            let device = Arc::new(FileDevice::open(&image, options).unwrap());
            let done = recover(&rt, device.clone(), OpenOptions::default()).await.unwrap();
            assert_eq!((done.orphans as usize, done.has_orphans), (left.len(), false), "{args}: deletions");
            let again = recover(&rt, device, OpenOptions::default()).await.unwrap();
            assert!(again.was_clean && again.orphans == 0);
            truncated
        })
        .unwrap();
    let script = dir.path().join("script");
    let lines = truncated.iter().map(|number| format!("link <{number}> /f{number}\n"));
    std::fs::write(&script, lines.collect::<String>()).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    check_is_silent(&image, args);
}

#[test]
fn recovery_leaves_no_orphan_and_nothing_for_e2fsck() {
    if have_tools() {
        recovery_finishes_orphans("-t ext4 -b 1024 -N 512 -O ^orphan_file", 11);
        recovery_finishes_orphans("-t ext4 -b 4096 -N 512 -O orphan_file", 12);
        recovery_finishes_orphans("-t ext3 -b 1024 -N 512", 13);
    }
}

//! Logs written by handles and commits, as read by e2fsck, the kernel and our own recovery.

mod bed;
mod crash;
mod faults;

use super::{Credits, Journal};
use crate::meta::{MetaKind, PhysicalRun};
use crate::{Error, WriteOptions};
use bed::*;
use extant_block::{Bio, BioFlags, Buf, Device, IoErrorKind, Limits, Op, Sector};
use extant_format::jbd2::{JournalCompat, JournalIncompat};
use extant_format::{Incompat, STATE_VALID, Superblock, VolumeBlock};
use extant_rt::Rt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn offline() -> WriteOptions {
    WriteOptions { commit_interval: None, fixed_time: Some(1_650_000_000), ..WriteOptions::default() }
}

/// Asserts that all three recoveries arrive at the same operations and leave a clean volume.
fn assert_recovers(crashed: &[u8], operations: u32, what: &str) {
    let ours = recovered(crashed);
    assert_eq!(prefix(crashed), operations, "{what}: seen through");
    assert_eq!(prefix(&ours), operations, "{what}: ours");
    assert_clean(&ours, what);
    let theirs = fscked(crashed);
    assert_eq!(prefix(&theirs), operations, "{what}: e2fsck's");
    assert_clean(&theirs, what);
    if let Some(kernels) = mounted(crashed) {
        assert_eq!(prefix(&kernels), operations, "{what}: the kernel's");
        assert_clean(&kernels, what);
    }
}

#[test]
fn every_format_of_the_log_is_understood_by_all() {
    let none = JournalIncompat::empty();
    let cases = [
        ("-t ext4 -b 1024", none, JournalCompat::empty()),
        ("-t ext4 -b 4096 -O ^metadata_csum,^64bit", none, JournalCompat::empty()),
        ("-t ext4 -b 1024 -O ^metadata_csum,64bit", none, JournalCompat::empty()),
        ("-t ext4 -b 1024 -O ^metadata_csum,^64bit", none, JournalCompat::CHECKSUM),
        ("-t ext4 -b 1024 -O ^metadata_csum,64bit", none, JournalCompat::CHECKSUM),
        ("-t ext4 -b 1024 -O ^metadata_csum,^64bit", JournalIncompat::CHECKSUM_V2, JournalCompat::empty()),
        ("-t ext4 -b 1024 -O metadata_csum,64bit", JournalIncompat::CHECKSUM_V2, JournalCompat::empty()),
        ("-t ext4 -b 1024 -O metadata_csum,^64bit", JournalIncompat::CHECKSUM_V3, JournalCompat::empty()),
        ("-t ext3 -b 1024", none, JournalCompat::empty()),
        ("-t ext4 -b 2048 -O metadata_csum,fast_commit", none, JournalCompat::empty()),
    ];
    for (mke2fs, incompat, compat) in cases {
        let what = format!("{mke2fs}, {incompat} {compat}");
        let mut image = image(mke2fs, 16);
        if !incompat.is_empty() || !compat.is_empty() {
            journal_features(&mut image, compat, incompat);
        }
        let mut bed = Bed::new(image.clone(), offline());
        for _ in 0..5 {
            bed.ops(37);
            bed.sync();
        }
        let operations = bed.done;
        bed.ops(10);
        assert_recovers(&bed.crash(), operations, &what);
        let mut bed = Bed::new(image, offline());
        bed.ops(200);
        let closed = bed.close();
        assert_eq!(prefix(&closed), 200);
        assert_clean(&closed, &what);
        let sb = Superblock::parse(&closed[1024..]).unwrap();
        assert!(!sb.incompat().contains(Incompat::RECOVER));
        assert!(sb.raw().s_state.get() & STATE_VALID != 0);
    }
}

#[test]
fn the_log_wraps_and_its_tail_follows() {
    for blocks in ["-b 1024", "-b 4096"] {
        let mut bed = Bed::new(image(&format!("-t ext4 {blocks} -J size=4"), 32), offline());
        for round in 0..1500 {
            bed.ops(1 + round % 7);
            bed.sync();
        }
        let operations = bed.done;
        let homes = bed.record.log().changes.iter().filter(|change| change.flags.is_empty()).count();
        println!("{homes} other writes");
        assert_recovers(&bed.crash(), operations, blocks);
    }
}

#[test]
fn a_log_written_by_turns_with_others_goes_on() {
    let mut image = image("-t ext4 -b 1024 -J size=1", 16);
    for round in 0..4 {
        let mut bed = Bed::new(image, offline());
        bed.ops(50);
        bed.sync();
        bed.ops(50);
        image = if round % 2 == 0 { bed.close() } else { fscked(&bed.crash()) };
        assert_clean(&image, "after a turn");
        if let Some(kernels) = mounted(&image) {
            image = kernels;
        }
    }
    assert_eq!(prefix(&image), 100);
}

/// A data block of a file, used as if it were metadata: e2fsck does not care about its contents.
fn victim(bed: &Bed) -> VolumeBlock {
    let (_dir, path) = file(&bed.base);
    let listed = sh(&format!("debugfs -R 'blocks /file000' {}", path.display())).unwrap();
    let number = listed.split_whitespace().rev().find_map(|word| word.parse().ok());
    VolumeBlock(number.expect("the file has blocks"))
}

fn commit_block(bed: &Bed, at: VolumeBlock, fill: Option<u8>) {
    let journal = bed.journal();
    let mut handle = bed.rt.block_on(journal.start(Credits(2))).unwrap().unwrap();
    match fill {
        Some(byte) => {
            let block = handle.create(at, MetaKind::Raw);
            handle.edit(&block).fill(byte);
        }
        // The allocator does not know about this block.
        None => handle.revoke(PhysicalRun::new(at, 1)),
    }
}

fn first_byte(image: &[u8], at: VolumeBlock, block: usize) -> u8 {
    image[at.0 as usize * block]
}

/// Runs revoke cases: `None` frees the block, `Some` journals it. Then writes plain data if `data`
/// is set.
fn revoked(steps: &[&[Option<u8>]], data: Option<u8>) -> u8 {
    let bed = Bed::new(image("-t ext4 -b 1024", 16), offline());
    let at = victim(&bed);
    for transaction in steps {
        for &step in *transaction {
            commit_block(&bed, at, step);
        }
        bed.sync();
    }
    if let Some(byte) = data {
        let device = bed.record.clone();
        let write = extant_block::write(&*device, Sector(at.0 * 2), Buf::from_slice(&[byte; 1024]));
        bed.rt.block_on(write).unwrap().unwrap();
    }
    let crashed = bed.crash();
    let ours = first_byte(&recovered(&crashed), at, 1024);
    assert_eq!(ours, first_byte(&fscked(&crashed), at, 1024), "ours and e2fsck's");
    if let Some(kernels) = mounted(&crashed) {
        assert_eq!(ours, first_byte(&kernels, at, 1024), "ours and the kernel's");
    }
    ours
}

#[test]
fn a_revoke_voids_older_copies_and_no_newer_ones() {
    assert_eq!(revoked(&[&[Some(b'1')]], Some(b'd')), b'1', "without a revoke the copy wins");
    assert_eq!(revoked(&[&[Some(b'1')], &[None]], Some(b'd')), b'd', "freed, then data");
    assert_eq!(revoked(&[&[Some(b'1')], &[None], &[Some(b'3')]], None), b'3', "freed, then metadata again");
    assert_eq!(revoked(&[&[Some(b'1')], &[None, Some(b'2')]], None), b'2', "both in one transaction");
    assert_eq!(revoked(&[&[Some(b'1')], &[Some(b'2'), None]], Some(b'd')), b'd', "changed, then freed");
    assert_eq!(revoked(&[&[Some(b'1')], &[None], &[Some(b'3')], &[None]], Some(b'd')), b'd', "freed twice");
}

#[test]
fn a_block_that_looks_like_the_journals_is_escaped() {
    let bed = Bed::new(image("-t ext4 -b 1024", 16), offline());
    let at = victim(&bed);
    {
        let mut handle = bed.rt.block_on(bed.journal().start(Credits(1))).unwrap().unwrap();
        let block = handle.create(at, MetaKind::Raw);
        handle.edit(&block)[..5].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98, 7]);
    }
    bed.sync();
    let crashed = bed.crash();
    for image in [recovered(&crashed), fscked(&crashed)] {
        let from = at.0 as usize * 1024;
        assert_eq!(image[from..from + 5], [0xc0, 0x3b, 0x39, 0x98, 7]);
    }
}

#[test]
fn without_a_journal_the_dirty_flag_is_honest() {
    let image = image("-t ext2 -b 1024", 16);
    let mut bed = Bed::new(image, offline());
    bed.ops(100);
    bed.sync();
    let live = contents(&bed.rt, &*bed.record);
    assert_eq!(prefix(&live), 100, "a commit writes home");
    assert_eq!(Superblock::parse(&live[1024..]).unwrap().raw().s_state.get() & STATE_VALID, 0);
    let closed = bed.close();
    assert_ne!(Superblock::parse(&closed[1024..]).unwrap().raw().s_state.get() & STATE_VALID, 0);
    assert_clean(&closed, "ext2");
}

#[test]
fn the_same_edits_give_the_same_bytes() {
    let image = image("-t ext4 -b 4096", 16);
    let edited = || {
        let mut bed = Bed::new(image.clone(), offline());
        bed.ops(300);
        bed.close()
    };
    assert!(edited() == edited());
}

#[test]
fn opening_for_writing_refuses_by_name() {
    let open = |image: &[u8]| {
        let rt = rt();
        let device = memory(&rt, image);
        let cache =
            extant_cache::PageCache::new(&rt, extant_cache::CacheConfig::with_budget(1 << 20)).unwrap();
        let disk = cache.attach(device);
        rt.block_on(crate::Volume::open_writable(&rt, &disk, offline())).unwrap()
    };
    let refused_image = |image: &[u8]| match open(image).expect_err("it is refused") {
        Error::Unsupported { feature, .. } => feature,
        other => panic!("{other}"),
    };
    let refused = |mke2fs: &str| refused_image(&image(mke2fs, 16));
    assert!(refused("-t ext4 -O ea_inode,^has_journal").starts_with("ea_inode"));
    let tuned = |mke2fs: &str, mode: &str| {
        let (_dir, path) = file(&image(mke2fs, 16));
        let tuned = std::process::Command::new("tune2fs").args(["-o", mode]).arg(&path).output().unwrap();
        assert!(tuned.status.success(), "{tuned:?}");
        std::fs::read(&path).unwrap()
    };
    assert!(open(&tuned("-t ext4", "journal_data")).is_ok());
    assert!(open(&tuned("-t ext4", "journal_data_ordered")).is_ok());
    assert!(open(&tuned("-t ext4", "journal_data_writeback")).is_ok());
    assert!(open(&tuned("-t ext2", "journal_data")).is_ok(), "without a journal it means nothing");
}

#[test]
fn a_second_open_for_writing_is_refused_until_the_first_is_closed() {
    let (_dir, path) = file(&image("-t ext4", 16));
    let rt = rt();
    let cache = extant_cache::PageCache::new(&rt, extant_cache::CacheConfig::with_budget(1 << 20)).unwrap();
    let open = || {
        let options = extant_block::FileOptions { write: true, direct: false };
        let disk = cache.attach(Arc::new(extant_block::FileDevice::open(&path, options).unwrap()));
        rt.block_on(crate::Volume::open_writable(&rt, &disk, offline())).unwrap()
    };
    let first = open().unwrap();
    assert!(matches!(open().unwrap_err(), Error::Busy(_)));
    rt.block_on(first.close()).unwrap().unwrap();
    rt.block_on(open().unwrap().close()).unwrap().unwrap();
}

/// A device whose writes fail after the first `left`.
#[derive(Debug)]
struct Failing {
    inner: Arc<dyn Device>,
    left: AtomicU64,
    durable_only: bool,
}

impl Device for Failing {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
    fn submit(&self, bio: Bio) {
        let counts = bio.op == Op::Flush || bio.flags.contains(BioFlags::FUA);
        if bio.op != Op::Read
            && (counts || !self.durable_only)
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_err()
        {
            return bio.end_as("failing", Err(IoErrorKind::Os(5)));
        }
        self.inner.submit(bio);
    }
}

#[test]
fn a_write_that_fails_ends_writing_and_loses_nothing_that_was_synced() {
    let image = image("-t ext4 -b 1024 -J size=1", 16);
    for durable_only in [false, true] {
        for left in [1, 2, 3, 5, 9, 40] {
            let rt = rt();
            let inner = memory(&rt, &image);
            let device = Arc::new(Failing { inner: inner.clone(), left: left.into(), durable_only });
            let mut bed = Bed::over(&rt, image.clone(), device, offline());
            let mut synced = 0;
            let failure = loop {
                bed.ops(3);
                match bed.rt.block_on(bed.volume.sync()).unwrap() {
                    Ok(()) => synced = bed.done,
                    Err(error) => break error,
                }
            };
            assert!(matches!(failure, Error::Io(_)), "{failure}");
            let refused = bed.rt.block_on(bed.journal().start(Credits(1))).unwrap().err().unwrap();
            assert!(matches!(refused, Error::ReadOnly), "{refused}");
            let written = bed.record.position();
            assert!(matches!(bed.rt.block_on(bed.volume.clone().close()).unwrap(), Err(Error::Io(_))));
            assert_eq!(bed.record.position(), written, "nothing is written after a failure");
            let shown = prefix(&recovered(&contents(&rt, &*inner)));
            assert!(shown >= synced, "{shown} operations of {synced} synced ones, after {left} writes");
        }
    }
}

#[test]
fn syncs_that_come_together_share_a_commit() {
    let mut bed = Bed::new(image("-t ext4 -b 4096", 32), WriteOptions::default());
    bed.ops(1);
    bed.sync();
    let flushes = |bed: &Bed| {
        let log = bed.record.log();
        log.changes.iter().filter(|c| c.op == Op::Flush || c.flags.contains(BioFlags::PREFLUSH)).count()
    };
    let before = flushes(&bed);
    bed.ops(16);
    let syncs: Vec<_> = (0..16)
        .map(|_| {
            let volume = bed.volume.clone();
            bed.rt.spawn("sync", extant_rt::Class::Normal, async move { volume.sync().await })
        })
        .collect();
    for sync in syncs {
        bed.rt.block_on(sync).unwrap().unwrap().unwrap();
    }
    // One commit. A sync that comes after it has nothing to commit and only needs one flush.
    let commits = bed.record.log().changes.iter().filter(|c| c.flags.contains(BioFlags::FUA)).count();
    println!("{} flushes, {commits} durable writes", flushes(&bed) - before);
    assert!(commits <= 4, "{commits} durable writes");
    assert_eq!(prefix(&bed.crash()), 17);
}

#[test]
fn an_operation_that_panics_ends_writing() {
    let bed = Bed::new(image("-t ext4 -b 4096", 16), offline());
    let journal = bed.journal().clone();
    let operation = || {
        let mut handle = bed.rt.block_on(journal.start(Credits(1))).unwrap().unwrap();
        drop(handle.superblock());
        panic!("on purpose");
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(operation)).is_err());
    assert!(matches!(journal.failure(), Some(Error::Defect)));
    let committed = bed.rt.block_on(journal.commit(journal.running())).unwrap();
    assert!(matches!(committed, Err(Error::Defect)), "{committed:?}");
    assert!(bed.rt.block_on(journal.start(Credits(1))).unwrap().is_err());
}

#[test]
fn an_operation_of_too_few_credits_ends_writing_and_keeps_no_commit_waiting() {
    let bed = Bed::new(image("-t ext4 -b 4096", 16), offline());
    let journal = bed.journal().clone();
    let operation = || {
        let mut handle = bed.rt.block_on(journal.start(Credits(0))).unwrap().unwrap();
        drop(handle.superblock());
    };
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(operation));
    assert_eq!(ended.is_err(), cfg!(debug_assertions));
    let committed = bed.rt.block_on(journal.commit(journal.running())).unwrap();
    assert!(matches!(committed, Err(Error::Defect)), "{committed:?}");
}

#[test]
fn an_operation_of_a_thread_that_unwinds_already_is_a_whole_one() {
    struct Stamp<'b>(&'b Journal, &'b Rt);
    impl Drop for Stamp<'_> {
        fn drop(&mut self) {
            let mut handle = self.1.block_on(self.0.start(Credits(1))).unwrap().unwrap();
            drop(handle.superblock());
        }
    }
    let bed = Bed::new(image("-t ext4 -b 4096", 16), offline());
    let journal = bed.journal().clone();
    let unwinds = || {
        let _stamp = Stamp(&journal, &bed.rt);
        panic!("a user's");
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(unwinds)).is_err());
    bed.rt.block_on(journal.commit(journal.running())).unwrap().unwrap();
}

//! Defragmentation of a file: at every moment the same bytes, finally in fewer runs.

use super::crash::{Volatile, image_after};
use super::durable::{B, PLAIN, with_gate};
use super::*;
use crate::volume::WriteOptions;
use extant_block::{IoErrorKind, Limits, MemDevice, Op, Record};
use extant_rt::Nanos;
use extant_sim::{Machine, Preemption, Sim};
use std::sync::atomic::Ordering;

const BLOCKS: usize = 90;
const HOLE: std::ops::Range<usize> = 50..60;

/// Writes a file's blocks in reverse order, so that each is placed before its successor.
async fn scatter(file: &OpenFile, contents: &[u8], block: usize) {
    for n in (0..BLOCKS).rev().filter(|n| !HOLE.contains(n)) {
        let bytes = n * block..(n + 1) * block;
        file.write(bytes.start as u64, &contents[bytes]).await.unwrap();
        file.sync().await.unwrap();
    }
}

fn judge(name: &str, args: &str, block: usize, states: u64) {
    let seed = std::env::var("EXTANT_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("{name}: EXTANT_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::labelled(seed, name);
    let mut contents = bytes(&mut rng, BLOCKS * block);
    contents[HOLE.start * block..HOLE.end * block].fill(0);
    let image = make(dir.path(), 12, args, &[Vec::new(), vec![7; 300]]);
    let fresh = std::fs::read(&image).unwrap();
    let sim = Sim::new(Machine::free(2, Preemption::None), seed);
    let rt = sim.rt().clone();
    let memory = Arc::new(MemDevice::from_bytes(fresh.clone()));
    let limits = Limits { volatile_cache: true, ..memory.limits().clone() };
    let record = Arc::new(Record::new(Arc::new(Volatile { inner: memory.clone(), limits })));
    let (number, began) = rt
        .block_on(async {
            let numbers = numbers(&image, 2).await;
            let cache = PageCache::new(&rt, CacheConfig::with_budget(4 << 20)).unwrap();
            let disk = cache.attach(record.clone());
            let options = WriteOptions { fixed_time: Some(NOW), ..WriteOptions::default() };
            let volume = Volume::open_writable(&rt, &disk, options).await.unwrap();
            let file = volume.open_for_writing(numbers[0], FileOptions::default()).await.unwrap();
            scatter(&file, &contents, block).await;
            let behind = (BLOCKS * block) as u64;
            file.fallocate(Fallocate::Allocate { keep_size: true }, behind, 7 * block as u64).await.unwrap();
            file.sync().await.unwrap();
            let free = volume.space().blocks_free;
            let began = record.position();
            let done = file.defragment().await.unwrap();
            assert!(done.runs_before > 40 && done.runs_after <= 4, "{name}: {done:?}");
            let mut found = vec![1; contents.len()];
            assert_eq!(file.read(0, &mut found).await.unwrap(), contents.len());
            assert!(found == contents, "{name}: the same bytes");
            // The blocks freed may allow a better layout; repeat until none is found.
            let mut last = done;
            while last.moved_bytes > 0 {
                let again = file.defragment().await.unwrap();
                assert_eq!(again.runs_before, last.runs_after, "{name}");
                assert!(again.runs_after < again.runs_before || again.moved_bytes == 0, "{name}: {again:?}");
                last = again;
            }
            file.sync().await.unwrap();
            assert!(volume.space().blocks_free >= free, "{name}: the old blocks are free");
            drop(file);
            volume.close().await.unwrap();
            (numbers[0], began)
        })
        .unwrap();
    let end = dir.path().join("end");
    std::fs::write(&end, memory.to_bytes()).unwrap();
    check_is_silent(&end, name);
    assert!(dumped(&end, number) == contents, "{name}: at the end");
    let log = record.log();
    for state in 0..states {
        let position = began + rng.below((log.events.len() - began) as u64 + 1) as usize;
        let what = format!("{name}, seed {seed}, state {state}, position {position}");
        let crashed = image_after(&fresh, &log, position, &mut rng);
        if state % 20 == 0 {
            let copy = dir.path().join("crashed");
            std::fs::write(&copy, &crashed).unwrap();
            run("e2fsck", &["-fy", copy.to_str().unwrap()]);
            check_is_silent(&copy, &what);
            assert!(dumped(&copy, number) == contents, "{what}, e2fsck");
        }
        rt.block_on(async {
            let volume =
                Volume::open(Arc::new(MemDevice::from_bytes(crashed)), Default::default()).await.unwrap();
            let inode = volume.inode(number).await.unwrap();
            assert_eq!(inode.size(), contents.len() as u64, "{what}");
            let mut found = vec![0; contents.len()];
            volume.open_file(inode).await.unwrap().read_at(0, &mut found).await.unwrap();
            assert!(found == contents, "{what}: all of the file");
        })
        .unwrap();
    }
}

#[test]
fn a_file_is_whole_at_every_moment_of_its_defragmentation() {
    if !have_tools() {
        return;
    }
    judge("ext4 4k", "-t ext4 -b 4096 -N 64", 4096, 60);
    judge("ext4 1k", "-t ext4 -b 1024 -N 64", 1024, 60);
}

#[test]
fn maps_of_pointers_are_refused_and_a_full_volume_leaves_the_file_as_it_is() {
    if !have_tools() {
        return;
    }
    for (args, refused) in [("-t ext3 -b 1024 -N 64", true), ("-t ext4 -b 1024 -O ^has_journal -N 64", false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), 8, args, &[Vec::new(), Vec::new()]);
        let rt = Rt::real(Default::default());
        rt.block_on(async {
            let numbers = numbers(&image, 2).await;
            let bed = Bed::open(&rt, device(&image), 8 << 20).await;
            let (_, file) = bed.file(numbers[0], FileOptions::default()).await;
            let contents = vec![3; BLOCKS * 1024];
            scatter(&file, &contents, 1024).await;
            let (_, other) = bed.file(numbers[1], FileOptions::default()).await;
            // Until fewer blocks are free than the file has.
            let piece = 16 << 10;
            let mut at = if refused { u64::MAX } else { 0 };
            while at < u64::MAX {
                match other.fallocate(Fallocate::Allocate { keep_size: true }, at, piece).await {
                    Ok(()) => at += piece,
                    Err(Error::NoSpace) => at = u64::MAX,
                    Err(error) => panic!("{args}: {error}"),
                }
            }
            match file.defragment().await {
                Err(Error::NotSupported(_)) => assert!(refused),
                Err(Error::NoSpace) => assert!(!refused),
                other => panic!("{args}: {other:?}"),
            }
            drop((file, other));
            bed.close().await;
        })
        .unwrap();
        check_is_silent(&image, args);
    }
}

#[test]
fn a_failed_copy_keeps_its_place_until_the_others_have_ended() {
    const HALF: u64 = 384;
    let found = with_gate(
        PLAIN,
        vec![],
        |_| vec![],
        async |rt, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            // Two runs of two requests each.
            for (at, mark) in [(HALF, 2), (0, 1)] {
                file.write(at * B, &vec![mark; (HALF * B) as usize]).await.unwrap();
                file.sync().await.unwrap();
            }
            let free = bed.writer.alloc.statfs().free;
            gate.holds_reads.store(true, Ordering::Relaxed);
            gate.holds.store(true, Ordering::Relaxed);
            let mut defragment = Box::pin(file.defragment());
            let mut goes_on = async || {
                let ended = poll_once(&mut defragment).await;
                rt.sleep(Nanos::from_millis(1)).await;
                !ended
            };
            assert!(goes_on().await && goes_on().await);
            let mut reads = std::mem::take(&mut *gate.held.lock());
            reads.sort_by_key(|bio| bio.start.0);
            assert_eq!(
                reads.iter().map(|bio| (bio.op, bio.bytes)).collect::<Vec<_>>(),
                [(Op::Read, 1 << 20), (Op::Read, 1 << 19)]
            );
            gate.holds_reads.store(false, Ordering::Relaxed);
            let bad = reads.pop().unwrap();
            reads.into_iter().for_each(|bio| gate.submit(bio));
            assert!(goes_on().await && goes_on().await);
            assert_eq!(gate.held.lock().iter().map(|bio| bio.op).collect::<Vec<_>>(), [Op::Write]);
            bad.end_as("gate", Err(IoErrorKind::Os(5)));
            for _ in 0..100 {
                assert!(goes_on().await, "a copy is in flight");
                assert!(
                    bed.writer.alloc.statfs().free < free,
                    "the blocks that the copy writes to stay allocated"
                );
            }
            gate.release();
            assert!(matches!(defragment.await, Err(Error::Io(_))));
            assert_eq!(bed.writer.alloc.statfs().free, free);
            drop(file);
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after a copy that failed");
    let expected = [1, 2].map(|mark| vec![mark; (HALF * B) as usize]).concat();
    assert!(dumped(&image, number) == expected);
}

//! Tests worlds that end before the cache does: its files, devices and memory must still be
//! released.

use crate::common::{Gate, ends, one_file, run, sleep, virtual_world, world};
use crate::seam::toy;
use extant_block::{MemDevice, Sector};
use extant_cache::control::DeviceIndex;
use extant_cache::{
    Answer, Backing, ByteRange, CacheConfig, CacheError, DirtyRun, FlatFile, PAGE_BYTES, PageCache, Placed,
    ReadExtent, ReadFrom, WriteExtent, WrittenRun,
};
use extant_rt::{Nanos, Rt};
use extant_sim::Jitter;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

const PAGE: u64 = PAGE_BYTES as u64;

/// A file in one run on its device; each completion of a write takes a while.
#[derive(Debug)]
struct Slow(Rt);

impl Backing for Slow {
    fn block_bytes(&self) -> u32 {
        4096
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        Answer::ok(ReadExtent { from: ReadFrom::Hole, bytes: range.len() })
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        let place = |piece: &ByteRange| WriteExtent::new(*piece, Sector(piece.start / Sector::BYTES));
        let extents = run.pieces.iter().map(place).collect();
        Answer::ok(Placed { extents, changes_map: true })
    }

    fn finish_write<'a>(&'a self, _run: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::later(async {
            self.0.sleep(Nanos::from_micros(40)).await;
            Ok(())
        })
    }
}

/// Weak references to a file and its device, from a world that ended `turns` turns after two tasks
/// began to write to the file.
fn ended(turns: u64, sync: bool, handles_first: bool) -> (Weak<Slow>, Weak<MemDevice>) {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let mem = Arc::new(MemDevice::new(1 << 20));
    let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).unwrap();
    let disk = cache.attach(Arc::new(Jitter::new(&sim, mem.clone(), 0)));
    let slow = Arc::new(Slow(rt.clone()));
    let left = (Arc::downgrade(&slow), Arc::downgrade(&mem));
    drop(mem);
    let mapping = disk.mapping(slow, 1, 0);
    for n in 0..2 {
        let file = mapping.open();
        drop(rt.spawn("writer", Default::default(), async move {
            loop {
                for page in 0..8 {
                    file.write((n * 8 + page) * PAGE, &[1; PAGE_BYTES]).await.unwrap();
                }
                if !sync {
                    return;
                }
                file.sync().await.unwrap();
            }
        }));
    }
    if turns > 0 {
        run(&rt, rt.sleep(Nanos::from_micros(turns * 15)));
    }
    if handles_first {
        drop((mapping, disk, cache));
        drop((rt, sim));
    } else {
        drop((rt, sim));
        drop((mapping, disk, cache));
    }
    left
}

#[test]
fn a_world_that_ends_during_write_back_keeps_no_file_and_no_device() {
    for turns in 0..100 {
        for (sync, handles_first) in [(true, true), (true, false), (false, true), (false, false)] {
            let (file, device) = ended(turns, sync, handles_first);
            let kept = (file.strong_count(), device.strong_count());
            assert_eq!(kept, (0, 0), "turn {turns}, synced: {sync}, handles first: {handles_first}");
        }
    }
}

#[test]
fn a_flusher_that_never_ran_keeps_no_file() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    // The flusher is dropped before its first step.
    let (cache, disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(1 << 20), 1 << 20, 0);
    mapping.open().try_write(0, &[1; PAGE_BYTES]).unwrap();
    assert_eq!(mapping.dirty_pages(), 1);
    let left = Arc::downgrade(&gate);
    drop((cache, disk, gate, mapping));
    drop((rt, sim));
    assert_eq!(left.strong_count(), 0);
}

#[test]
fn a_run_that_ends_after_its_world_is_an_error_of_its_file() {
    let rt = world();
    let (cache, disk, gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    let file = mapping.open();
    run(&rt, file.write(0, &[7; 100])).unwrap();
    gate.hold();
    let background = mapping.clone();
    drop(rt.spawn("flush", Default::default(), async move { background.write_back(..).await }));
    gate.wait_held(1);
    assert!(!rt.shutdown(Nanos::ZERO).in_flight.is_empty(), "the flush is in flight");
    gate.release();
    assert_eq!(toy.finished.lock().len(), 0, "no task is left to tell the backing");
    assert_eq!(cache.usage().writeback, 0, "the run has ended");
    match run(&rt, file.sync()) {
        Err(CacheError::ShutDown) => {}
        other => panic!("{other:?}"),
    }
    let left: (Weak<Gate>, _) = (Arc::downgrade(&gate), Arc::downgrade(&toy));
    drop((cache, disk, gate, toy, mapping, file, rt));
    assert_eq!((left.0.strong_count(), left.1.strong_count()), (0, 0));
}

#[test]
fn a_writer_that_outlives_the_cache_is_told_so_at_the_limit() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (cache, _disk, _gate, mapping) = one_file(&rt, CacheConfig::with_budget(1 << 20), 4 << 20, 0);
    drop(cache);
    sleep(&rt, 10);
    let stopped = run(&rt, mapping.open().write(0, &vec![1; 2 << 20])).unwrap_err();
    assert!(matches!(stopped.error, CacheError::ShutDown), "{stopped:?}");
    assert!((1..2 << 20).contains(&stopped.done_bytes));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "this needs a thread outside every world")]
fn writers_that_outlive_their_world_hear_so_at_the_limit() {
    let rt = world();
    let (_cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(1 << 20), 4 << 20, 0);
    gate.hold();
    let write = || {
        let (rt, file) = (rt.clone(), mapping.open());
        move || match rt.block_on(file.write(0, &vec![1; 2 << 20])) {
            Ok(result) => result.unwrap_err().error,
            Err(ended) => CacheError::from(ended),
        }
    };
    // One writer waits for room when the world ends; one begins afterwards.
    let (waiting, later) = (write(), write());
    let waiting = std::thread::spawn(move || ends(waiting));
    gate.wait_held(1);
    assert_eq!(rt.shutdown(Nanos::ZERO).in_flight.len(), 1, "the flusher");
    for error in [waiting.join().unwrap(), ends(later)] {
        assert!(matches!(error, CacheError::ShutDown), "{error:?}");
    }
}

#[test]
fn a_device_is_let_go_after_its_last_file_and_its_last_write() {
    let sim = virtual_world();
    let rt = sim.rt();
    let cache = PageCache::new(rt, CacheConfig::with_budget(1 << 20)).unwrap();
    for round in 1..4 {
        let gate = Gate::volatile(1 << 20);
        let disk = cache.attach(gate.clone());
        assert_eq!(disk.index(), DeviceIndex(0), "the number of the one before is vacant");
        let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0);
        drop(disk);
        sleep(rt, 60_000);
        run(rt, mapping.open().write(0, &[round; 8192])).unwrap();
        drop(mapping);
        assert!(Arc::strong_count(&gate) > 1, "the file is dirty");
        sleep(rt, 60_000);
        assert_eq!(Arc::strong_count(&gate), 1, "round {round}");
        assert!(gate.mem.to_bytes()[..8192].iter().all(|&byte| byte == round));
        assert_eq!(gate.flushes.load(Ordering::SeqCst), 1, "the write is durable");
    }
    cache.audit();
    run(rt, cache.close()).unwrap();
}

#[test]
fn a_device_with_an_error_that_was_not_told_is_kept_until_it_is() {
    let sim = virtual_world();
    let rt = sim.rt();
    let cache = PageCache::new(rt, CacheConfig::with_budget(1 << 20)).unwrap();
    let gate = Gate::volatile(1 << 20);
    gate.fail_flushes.store(1, Ordering::SeqCst);
    let disk = cache.attach(gate.clone());
    let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0);
    run(rt, mapping.open().write(0, &[1; 4096])).unwrap();
    drop((mapping, disk));
    sleep(rt, 60_000);
    assert!(Arc::strong_count(&gate) > 1);
    assert!(run(rt, cache.close()).is_err());
    sleep(rt, 60_000);
    assert_eq!(Arc::strong_count(&gate), 1);
}

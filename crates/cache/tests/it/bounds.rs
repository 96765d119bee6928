//! Tests of the bounds that a cache keeps: its device's limits, its own budget, and the errors it
//! must report.

use crate::common::{Gate, one_file, run, sleep, virtual_world, world};
use extant_block::{Bio, Device, Limits, MemDevice, Sector};
use extant_cache::blocks::Blocks;
use extant_cache::{CacheConfig, CacheError, FlatFile, PAGE_BYTES, PageCache};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: u64 = PAGE_BYTES as u64;
const MIB: u64 = 1 << 20;

/// A disk that takes four segments per bio.
#[derive(Debug)]
struct Narrow {
    memory: MemDevice,
    limits: Limits,
    bios: AtomicUsize,
}

impl Narrow {
    fn new() -> Arc<Self> {
        let memory = MemDevice::new(1 << 20);
        let limits = Limits { max_segments: 4, ..memory.limits().clone() };
        Arc::new(Self { memory, limits, bios: AtomicUsize::new(0) })
    }
}

impl Device for Narrow {
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn submit(&self, bio: Bio) {
        assert!(bio.segments.len() <= 4, "{} segments", bio.segments.len());
        self.bios.fetch_add(1, Ordering::SeqCst);
        self.memory.submit(bio);
    }
}

#[test]
fn reads_have_no_more_segments_than_the_device_takes() {
    let rt = world();
    let device = Narrow::new();
    let config = CacheConfig { read_ahead_bytes: 0, bio_bytes: MIB, ..CacheConfig::with_budget(64 * PAGE) };
    let cache = PageCache::new(&rt, config).unwrap();
    let disk = cache.attach(device.clone());
    let mapping = |inode| disk.mapping(Arc::new(FlatFile::new(Sector(0), MIB)), inode, MIB);
    let (one, two, three) = (mapping(1), mapping(2), mapping(3));
    let mut page = [0; PAGE_BYTES];
    for at in (0..32).rev() {
        run(&rt, one.open().read(at * PAGE, &mut page)).unwrap();
        run(&rt, two.open().read(at * PAGE, &mut page)).unwrap();
    }
    // Frees every other frame.
    run(&rt, one.forget()).unwrap();
    device.bios.store(0, Ordering::SeqCst);
    let mut bytes = vec![0; 16 * PAGE_BYTES];
    run(&rt, three.open().read(0, &mut bytes)).unwrap();
    assert!(device.bios.load(Ordering::SeqCst) >= 4);
    run(&rt, cache.close()).unwrap();
}

#[test]
fn blocks_are_read_with_no_more_segments_than_the_device_takes() {
    let rt = world();
    let device = Narrow::new();
    let blocks = Blocks::new(device.clone(), 1024, 1 << 20);
    run(&rt, blocks.read(5)).unwrap();
    assert_eq!(device.bios.load(Ordering::SeqCst), 16, "64 KiB around the block");
    assert!(blocks.get(0).is_some() && blocks.get(63).is_some());
}

#[test]
fn a_smaller_budget_bounds_what_is_dirty() {
    let sim = virtual_world();
    let rt = sim.rt();
    let (cache, _disk, gate, mapping) = one_file(rt, CacheConfig::with_budget(4 * MIB), 4 << 20, 0);
    assert_eq!(cache.set_budget(128 * PAGE), 0);
    gate.hold();
    let file = mapping.open();
    let written = (0..200).take_while(|at| file.try_write(at * PAGE, &[1; PAGE_BYTES]).is_ok()).count();
    assert!((1..=96).contains(&written), "{written} pages of 128");
    gate.release();
    run(rt, cache.close()).unwrap();
}

#[test]
fn a_cache_that_is_dropped_flushes_what_it_writes_back() {
    let sim = virtual_world();
    let rt = sim.rt();
    let cache = PageCache::new(rt, CacheConfig::with_budget(MIB)).unwrap();
    let gate = Gate::volatile(1 << 20);
    let disk = cache.attach(gate.clone());
    let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), MIB)), 1, 0);
    run(rt, mapping.open().write(0, &[1; PAGE_BYTES])).unwrap();
    gate.fail_flushes.store(1, Ordering::SeqCst);
    drop((cache, disk, mapping));
    sleep(rt, 60_000);
    assert_eq!(gate.writes.load(Ordering::SeqCst), 1);
    assert_eq!(gate.fail_flushes.load(Ordering::SeqCst), 0, "there was a flush");
}

#[test]
fn a_flush_that_fails_beside_a_direct_write_is_told_to_the_files_openers() {
    let sim = virtual_world();
    let rt = sim.rt();
    let cache = PageCache::new(rt, CacheConfig::with_budget(MIB)).unwrap();
    let gate = Gate::volatile(1 << 20);
    let disk = cache.attach(gate.clone());
    let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), MIB)), 1, MIB);
    let file = mapping.open();
    let writing = mapping.writes_directly();
    gate.fail_flushes.store(1, Ordering::SeqCst);
    run(rt, disk.flush()).unwrap_err();
    writing.has_ended();
    assert!(matches!(run(rt, file.sync()), Err(CacheError::Io(_))), "the device may have lost it");
    run(rt, file.sync()).unwrap();
    let _ = run(rt, cache.close());
}

#[test]
fn pages_of_a_file_whose_user_panics_come_free() {
    let rt = world();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(MIB)).unwrap();
    let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
    let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), MIB)), 1, 0);
    run(&rt, mapping.open().write(0, &[1; 8 * PAGE_BYTES])).unwrap();
    run(&rt, mapping.write_back(..)).unwrap();
    // Clean pages live as long as this handle, which is dropped while the thread unwinds.
    let user = move || {
        let _last = mapping;
        panic!("of the file's user");
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(user)).is_err());
    cache.audit();
    run(&rt, cache.close()).unwrap();
}

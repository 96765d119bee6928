//! Tests of behaviour that a user of the cache sees.

use crate::common::{one_file, run, world};
use extant_cache::{CacheConfig, CacheError, OnWriteError, PAGE_BYTES};
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;

fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

#[test]
fn written_bytes_are_read_and_after_a_sync_they_are_on_the_device() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(8 * MIB), 1 << 20, 0);
    let file = mapping.open();
    let data = pattern(0, 300_000);
    run(&rt, file.write(1_000, &data)).unwrap();
    assert_eq!(mapping.size(), 301_000);
    let mut back = vec![0xaa; 400_000];
    assert_eq!(run(&rt, file.read(0, &mut back)).unwrap(), 301_000);
    assert!(back[..1_000].iter().all(|&b| b == 0));
    assert_eq!(&back[1_000..301_000], &data[..]);
    run(&rt, file.sync()).unwrap();
    assert_eq!(&gate.mem.to_bytes()[1_000..301_000], &data[..]);
    assert_eq!(mapping.dirty_pages(), 0);
    cache.audit();
}

#[test]
fn a_file_larger_than_the_cache_is_written_and_read_whole() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 8 << 20, 0);
    let file = mapping.open();
    let data = pattern(7, 8 << 20);
    for (n, chunk) in data.chunks(100_000).enumerate() {
        run(&rt, file.write(n as u64 * 100_000, chunk)).unwrap();
        let usage = cache.usage();
        assert!(usage.dirty + usage.writeback <= cache.limits().limit_pages, "{usage:?}");
    }
    run(&rt, file.sync()).unwrap();
    assert!(gate.mem.to_bytes() == data);
    let mut back = vec![0; 8 << 20];
    for (n, chunk) in back.chunks_mut(77_777).enumerate() {
        assert_eq!(run(&rt, file.read(n as u64 * 77_777, chunk)).unwrap(), chunk.len());
    }
    assert!(back == data);
    let usage = cache.usage();
    assert!(usage.frames == 256 && mapping.cached_pages() <= 256);
    cache.audit();
}

#[test]
fn a_partial_overwrite_keeps_the_rest_of_the_page() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 1 << 16);
    run(
        &rt,
        extant_block::write(&gate.mem, extant_block::Sector(0), extant_block::Buf::from_slice(&[7; 1 << 16])),
    )
    .unwrap();
    let file = mapping.open();
    run(&rt, file.write(5_000, &[1, 2, 3])).unwrap();
    run(&rt, file.sync()).unwrap();
    let mut expected = vec![7; 1 << 16];
    expected[5_000..5_003].copy_from_slice(&[1, 2, 3]);
    assert!(gate.mem.to_bytes() == expected);
    cache.audit();
}

#[test]
fn a_page_under_write_back_can_be_written_again_at_once() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 0);
    let file = mapping.open();
    run(&rt, file.write(0, &[1; PAGE_BYTES])).unwrap();
    gate.hold();
    let syncing = rt.spawn("sync", Default::default(), {
        let mapping = mapping.clone();
        async move { mapping.write_back(0..u64::MAX).await }
    });
    while gate.held() == 0 {
        run(&rt, rt.yield_now());
    }
    run(&rt, file.write(100, &[2; 50])).unwrap(); // does not wait for the device
    let mut back = [0; 200];
    run(&rt, file.read(0, &mut back)).unwrap();
    assert_eq!((back[99], back[100], back[150]), (1, 2, 1));
    gate.release_one(0);
    assert!(run(&rt, syncing).unwrap().is_ok());
    assert!(gate.mem.to_bytes()[..PAGE_BYTES].iter().all(|&b| b == 1), "the device got the page as it was");
    gate.release();
    run(&rt, file.sync()).unwrap();
    assert_eq!(gate.mem.to_bytes()[100], 2);
    cache.audit();
}

#[test]
fn two_versions_of_a_page_are_never_in_flight_at_once() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 0);
    let file = mapping.open();
    run(&rt, file.write(0, &[1; PAGE_BYTES])).unwrap();
    gate.hold();
    let write_back = || {
        let mapping = mapping.clone();
        rt.spawn("sync", Default::default(), async move { mapping.write_back(0..u64::MAX).await })
    };
    let first = write_back();
    while gate.held() == 0 {
        run(&rt, rt.yield_now());
    }
    run(&rt, file.write(0, &[2; PAGE_BYTES])).unwrap();
    let second = write_back();
    for _ in 0..1_000 {
        run(&rt, rt.yield_now());
    }
    assert_eq!(gate.held(), 1);
    assert!(!second.is_finished());
    gate.release();
    run(&rt, first).unwrap().unwrap();
    run(&rt, second).unwrap().unwrap();
    assert_eq!(gate.mem.to_bytes()[0], 2);
    cache.audit();
}

#[test]
fn truncation_forgets_and_zeroes() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 0);
    let file = mapping.open();
    run(&rt, file.write(0, &[9; 20_000])).unwrap();
    run(&rt, file.sync()).unwrap();
    run(&rt, file.write(8_192, &[8; 4_096])).unwrap();
    run(&rt, mapping.set_size(5_000)).unwrap();
    assert_eq!((mapping.size(), mapping.cached_pages()), (5_000, 2));
    run(&rt, mapping.set_size(6_000)).unwrap();
    let mut back = [1; 6_000];
    assert_eq!(run(&rt, file.read(0, &mut back)).unwrap(), 6_000);
    assert!(back[..5_000].iter().all(|&b| b == 9) && back[5_000..].iter().all(|&b| b == 0));
    run(&rt, file.sync()).unwrap();
    assert!(gate.mem.to_bytes()[5_000..8_192].iter().all(|&b| b == 0), "the tail is zero on the device, too");
    cache.audit();
}

#[test]
fn truncation_waits_for_writes_under_way() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 0);
    let file = mapping.open();
    run(&rt, file.write(0, &[9; 20_000])).unwrap();
    gate.hold();
    let spawn = |work: std::pin::Pin<Box<dyn Future<Output = extant_cache::Result<()>> + Send>>| {
        rt.spawn("work", Default::default(), work)
    };
    let (one, two) = (mapping.clone(), mapping.clone());
    let syncing = spawn(Box::pin(async move { one.write_back(0..u64::MAX).await }));
    while gate.held() == 0 {
        run(&rt, rt.yield_now());
    }
    let cutting = spawn(Box::pin(async move { two.set_size(0).await }));
    while mapping.cached_pages() > 0 {
        run(&rt, rt.yield_now());
    }
    assert!(!cutting.is_finished(), "blocks may not be freed yet");
    gate.release();
    run(&rt, cutting).unwrap().unwrap();
    run(&rt, syncing).unwrap().unwrap();
    cache.audit();
}

#[test]
fn a_read_that_is_cut_off_by_a_truncation_ends() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 1 << 16);
    gate.hold();
    let reading = rt.spawn("read", Default::default(), {
        let file = mapping.open();
        async move {
            let mut buf = [1; 100];
            file.read(8_192, &mut buf).await
        }
    });
    while gate.held() == 0 {
        run(&rt, rt.yield_now());
    }
    run(&rt, mapping.set_size(0)).unwrap();
    gate.release();
    assert_eq!(run(&rt, reading).unwrap().unwrap(), 0);
    cache.audit();
}

#[test]
fn an_error_of_write_back_reaches_every_open_file_once_and_the_page_stays_dirty() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 0);
    let (a, b) = (mapping.open(), mapping.open());
    run(&rt, a.write(0, &[5; 10_000])).unwrap();
    gate.fail_writes.store(true, Ordering::SeqCst);
    run(&rt, cache.sync()).unwrap_err();
    assert_eq!(mapping.dirty_pages(), 3);
    gate.fail_writes.store(false, Ordering::SeqCst);
    assert!(matches!(run(&rt, a.sync()), Err(CacheError::Io(_))));
    run(&rt, a.sync()).unwrap();
    assert!(matches!(run(&rt, b.sync()), Err(CacheError::Io(_))));
    run(&rt, b.sync()).unwrap();
    assert!(gate.mem.to_bytes()[..10_000].iter().all(|&x| x == 5), "it was written in the end");
    cache.audit();
}

#[test]
fn where_so_configured_a_page_that_cannot_be_written_counts_as_clean() {
    let rt = world();
    let config = CacheConfig { on_write_error: OnWriteError::MarkClean, ..CacheConfig::with_budget(MIB) };
    let (cache, _disk, gate, mapping) = one_file(&rt, config, 1 << 16, 0);
    let file = mapping.open();
    run(&rt, file.write(0, &[5; 10_000])).unwrap();
    gate.fail_writes.store(true, Ordering::SeqCst);
    assert!(run(&rt, file.sync()).is_err());
    assert_eq!(mapping.dirty_pages(), 0);
    run(&rt, file.sync()).unwrap();
    let mut buf = [0; 10];
    run(&rt, file.read(0, &mut buf)).unwrap();
    assert_eq!(buf, [5; 10]);
    cache.audit();
}

#[test]
fn a_writer_to_a_dead_device_gets_its_error_rather_than_waiting_for_ever() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 8 << 20, 0);
    let file = mapping.open();
    gate.fail_writes.store(true, Ordering::SeqCst);
    let error = run(&rt, file.write(0, &vec![1; 4 << 20])).unwrap_err();
    assert!(matches!(error.error, CacheError::Io(_)), "{error}");
    gate.fail_writes.store(false, Ordering::SeqCst);
    let _ = run(&rt, file.sync());
    run(&rt, file.write(0, &vec![2; 4 << 20])).unwrap();
    run(&rt, file.sync()).unwrap();
    cache.audit();
}

#[test]
fn a_bad_sector_costs_its_own_page_only() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 1 << 16);
    gate.fail_reads.store(true, Ordering::SeqCst);
    let file = mapping.open();
    let mut buf = [0; 8_192];
    assert!(matches!(run(&rt, file.read(0, &mut buf)), Err(CacheError::Io(_))));
    assert!(run(&rt, file.write(10, &[1])).is_err(), "nor can part of the page be overwritten");
    run(&rt, file.write(0, &[3; PAGE_BYTES])).unwrap();
    assert_eq!(run(&rt, file.read(0, &mut buf)).unwrap(), PAGE_BYTES, "a short read, then the error");
    gate.fail_reads.store(false, Ordering::SeqCst);
    assert_eq!(run(&rt, file.read(0, &mut buf)).unwrap(), 8_192);
    cache.audit();
}

#[test]
fn descriptions_of_frames_take_less_than_two_percent() {
    let rt = world();
    for budget in [8 * MIB, 100 * MIB, (1 << 30) + 3 * MIB] {
        let cache = extant_cache::PageCache::new(&rt, CacheConfig::with_budget(budget)).unwrap();
        // Besides the tables there are tags of dirty pages: at worst one tree entry of about 28
        // bytes per page.
        let tags = cache.limits().limit_pages * 28;
        let share = (cache.overhead_bytes() + tags) as f64 / budget as f64;
        assert!(share < 0.02, "{budget}: {share}");
    }
}

#[test]
fn a_smaller_budget_takes_effect_and_a_larger_one_again() {
    let rt = world();
    let (cache, _disk, _gate, mapping) = one_file(&rt, CacheConfig::with_budget(4 * MIB), 8 << 20, 8 << 20);
    let file = mapping.open();
    let mut buf = vec![0; 4 << 20];
    run(&rt, file.read(0, &mut buf)).unwrap();
    assert_eq!(cache.set_budget(MIB), 0);
    assert!(mapping.cached_pages() <= 256);
    run(&rt, file.read(0, &mut buf)).unwrap();
    assert!(mapping.cached_pages() <= 256);
    cache.audit();
    cache.set_budget(4 * MIB);
    run(&rt, file.read(0, &mut buf)).unwrap();
    run(&rt, file.read(0, &mut buf)).unwrap();
    assert!(mapping.cached_pages() > 900);
    cache.audit();
}

#[test]
fn reading_in_sequence_reads_ahead() {
    let rt = world();
    let config =
        CacheConfig { read_ahead_bytes: 128 << 10, bio_bytes: MIB, ..CacheConfig::with_budget(64 * MIB) };
    let (cache, _disk, gate, mapping) = one_file(&rt, config, 16 << 20, 16 << 20);
    let file = mapping.open();
    let mut buf = [0; PAGE_BYTES];
    for page in 0..4_096 {
        run(&rt, file.read(page * PAGE_BYTES as u64, &mut buf)).unwrap();
    }
    let reads = gate.reads.load(Ordering::SeqCst);
    assert!(reads <= 4_096 / 32 + 8, "{reads} bios");
    cache.audit();
}

#[test]
fn dirty_files_survive_the_drop_of_their_mapping_and_of_the_cache() {
    let rt = world();
    let (cache, disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 0);
    run(&rt, mapping.open().write(0, &[5; 10_000])).unwrap();
    drop((mapping, disk, cache));
    let report = rt.shutdown(extant_rt::Nanos::from_secs(60));
    assert!(report.in_flight.is_empty(), "{report:?}");
    assert!(gate.mem.to_bytes()[..10_000].iter().all(|&x| x == 5));
}

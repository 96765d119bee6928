//! Regression tests: ways in which data was lost, callers hung, or one file's trouble affected
//! another.

use crate::common::{Gate, one_file, run, sleep, virtual_world, world};
use crate::seam::toy;
use extant_block::{BioFlags, Sector};
use extant_cache::{
    Answer, Backing, ByteRange, CacheConfig, CacheError, CachedOpenFile, DirtyRun, Disk, FlatFile, Mapping,
    OnWriteError, PAGE_BYTES, PageCache, Placed, ReadExtent, ReadFrom, WriteExtent, WrittenRun,
};
use extant_rt::{Nanos, Rt, Task};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

const PAGE: u64 = PAGE_BYTES as u64;

/// Adjacent files of 64 KiB.
fn files(disk: &Disk, count: u64) -> Vec<Mapping> {
    let file = |n| disk.mapping(Arc::new(FlatFile::new(Sector(n * 128), 65_536)), n, 0);
    (0..count).map(file).collect()
}

fn wait_for_held(rt: &Rt, gate: &Gate) {
    while gate.held() == 0 {
        sleep(rt, 1);
    }
    sleep(rt, 20);
}

#[test]
fn a_failed_flush_is_told_once_to_every_open_file_that_it_concerns() {
    let rt = world();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).unwrap();
    let gate = Gate::volatile(4 << 20);
    let disk = cache.attach(gate.clone());
    let mappings = files(&disk, 3);
    let opened: Vec<CachedOpenFile> = mappings.iter().map(Mapping::open).collect();
    let second_of_b = mappings[1].open();
    run(&rt, opened[2].write(0, b"c")).unwrap();
    run(&rt, opened[2].sync()).unwrap();
    // Both writes go to the device's volatile cache. Its next flush fails, which it reports once.
    for file in &opened[..2] {
        run(&rt, file.write(0, b"data")).unwrap();
        run(&rt, file.sync_range(..)).unwrap();
    }
    assert_eq!(disk.flush_failures(), 0);
    gate.fail_flushes.store(1, Ordering::SeqCst);
    assert!(run(&rt, opened[0].sync()).is_err());
    assert_eq!(disk.flush_failures(), 1);
    for file in [&opened[1], &second_of_b] {
        assert!(matches!(run(&rt, file.sync()), Err(CacheError::Io(_))), "its data may be lost");
        run(&rt, file.sync()).unwrap();
    }
    run(&rt, opened[0].sync()).unwrap();
    run(&rt, opened[2].sync()).unwrap();
    assert!(run(&rt, cache.sync()).is_err(), "no sync of the device has told it");
    run(&rt, cache.sync()).unwrap();
    // The successful flush has made all data safe, so a later failed flush loses nothing.
    gate.fail_flushes.store(1, Ordering::SeqCst);
    assert!(run(&rt, disk.flush()).is_err());
    assert!(opened.iter().all(|file| run(&rt, file.sync()).is_ok()));
}

#[test]
fn a_flush_whose_caller_leaves_is_told_all_the_same() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).unwrap();
    let gate = Gate::volatile(4 << 20);
    let disk = cache.attach(gate.clone());
    let file = files(&disk, 1)[0].open();
    run(&rt, file.write(0, b"data")).unwrap();
    run(&rt, file.sync_range(..)).unwrap();
    gate.hold();
    gate.fail_flushes.store(1, Ordering::SeqCst);
    let mut sync = Box::pin(file.sync());
    run(&rt, std::future::poll_fn(|cx| std::task::Poll::Ready(sync.as_mut().poll(cx).is_pending())));
    assert_eq!(gate.held(), 1);
    drop(sync);
    gate.release();
    while disk.flush_failures() == 0 {
        sleep(&rt, 1);
    }
    assert!(run(&rt, file.sync()).is_err());
}

#[test]
fn syncs_tell_of_writes_that_were_in_flight_when_they_began() {
    for on_write_error in [OnWriteError::KeepDirty, OnWriteError::MarkClean] {
        let sim = virtual_world();
        let rt = sim.rt().clone();
        let config = CacheConfig { on_write_error, ..CacheConfig::with_budget(1 << 20) };
        let (cache, disk, gate, mapping) = one_file(&rt, config, 4 << 20, 1 << 20);
        gate.hold();
        gate.fail_writes.store(true, Ordering::SeqCst);
        run(&rt, mapping.open().write(0, &[7; 8 * PAGE_BYTES])).unwrap();
        let early = mapping.clone();
        let early = rt.spawn("early", Default::default(), async move { early.write_back(..).await });
        wait_for_held(&rt, &gate);
        let tasks: Vec<Task<Result<(), CacheError>>> = {
            let (a, b, c, d) = (cache.clone(), disk.clone(), mapping.clone(), mapping.clone());
            vec![
                early,
                rt.spawn("cache", Default::default(), async move { a.sync().await }),
                rt.spawn("disk", Default::default(), async move { b.sync().await }),
                rt.spawn("write_back", Default::default(), async move { c.write_back(..).await }),
                rt.spawn("forget", Default::default(), async move { d.forget().await }),
            ]
        };
        sleep(&rt, 50);
        gate.release();
        for task in tasks {
            let name = task.name().to_owned();
            assert!(run(&rt, task).unwrap().is_err(), "{on_write_error:?}: {name}");
        }
    }
}

#[test]
fn close_tells_of_data_that_was_lost_in_the_background() {
    for on_write_error in [OnWriteError::KeepDirty, OnWriteError::MarkClean] {
        let sim = virtual_world();
        let rt = sim.rt().clone();
        let config = CacheConfig { on_write_error, ..CacheConfig::with_budget(1 << 20) };
        let (cache, _disk, gate, mapping) = one_file(&rt, config, 4 << 20, 1 << 20);
        gate.hold();
        gate.fail_writes.store(true, Ordering::SeqCst);
        run(&rt, mapping.open().write(0, &[7; 8 * PAGE_BYTES])).unwrap();
        let early = mapping.clone();
        drop(rt.spawn("early", Default::default(), async move { early.write_back(..).await }));
        wait_for_held(&rt, &gate);
        drop(mapping);
        if on_write_error == OnWriteError::MarkClean {
            // The write fails before any file is closed.
            gate.release();
            while cache.usage().writeback > 0 {
                sleep(&rt, 1);
            }
        }
        let closing = rt.spawn("close", Default::default(), async move { cache.close().await });
        sleep(&rt, 50);
        gate.release();
        assert!(run(&rt, closing).unwrap().is_err(), "{on_write_error:?}");
    }
}

#[test]
fn a_wake_for_a_frame_reaches_a_reader_that_needs_one() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig { read_ahead_bytes: 0, bio_bytes: PAGE, ..CacheConfig::with_budget(16 * PAGE) };
    let (cache, _disk, gate, mapping) = one_file(&rt, config, 4 << 20, 4 << 20);
    gate.hold();
    let reader =
        |page: u64| {
            let file = mapping.open();
            rt.spawn("reader", Default::default(), async move {
                file.read(page * PAGE, &mut [0; 10]).await.unwrap()
            })
        };
    let mut readers: Vec<_> = (0..16).map(reader).collect();
    while gate.held() < 16 {
        sleep(&rt, 1);
    }
    // One reader loads their page and does not need the other wakes.
    readers.extend((0..40).map(|_| reader(100)));
    sleep(&rt, 100);
    readers.push(reader(200));
    sleep(&rt, 100);
    gate.release();
    for reader in readers {
        run(&rt, reader).unwrap();
    }
    cache.audit();
}

#[test]
fn a_wake_for_room_reaches_a_writer_that_needs_it() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig {
        dirty_bytes: Some(2 * PAGE),
        background_bytes: Some(PAGE),
        bio_bytes: PAGE,
        ..CacheConfig::with_budget(64 * PAGE)
    };
    let (cache, _disk, gate, mapping) = one_file(&rt, config, 4 << 20, 4 << 20);
    run(&rt, mapping.open().read(0, &mut [0; 20 * PAGE_BYTES])).unwrap();
    gate.hold();
    let writer = |page: u64| {
        let file = mapping.open();
        rt.spawn(
            "writer",
            Default::default(),
            async move { file.write(page * PAGE, &[1; 10]).await.unwrap() },
        )
    };
    let mut writers = vec![writer(0), writer(1)];
    sleep(&rt, 300);
    writers.extend((0..10).map(|_| writer(5)));
    sleep(&rt, 200);
    writers.push(writer(9));
    sleep(&rt, 200);
    gate.release();
    for writer in writers {
        run(&rt, writer).unwrap();
    }
    run(&rt, cache.sync()).unwrap();
    cache.audit();
}

#[test]
fn a_file_without_a_place_takes_nothing_from_files_that_have_one() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig {
        dirty_bytes: Some(64 * PAGE),
        background_bytes: Some(16 * PAGE),
        ..CacheConfig::with_budget(256 * PAGE)
    };
    let (cache, disk, _gate, backing, stuck) = toy(&rt, config);
    backing.refuses.store(true, Ordering::SeqCst);
    let healthy = disk.mapping(Arc::new(FlatFile::new(Sector(8192), 8 << 20)), 2, 0);
    // The stuck file fills the room until its writers get the error.
    let told = (0..64).any(|page| run(&rt, stuck.open().write(page * PAGE, &[1; PAGE_BYTES])).is_err());
    if !told {
        while cache.usage().unplaceable == 0 {
            sleep(&rt, 1);
        }
    }
    let refused = run(&rt, stuck.open().write(1000 * PAGE, &[1; PAGE_BYTES])).unwrap_err();
    assert!(matches!(refused.error, CacheError::Backing(_)), "{refused}");
    let file = healthy.open();
    for turn in 0..20 {
        run(&rt, file.write(turn * 128 * PAGE / 16, &[2; 128 * PAGE_BYTES])).unwrap();
        run(&rt, file.sync()).unwrap();
    }
    assert!(backing.prepared.lock().is_empty());
    let usage = cache.usage();
    assert!(usage.unplaceable > 0 && usage.charged == 0, "{usage:?}");
    // It is retried on request, and by syncs.
    assert!(run(&rt, stuck.open().sync()).is_err());
    backing.refuses.store(false, Ordering::SeqCst);
    stuck.retry();
    run(&rt, stuck.open().write(1000 * PAGE, &[1; PAGE_BYTES])).unwrap();
    let file = stuck.open();
    let _ = run(&rt, file.sync());
    run(&rt, file.sync()).unwrap();
    assert_eq!((stuck.dirty_pages(), cache.usage().unplaceable), (0, 0));
    let _ = run(&rt, cache.sync());
    cache.audit();
}

#[test]
fn an_error_of_one_files_backing_keeps_the_flusher_at_work_for_others() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig { background_bytes: Some(16 * PAGE), ..CacheConfig::with_budget(256 * PAGE) };
    let (cache, disk, _gate, toy, refused) = toy(&rt, config);
    toy.refuses.store(true, Ordering::SeqCst);
    let healthy = disk.mapping(Arc::new(FlatFile::new(Sector(16384), 4 << 20)), 2, 0);
    run(&rt, async {
        refused.open().write(0, &[1; PAGE_BYTES]).await.unwrap();
        assert!(refused.write_back(..).await.is_err());
        healthy.open().write(0, &[1; 64 * PAGE_BYTES]).await.unwrap();
    });
    // This is long before a timer makes the flusher retry a failing device.
    sleep(&rt, 100);
    assert!(healthy.dirty_pages() <= 16, "{:?}", cache.usage());
}

#[test]
fn a_stuck_file_that_is_cut_off_is_stuck_no_longer() {
    let rt = world();
    let (cache, _disk, _gate, backing, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    backing.refuses.store(true, Ordering::SeqCst);
    let file = mapping.open();
    run(&rt, file.write(0, &[1; 10 * PAGE_BYTES])).unwrap();
    assert!(run(&rt, file.sync()).is_err());
    assert!(run(&rt, file.write(20 * PAGE, &[1])).is_err());
    run(&rt, file.write(PAGE, &[2; 10])).unwrap();
    run(&rt, mapping.set_size(0)).unwrap();
    backing.refuses.store(false, Ordering::SeqCst);
    run(&rt, file.write(20 * PAGE, &[1])).unwrap();
    run(&rt, file.sync()).unwrap();
    assert_eq!(cache.usage().unplaceable, 0);
    cache.audit();
}

#[test]
fn a_file_whose_failed_run_was_cut_off_meanwhile_is_not_stuck() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (cache, _disk, gate, backing, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    let file = mapping.open();
    run(&rt, file.write(0, &[1; 10 * PAGE_BYTES])).unwrap();
    gate.hold();
    let syncing = {
        let file = mapping.open();
        rt.spawn("sync", Default::default(), async move { file.sync().await })
    };
    sleep(&rt, 1);
    let cutting = {
        let mapping = mapping.clone();
        rt.spawn("truncate", Default::default(), async move { mapping.set_size(0).await })
    };
    sleep(&rt, 1);
    assert!(gate.held() > 0 && mapping.dirty_pages() == 0);
    backing.panics.store(true, Ordering::SeqCst);
    gate.release();
    // No work is left for it.
    let _ = run(&rt, syncing);
    run(&rt, cutting).unwrap().unwrap();
    backing.panics.store(false, Ordering::SeqCst);
    run(&rt, file.write(20 * PAGE, &[1])).unwrap();
    let _ = run(&rt, file.sync());
    run(&rt, file.sync()).unwrap();
    assert_eq!(cache.usage().unplaceable, 0);
    cache.audit();
}

#[test]
fn a_stuck_file_is_not_tried_every_period() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig {
        periodic: Nanos::from_millis(5),
        expire: Nanos::ZERO,
        ..CacheConfig::with_budget(1 << 20)
    };
    let (cache, _disk, _gate, backing, mapping) = toy(&rt, config);
    backing.panics.store(true, Ordering::SeqCst);
    run(&rt, mapping.open().write(0, &[1; PAGE_BYTES])).unwrap();
    while cache.usage().unplaceable == 0 {
        sleep(&rt, 1);
    }
    sleep(&rt, 50);
    assert_eq!(backing.prepared.lock().len(), 1);
}

/// Maps blocks of 64 KiB to one run on the device.
#[derive(Debug, Default)]
struct Big {
    /// How long look-ups take.
    delay: Option<(Rt, Nanos)>,
    lookups: AtomicUsize,
    /// Whether runs change the map, as reported to the cache.
    changes_map: AtomicBool,
}

impl Backing for Big {
    fn block_bytes(&self) -> u32 {
        65_536
    }
    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let sleep = self.delay.as_ref().map(|(rt, span)| rt.sleep(*span));
        Answer::later(async move {
            if let Some(sleep) = sleep {
                sleep.await;
            }
            Ok(ReadExtent { from: ReadFrom::Device(Sector(range.start / 512)), bytes: range.len() })
        })
    }
    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        let extent = WriteExtent::new(run.range(), Sector(run.range().start / 512));
        let changes_map = self.changes_map.load(Ordering::SeqCst);
        Answer::ok(Placed { changes_map, ..Placed::overwrite(extent) })
    }
    fn finish_write<'a>(&'a self, _run: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::ok(())
    }
}

#[test]
fn a_sync_writes_the_zeroed_tail_of_a_block_larger_than_a_page() {
    let rt = world();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).unwrap();
    let gate = Gate::new(1 << 20);
    let disk = cache.attach(gate.clone());
    let mapping = disk.mapping(Arc::new(Big::default()), 1, 0);
    let file = mapping.open();
    run(&rt, file.write(0, &[0xee; 65_536])).unwrap();
    run(&rt, file.sync()).unwrap();
    run(&rt, mapping.set_size(100)).unwrap();
    run(&rt, file.sync()).unwrap();
    assert_eq!(mapping.dirty_pages(), 0);
    let bytes = gate.mem.to_bytes();
    assert_eq!((bytes[99], bytes[100], bytes[5_000], bytes[65_535]), (0xee, 0, 0, 0));
}

#[test]
fn a_cold_read_asks_for_its_place_once_beside_write_back_of_other_pages() {
    for changes_map in [false, true] {
        let sim = virtual_world();
        let rt = sim.rt().clone();
        let cache = PageCache::new(&rt, CacheConfig::with_budget(8 << 20)).unwrap();
        let disk = cache.attach(Gate::new(16 << 20));
        let backing = Arc::new(Big { delay: Some((rt.clone(), Nanos::from_millis(50))), ..Big::default() });
        backing.changes_map.store(changes_map, Ordering::SeqCst);
        let mapping = disk.mapping(backing.clone(), 1, 8 << 20);
        let writer = mapping.open();
        run(&rt, writer.write(0, &[1; PAGE_BYTES])).unwrap();
        let file = mapping.open();
        let reader = rt.spawn("reader", Default::default(), async move {
            file.read(500 * PAGE, &mut [0; 10]).await.unwrap()
        });
        let mut syncs = 0;
        while !reader.is_finished() {
            run(&rt, writer.write(100, &[1; 10])).unwrap();
            run(&rt, writer.sync()).unwrap();
            sleep(&rt, 1);
            syncs += 1;
        }
        // One look-up for the reader, and a few for its read-ahead.
        assert!(syncs > 10 && backing.lookups.load(Ordering::SeqCst) < 5, "{syncs} syncs, {backing:?}");
    }
}

#[test]
fn a_sync_of_many_files_writes_them_all_at_a_time_and_says_that_it_waits() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig { background_bytes: Some(4 << 20), ..CacheConfig::with_budget(8 << 20) };
    let cache = PageCache::new(&rt, config).unwrap();
    let gate = Gate::new(16 << 20);
    let disk = cache.attach(gate.clone());
    let files = files(&disk, 200);
    for file in &files {
        run(&rt, file.open().write(0, &[1; PAGE_BYTES])).unwrap();
    }
    gate.hold();
    let all = cache.clone();
    let sync = rt.spawn("sync", Default::default(), async move { all.sync().await });
    // This is long before a timer makes the flusher write them.
    sleep(&rt, 1);
    assert_eq!(gate.held_flags(), [BioFlags::SYNC; 200]);
    gate.release();
    run(&rt, sync).unwrap().unwrap();
    run(&rt, files[0].open().write(0, &[1; PAGE_BYTES])).unwrap();
    gate.hold();
    let file = files[0].open();
    let sync = rt.spawn("fsync", Default::default(), async move { file.sync().await });
    sleep(&rt, 1);
    assert_eq!(gate.held_flags(), [BioFlags::SYNC]);
    gate.release();
    run(&rt, sync).unwrap().unwrap();
    cache.audit();
}

/// A file that grows by as much as is written back.
#[derive(Debug)]
struct Appended {
    flat: FlatFile,
    appender: Mutex<Option<CachedOpenFile>>,
    runs: AtomicUsize,
}

impl Backing for Appended {
    fn block_bytes(&self) -> u32 {
        self.flat.block_bytes()
    }
    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        self.flat.map_read(range)
    }
    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        if self.runs.fetch_add(1, Ordering::SeqCst) < 100
            && let Some(file) = &*self.appender.lock()
        {
            file.try_write(file.mapping().size(), &[1; PAGE_BYTES]).unwrap();
        }
        self.flat.prepare_write(run)
    }
    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()> {
        self.flat.finish_write(run)
    }
}

#[test]
fn a_sync_beside_an_appender_ends_with_what_was_dirty_when_it_began() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig { run_bytes: Some(PAGE), ..CacheConfig::with_budget(8 << 20) };
    let cache = PageCache::new(&rt, config).unwrap();
    let disk = cache.attach(Gate::new(4 << 20));
    let flat = FlatFile::new(Sector(0), 4 << 20);
    let backing = Arc::new(Appended { flat, appender: Mutex::default(), runs: AtomicUsize::new(0) });
    let mapping = disk.mapping(backing.clone(), 1, 0);
    run(&rt, mapping.open().write(0, &[1; 3 * PAGE_BYTES])).unwrap();
    *backing.appender.lock() = Some(mapping.open());
    run(&rt, mapping.write_back(..)).unwrap();
    assert_eq!(backing.runs.swap(0, Ordering::SeqCst), 3, "and not what was appended meanwhile");
    assert_eq!(mapping.dirty_pages(), 3);
    run(&rt, disk.sync()).unwrap();
    assert_eq!(backing.runs.load(Ordering::SeqCst), 3);
    *backing.appender.lock() = None;
}

#[test]
fn a_reader_that_waits_for_an_exclusion_hands_its_frame_on() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig { read_ahead_bytes: 0, ..CacheConfig::with_budget(64 << 10) };
    let cache = PageCache::new(&rt, config).unwrap();
    let gate = Gate::new(4 << 20);
    let disk = cache.attach(gate.clone());
    let file = |n: u64| disk.mapping(Arc::new(FlatFile::new(Sector(n * 256), 128 << 10)), n, 128 << 10);
    let (loaded, excluded, other) = (file(0).open(), file(1), file(2).open());
    let reader = excluded.open();
    gate.hold();
    run(&rt, async {
        async fn read(file: &CachedOpenFile, page: u64) {
            file.read(page * PAGE, &mut [0; PAGE_BYTES]).await.unwrap();
        }
        async fn is_pending(future: &mut Pin<Box<impl Future<Output = ()>>>) -> bool {
            poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
        }
        // Every frame is being loaded.
        let mut loads: Vec<_> = (0..16).map(|page| Box::pin(read(&loaded, page))).collect();
        for load in &mut loads {
            assert!(is_pending(load).await);
        }
        assert_eq!(gate.held(), 16);
        let mut first = Box::pin(read(&reader, 5));
        assert!(is_pending(&mut first).await);
        let exclusion = excluded.exclude(..).await;
        let mut second = Box::pin(read(&other, 0));
        assert!(is_pending(&mut second).await);
        gate.release_one(0);
        assert!(is_pending(&mut first).await, "its page is excluded");
        assert!(is_pending(&mut second).await);
        assert_eq!(gate.held(), 16, "the second reader took the frame that the first could not use");
        gate.release();
        second.await;
        drop(exclusion);
        first.await;
        for load in loads {
            load.await;
        }
    });
}

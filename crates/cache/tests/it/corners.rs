//! Tests limits, budgets and ranges at their extremes, and many threads on one file.

use crate::common::{Gate, one_file, run, world};
use extant_block::Sector;
use extant_cache::control::DirtyLimits;
use extant_cache::{
    Answer, Backing, ByteRange, CacheConfig, DirtyRun, FlatFile, MAX_FILE_BYTES, PAGE_BYTES, PageCache,
    Placed, ReadExtent, ReadFrom, WrittenRun,
};
use extant_rt::{Nanos, Rng, Rt};
use extant_sim::{Machine, Preemption, Sim};
use parking_lot::RwLock;
use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

const MIB: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES as u64;

/// Polls a few times, like a caller that is woken; returns whether the work still waits.
async fn waits<T>(rt: &Rt, mut work: Pin<&mut impl Future<Output = T>>) -> bool {
    for _ in 0..8 {
        if std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await {
            return false;
        }
        rt.yield_now().await;
    }
    true
}

#[test]
fn limits_of_nothing_still_let_a_page_through() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 20, 0);
    cache.set_limits(DirtyLimits { background_pages: 0, limit_pages: 0 });
    assert_eq!(cache.limits(), DirtyLimits { background_pages: 0, limit_pages: 1 });
    let file = mapping.open();
    run(&rt, file.write(0, &[7; 10 * PAGE_BYTES])).unwrap();
    run(&rt, file.sync()).unwrap();
    assert!(gate.mem.to_bytes()[..10 * PAGE_BYTES].iter().all(|&byte| byte == 7));
    cache.set_limits(DirtyLimits { background_pages: u64::MAX, limit_pages: u64::MAX });
    assert_eq!(cache.limits(), DirtyLimits { background_pages: 96, limit_pages: 192 });
    cache.audit();
}

#[test]
fn a_larger_budget_is_heard_of_by_those_who_wait_for_frames() {
    let rt = world();
    let config = CacheConfig { read_ahead_bytes: 0, ..CacheConfig::with_budget(MIB) };
    let (cache, _disk, gate, mapping) = one_file(&rt, config, 1 << 20, MIB);
    cache.set_budget(16 * PAGE);
    let (file, other) = (mapping.open(), mapping.open());
    gate.hold();
    run(&rt, async {
        // Three quarters of the frames may be dirty; the others are being read.
        file.write(0, &[1; 12 * PAGE_BYTES]).await.unwrap();
        let mut bytes = [0; 4 * PAGE_BYTES];
        let mut read = std::pin::pin!(file.read(20 * PAGE, &mut bytes));
        assert!(waits(&rt, read.as_mut()).await);
        let mut byte = [0];
        let mut waiting = std::pin::pin!(other.read(40 * PAGE, &mut byte));
        assert!(waits(&rt, waiting.as_mut()).await, "there is no frame");
        let before = gate.reads.load(Ordering::SeqCst);
        cache.set_budget(MIB);
        assert!(waits(&rt, waiting.as_mut()).await, "its page is read now");
        assert_eq!(gate.reads.load(Ordering::SeqCst), before + 1);
        gate.release();
        read.await.unwrap();
        waiting.await.unwrap();
    });
    run(&rt, file.sync()).unwrap();
    cache.audit();
}

#[test]
fn a_file_whose_end_lies_inside_a_page_is_written_to_its_end_and_no_further() {
    let rt = world();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(MIB)).unwrap();
    let gate = Gate::new(65_536);
    let disk = cache.attach(gate.clone());
    for (inode, bytes) in [(1, 10_240_u64), (2, 4_608), (3, 512)] {
        let start = inode * 16_384;
        let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(start / 512), bytes)), inode, 0);
        let file = mapping.open();
        run(&rt, file.write(0, &vec![inode as u8; bytes as usize])).unwrap();
        run(&rt, file.sync()).unwrap();
        // The run has no room past its end, so write-back fails.
        run(&rt, file.write(bytes, &[9])).unwrap();
        assert!(run(&rt, file.sync()).is_err());
        run(&rt, mapping.set_size(bytes)).unwrap();
        run(&rt, file.sync()).unwrap();
    }
    let device = gate.mem.to_bytes();
    for (inode, bytes) in [(1, 10_240), (2, 4_608), (3, 512)] {
        let slot = &device[inode * 16_384..device.len().min((inode + 1) * 16_384)];
        assert!(slot[..bytes].iter().all(|&byte| byte == inode as u8));
        assert!(slot[bytes..].iter().all(|&byte| byte == 0), "bytes behind the file are not its own");
    }
    cache.audit();
}

#[test]
fn pages_in_flight_are_forgotten_before_direct_io() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 1 << 16);
    let file = mapping.open();
    gate.hold();
    run(&rt, async {
        let mut buf = [0; 512];
        let mut read = std::pin::pin!(file.read(0, &mut buf));
        assert!(waits(&rt, read.as_mut()).await);
        assert!(mapping.cached_pages() > 0);
        mapping.forget().await.unwrap();
        assert!(mapping.cached_pages() > 0, "a task waits for it");
        mapping.invalidate(0..1 << 16).await.unwrap();
        assert_eq!(mapping.cached_pages(), 0, "the device's answer may be old now");
        gate.release();
        assert_eq!(read.await.unwrap(), 512);
    });
    assert!(gate.reads.load(Ordering::SeqCst) >= 2, "it is read again");
    cache.audit();
}

/// Several processes read one file, and each drops it from the cache when it starts.
#[test]
fn a_page_that_was_loaded_for_a_reader_is_not_forgotten_before_it_has_read_it() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 1 << 16);
    let file = mapping.open();
    gate.hold();
    run(&rt, async {
        let mut buf = [0; 512];
        let mut read = std::pin::pin!(file.read(0, &mut buf));
        assert!(waits(&rt, read.as_mut()).await);
        let before = gate.reads.load(Ordering::SeqCst);
        gate.release();
        mapping.forget().await.unwrap();
        assert_eq!(read.await.unwrap(), 512);
        assert_eq!(gate.reads.load(Ordering::SeqCst), before, "it is not read again");
        file.read(0, &mut [0; 1 << 16]).await.unwrap();
        mapping.forget().await.unwrap();
        assert_eq!(mapping.cached_pages(), 0, "all were read");
    });
    cache.audit();
}

#[test]
fn the_whole_pages_of_a_long_run_are_free_once_they_are_written_back() {
    const BYTES: u64 = 84 * PAGE + 123;
    for frees_long_runs in [true, false] {
        let rt = world();
        let config = CacheConfig { frees_long_runs, ..CacheConfig::with_budget(4 * MIB) };
        let (cache, _disk, gate, mapping) = one_file(&rt, config, 1 << 20, 0);
        let file = mapping.open();
        let bytes: Vec<u8> = (0..BYTES).map(|n| n as u8 | 1).collect();
        run(&rt, async {
            file.write(0, &bytes).await.unwrap();
            mapping.write_back(..).await.unwrap();
            assert_eq!(mapping.dirty_pages(), 0);
            // The last page is not full, and the next write may go on in it.
            let kept = if frees_long_runs { 1 } else { BYTES.div_ceil(PAGE) };
            assert_eq!(mapping.cached_pages(), kept);
            let mut read = vec![0; BYTES as usize];
            assert_eq!(file.read(0, &mut read).await.unwrap(), read.len());
            assert!(read == bytes, "they are read from the device");
            let before = mapping.cached_pages();
            file.write(0, &bytes[..4 * PAGE_BYTES]).await.unwrap();
            mapping.write_back(..).await.unwrap();
            assert_eq!(mapping.cached_pages(), before, "a short run stays");
        });
        assert!(gate.mem.to_bytes()[..bytes.len()] == bytes);
        cache.audit();
    }
}

#[test]
fn pages_that_another_caller_failed_to_write_back_keep_direct_io_from_going_on() {
    let rt = world();
    let (cache, _disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 16, 0);
    gate.hold();
    run(&rt, async {
        mapping.open().write(0, &[1; PAGE_BYTES]).await.unwrap();
        let mut flush = std::pin::pin!(mapping.write_back(0..PAGE));
        assert!(waits(&rt, flush.as_mut()).await);
        let mut forget = std::pin::pin!(mapping.invalidate(0..PAGE));
        assert!(waits(&rt, forget.as_mut()).await, "it waits for what is under way");
        gate.fail_writes.store(true, Ordering::SeqCst);
        gate.release();
        assert!(flush.await.is_err() && forget.await.is_err());
        assert_eq!(mapping.dirty_pages(), 1);
        gate.fail_writes.store(false, Ordering::SeqCst);
        mapping.invalidate(0..PAGE).await.unwrap();
        assert_eq!((mapping.dirty_pages(), mapping.cached_pages()), (0, 0));
    });
    assert!(gate.mem.to_bytes()[..PAGE_BYTES].iter().all(|&byte| byte == 1));
    cache.audit();
}

#[test]
fn ranges_beyond_every_file_are_empty() {
    let rt = world();
    let (cache, _disk, _gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 20, 1 << 20);
    let file = mapping.open();
    run(&rt, file.read(0, &mut [0; 64 * PAGE_BYTES])).unwrap();
    let cached = mapping.cached_pages();
    for at in [MAX_FILE_BYTES - 1, MAX_FILE_BYTES, i64::MAX as u64, u64::MAX - PAGE] {
        run(&rt, mapping.invalidate(at..at + PAGE)).unwrap();
        run(&rt, mapping.punch(at..at + PAGE)).unwrap();
        run(&rt, mapping.write_back(at..at + PAGE)).unwrap();
        run(&rt, file.sync_range(at..at + PAGE)).unwrap();
        assert_eq!(run(&rt, file.read(at, &mut [0; 10])).unwrap(), 0);
        assert!(run(&rt, file.write(at, &[1; 10])).is_err(), "too large");
        assert_eq!((mapping.size(), mapping.dirty_pages(), mapping.cached_pages()), (1 << 20, 0, cached));
    }
    run(&rt, file.write(5, &[])).unwrap();
    assert_eq!(run(&rt, file.read(5, &mut [])).unwrap(), 0);
    assert_eq!(mapping.dirty_pages(), 0);
    cache.audit();
}

#[test]
fn a_device_that_does_not_answer_keeps_no_data_of_others_in_memory() {
    let rt = world();
    let config = CacheConfig { expire: Nanos::MAX, ..CacheConfig::with_budget(MIB) };
    let cache = PageCache::new(&rt, config).unwrap();
    let gates = [Gate::new(1 << 16), Gate::new(1 << 16)];
    let mappings = [0, 1].map(|n| {
        let disk = cache.attach(gates[n].clone());
        disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 16)), n as u64, 0)
    });
    gates[0].hold();
    run(&rt, async {
        for mapping in &mappings {
            mapping.open().write(0, &[3; 10]).await.unwrap();
        }
        let mut sync = std::pin::pin!(cache.sync());
        while gates[1].mem.to_bytes()[0] != 3 {
            assert!(waits(&rt, sync.as_mut()).await);
        }
        gates[0].release();
        sync.await.unwrap();
    });
    assert_eq!(gates[0].mem.to_bytes()[0], 3);
    cache.audit();
}

#[test]
fn a_cache_closed_over_a_dead_device_says_so_and_gives_its_memory_back() {
    let rt = world();
    let (cache, disk, gate, mapping) = one_file(&rt, CacheConfig::with_budget(MIB), 1 << 20, 0);
    gate.fail_writes.store(true, Ordering::SeqCst);
    run(&rt, mapping.open().write(0, &[1; 64 * PAGE_BYTES])).unwrap();
    drop((mapping, disk));
    assert!(run(&rt, cache.close()).is_err());
    // Retry: the flusher's task may not have ended yet.
    let is_alone = (0..100_000).any(|_| {
        run(&rt, rt.yield_now());
        Arc::strong_count(&gate) == 1
    });
    assert!(is_alone, "nobody holds the device, and so the frames, any longer");
}

/// Bytes per record; a reader sees each record whole.
const RECORD: usize = 512;
const PAGES: u64 = 48;

/// Threads write, read and truncate at random, in a cache of 16 frames. A record consists of one
/// number, repeated. In records that are not cut off, this number only grows.
#[test]
fn threads_that_write_read_and_cut_off_see_whole_records_and_none_that_were_overwritten() {
    let rt = world();
    let config = CacheConfig { read_ahead_bytes: 4 * PAGE, ..CacheConfig::with_budget(16 * PAGE) };
    let (cache, _disk, gate, mapping) = one_file(&rt, config, (PAGES * PAGE) as usize, PAGES * PAGE);
    // A task that truncates keeps writers out.
    let writers = RwLock::new(());
    let cut = PAGES * PAGE / 2;
    let records = PAGES * PAGE / RECORD as u64;
    let work = |seed: u64| {
        let mut rng = Rng::labelled(seed, "threads");
        let file = mapping.open();
        let mut seen = vec![0_u64; records as usize];
        let mut record = [0_u8; RECORD];
        for turn in 1..3_000_u64 {
            let number = rng.below(records);
            let at = number * RECORD as u64;
            match rng.below(100) {
                // Each thread writes its own records, so that their numbers grow.
                0..40 if number % 3 == seed => {
                    let _in = writers.read();
                    turn.to_le_bytes().iter().cycle().zip(&mut record).for_each(|(byte, to)| *to = *byte);
                    run(&rt, file.write(at, &record)).unwrap();
                    seen[number as usize] = turn;
                }
                40 if rng.below(4) == 0 => {
                    let _out = writers.write();
                    run(&rt, mapping.set_size(cut + rng.below(2 * PAGE))).unwrap();
                    run(&rt, mapping.set_size(PAGES * PAGE)).unwrap();
                }
                41 => file.sync_range_blocking(&rt, at),
                _ => {
                    let n = run(&rt, file.read(at, &mut record)).unwrap();
                    let values: Vec<&[u8]> = record[..n / 8 * 8].chunks(8).collect();
                    if at + RECORD as u64 <= cut {
                        assert_eq!(n, RECORD, "seed {seed}, turn {turn}");
                        let value = u64::from_le_bytes(values[0].try_into().unwrap());
                        assert!(values.iter().all(|v| *v == values[0]), "torn: seed {seed}, turn {turn}");
                        let before = std::mem::replace(&mut seen[number as usize], value);
                        assert!(value >= before, "stale: {value} after {before}, seed {seed}, turn {turn}");
                    }
                }
            }
        }
        seen
    };
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|seed| scope.spawn(move || work(seed))).collect();
        let seen: Vec<Vec<u64>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        run(&rt, cache.sync()).unwrap();
        let device = gate.mem.to_bytes();
        for number in 0..(cut / RECORD as u64) as usize {
            let last = u64::from_le_bytes(device[number * RECORD..number * RECORD + 8].try_into().unwrap());
            assert_eq!(
                last,
                seen[number % 3][number],
                "record {number} is on the device as it was last written"
            );
        }
    });
    cache.audit();
}

trait SyncRange {
    fn sync_range_blocking(&self, rt: &Rt, at: u64);
}

impl SyncRange for extant_cache::CachedOpenFile {
    fn sync_range_blocking(&self, rt: &Rt, at: u64) {
        run(rt, self.sync_range(at..at + 8 * PAGE)).unwrap();
    }
}

#[test]
fn sweeps_that_meet_each_other_leave_no_page_behind() {
    // Use a machine with costs, so that each removal yields and the next one finds it half done.
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/sata-7200-2013.toml");
    let mut machine = Machine::load(&model).unwrap().with_preemption(Preemption::None);
    machine.processors.count = 1;
    let sim = Sim::new(machine, 5);
    let rt = sim.rt().clone();
    let (cache, _disk, _gate, mapping) =
        one_file(&rt, CacheConfig::with_budget(32 * MIB), 16 << 20, 16 * MIB);
    run(&rt, async {
        let mut buf = vec![0; 16 << 20];
        mapping.open().read(0, &mut buf).await.unwrap();
        assert_eq!(mapping.cached_pages(), 4096);
        // Two removals go over the list at the same time, and one goes page by page.
        let (forget, size) = (mapping.clone(), mapping.clone());
        let forget = rt.spawn("forget", Default::default(), async move { forget.forget().await });
        let size = rt.spawn("size", Default::default(), async move { size.set_size(5 * PAGE).await });
        mapping.punch(100 * PAGE..200 * PAGE).await.unwrap();
        forget.await.unwrap().unwrap();
        size.await.unwrap().unwrap();
        assert!(mapping.cached_pages() <= 5);
        mapping.set_size(0).await.unwrap();
        assert_eq!(mapping.cached_pages(), 0);
    });
    cache.audit();
}

#[test]
fn a_truncation_that_was_dropped_is_finished_by_the_next_call() {
    // Use a machine with costs, so that the removal yields.
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/sata-7200-2013.toml");
    let mut machine = Machine::load(&model).unwrap().with_preemption(Preemption::None);
    machine.processors.count = 1;
    let sim = Sim::new(machine, 5);
    let rt = sim.rt().clone();
    let (cache, _disk, _gate, mapping) = one_file(&rt, CacheConfig::with_budget(64 * MIB), 32 << 20, 0);
    run(&rt, async {
        for next_pages in [1, 4096] {
            mapping.open().write(0, &vec![1; 16 << 20]).await.unwrap();
            let mut cut = Box::pin(mapping.set_size(PAGE));
            let is_pending = poll_fn(|cx| Poll::Ready(cut.as_mut().poll(cx).is_pending())).await;
            assert!(is_pending && mapping.cached_pages() > 1, "it was left in the middle");
            drop(cut);
            mapping.set_size(next_pages * PAGE).await.unwrap();
            assert_eq!((mapping.cached_pages(), mapping.size()), (1, next_pages * PAGE));
            mapping.set_size(16 << 20).await.unwrap();
            let mut page = vec![7; PAGE as usize];
            mapping.open().read(4000 * PAGE, &mut page).await.unwrap();
            assert!(page.iter().all(|&byte| byte == 0), "bytes that were cut off are back");
            mapping.set_size(0).await.unwrap();
        }
    });
    cache.audit();
}

#[test]
fn no_task_waits_longer_than_200_us_for_a_processor_that_writes_back_or_drops_pages() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/sata-7200-2013.toml");
    let mut machine = Machine::load(&model).unwrap().with_preemption(Preemption::None);
    machine.processors.count = 1;
    let sim = Sim::new(machine, 5);
    let rt = sim.rt().clone();
    let (cache, _disk, _gate, mapping) = one_file(&rt, CacheConfig::with_budget(64 * MIB), 32 << 20, 0);
    run(&rt, async {
        let ticker = rt.clone();
        let is_done = Arc::new(AtomicBool::new(false));
        let ends = is_done.clone();
        let ticks = rt.spawn("ticker", Default::default(), async move {
            let mut longest = Nanos::ZERO;
            while !ends.load(Ordering::Relaxed) {
                let due = ticker.now().saturating_add(Nanos::from_micros(50));
                ticker.sleep_until(due).await;
                longest = longest.max(ticker.now().saturating_sub(due));
            }
            longest
        });
        let clock = rt.clone();
        let work = rt.spawn("work", Default::default(), async move {
            let file = mapping.open();
            file.write(0, &vec![1; 16 << 20]).await.unwrap();
            file.read(0, &mut vec![1; 16 << 20]).await.unwrap();
            file.sync().await.unwrap();
            mapping.set_size(0).await.unwrap();
            // Giving up a volume, or dropping a file's last handle, cannot wait.
            file.write(0, &vec![1; 16 << 20]).await.unwrap();
            mapping.discard();
            while mapping.cached_pages() > 0 {
                clock.sleep(Nanos::from_millis(1)).await;
            }
            file.write(0, &vec![1; 16 << 20]).await.unwrap();
            file.sync().await.unwrap();
            drop((file, mapping));
            clock.sleep(Nanos::from_millis(10)).await;
        });
        work.await.unwrap();
        is_done.store(true, Ordering::Relaxed);
        let longest = ticks.await.unwrap();
        assert!(longest <= Nanos::from_micros(200), "{longest:?}");
        let usage = cache.usage();
        assert_eq!(usage.free, usage.frames, "the file's frames are free");
    });
    cache.audit();
}

/// A file without data.
#[derive(Debug)]
struct Holes;

impl Backing for Holes {
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        Answer::ok(ReadExtent { from: ReadFrom::Hole, bytes: range.len() })
    }
    fn prepare_write<'a>(&'a self, _run: DirtyRun<'a>) -> Answer<'a, Placed> {
        unreachable!("nothing is written")
    }
    fn finish_write<'a>(&'a self, _run: &'a WrittenRun) -> Answer<'a, ()> {
        unreachable!("nothing is written")
    }
}

#[test]
fn a_reader_of_holes_keeps_the_only_frame_from_its_own_read_ahead() {
    let rt = world();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(16 * PAGE)).unwrap();
    assert_eq!(cache.set_budget(PAGE), 0);
    let disk = cache.attach(Gate::new(1 << 20));
    let file = disk.mapping(Arc::new(Holes), 1, 2 * PAGE).open();
    let mut bytes = [1; 2 * PAGE_BYTES];
    assert_eq!(run(&rt, file.read(0, &mut bytes)).unwrap(), bytes.len());
    assert!(bytes.iter().all(|&byte| byte == 0));
    cache.audit();
}

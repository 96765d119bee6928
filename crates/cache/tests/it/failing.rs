//! Tests devices and files that fail while others work: each caller gets all of its own failures,
//! and no one else's. Run in virtual worlds, where time stands still while a task spins.

use crate::common::{Gate, run, sleep, virtual_world, world};
use extant_block::{Bio, BioFlags, Buf, Device, IoErrorKind, Limits, MemDevice, Op, Sector};
use extant_cache::{
    Answer, Backing, BackingError, BackingErrorKind, ByteRange, CacheConfig, CacheError, DirtyRun, Disk,
    FlatFile, Mapping, OnWriteError, PAGE_BYTES, PageCache, Placed, ReadExtent, ReadFrom, Result, WrittenRun,
};
use extant_rt::{Class, Rt, Task};
use parking_lot::Mutex;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

const PAGE: u64 = PAGE_BYTES as u64;

/// File `n` of 256 KiB.
fn file(disk: &Disk, n: u64, size: u64) -> Mapping {
    disk.mapping(Arc::new(FlatFile::new(Sector(n * 512), 256 << 10)), n, size)
}

fn config(frames: u64) -> CacheConfig {
    CacheConfig { read_ahead_bytes: 0, ..CacheConfig::with_budget(frames * PAGE) }
}

/// Lets every task run as far as it can without time passing.
fn settle(rt: &Rt) {
    let turns = async {
        for _ in 0..1_000 {
            rt.yield_now().await;
        }
    };
    run(rt, turns);
}

/// The result of `task`; asserts that `gate` receives at most `writes` writes meanwhile.
fn within<T: Send + 'static>(rt: &Rt, gate: &Gate, writes: usize, task: Task<T>) -> T {
    let before = gate.writes.load(Ordering::SeqCst);
    while !task.is_finished() {
        settle(rt);
        let count = gate.writes.load(Ordering::SeqCst) - before;
        assert!(count <= writes, "{count} writes to the device that fails, and no end");
        if !task.is_finished() {
            sleep(rt, 1);
        }
    }
    run(rt, task).unwrap()
}

fn commit_block() -> Bio {
    let mut bio = Bio::new(Op::Write, Sector(4096), vec![Buf::zeroed(PAGE_BYTES).into()]);
    bio.flags = BioFlags::PREFLUSH | BioFlags::FUA;
    bio
}

/// A device with a volatile cache, and an open file whose data is in that cache.
fn unflushed(rt: &Rt) -> (PageCache, Disk, Arc<Gate>, Mapping) {
    let cache = PageCache::new(rt, config(64)).unwrap();
    let gate = Gate::volatile(4 << 20);
    let disk = cache.attach(gate.clone());
    let mapping = file(&disk, 0, 0);
    let opened = mapping.open();
    run(rt, opened.write(0, b"data")).unwrap();
    run(rt, opened.sync_range(..)).unwrap();
    (cache, disk, gate, mapping)
}

#[test]
fn a_sync_is_not_overtaken_by_the_failure_of_a_commits_flush() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (_cache, disk, gate, mapping) = unflushed(&rt);
    gate.hold();
    let commit =
        rt.spawn("commit", Class::Normal, async move { disk.write_behind_flush(commit_block(), 0).await });
    settle(&rt);
    let opened = mapping.open();
    let sync = rt.spawn("sync", Class::Normal, async move { opened.sync().await });
    settle(&rt);
    assert_eq!(gate.held(), 1, "flushes follow each other");
    gate.fail_writes.store(true, Ordering::SeqCst);
    gate.release();
    assert!(run(&rt, commit).unwrap().is_err());
    assert!(run(&rt, sync).unwrap().is_err(), "the data may be lost");
}

#[test]
fn a_commit_is_not_written_after_a_flush_that_failed_and_is_a_flush_for_others() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (_cache, disk, gate, mapping) = unflushed(&rt);
    gate.hold();
    let flush = |name| {
        let disk = disk.clone();
        rt.spawn(name, Class::Normal, async move { disk.flush().await })
    };
    let older = flush("older");
    settle(&rt);
    let committing = disk.clone();
    let commit =
        rt.spawn(
            "commit",
            Class::Normal,
            async move { committing.write_behind_flush(commit_block(), 0).await },
        );
    settle(&rt);
    assert_eq!(gate.held(), 1, "flushes follow each other");
    gate.fail_flushes.store(1, Ordering::SeqCst);
    gate.release_one(0);
    settle(&rt);
    assert!(run(&rt, older).unwrap().is_err());
    assert!(run(&rt, commit).unwrap().is_err());
    assert_eq!(
        (gate.held(), disk.flush_failures()),
        (0, 1),
        "the flush may have lost what the commit vouches for"
    );
    // A caller that knows of the failure may continue.
    let committing = disk.clone();
    let commit =
        rt.spawn(
            "commit",
            Class::Normal,
            async move { committing.write_behind_flush(commit_block(), 1).await },
        );
    settle(&rt);
    let newer = flush("newer");
    settle(&rt);
    gate.release_one(0);
    assert!(run(&rt, commit).unwrap().is_ok());
    settle(&rt);
    assert_eq!(gate.held(), 1, "the newer one came after the commit had begun");
    gate.release();
    run(&rt, newer).unwrap().unwrap();
    let opened = mapping.open();
    assert!(run(&rt, opened.sync()).is_err(), "the older flush lost its data");
    run(&rt, opened.sync()).unwrap();
}

#[test]
fn a_commit_whose_caller_leaves_is_heard_all_the_same() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (_cache, disk, gate, mapping) = unflushed(&rt);
    let opened = mapping.open();
    gate.hold();
    {
        let mut commit = Box::pin(disk.write_behind_flush(commit_block(), 0));
        let started = std::future::poll_fn(|cx| Poll::Ready(commit.as_mut().poll(cx).is_pending()));
        assert!(run(&rt, started));
    }
    gate.fail_writes.store(true, Ordering::SeqCst);
    gate.release();
    assert_eq!(disk.flush_failures(), 1);
    assert!(run(&rt, opened.sync()).is_err());
    run(&rt, opened.sync()).unwrap();
}

#[test]
fn a_sync_whose_flush_fails_says_so_though_the_file_was_forgotten_and_opened_anew() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (_cache, disk, gate, mapping) = unflushed(&rt);
    drop(mapping);
    gate.fail_flushes.store(1, Ordering::SeqCst);
    let opened = file(&disk, 0, 4).open();
    assert!(run(&rt, opened.sync()).is_err(), "its bytes on the device are not durable");
    run(&rt, opened.sync()).unwrap();
}

#[test]
fn a_write_that_was_in_flight_during_a_failed_flush_may_be_lost_with_it() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (_cache, disk, gate, mapping) = unflushed(&rt);
    let (opened, other) = (mapping.open(), file(&disk, 1, 0));
    let second = other.open();
    run(&rt, second.write(0, b"data")).unwrap();
    gate.hold();
    let writing = rt.spawn("write-back", Class::Normal, async move { other.write_back(..).await });
    settle(&rt);
    let flushing = disk.clone();
    let flush = rt.spawn("flush", Class::Normal, async move { flushing.flush().await });
    settle(&rt);
    assert_eq!(gate.held(), 2);
    gate.fail_flushes.store(1, Ordering::SeqCst);
    gate.release_one(1);
    assert!(run(&rt, flush).unwrap().is_err());
    // The device may have had the write in its cache before the flush, and completes it only now.
    gate.release();
    let _ = run(&rt, writing);
    assert!(run(&rt, second.sync()).is_err());
    run(&rt, second.sync()).unwrap();
    assert!(run(&rt, opened.sync()).is_err());
    run(&rt, opened.sync()).unwrap();
}

/// Two devices, of which the first fails and has filled the memory.
fn filled(rt: &Rt, frames: u64) -> (PageCache, [Disk; 2], [Arc<Gate>; 2], Mapping) {
    let cache = PageCache::new(rt, config(frames)).unwrap();
    let gates = [Gate::new(4 << 20), Gate::new(4 << 20)];
    let disks = gates.clone().map(|gate| cache.attach(gate));
    let mapping = file(&disks[0], 0, 0);
    // The device has written before. Otherwise it would be lent no more than its share.
    let proven = mapping.open();
    for _ in 0..8 {
        run(rt, proven.write(0, &[1; 16 * PAGE_BYTES])).unwrap();
        run(rt, proven.sync()).unwrap();
    }
    drop(proven);
    gates[0].fail_writes.store(true, Ordering::SeqCst);
    for page in 0..=frames {
        let opened = mapping.open();
        let write = rt.spawn("filler", Class::Normal, async move {
            opened.write(page * PAGE % (256 << 10), &[1; PAGE_BYTES]).await
        });
        if let Err(refused) = within(rt, &gates[0], 64, write) {
            assert!(matches!(refused.error, CacheError::Io(_)), "{refused}");
            return (cache, disks, gates, mapping);
        }
    }
    panic!("the memory is not full: {:?}", cache.usage());
}

#[test]
fn a_device_that_fails_and_has_filled_the_memory_holds_up_no_other() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (cache, disks, gates, mapping) = filled(&rt, 64);
    let usage = cache.usage();
    assert!(usage.charged >= cache.limits().limit_pages, "{usage:?}");
    let (healthy, opened) = (file(&disks[1], 1, 0), file(&disks[1], 1, 0).open());
    let work = rt.spawn("healthy", Class::Normal, async move {
        for turn in 0..20_u8 {
            opened.write(0, &[turn; 40 * PAGE_BYTES]).await?;
            opened.sync().await?;
        }
        let mut back = vec![0; 40 * PAGE_BYTES];
        opened.read(0, &mut back).await.map(|_| back)
    });
    let back = within(&rt, &gates[0], 64, work).unwrap();
    assert!(back.iter().all(|&byte| byte == 19));
    drop(healthy);
    // The failing device's own writers get the error, after one more try each.
    let opened = mapping.open();
    let refused = rt.spawn("refused", Class::Normal, async move { opened.write(200 << 10, &[1]).await });
    assert!(within(&rt, &gates[0], 64, refused).is_err());
    // Everything recovers once the device works again.
    gates[0].fail_writes.store(false, Ordering::SeqCst);
    let opened = mapping.open();
    let _ = run(&rt, opened.sync());
    run(&rt, opened.sync()).unwrap();
    run(&rt, opened.write(0, &[3; 40 * PAGE_BYTES])).unwrap();
    run(&rt, opened.sync()).unwrap();
    let _ = run(&rt, cache.sync());
    cache.audit();
}

#[test]
fn a_reader_hears_why_there_is_no_frame_where_a_device_that_fails_has_all() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (cache, disks, gates, mapping) = filled(&rt, 64);
    assert!(cache.set_budget(16 * PAGE) > 0);
    let read = |n| {
        let opened = file(&disks[1], n, 64 * PAGE).open();
        rt.spawn("reader", Class::Normal, async move { opened.read(0, &mut [0; 10]).await })
    };
    assert!(matches!(within(&rt, &gates[0], 64, read(1)), Err(CacheError::Io(_))));
    // The device is retried on the reader's behalf, and works.
    gates[0].fail_writes.store(false, Ordering::SeqCst);
    assert_eq!(within(&rt, &gates[0], 64, read(2)).unwrap(), 10);
    let _ = run(&rt, mapping.open().sync());
    let _ = run(&rt, cache.sync());
    cache.audit();
}

/// A disk with some unwritable sectors.
#[derive(Debug)]
struct Scratched(MemDevice, Range<u64>);

impl Device for Scratched {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }
    fn submit(&self, bio: Bio) {
        if bio.op == Op::Write && self.1.contains(&bio.start.0) {
            return bio.end_as("scratched", Err(IoErrorKind::Os(5)));
        }
        self.0.submit(bio);
    }
}

#[test]
fn files_that_can_be_written_are_when_the_last_handle_is_dropped() {
    for is_closed in [false, true] {
        let sim = virtual_world();
        let rt = sim.rt().clone();
        let cache = PageCache::new(&rt, config(256)).unwrap();
        let device = Arc::new(Scratched(MemDevice::new(4 << 20), 0..512));
        let disk = cache.attach(device.clone());
        for n in 0..6 {
            run(&rt, file(&disk, n, 0).open().write(0, &[n as u8 + 1; 8 * PAGE_BYTES])).unwrap();
        }
        drop(disk);
        if is_closed {
            assert!(run(&rt, cache.close()).is_err());
        } else {
            drop(cache);
            sleep(&rt, 10);
        }
        let bytes = device.0.to_bytes();
        for n in 1..6_u8 {
            let at = usize::from(n) * (256 << 10);
            assert!(bytes[at..at + 8 * PAGE_BYTES].iter().all(|&byte| byte == n + 1), "file {n}");
        }
        assert_eq!(Arc::strong_count(&device), 1, "the cache is gone");
    }
}

#[test]
fn files_that_can_be_written_are_in_time_whatever_fails_beside_them() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let cache = PageCache::new(&rt, config(256)).unwrap();
    let device = Arc::new(Scratched(MemDevice::new(4 << 20), 0..512));
    let disk = cache.attach(device.clone());
    let files: Vec<_> = (0..4).map(|n| file(&disk, n, 0)).collect();
    for file in &files {
        run(&rt, file.open().write(0, &[1; PAGE_BYTES])).unwrap();
        sleep(&rt, 10);
    }
    // Two periods after the pages have expired.
    sleep(&rt, 40_000);
    let dirty: Vec<_> = files.iter().map(Mapping::dirty_pages).collect();
    assert_eq!(dirty, [1, 0, 0, 0]);
}

type Heard = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A backing that cannot place anything. When pages are given up, a task starts to wait for the run
/// that this ends.
#[derive(Default)]
struct Homeless {
    mapping: Mutex<Option<Mapping>>,
    waiting: Mutex<Option<Heard>>,
}

impl std::fmt::Debug for Homeless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Homeless")
    }
}

impl Backing for Homeless {
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        Answer::ok(ReadExtent { from: ReadFrom::Hole, bytes: range.len() })
    }
    fn prepare_write<'a>(&'a self, _: DirtyRun<'a>) -> Answer<'a, Placed> {
        Answer::err(BackingError::new(BackingErrorKind::NoSpace, std::io::Error::from_raw_os_error(28)))
    }
    fn finish_write<'a>(&'a self, _: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::ok(())
    }
    fn abandoned(&self, _: ByteRange) {
        let mapping = self.mapping.lock().take().expect("one run");
        let mut waiting: Heard = Box::pin(async move { mapping.write_back(..).await });
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        *self.waiting.lock() = Some(waiting);
    }
}

#[test]
fn a_write_back_hears_of_the_failure_of_a_run_that_it_waits_for() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config = CacheConfig { on_write_error: OnWriteError::MarkClean, ..config(64) };
    let cache = PageCache::new(&rt, config).unwrap();
    let disk = cache.attach(Gate::new(1 << 20));
    let backing = Arc::new(Homeless::default());
    let mapping = disk.mapping(backing.clone(), 1, 0);
    run(&rt, mapping.open().write(0, &[1; PAGE_BYTES])).unwrap();
    *backing.mapping.lock() = Some(mapping.clone());
    assert!(run(&rt, mapping.write_back(..)).is_err());
    let waiting = backing.waiting.lock().take().expect("pages were given up");
    assert!(run(&rt, waiting).is_err(), "its data were lost while it waited");
}

#[test]
fn a_wait_for_write_back_is_for_what_is_in_flight_and_not_for_what_follows() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let cache = PageCache::new(&rt, config(64)).unwrap();
    let gate = Gate::new(4 << 20);
    let disk = cache.attach(gate.clone());
    let mapping = file(&disk, 0, 0);
    let opened = mapping.open();
    let write_page = |page: u64| {
        run(&rt, opened.write(page * PAGE, &[1; PAGE_BYTES])).unwrap();
        let mapping = mapping.clone();
        let pages = page * PAGE..(page + 1) * PAGE;
        let task = rt.spawn("write-back", Class::Normal, async move { mapping.write_back(pages).await });
        settle(&rt);
        task
    };
    gate.hold();
    let first = write_page(0);
    let (waited_for, synced) = (mapping.clone(), mapping.open());
    let waits = rt.spawn("waits", Class::Normal, async move { waited_for.wait_written(..).await });
    let sync = rt.spawn("sync", Class::Normal, async move { synced.sync().await });
    settle(&rt);
    let second = write_page(1);
    assert_eq!(gate.held(), 2);
    gate.release_one(0);
    settle(&rt);
    assert!(waits.is_finished(), "a stream of writes keeps it waiting");
    assert!(!second.is_finished());
    gate.release();
    for task in [first, second, sync] {
        run(&rt, task).unwrap().unwrap();
    }
}

#[test]
fn a_cache_is_gone_with_its_last_handle_whatever_is_dirty() {
    let dirty = |rt: &Rt, fails: bool| -> Weak<Gate> {
        let cache = PageCache::new(rt, config(256)).unwrap();
        let gate = Gate::new(4 << 20);
        gate.fail_writes.store(fails, Ordering::SeqCst);
        let disk = cache.attach(gate.clone());
        for n in 0..3 {
            run(rt, file(&disk, n, 0).open().write(0, &[1; 8 * PAGE_BYTES])).unwrap();
        }
        Arc::downgrade(&gate)
    };
    for fails in [false, true] {
        let sim = virtual_world();
        let device = dirty(sim.rt(), fails);
        sleep(sim.rt(), 1_000);
        assert_eq!(device.strong_count(), 0, "{fails}");
        // The world ends before the flusher has run.
        let device = dirty(sim.rt(), fails);
        drop(sim);
        assert_eq!(device.strong_count(), 0, "{fails}, and the world ends");
        let rt = world();
        let device = dirty(&rt, fails);
        while device.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}

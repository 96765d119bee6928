//! Interleavings that once hung a caller, burned its processor or hid an error from it. All run in
//! virtual worlds: the world reports a caller that waits forever, by name.

use crate::common::Gate;
use extant_block::Sector;
use extant_cache::accounts::{AccountConfig, Shrink};
use extant_cache::control::{Asking, DirtyControl, Numbers, Orders};
use extant_cache::{
    Answer, Backing, BackingError, BackingErrorKind, ByteRange, CacheConfig, CacheError, DirtyRun, Disk,
    FlatFile, Mapping, PAGE_BYTES, PageCache, Placed, ReadExtent, ReadFrom, WrittenRun,
};
use extant_rt::{Class, Nanos, Rt};
use extant_sim::{Machine, Preemption, Sim};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

const PAGE: u64 = PAGE_BYTES as u64;

/// Lets every other task run as far as it can without time passing.
async fn settle(rt: &Rt) {
    for _ in 0..1_000 {
        rt.yield_now().await;
    }
}

/// Runs `work` to completion in a world with a disk of 4 MiB behind a gate.
fn in_world<W: Future<Output = ()>>(
    frames: u64,
    volatile: bool,
    work: impl FnOnce(Rt, PageCache, Disk, Arc<Gate>) -> W,
) {
    let sim = Sim::new(Machine::free(2, Preemption::None), 7);
    let rt = sim.rt().clone();
    let config = CacheConfig { read_ahead_bytes: 0, ..CacheConfig::with_budget(frames * PAGE) };
    let cache = PageCache::new(&rt, config).unwrap();
    let gate = if volatile { Gate::volatile(4 << 20) } else { Gate::new(4 << 20) };
    let disk = cache.attach(gate.clone());
    rt.block_on(work(rt.clone(), cache, disk, gate)).unwrap();
}

/// File `n` of 256 KiB.
fn file(disk: &Disk, n: u64, size: u64) -> Mapping {
    disk.mapping(Arc::new(FlatFile::new(Sector(n * 512), 256 << 10)), n, size)
}

#[test]
fn a_sync_is_not_overtaken_by_the_failure_of_an_older_flush() {
    in_world(256, true, |rt, _cache, disk, gate| async move {
        let mapping = file(&disk, 0, 0);
        let opened = Arc::new(mapping.open());
        opened.write(0, b"data").await.unwrap();
        opened.sync_range(..).await.unwrap();
        // The device has the data in its volatile cache and loses it during this flush.
        gate.hold();
        let older = {
            let disk = disk.clone();
            rt.spawn("older", Class::Normal, async move { disk.flush().await })
        };
        settle(&rt).await;
        let sync = {
            let opened = opened.clone();
            rt.spawn("sync", Class::Normal, async move { opened.sync().await })
        };
        settle(&rt).await;
        // The newer flush has nothing left to fail on, and might be reaped first.
        assert_eq!(gate.held(), 1, "flushes follow each other");
        gate.fail_flushes.store(1, Ordering::SeqCst);
        gate.release_one(0);
        settle(&rt).await;
        gate.release();
        assert!(older.await.unwrap().is_err());
        assert!(sync.await.unwrap().is_err(), "the data may be lost");
    });
}

#[test]
fn callers_that_come_during_a_flush_share_the_next_one() {
    in_world(256, true, |rt, _cache, disk, gate| async move {
        gate.hold();
        let flush = |name| {
            let disk = disk.clone();
            rt.spawn(name, Class::Normal, async move { disk.flush().await })
        };
        let first = flush("first");
        settle(&rt).await;
        let followers: Vec<_> = (0..10).map(|_| flush("follower")).collect();
        settle(&rt).await;
        gate.release_one(0);
        first.await.unwrap().unwrap();
        settle(&rt).await;
        assert_eq!(gate.held(), 1, "one flush for all of them");
        gate.fail_flushes.store(1, Ordering::SeqCst);
        gate.release();
        for follower in followers {
            assert!(follower.await.unwrap().is_err(), "it was their flush, too");
        }
        assert_eq!(disk.flush_failures(), 1);
        disk.flush().await.unwrap();
    });
}

#[test]
fn a_caller_that_leaves_during_its_flush_keeps_no_other_waiting() {
    in_world(256, true, |rt, _cache, disk, gate| async move {
        gate.hold();
        {
            let mut left = Box::pin(disk.flush());
            let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(left.as_mut().poll(cx).is_pending()));
            assert!(poll.await);
        }
        let follower = {
            let disk = disk.clone();
            rt.spawn("follower", Class::Normal, async move { disk.flush().await })
        };
        settle(&rt).await;
        gate.release();
        follower.await.unwrap().unwrap();
    });
}

#[test]
fn a_write_stops_where_an_exclusion_begins_and_waits_there() {
    in_world(256, false, |rt, _cache, disk, _gate| async move {
        let mapping = file(&disk, 0, 0);
        let exclusion = mapping.exclude(10 * PAGE..20 * PAGE).await;
        let opened = Arc::new(mapping.open());
        let writer = {
            let opened = opened.clone();
            rt.spawn("writer", Class::Normal, async move { opened.write(0, &[1; 30 * PAGE_BYTES]).await })
        };
        settle(&rt).await;
        assert_eq!(mapping.size(), 10 * PAGE);
        drop(exclusion);
        writer.await.unwrap().unwrap();
        assert_eq!(mapping.size(), 30 * PAGE);
    });
}

/// A client that has nothing to give back, and counts how often it is asked.
#[derive(Debug, Default)]
struct Poor {
    asked: AtomicUsize,
    panics: usize,
}

impl Shrink for Poor {
    fn shrink(&self, _bytes: u64) -> u64 {
        assert!(self.asked.fetch_add(1, Ordering::SeqCst) >= self.panics, "the client's mistake");
        0
    }
}

#[test]
fn a_client_with_nothing_to_give_is_not_asked_over_and_over() {
    in_world(16, false, |rt, cache, disk, gate| async move {
        let account = cache.account(AccountConfig::new("poor", &cache));
        let client = Arc::new(Poor::default());
        account.set_shrinker(Arc::downgrade(&client) as Weak<dyn Shrink>);
        let _charge = account.charge(1);
        settle(&rt).await;
        // Every frame is being loaded, and a reader waits for one.
        gate.hold();
        let mapping = file(&disk, 0, 64 * PAGE);
        let readers: Vec<_> = (0..40)
            .map(|page| {
                let opened = mapping.open();
                rt.spawn("reader", Class::Normal, async move { opened.read(page * PAGE, &mut [0; 8]).await })
            })
            .collect();
        settle(&rt).await;
        let asked = client.asked.load(Ordering::SeqCst);
        assert!(asked < 100, "asked {asked} times");
        gate.release();
        for reader in readers {
            assert_eq!(reader.await.unwrap().unwrap(), 8);
        }
    });
}

#[test]
fn a_client_that_panics_once_is_asked_again() {
    in_world(64, false, |rt, cache, _disk, _gate| async move {
        let account = cache.account(AccountConfig { limit_bytes: 100, ..AccountConfig::new("poor", &cache) });
        let client = Arc::new(Poor { panics: 1, ..Poor::default() });
        account.set_shrinker(Arc::downgrade(&client) as Weak<dyn Shrink>);
        let _first = account.charge(200);
        settle(&rt).await;
        let asked = client.asked.load(Ordering::SeqCst);
        let _second = account.charge(200);
        settle(&rt).await;
        assert!(asked > 0 && client.asked.load(Ordering::SeqCst) > asked);
    });
}

/// Cannot place anything.
#[derive(Debug)]
struct Full;

impl Backing for Full {
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
}

/// Dirties `pages` pages that cannot be placed.
async fn stick(rt: &Rt, disk: &Disk, inode: u64, pages: u64) -> Mapping {
    let mapping = disk.mapping(Arc::new(Full), inode, 0);
    let opened = mapping.open();
    let dirtied = mapping.dirty_pages();
    while mapping.dirty_pages() < dirtied + pages {
        let at = mapping.dirty_pages() * PAGE;
        if opened.write(at, &[1; PAGE_BYTES]).await.is_err() {
            break;
        }
    }
    let _ = opened.sync().await;
    settle(rt).await;
    mapping
}

#[test]
fn a_writer_is_told_why_there_is_no_room_where_stuck_files_have_taken_all() {
    in_world(16, false, |rt, cache, disk, _gate| async move {
        let mut stuck = Vec::new();
        while cache.usage().unplaceable < 12 {
            stuck.push(stick(&rt, &disk, 1 + stuck.len() as u64, 12).await);
        }
        let refused = file(&disk, 0, 0).open().write(0, &[1; PAGE_BYTES]).await.unwrap_err();
        assert!(matches!(refused.error, CacheError::Backing(_)), "{refused}");
    });
}

#[test]
fn a_stuck_file_that_is_cut_off_makes_room_for_a_writer_that_waits() {
    in_world(16, false, |rt, cache, disk, gate| async move {
        let mut stuck = Vec::new();
        while cache.usage().unplaceable < 11 {
            let left = 11 - cache.usage().unplaceable;
            stuck.push(stick(&rt, &disk, 1 + stuck.len() as u64, left.min(4)).await);
        }
        gate.hold();
        let (slow, other) = (file(&disk, 0, 0), file(&disk, 1, 0));
        slow.open().write(0, &[1; PAGE_BYTES]).await.unwrap();
        let writer = {
            let opened = other.open();
            rt.spawn("writer", Class::Normal, async move { opened.write(0, &[1; PAGE_BYTES]).await })
        };
        settle(&rt).await;
        assert!(!writer.is_finished(), "there is room for one page");
        for mapping in &stuck {
            mapping.set_size(0).await.unwrap();
        }
        settle(&rt).await;
        assert!(writer.is_finished(), "{:?}", cache.usage());
        gate.release();
    });
}

/// Its extents are not whole blocks of the device.
#[derive(Debug)]
struct Crooked;

impl Backing for Crooked {
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn map_read(&self, _: ByteRange) -> Answer<'_, ReadExtent> {
        Answer::ok(ReadExtent { from: ReadFrom::Device(Sector(0)), bytes: 100 })
    }
    fn prepare_write<'a>(&'a self, _: DirtyRun<'a>) -> Answer<'a, Placed> {
        Answer::ok(Placed::default())
    }
    fn finish_write<'a>(&'a self, _: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::ok(())
    }
}

#[test]
fn a_backings_nonsense_is_an_error_and_keeps_no_frame() {
    in_world(16, false, |_rt, cache, disk, _gate| async move {
        let opened = disk.mapping(Arc::new(Crooked), 1, 8 * PAGE).open();
        for _ in 0..2 {
            let error = opened.read(0, &mut [0; 8]).await.unwrap_err();
            assert!(matches!(error, CacheError::Backing(_)), "{error}");
        }
        assert_eq!(cache.usage().free, 16);
    });
}

/// Grants each device two dirty pages, and starts no write-back.
#[derive(Debug)]
struct TwoPages;

impl DirtyControl for TwoPages {
    fn orders(&mut self, _now: Nanos, numbers: &Numbers, _asking: Option<Asking>) -> Orders {
        Orders { device_limit_pages: 2, ..Orders::none(numbers) }
    }
}

#[test]
fn a_writer_for_which_an_ended_run_leaves_no_room_is_served_by_the_next() {
    let sim = Sim::new(Machine::free(2, Preemption::None), 1);
    let rt = sim.rt().clone();
    let config = CacheConfig { control: Box::new(TwoPages), ..CacheConfig::with_budget(64 * PAGE) };
    let cache = PageCache::new(&rt, config).expect("memory");
    let gate = Gate::new(1 << 20);
    let mapping = file(&cache.attach(gate.clone()), 0, 0);
    let work = async {
        mapping.open().write(0, &[1; 2 * PAGE_BYTES]).await.unwrap();
        gate.hold();
        let (flushed, first) = (mapping.clone(), ByteRange::new(0, PAGE));
        let flush = rt.spawn("flush", Class::Normal, async move { flushed.write_back(first).await });
        settle(&rt).await;
        assert_eq!(gate.held(), 1);
        let writers: Vec<_> = (2..4)
            .map(|page| {
                let opened = mapping.open();
                let write = async move { opened.write(page * PAGE, &[1; PAGE_BYTES]).await };
                rt.spawn("writer", Class::Normal, write)
            })
            .collect();
        settle(&rt).await;
        assert!(writers.iter().all(|writer| !writer.is_finished()), "both wait for room");
        // There is room for one of them, and nothing is in flight any more.
        gate.release();
        settle(&rt).await;
        assert!(writers.iter().all(|writer| writer.is_finished()), "{:?}", cache.usage());
        flush.await.unwrap().unwrap();
    };
    rt.block_on(work).unwrap();
    drop(sim);
}

//! Tests little memory, many callers, and callers that go away: nothing hangs, nothing is lost.

use crate::common::{Gate, run, world};
use extant_block::{MemDevice, Sector};
use extant_cache::{CacheConfig, FlatFile, OnWriteError, PAGE_BYTES, PageCache};
use extant_rt::{Nanos, Rng, Rt};
use extant_sim::{Jitter, Machine, Preemption, Sim};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

const MIB: u64 = 1 << 20;

#[test]
fn a_thousand_writers_share_eight_megabytes() {
    let rt = world();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(8 * MIB)).unwrap();
    let gate = Gate::new(64 << 20);
    let disk = cache.attach(gate.clone());
    // Keep the mappings to the end: dropping one frees its pages, and an audit must not run in the
    // middle of that.
    let mappings: Vec<_> = (0..1_000_u64)
        .map(|n| {
            let backing = FlatFile::new(Sector(n * 65_536 / 512), 65_536);
            disk.mapping(Arc::new(backing), n, 0)
        })
        .collect();
    let writers: Vec<_> = (0..1_000_u64)
        .map(|n| {
            let file = mappings[n as usize].open();
            rt.spawn("writer", Default::default(), async move {
                for turn in 0..4_u64 {
                    let bytes = vec![(n + turn) as u8; 30_000];
                    file.write(turn * 10_001, &bytes).await.unwrap();
                }
                let mut back = vec![0; 60_003];
                assert_eq!(file.read(0, &mut back).await.unwrap(), 60_003);
                assert!(back[40_000..].iter().all(|&b| b == (n + 3) as u8));
            })
        })
        .collect();
    for writer in writers {
        run(&rt, writer).unwrap();
        let usage = cache.usage();
        assert!(usage.dirty + usage.writeback <= cache.limits().limit_pages);
    }
    run(&rt, cache.sync()).unwrap();
    cache.audit();
    let bytes = gate.mem.to_bytes();
    assert!((0..1_000).all(|n| bytes[n * 65_536] == n as u8 && bytes[n * 65_536 + 60_002] == (n + 3) as u8));
}

/// The value of byte `at` of file `file` once it has been written.
fn byte(file: u64, at: u64) -> u8 {
    ((at / 512 * 37 + file * 101) as u8) | 1
}

fn bytes(file: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| byte(file, at)).collect()
}

/// Runs `work` to completion, or drops it when `limit` has passed.
async fn perhaps<T>(rt: &Rt, limit: Option<Nanos>, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut alarm = limit.map(|limit| rt.sleep(limit));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(out) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(out));
        }
        match alarm.as_mut().map(|alarm| Pin::new(alarm).poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(None),
            _ => Poll::Pending,
        }
    })
    .await
}

const FILE_BYTES: u64 = 40 * PAGE_BYTES as u64;

/// Six tasks on two files in a cache of 24 pages. Some callers go away half way; then come an audit
/// and a check of all contents.
fn schedule(seed: u64) {
    let sim = Sim::new(Machine::free(2, Preemption::None), seed);
    let rt = sim.rt().clone();
    let mut rng = rt.rng("schedule");
    let fails_in_1000 = if seed.is_multiple_of(4) { 50 } else { 0 };
    let mem = Arc::new(MemDevice::new(2 * FILE_BYTES as usize));
    let device = Arc::new(Jitter::new(&sim, mem.clone(), fails_in_1000));
    let mut config = CacheConfig::with_budget(24 * PAGE_BYTES as u64);
    config.periodic = Nanos::from_millis(1);
    config.expire = Nanos::from_millis(2);
    config.bio_bytes = PAGE_BYTES as u64 * (1 + rng.below(8));
    config.read_ahead_bytes = PAGE_BYTES as u64 * rng.below(8);
    if seed.is_multiple_of(8) {
        config.on_write_error = OnWriteError::MarkClean;
    }
    let cache = PageCache::new(&rt, config).expect("memory");
    let disk = cache.attach(device);
    // The second file is never truncated, so what a write promised must be there at the end.
    let files: Vec<_> = (0..2_u64)
        .map(|n| {
            let backing = FlatFile::new(Sector(n * FILE_BYTES / 512), FILE_BYTES);
            disk.mapping(Arc::new(backing), n, 0)
        })
        .collect();
    let promised = Arc::new(Mutex::new(vec![false; FILE_BYTES as usize]));
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (rt, files, promised) = (rt.clone(), files.clone(), promised.clone());
            let mut rng = Rng::new(rng.next_u64());
            rt.clone().spawn("caller", Default::default(), async move {
                for _ in 0..12 {
                    let n = rng.below(2);
                    let file = files[n as usize].open();
                    let at = rng.below(FILE_BYTES - 1);
                    let len = (rng.below(5 * PAGE_BYTES as u64) + 1).min(FILE_BYTES - at) as usize;
                    let limit = (rng.below(3) == 0).then(|| Nanos::from_micros(rng.below(400)));
                    match rng.below(10) {
                        0..4 => {
                            let data = bytes(n, at, len);
                            if let Some(Ok(())) = perhaps(&rt, limit, file.write(at, &data)).await
                                && n == 1
                            {
                                promised.lock()[at as usize..at as usize + len].fill(true);
                            }
                        }
                        4..7 => {
                            let mut buf = vec![0; len];
                            if let Some(Ok(got)) = perhaps(&rt, limit, file.read(at, &mut buf)).await {
                                for (i, &b) in buf[..got].iter().enumerate() {
                                    assert!(
                                        b == 0 || b == byte(n, at + i as u64),
                                        "seed {seed}: a stray byte"
                                    );
                                }
                            }
                        }
                        7 => drop(perhaps(&rt, limit, file.sync()).await),
                        8 => drop(perhaps(&rt, limit, file.mapping().invalidate(at..at + len as u64)).await),
                        _ if n == 0 => drop(perhaps(&rt, limit, file.mapping().set_size(at)).await),
                        _ => rt.sleep(Nanos::from_micros(rng.below(500))).await,
                    }
                }
            })
        })
        .collect();
    let end = rt.block_on(async {
        for task in tasks {
            task.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        // Read-ahead and write-back left behind by callers end by themselves.
        rt.sleep(Nanos::from_millis(20)).await;
        for _ in 0..200 {
            if cache.sync().await.is_ok() {
                break;
            }
        }
        rt.sleep(Nanos::from_millis(20)).await;
        cache.audit();
        let mut back = vec![0; FILE_BYTES as usize];
        let mut got = files[1].open().read(0, &mut back).await;
        while got.is_err() {
            got = files[1].open().read(0, &mut back).await;
        }
        let size = files[1].size() as usize;
        (back, size)
    });
    let (back, size) = end.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let lossy = fails_in_1000 > 0;
    for (at, promised) in promised.lock().iter().enumerate() {
        if *promised && !lossy {
            assert!(at < size && back[at] == byte(1, at as u64), "seed {seed}: byte {at} was promised");
        }
    }
    if !lossy {
        let on_disk = mem.to_bytes();
        assert!(on_disk[FILE_BYTES as usize..][..size] == back[..size], "seed {seed}: the device has it all");
    }
}

#[test]
fn callers_that_leave_half_way_leak_nothing() {
    let count =
        std::env::var("EXTANT_SCHEDULES").map_or(1_000, |n| n.parse().expect("a number of schedules"));
    let first = std::env::var("EXTANT_SEED").map_or(0, |n| n.parse().expect("a seed"));
    println!("EXTANT_SEED={first} EXTANT_SCHEDULES={count}");
    (first..first + count).for_each(schedule);
}

#[test]
fn five_hundred_readers_and_writers_have_no_spurious_wakes() {
    let sim = Sim::new(Machine::free(2, Preemption::None), 3);
    let rt = sim.rt().clone();
    let mem = Arc::new(MemDevice::new(16 << 20));
    let cache = PageCache::new(&rt, CacheConfig::with_budget(32 * MIB)).unwrap();
    let disk = cache.attach(Arc::new(Jitter::new(&sim, mem, 0)));
    let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), 16 << 20)), 1, 16 << 20);
    let tasks: Vec<_> = (0..512_u64)
        .map(|n| {
            let file = mapping.open();
            rt.spawn("caller", Default::default(), async move {
                let at = (n / 2 * 8 + 1) * PAGE_BYTES as u64 + 100;
                let mut buf = [0; 10];
                match n % 2 {
                    0 => assert_eq!(file.read(at, &mut buf).await.unwrap(), 10),
                    _ => file.write(at, &buf).await.unwrap(),
                }
            })
        })
        .collect();
    rt.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    })
    .unwrap();
    let stats = cache.wait_stats();
    assert!(stats.waits >= 512, "{stats:?}");
    assert_eq!(stats.spurious, 0, "{stats:?}");
    assert_eq!(stats.examined, stats.woken, "{stats:?}");
}

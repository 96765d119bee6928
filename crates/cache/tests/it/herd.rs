//! 512 readers and writers on one page wait table: reproduces the counts of "[0/2] filtered
//! wakeups" (linux-kernel, 2 May 2004) through the cache.
//!
//! All wait for pages of one slow disk, which serves them one by one. A completion that wakes
//! the whole bucket causes (W - 1)/N spurious wake-ups, where W is the number of waiters and N the
//! number of buckets in use: 128 of that kernel's 2,048.

use extant_block::{Bio, Device, Limits, Sector};
use extant_cache::{CacheConfig, FlatFile, PageCache};
use extant_rt::wait::{Discipline, Hash};
use extant_rt::{Class, Nanos, WaitConfig, WaitStats};
use extant_sim::{DeviceClock, Machine, Preemption, Sim};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TASKS: u64 = 512;
const PAGES_EACH: u64 = 20;
/// Pages of 8 KiB in a memory of 3.5 GiB.
const PAGES: u64 = 490_172;
const PAGE: u64 = 4096;

/// Serves one bio after another, each in 5 ms.
#[derive(Debug)]
struct SlowDisk {
    limits: Limits,
    clock: DeviceClock,
    free_at: Mutex<Nanos>,
    ended: Arc<AtomicU64>,
}

impl Device for SlowDisk {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        let mut free_at = self.free_at.lock();
        *free_at = self.clock.now().max(*free_at).saturating_add(Nanos::from_millis(5));
        let ended = self.ended.clone();
        self.clock.call_at(*free_at, move || {
            ended.fetch_add(1, Ordering::Relaxed);
            bio.end(Ok(()));
        });
    }
}

/// Counters of the table once each task has its pages. Half of the tasks read pages, half overwrite
/// parts of them.
fn readers_and_writers(page_waits: WaitConfig) -> WaitStats {
    let sim = Sim::new(Machine::free(6, Preemption::None), 42);
    let rt = sim.rt();
    let mut config = CacheConfig::with_budget(256 << 20);
    // Everything written stays in memory: only pages being read are waited for.
    config.background_bytes = Some(96 << 20);
    config.expire = Nanos::from_secs(1 << 20);
    config.read_ahead_bytes = 0;
    config.page_waits = page_waits;
    let cache = PageCache::new(rt, config).unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    let disk = cache.attach(Arc::new(SlowDisk {
        limits: Limits::new("slow", PAGES * PAGE),
        clock: sim.devices(),
        free_at: Mutex::default(),
        ended: ended.clone(),
    }));
    let mapping = disk.mapping(Arc::new(FlatFile::new(Sector(0), PAGES * PAGE)), 1, PAGES * PAGE);
    let taken = Arc::new(Mutex::new(BTreeSet::new()));
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| {
            let (file, taken, mut rng) = (mapping.open(), taken.clone(), rt.rng(&format!("task {n}")));
            rt.spawn("task", Class::Normal, async move {
                for _ in 0..PAGES_EACH {
                    // A page that no other task uses.
                    let page = loop {
                        let page = rng.below(PAGES);
                        if taken.lock().insert(page) {
                            break page;
                        }
                    };
                    match n % 2 {
                        0 => assert_eq!(file.read(page * PAGE, &mut [1; 100]).await.unwrap(), 100),
                        _ => file.write(page * PAGE + 1, &[7; 100]).await.unwrap(),
                    }
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
    assert_eq!(ended.load(Ordering::Relaxed), TASKS * PAGES_EACH, "a read for each, and nothing written");
    let stats = cache.wait_stats();
    assert_eq!((stats.waits, stats.wakes), (TASKS * PAGES_EACH, TASKS * PAGES_EACH));
    rt.block_on(cache.close()).unwrap().unwrap();
    stats
}

fn linux_2_6_6(discipline: Discipline) -> WaitConfig {
    // The direct mapping of sparc64, and its 64-byte struct page.
    let hash = Hash::Linux26 { base: 0xffff_f800_0040_0000, stride_bytes: 64 };
    WaitConfig { name: "pages", bucket_bits: 11, discipline, hash }
}

/// Tasks in the same bucket that wait for another page, summed over all completions. Assumes that
/// all tasks wait at every completion but the last ones, when they leave one by one.
fn others_in_the_bucket() -> f64 {
    let full = (TASKS * PAGES_EACH - TASKS) as f64 * (TASKS as f64 - 1.0);
    let leaving: f64 = (0..TASKS).map(|w| w as f64).sum();
    (full + leaving) / 128.0
}

#[track_caller]
fn assert_near(measured: u64, expected: f64) {
    let off = (measured as f64 / expected - 1.0).abs();
    assert!(off <= 0.03, "measured {measured}, expected {expected}: {:.2} % off", off * 100.0);
}

#[test]
fn of_512_readers_and_writers_none_is_woken_spuriously() {
    for config in [WaitConfig::new("pages"), linux_2_6_6(Discipline::Keyed)] {
        let stats = readers_and_writers(config);
        assert_eq!((stats.spurious, stats.woken, stats.examined), (0, stats.waits, stats.waits));
    }
}

#[test]
fn the_table_of_2004_wakes_as_many_spuriously_as_arithmetic_says() {
    let stats = readers_and_writers(linux_2_6_6(Discipline::WholeBucket));
    assert_near(stats.spurious, others_in_the_bucket());
    assert_eq!(stats.woken, stats.spurious + stats.waits);
    let filtered = readers_and_writers(linux_2_6_6(Discipline::Filtered));
    assert_eq!((filtered.spurious, filtered.woken), (0, filtered.waits));
    assert_near(filtered.examined - filtered.waits, others_in_the_bucket());
}

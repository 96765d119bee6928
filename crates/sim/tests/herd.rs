//! The thundering herd of "[0/2] filtered wakeups" (linux-kernel, 2 May 2004), in counts.
//!
//! 512 tasks read random pages from one slow disk, each waiting for its own page in a hashed table
//! of wait queues. A completion that wakes the whole bucket wakes (W − 1)/N tasks spuriously, with
//! W waiting tasks and N buckets in use. With the hash and page structure of that kernel N is 128
//! of 2,048, and (512 − 1)/128 = 3.99.

use extant_rt::wait::{Discipline, Hash, WaitStats};
use extant_rt::{Class, Flag, Nanos, WaitConfig, WaitKey, WaitTable};
use extant_sim::{Machine, Preemption, Sim};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

const READERS: u64 = 512;
const READS_EACH: u64 = 40;
/// Pages of 8 KiB in 3.5 GB.
const PAGES: u64 = 490_172;
const REQUEST: WaitKey = WaitKey::new(0);
const LOCKED: Flag = Flag::new(0, 1);

/// Reads waiting for the disk, which serves them one by one, each in 5 ms regardless of position.
type Queue = parking_lot::Mutex<VecDeque<u64>>;

struct Herd {
    stats: WaitStats,
    completions: u64,
    polls: u64,
    end: Nanos,
}

fn read_at_random(machine: Machine, config: WaitConfig) -> Herd {
    let sim = Sim::new(machine, 42);
    let rt = sim.rt();
    let table = Arc::new(WaitTable::new(rt, config));
    // The disk has its own table; the counters are those of the page wait table.
    let bell = Arc::new(WaitTable::new(rt, WaitConfig::new("disk")));
    let pages: Arc<[AtomicU32]> = (0..PAGES).map(|_| AtomicU32::new(0)).collect();
    let queue = Arc::new(Queue::default());
    drop(rt.spawn("disk", Class::RealTime(1), {
        let (rt, table, pages, queue, bell) =
            (rt.clone(), table.clone(), pages.clone(), queue.clone(), bell.clone());
        async move {
            loop {
                bell.wait_until(REQUEST, || !queue.lock().is_empty()).await;
                let page = queue.lock().pop_front().expect("not empty, and nobody else takes from it");
                rt.sleep(Nanos::from_millis(5)).await;
                table.unlock(page, &pages[page as usize], LOCKED);
            }
        }
    }));
    let reader = |n: u64| {
        let (rt, table, pages, queue, bell) =
            (rt.clone(), table.clone(), pages.clone(), queue.clone(), bell.clone());
        async move {
            let mut rng = rt.rng(&format!("reader {n}"));
            for _ in 0..READS_EACH {
                // Each read picks a page that no other task is reading.
                let page = loop {
                    let page = rng.below(PAGES);
                    if table.try_lock(&pages[page as usize], LOCKED) {
                        break page;
                    }
                };
                queue.lock().push_back(page);
                bell.wake(REQUEST);
                table.wait_while(page, &pages[page as usize], LOCKED).await;
            }
        }
    };
    let readers: Vec<_> = (0..READERS).map(|n| rt.spawn("reader", Class::Normal, reader(n))).collect();
    rt.block_on(async {
        for reader in readers {
            reader.await.unwrap();
        }
    })
    .unwrap();
    Herd { stats: table.stats(), completions: READERS * READS_EACH, polls: sim.stats().polls, end: rt.now() }
}

fn linux_2_6_6(discipline: Discipline) -> WaitConfig {
    // sparc64's direct mapping, with a struct page of 64 bytes.
    let hash = Hash::Linux26 { base: 0xffff_f800_0040_0000, stride_bytes: 64 };
    WaitConfig { name: "pages", bucket_bits: 11, discipline, hash }
}

/// Spurious wake-ups by arithmetic: all readers wait at every completion except the last ones, when
/// readers leave one by one.
fn expected(usable: f64) -> f64 {
    let full = (READERS * READS_EACH - READERS) as f64 * (READERS as f64 - 1.0);
    let leaving: f64 = (0..READERS).map(|w| w as f64).sum();
    (full + leaving) / usable
}

#[track_caller]
fn assert_near(measured: f64, expected: f64, within: f64) {
    let off = (measured / expected - 1.0).abs();
    assert!(off <= within, "measured {measured}, expected {expected}: {:.2} % off", off * 100.0);
}

#[test]
fn waking_the_whole_bucket_wakes_as_many_spuriously_as_arithmetic_says() {
    let herd = read_at_random(Machine::free(6, Preemption::None), linux_2_6_6(Discipline::WholeBucket));
    assert_near(herd.stats.spurious as f64, expected(128.0), 0.02);
    assert_eq!(herd.stats.examined, herd.stats.woken);
    assert_eq!(herd.stats.woken, herd.stats.spurious + herd.completions);
    // While all tasks read, each completion causes 3.99 spurious wake-ups.
    let steady = herd.stats.spurious as f64 / (expected(128.0) / (511.0 / 128.0));
    assert_near(steady, 3.99, 0.02);
}

#[test]
fn a_good_hash_alone_would_have_done_much_of_it() {
    let config = WaitConfig { hash: Hash::Golden, ..linux_2_6_6(Discipline::WholeBucket) };
    let herd = read_at_random(Machine::free(6, Preemption::None), config);
    assert_near(herd.stats.spurious as f64, expected(2_048.0), 0.1);
}

#[test]
fn filtering_has_no_spurious_wakes_but_looks_at_all() {
    let herd = read_at_random(Machine::free(6, Preemption::None), linux_2_6_6(Discipline::Filtered));
    assert_eq!((herd.stats.spurious, herd.stats.woken), (0, herd.completions));
    assert_near((herd.stats.examined - herd.completions) as f64, expected(128.0), 0.02);
}

#[test]
fn keyed_waits_have_no_spurious_wakes_and_look_at_one() {
    for hash in [Hash::Golden, linux_2_6_6(Discipline::Keyed).hash] {
        let config = WaitConfig { hash, ..linux_2_6_6(Discipline::Keyed) };
        let herd = read_at_random(Machine::free(6, Preemption::None), config);
        assert_eq!((herd.stats.spurious, herd.stats.woken), (0, herd.completions));
        assert_eq!(herd.stats.examined, herd.completions);
    }
}

#[test]
fn on_the_machine_of_the_thread_the_disk_sets_the_pace_and_the_herd_only_burns_processor_time() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/e3000-2004.toml");
    let machine = Machine::load(&path).unwrap();
    let before = read_at_random(machine.clone(), linux_2_6_6(Discipline::WholeBucket));
    let after = read_at_random(machine, WaitConfig::new("pages"));
    assert_near(before.end.as_secs_f64(), after.end.as_secs_f64(), 0.02);
    assert_near(before.stats.spurious as f64, expected(128.0), 0.02);
    assert_eq!(after.stats.spurious, 0);
    assert!(before.polls > after.polls + before.stats.spurious * 9 / 10);
}

//! Writeback passes next to a task that must run every 5 ms, on the machine of March 2010, in
//! virtual worlds.

use extant_block::{Bio, Device, Limits, Sector};
use extant_cache::{CacheConfig, FlatFile, PageCache};
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Class, Nanos, Rt};
use extant_sim::disk::Disks;
use extant_sim::{Machine, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

/// A device that counts the bytes submitted to it.
#[derive(Debug)]
struct Counted(Arc<dyn Device>, AtomicU64);

impl Device for Counted {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn submit(&self, bio: Bio) {
        self.1.fetch_add(bio.bytes, Ordering::Relaxed);
        self.0.submit(bio);
    }
}

/// Latencies of a periodic task, as `cyclictest -i 5000` reports them.
#[derive(Debug)]
struct Latency {
    mean: Nanos,
    longest: Nanos,
}

/// Sleeps until every multiple of 5 ms up to `end`, and records how late it ran.
async fn cyclictest(rt: Rt, end: Nanos) -> Latency {
    let (mut due, mut samples, mut sum, mut longest) = (rt.now(), 0, 0, Nanos::ZERO);
    while due < end {
        due = due.saturating_add(Nanos::from_millis(5));
        rt.sleep_until(due).await;
        let late = rt.now().saturating_sub(due);
        samples += 1;
        sum += late.0;
        longest = longest.max(late);
    }
    Latency { mean: Nanos(sum / samples), longest }
}

/// The latencies next to a writer that streams for twenty seconds, and the MiB submitted in that
/// time.
fn beside_a_stream(pass: &str) -> (Latency, u64) {
    let machine = Machine::parse("turion", include_str!("../../../machines/turion-2010.toml")).unwrap();
    let sim = Sim::new(machine, 1);
    let rt = sim.rt().clone();
    let disk = Disks::attach(&sim).device(0);
    let elevator = extant_history::elevator("cfq", &extant_history::BlockHost::default()).unwrap();
    let queue = Arc::new(Queue::new(&rt, disk, elevator, QueueConfig::default()));
    let counted = Arc::new(Counted(queue, AtomicU64::new(0)));
    let cache = PageCache::new(
        &rt,
        CacheConfig {
            phantom_frames: true,
            dirty_bytes: Some(400 * MIB),
            background_bytes: Some(200 * MIB),
            run_bytes: Some(8 * MIB),
            bio_bytes: MIB,
            pass: extant_history::pass(pass).unwrap(),
            control: extant_history::dirty_control(
                "linux-3.1",
                &extant_history::Host { cpus: 1, memory_bytes: 2048 * MIB, hz: 1000 },
            )
            .unwrap(),
            ..CacheConfig::with_budget(2048 * MIB)
        },
    )
    .unwrap();
    let attached = cache.attach(counted.clone());
    let mapping = attached.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 36)), 1, 0);
    let file = mapping.open();
    let end = Nanos::from_secs(20);
    let writer = rt.clone();
    drop(rt.spawn("dd", Class::Normal, async move {
        let buffer = vec![1; 10 << 20];
        for turn in 0.. {
            if writer.now() >= end || file.write(turn * (10 << 20), &buffer).await.is_err() {
                break;
            }
        }
    }));
    let sampling = rt.spawn("cyclictest", Class::RealTime(80), cyclictest(rt.clone(), end));
    let latency = rt.block_on(sampling).unwrap().unwrap();
    (latency, counted.1.load(Ordering::Relaxed) / MIB)
}

#[test]
fn the_pass_of_2_6_33_delays_by_what_it_dirties_again_and_its_patch_and_ours_do_not() {
    let (released, released_mib) = beside_a_stream("linux-2.6.33");
    let (patched, _) = beside_a_stream("linux-2.6.33+resched");
    let (ours, our_mib) = beside_a_stream("extant");
    // 30,720 pages at 2.3 us each: the figure that the machine's file was calibrated with.
    assert!(released.longest >= Nanos::from_millis(65), "{released:?}");
    assert!(released.mean >= Nanos::from_millis(1), "{released:?}");
    assert!(patched.longest <= Nanos::from_millis(12), "{patched:?}");
    assert!(ours.longest <= patched.longest && ours.mean <= patched.mean, "{ours:?} {patched:?}");
    assert!(ours.mean <= Nanos::from_micros(50), "{ours:?}");
    assert!(our_mib >= released_mib, "{our_mib} MiB against {released_mib}");
}

#[test]
fn an_unknown_pass_is_refused_with_those_there_are() {
    let error = extant_history::pass("xfs").unwrap_err().to_string();
    assert_eq!(
        error,
        "\"xfs\" is not a pass of write-back; there are linux-2.6.33, linux-2.6.33+resched, extant"
    );
}

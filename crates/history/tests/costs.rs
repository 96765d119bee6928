//! The request queue charges for every bio once, whichever layer submits it. The cache charges for
//! every page once per step.

use extant_block::{Bio, Buf, Device, Op, Record, Sector, execute};
use extant_cache::{CacheConfig, FlatFile, PageCache};
use extant_iosched::{Queue, QueueConfig};
use extant_rt::Nanos;
use extant_sim::disk::Disks;
use extant_sim::{Machine, Sim};
use std::sync::Arc;

/// Length of the write through the cache, which ends inside its last page, and its number of pages.
const WRITTEN_BYTES: usize = 300_000;
const PAGES: u64 = WRITTEN_BYTES.div_ceil(4096) as u64;

/// A machine on which only `key` costs anything: a millisecond.
fn machine(key: &str) -> Machine {
    let text = include_str!("../../../machines/sata-7200-2013.toml");
    let free = |line: &str| match line.split_once(" = ") {
        Some((name, _)) if name == key => format!("{name} = 1_000_000"),
        Some((name @ ("context_switch_ns" | "wake_ns" | "idle_exit_ns" | "timer_interrupt_ns"), _)) => {
            format!("{name} = 0")
        }
        Some((name, value)) if name.ends_with("_ns") && !value.contains('#') && name != "timeslice_ns" => {
            format!("{name} = 0")
        }
        _ => line.to_owned(),
    };
    let text: Vec<String> = text.lines().map(free).collect();
    Machine::parse("priced", &text.join("\n")).unwrap()
}

/// Milliseconds of processor time that a job spends on `key`, and the bios that reached the queue.
fn paid(key: &str, through_the_cache: bool) -> (u64, u64) {
    let sim = Sim::new(machine(key), 1);
    let rt = sim.rt().clone();
    let disk = Disks::attach(&sim).device(0);
    let elevator = extant_history::elevator("none", &extant_history::BlockHost::default()).unwrap();
    let queue: Arc<dyn Device> = Arc::new(Queue::new(&rt, disk, elevator, QueueConfig::default()));
    let record = Arc::new(Record::new(queue));
    let cache = PageCache::new(&rt, CacheConfig::with_budget(8 << 20)).unwrap();
    let attached = cache.attach(record.clone());
    let done = rt.block_on(async {
        if through_the_cache {
            let mapping = attached.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0);
            let file = mapping.open();
            file.write(0, &[1; WRITTEN_BYTES]).await.unwrap();
            file.sync().await.unwrap();
        } else {
            for n in 0..7 {
                let bio = Bio::new(Op::Write, Sector(n * 800), vec![Buf::zeroed(4096).into()]);
                execute(&*record, bio).await.1.unwrap();
            }
        }
    });
    done.unwrap();
    let bios = record.log().changes.len() as u64;
    (sim.stats().busy.iter().map(|busy| busy.0).sum::<u64>() / Nanos::from_millis(1).0, bios)
}

#[test]
fn every_bio_is_paid_for_once_with_and_without_the_cache() {
    for through_the_cache in [false, true] {
        for key in ["bio_submit_ns", "bio_complete_ns"] {
            let (paid_ms, bios) = paid(key, through_the_cache);
            assert!(bios > 0);
            assert_eq!(paid_ms, bios, "{key}, through the cache: {through_the_cache}");
        }
    }
}

#[test]
fn every_page_of_a_write_and_its_sync_is_paid_for_once_at_each_step() {
    for (key, times) in [
        // A page counts when it is written and when the file is dropped.
        ("page_insert_ns", 2 * PAGES),
        ("page_copy_ns", PAGES),
        // A page counts when it is written and when its writeback completes.
        ("page_lookup_ns", 2 * PAGES),
        // A page is dirtied when it is written, and cleaned when its writeback starts.
        ("page_dirty_ns", 2 * PAGES),
        // Writeback takes runs as long as a bio, 256 KiB in a cache of 8 MiB, and looks up the
        // position of each.
        ("map_lookup_ns", 2),
        ("page_redirty_ns", 0),
    ] {
        let (paid_ms, _) = paid(key, true);
        assert_eq!(paid_ms, times, "{key}");
    }
}

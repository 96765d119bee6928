//! The dirty controllers in a closed loop: writers, flushers and disks in virtual time, nothing else.
//!
//! Through the real cache: `cargo run --release -p extant-lab --example jbod`.

mod disks;
mod jbod;
mod world;

use disks::{MS, SECOND};
use extant_cache::control::DirtyLimits;
use jbod::{Policy, ROWS, Row, load};
use world::{Load, Outcome, run};

const SEED: u64 = 1;

fn outcome(row: Row, policy: Policy) -> Outcome {
    let outcome = run(load(row, policy, 10, 10, SEED), policy.control());
    let (rate, measured) = (outcome.mib_per_s(), row.measured);
    println!("{} {:3} writers {policy:?}: {rate:.0} MiB/s; measured {measured:?}", row.name, row.writers);
    outcome
}

/// `disks` alike, 100 MiB to be dirty, a link that holds nobody up.
fn alike(disks: usize, writers_per_disk: usize) -> Load {
    let base = load(ROWS[0], Policy::Extant, 10, 10, SEED);
    let machine = disks::Machine { disks, link_rate: 100_000_000, ..jbod::MACHINE };
    Load { machine, writers_per_disk, whole_runs: false, ..base }
}

#[test]
fn extant_loses_little_where_memory_is_short() {
    for writers in [0, 1, 2] {
        let (short, large) =
            (outcome(ROWS[writers], Policy::Extant), outcome(ROWS[writers + 6], Policy::Extant));
        let (short_rate, large_rate) = (short.mib_per_s(), large.mib_per_s());
        assert!(short_rate >= 0.95 * large_rate, "{short_rate} of {large_rate} MiB/s, seed {SEED}");
        for outcome in [short, large] {
            let longest = outcome.longest_pause.max(outcome.longest_wall);
            assert!(longest <= 200 * MS, "{longest} ns, seed {SEED}");
            for disk in 0..10 {
                let of_disk = || outcome.dirtied.iter().skip(disk).step_by(10);
                let (least, most) = (of_disk().min().unwrap(), of_disk().max().unwrap());
                // A hundred writers have three or four long turns each in 10 s.
                assert!(most * 2 <= least * 3, "writers of disk {disk} got {least} to {most}, seed {SEED}");
            }
        }
    }
}

#[test]
fn extant_writes_more_than_linux_did_with_100_mb() {
    for row in &ROWS[..3] {
        let ours = outcome(*row, Policy::Extant).mib_per_s();
        for policy in [Policy::Linux31, Policy::Ioless, Policy::IolessBackground] {
            let theirs = outcome(*row, policy);
            assert!(theirs.longest_pause <= 200 * MS, "{policy:?}, seed {SEED}");
            let theirs = theirs.mib_per_s();
            assert!(ours >= 0.99 * theirs, "{ours} against {policy:?}'s {theirs} MiB/s, seed {SEED}");
        }
    }
}

#[test]
fn a_background_threshold_per_device_keeps_single_writers_disks_busy() {
    let without = outcome(ROWS[0], Policy::Ioless).mib_per_s();
    let with = outcome(ROWS[0], Policy::IolessBackground).mib_per_s();
    assert!(with > 1.03 * without, "{with} with, {without} MiB/s without, seed {SEED}");
}

#[test]
fn a_hundred_writers_per_disk_lose_by_the_io_less_controller() {
    let before = outcome(ROWS[2], Policy::Linux31).mib_per_s();
    let after = outcome(ROWS[2], Policy::IolessBackground).mib_per_s();
    assert!(after < 0.95 * before, "{before} before, {after} MiB/s after, seed {SEED}");
}

#[test]
fn extant_stays_below_the_limit_by_itself() {
    for writers_per_disk in [1, 10, 100] {
        let load = Load { wall: false, ..alike(4, writers_per_disk) };
        let outcome = run(load, Policy::Extant.control());
        let (most, limit) = (outcome.most_dirty, load.limits.limit_pages);
        assert!(
            most <= limit,
            "{most} of {limit} pages with {writers_per_disk} writers per disk, seed {SEED}"
        );
    }
}

#[test]
fn two_equal_devices_share_equally() {
    let outcome = run(alike(2, 4), Policy::Extant.control());
    let (a, b) = (outcome.written[0] as f64, outcome.written[1] as f64);
    assert!((a / b - 1.0).abs() < 0.05, "{a} and {b} pages, seed {SEED}");
}

#[test]
fn a_dead_device_does_not_take_the_pool() {
    let all = run(alike(4, 4), Policy::Extant.control());
    let load = Load { dies: Some(2), ..alike(4, 4) };
    let outcome = run(load, Policy::Extant.control());
    for disk in [0, 1, 3] {
        let (with, without) = (outcome.written[disk], all.written[disk]);
        assert!(with * 100 >= without * 95, "disk {disk}: {with} of {without} pages, seed {SEED}");
    }
    let held = outcome.most_on_disk[2];
    assert!(held * 100 <= load.limits.limit_pages * 40, "the dead disk holds {held} pages, seed {SEED}");
    // Its own writers wait; those of other disks never for long.
    assert!(outcome.longest_pause <= 200 * MS);
    assert!(outcome.longest_standstill <= SECOND, "{} ns, seed {SEED}", outcome.longest_standstill);
}

#[test]
fn writers_below_the_device_s_rate_are_never_held_back() {
    // 256 pages in 100 ms: 10 MiB/s on a disk of 110.
    for policy in [Policy::Linux31, Policy::IolessBackground, Policy::Extant] {
        let load = Load { think: 100 * MS, ..alike(2, 1) };
        let outcome = run(load, policy.control());
        assert_eq!(outcome.pauses, 0, "{policy:?}, seed {SEED}");
    }
}

#[test]
fn the_time_a_writer_spends_elsewhere_is_not_added_to_its_pauses() {
    // Four writers that could each do 100 MiB/s share 110: what they spend elsewhere comes out of the pauses.
    for policy in [Policy::IolessBackground, Policy::Extant] {
        let busy = run(alike(1, 4), policy.control()).mib_per_s();
        let thinking = run(Load { think: 10 * MS, ..alike(1, 4) }, policy.control()).mib_per_s();
        assert!(thinking > 0.95 * busy, "{policy:?}: {thinking} of {busy} MiB/s, seed {SEED}");
    }
}

#[test]
fn a_thousand_writers_in_a_few_pages_all_get_on() {
    let limits = DirtyLimits { background_pages: 200, limit_pages: 400 };
    let load = Load { limits, measure: 30 * SECOND, ..alike(1, 1000) };
    let outcome = run(load, Policy::Extant.control());
    assert!(outcome.most_dirty <= 400);
    assert!(outcome.longest_pause <= 200 * MS);
    let least = outcome.dirtied.iter().min().unwrap();
    println!("{:.0} MiB/s, the least writer got {least} pages", outcome.mib_per_s());
    assert!(*least > 0, "somebody got nothing in 30 s, seed {SEED}");
}

//! Operations whose callers leave at any moment: their futures are dropped half done. Meanwhile the
//! devices are healthy, fail, or lose power.
//!
//! Afterwards files must hold what was acknowledged, and e2fsck must find nothing.
//!
//! `EXTANT_SEED` is the first seed, `EXTANT_ROUNDS` the number of seeds; `EXTANT_ONLY` selects one
//! kind of volume by number.

mod flaky;
mod promises;
mod threads;
mod work;

use extant_block::{Device, FileDevice, MemDevice, Record};
use extant_cache::{CacheConfig, PageCache};
use extant_fs::{OpenOptions, Volume, WriteOptions};
use extant_rt::{Class, Nanos, RealConfig, Rng, Rt};
use extant_sim::{Jitter, Machine, Preemption, Sim};
use extant_torture::{Filesystem, Image, ImageDevice, Ours, SlowDevice, states};
use flaky::Flaky;
use promises::History;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use work::Orders;

/// Kinds of volumes, 8 MiB each.
const VOLUMES: [&str; 7] = [
    "-t ext4 -b 1024 -J size=1 -N 128",
    "-t ext4 -b 4096 -N 128",
    "-t ext4 -b 1024 -J size=1 -N 128 -I 512 -O inline_data,ea_inode",
    "-t ext4 -b 1024 -C 4096 -J size=1 -N 128 -O bigalloc",
    "-t ext4 -b 1024 -N 128 -O ^has_journal",
    "-t ext3 -b 1024 -J size=1 -N 128",
    "-t ext4 -b 2048 -J size=2 -N 128 -O quota,project -I 256",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Runs `one` on the kinds of volumes that `is_wanted` selects, for this many seeds or as given by
/// the environment.
fn each(rounds: u64, is_wanted: impl Fn(&str) -> bool, one: impl Fn(&'static str, u64)) {
    if Command::new("e2fsck").arg("-V").output().is_err() {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
        return;
    }
    let (first, rounds) = (number("EXTANT_SEED").unwrap_or(1), number("EXTANT_ROUNDS").unwrap_or(rounds));
    let only = number("EXTANT_ONLY");
    for seed in first..first + rounds {
        for (kind, args) in VOLUMES.into_iter().enumerate() {
            if is_wanted(args) && only.is_none_or(|only| only == kind as u64) {
                println!("EXTANT_SEED={seed} EXTANT_ONLY={kind} ({args})");
                one(args, seed);
            }
        }
    }
}

fn image(args: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let made = Command::new("mke2fs")
        .args(args.split(' '))
        .args(["-F", "-q", "-E", "lazy_journal_init=1,nodiscard"])
        .args([path.to_str().unwrap(), "8M"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{args} {made:?}");
    std::fs::read(path).unwrap()
}

/// Checks that e2fsck finds nothing wrong; `mends` lets it repair the volume first, as after a
/// crash.
fn check(path: &Path, mends: bool) {
    let fsck = |how: &str| Command::new("e2fsck").args([how, path.to_str().unwrap()]).output().unwrap();
    if mends {
        fsck("-fy");
    }
    let said = fsck("-fn");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}

fn check_bytes(bytes: &[u8], mends: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, bytes).unwrap();
    check(&path, mends);
}

/// Two processors that take a moment to wake a task, so that tasks interleave at every point.
fn world(seed: u64) -> Sim {
    let mut machine = Machine::free(2, Preemption::None);
    machine.processors.wake = Nanos::from_micros(1);
    machine.processors.context_switch = Nanos::from_micros(1);
    Sim::new(machine, seed)
}

fn budget(seed: u64) -> u64 {
    [1 << 18, 1 << 20, 8 << 20][(seed % 3) as usize]
}

/// Random numbers for data task `n`, or for a names task.
fn rng(seed: u64, what: &str, n: u64) -> Rng {
    Rng::labelled(seed.wrapping_mul(7919).wrapping_add(n), what)
}

fn orders(rt: &Rt, volume: &Volume, args: &str, steps: u64) -> Orders {
    let settles_within = if rt.is_virtual() { Nanos::from_secs(2) } else { Nanos::from_millis(60) };
    let (rt, volume, has_extents) = (rt.clone(), volume.clone(), args.contains("ext4"));
    Orders { rt, volume, steps, has_extents, settles_within, position: Arc::new(|| 0) }
}

/// Runs three names tasks along with `files` data tasks to completion.
async fn work(orders: &Orders, seed: u64, name_steps: u64, files: u64) -> Vec<(History, Vec<u8>)> {
    let rt = &orders.rt;
    let spawn_names = |n| {
        let orders = Orders { steps: name_steps, ..orders.clone() };
        rt.spawn("names", Class::Normal, work::names(orders, rng(seed, "names", n)))
    };
    let spawn_data = |n| {
        rt.spawn("data", Class::Normal, work::data(orders.clone(), format!("data{n}"), rng(seed, "data", n)))
    };
    let names: Vec<_> = (0..3).map(spawn_names).collect();
    let data: Vec<_> = (0..files).map(spawn_data).collect();
    for task in names {
        task.await.unwrap();
    }
    let mut done = Vec::new();
    for task in data {
        done.push(task.await.unwrap());
    }
    done
}

/// Compares the files on the device with what memory held.
fn compare(bytes: Vec<u8>, files: &[(History, Vec<u8>)]) {
    let rt = Rt::real(RealConfig::default());
    let compared = async {
        let volume =
            Volume::open(Arc::new(MemDevice::from_bytes(bytes)), OpenOptions::default()).await.unwrap();
        for (History { name, .. }, model) in files {
            let inode = volume.resolve(name.as_bytes(), extant_fs::Follow::Yes).await.unwrap();
            let mut found = vec![0; model.len() + 10];
            let read = volume.open_file(inode).await.unwrap().read_at(0, &mut found).await.unwrap();
            assert!(found[..read] == model[..], "{name} on the device");
        }
    };
    rt.block_on(compared).unwrap();
}

#[test]
fn callers_that_leave_take_nothing_along() {
    each(
        1,
        |_| true,
        |args, seed| {
            let sim = world(seed);
            let rt = sim.rt();
            let memory = Arc::new(MemDevice::from_bytes(image(args)));
            let device: Arc<dyn Device> = Arc::new(Jitter::new(&sim, memory.clone(), 0));
            let cache = PageCache::new(rt, CacheConfig::with_budget(budget(seed))).unwrap();
            let disk = cache.attach(device);
            let ran = async {
                let commit_interval = seed.is_multiple_of(2).then_some(Nanos::from_secs(1));
                let options = WriteOptions { commit_interval, ..WriteOptions::default() };
                let volume = Volume::open_writable(rt, &disk, options).await.unwrap();
                let files = work(&orders(rt, &volume, args, 40), seed, 60, 3).await;
                volume.sync().await.unwrap();
                rt.sleep(Nanos::from_secs(5)).await;
                volume.close().await.unwrap();
                rt.sleep(Nanos::from_secs(5)).await;
                cache.audit();
                files
            };
            let files = rt.block_on(ran).unwrap();
            let bytes = memory.to_bytes();
            check_bytes(&bytes, false);
            compare(bytes, &files);
        },
    );
}

/// Runs tasks on a device that fails, then closes the volume, or drops it as in a crash.
async fn fail(rt: &Rt, device: Arc<dyn Device>, args: &str, seed: u64) -> Vec<History> {
    let cache = PageCache::new(rt, CacheConfig::with_budget(budget(seed))).unwrap();
    let disk = cache.attach(device);
    let commit_interval = seed.is_multiple_of(2).then_some(Nanos::from_secs(1));
    let options = WriteOptions { commit_interval, ..WriteOptions::default() };
    let Ok(volume) = Volume::open_writable(rt, &disk, options).await else { return Vec::new() };
    // A step counter, so that the oracle knows the order of events.
    let turns = Arc::new(AtomicUsize::new(0));
    let position = Arc::new(move || turns.fetch_add(1, Ordering::Relaxed));
    let orders = Orders { position, ..orders(rt, &volume, args, 60) };
    let names: Vec<_> = (0..3)
        .map(|n| rt.spawn("names", Class::Normal, work::names(orders.clone(), rng(seed, "names", n))))
        .collect();
    let data: Vec<_> = (0..3)
        .map(|n| {
            let work = work::careless(orders.clone(), format!("data{n}"), rng(seed, "data", n));
            rt.spawn("data", Class::Normal, work)
        })
        .collect();
    for task in names {
        task.await.unwrap();
    }
    let mut histories = Vec::new();
    for task in data {
        histories.push(task.await.unwrap());
    }
    let _ = volume.sync().await;
    rt.sleep(Nanos::from_secs(5)).await;
    drop(orders);
    if seed.is_multiple_of(4) {
        drop(volume);
    } else {
        let _ = volume.close().await;
    }
    rt.sleep(Nanos::from_secs(5)).await;
    drop(disk);
    if !seed.is_multiple_of(3) {
        cache.audit();
    }
    let _ = cache.close().await;
    histories
}

#[test]
fn callers_that_leave_a_device_that_fails_leave_a_volume_that_can_be_mended() {
    each(
        1,
        |_| true,
        |args, seed| {
            let sim = world(seed);
            let memory = Arc::new(MemDevice::from_bytes(image(args)));
            let device = Arc::new(Jitter::new(&sim, memory.clone(), 1 + seed % 3));
            let rt = sim.rt().clone();
            let _ = rt.block_on(fail(&rt, device, args, seed)).unwrap();
            check_bytes(&memory.to_bytes(), true);
        },
    );
}

#[test]
fn what_was_synced_outlives_a_flush_that_fails_while_callers_leave() {
    let (runs, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    each(
        2,
        |args| !args.contains("^has_journal"),
        |args, seed| {
            let sim = world(seed);
            let rt = sim.rt().clone();
            let below = Arc::new(ImageDevice::new(Image::new(image(args).into())));
            let nth = Rng::labelled(seed, "flush").below(12);
            let flaky = Arc::new(Flaky::new(below.clone(), nth, seed));
            let device = Arc::new(SlowDevice::new(&sim, flaky.clone(), seed));
            let histories = rt.block_on(fail(&rt, device, args, seed)).unwrap();
            runs.fetch_add(1, Ordering::Relaxed);
            failed.fetch_add(usize::from(flaky.has_failed()), Ordering::Relaxed);
            let recovered = Ours::new(seed).recover(&below.image()).unwrap_or_else(|words| panic!("{words}"));
            for history in histories {
                let found = recovered.tree.nodes.get(&history.name).map(|file| &*file.data);
                history.explain(usize::MAX, found).unwrap_or_else(|words| panic!("{words}"));
            }
            check_bytes(&recovered.image.to_vec(), true);
        },
    );
    let (runs, failed) = (runs.into_inner(), failed.into_inner());
    println!("a flush has failed in {failed} of {runs} runs");
    assert!(2 * failed >= runs, "only in {failed} of {runs} runs a flush was left to fail");
}

#[test]
fn a_power_cut_while_callers_leave_leaves_what_was_synced() {
    let cuts = number("EXTANT_CUTS").unwrap_or(20);
    each(
        1,
        |args| !args.contains("^has_journal"),
        |args, seed| {
            let sim = world(seed);
            let rt = sim.rt().clone();
            let base = Image::new(image(args).into());
            let slow = SlowDevice::new(&sim, Arc::new(ImageDevice::new(base.clone())), seed);
            let record = Arc::new(Record::new(Arc::new(slow)));
            let cache = PageCache::new(&rt, CacheConfig::with_budget(budget(seed))).unwrap();
            let disk = cache.attach(record.clone());
            let (log, files) = {
                let ran = async {
                    let options = WriteOptions {
                        commit_interval: seed.is_multiple_of(2).then_some(Nanos::from_millis(20)),
                        ..WriteOptions::default()
                    };
                    let volume = Volume::open_writable(&rt, &disk, options).await.unwrap();
                    let seen = record.clone();
                    let position = Arc::new(move || seen.position());
                    let orders = Orders { position, ..orders(&rt, &volume, args, 40) };
                    let files = work(&orders, seed, 60, 3).await;
                    let log = record.log();
                    let _ = volume.close().await;
                    (log, files)
                };
                rt.block_on(ran).unwrap()
            };
            let mut rng = Rng::labelled(seed, "cuts");
            for _ in 0..cuts {
                let cut = rng.below(log.events.len() as u64 + 1) as usize;
                let state = states::random(&log, &base, cut, &mut rng);
                let ours = Ours::new(seed);
                let recovered = ours.recover(&state.image).unwrap_or_else(|words| panic!("{state}: {words}"));
                for (history, _) in &files {
                    let found = recovered.tree.nodes.get(&history.name).map(|file| &*file.data);
                    history.explain(cut, found).unwrap_or_else(|words| panic!("{state}: {words}"));
                }
                check_bytes(&recovered.image.to_vec(), false);
            }
        },
    );
}

#[test]
fn callers_that_leave_on_threads_of_this_machine_take_nothing_along() {
    each(
        1,
        |args| !args.contains("quota") && !args.contains("ext3"),
        |args, seed| {
            let rt = Rt::real(RealConfig { worker_threads: Some(4), ..RealConfig::default() });
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("image");
            std::fs::write(&path, image(args)).unwrap();
            let options = extant_block::FileOptions { write: true, ..Default::default() };
            let device = FileDevice::open(&path, options).unwrap().driven_by(&rt);
            let cache = PageCache::new(&rt, CacheConfig::with_budget(budget(seed))).unwrap();
            let disk = cache.attach(Arc::new(device));
            let ran = async {
                let options = WriteOptions {
                    commit_interval: seed.is_multiple_of(2).then_some(Nanos::from_millis(20)),
                    ..WriteOptions::default()
                };
                let volume = Volume::open_writable(&rt, &disk, options).await.unwrap();
                let files = work(&orders(&rt, &volume, args, 40), seed, 200, 3).await;
                volume.sync().await.unwrap();
                volume.close().await.unwrap();
                drop(disk);
                cache.close().await.unwrap();
                files
            };
            let files = rt.block_on(ran).unwrap();
            let left = rt.shutdown(Nanos::from_secs(60));
            assert!(left.in_flight.is_empty() && left.panicked.is_empty(), "{left:?}");
            check(&path, false);
            compare(std::fs::read(&path).unwrap(), &files);
        },
    );
}

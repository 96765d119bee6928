//! Lookups concurrent with tasks that change a directory and hold its lock while they wait for a
//! slow device.

use extant_block::{Bio, Claim, Device, IoError, Limits, MemDevice, Op};
use extant_cache::{CacheConfig, PageCache};
use extant_fs::{Caller, Volume, WriteOptions};
use extant_rt::{Class, Nanos, Rt};
use extant_sim::{Machine, Preemption, Sim};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A device on which each write takes 5 ms.
#[derive(Debug)]
struct Slow(Arc<MemDevice>, Rt);

impl Device for Slow {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }
    fn submit(&self, bio: Bio) {
        if bio.op != Op::Write {
            return self.0.submit(bio);
        }
        let (below, rt) = (self.0.clone(), self.1.clone());
        drop(self.1.spawn("slow", Class::Normal, async move {
            rt.sleep(Nanos::from_millis(5)).await;
            below.submit(bio);
        }));
    }
    fn claim(&self) -> Result<Claim, IoError> {
        self.0.claim()
    }
}

#[derive(Default)]
struct Counts {
    polls: AtomicU64,
    most_polls: AtomicU64,
    looked_up: AtomicU64,
    is_over: AtomicBool,
}

#[test]
fn a_look_up_that_waits_for_its_directory_is_polled_when_it_is_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-N", "8192", "-F", "-q"];
    let Ok(made) = Command::new("mke2fs").args(args).arg(&image).arg("32M").status() else {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
        return;
    };
    assert!(made.success());
    let memory = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let sim = Sim::new(Machine::free(2, Preemption::None), 1);
    let rt = sim.rt();
    let counts = Arc::new(Counts::default());
    let work = async {
        let cache = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap();
        let disk = cache.attach(Arc::new(Slow(memory, rt.clone())));
        let volume = Volume::open_writable(rt, &disk, WriteOptions::default()).await.unwrap();
        let mut creators = Vec::new();
        for n in 0..4 {
            let (rt, root) = (rt.clone(), volume.root_node().await.unwrap());
            creators.push(rt.clone().spawn("creates", Class::Normal, async move {
                for i in 0..1_500 {
                    root.create(&Caller::root(), format!("f{n}-{i}").as_bytes(), 0o644).await.unwrap();
                    rt.sleep(Nanos::from_micros(50)).await;
                }
            }));
        }
        let mut lookers = Vec::new();
        for n in 0..4 {
            let (rt, root, counts) = (rt.clone(), volume.root_node().await.unwrap(), counts.clone());
            lookers.push(rt.clone().spawn("looks up", Class::Normal, async move {
                for i in 0.. {
                    if counts.is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let (name, caller, mut polls) = (format!("absent{n}-{i}"), Caller::root(), 0);
                    let mut look_up = pin!(root.lookup(&caller, name.as_bytes()));
                    let found = poll_fn(|cx| {
                        polls += 1;
                        look_up.as_mut().poll(cx)
                    });
                    assert!(found.await.is_err());
                    counts.polls.fetch_add(polls, Ordering::Relaxed);
                    counts.most_polls.fetch_max(polls, Ordering::Relaxed);
                    counts.looked_up.fetch_add(1, Ordering::Relaxed);
                    rt.sleep(Nanos::from_micros(200)).await;
                }
            }));
        }
        for task in creators {
            task.await.unwrap();
        }
        counts.is_over.store(true, Ordering::Relaxed);
        for task in lookers {
            task.await.unwrap();
        }
        volume.close().await.unwrap();
    };
    rt.block_on(work).unwrap();
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (polls, most, looked_up) = (get(&counts.polls), get(&counts.most_polls), get(&counts.looked_up));
    assert!(looked_up > 100, "{looked_up} look-ups");
    // A lookup waits for the lock and for what it reads.
    assert!(most < 20 && polls < 3 * looked_up, "{polls} polls of {looked_up} look-ups, {most} of one");
}

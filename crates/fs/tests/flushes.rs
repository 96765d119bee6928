//! How many flushes syncs cost, counted below a simulated volume.

use extant_block::{Bio, BioFlags, Device, Limits, MemDevice, Op};
use extant_cache::{CacheConfig, Disk, PageCache};
use extant_fs::{Caller, Node, Volume, WriteOptions};
use extant_rt::{Class, Rt};
use extant_sim::{Jitter, Machine, Preemption, Sim};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A device with a volatile cache that counts flushes and durable writes.
#[derive(Debug)]
struct Counting {
    below: Arc<dyn Device>,
    limits: Limits,
    flushes: AtomicU32,
    durable_writes: AtomicU32,
}

impl Counting {
    fn new(below: Arc<dyn Device>) -> Arc<Self> {
        let limits = Limits { volatile_cache: true, ..below.limits().clone() };
        let (flushes, durable_writes) = Default::default();
        Arc::new(Self { below, limits, flushes, durable_writes })
    }

    /// Flushes since the last call; and the number on a device without FUA, where each durable
    /// write costs another one.
    fn take(&self) -> (u32, u32) {
        let flushes = self.flushes.swap(0, Ordering::Relaxed);
        (flushes, flushes + self.durable_writes.swap(0, Ordering::Relaxed))
    }
}

impl Device for Counting {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        if bio.op == Op::Flush || bio.flags.contains(BioFlags::PREFLUSH) {
            self.flushes.fetch_add(1, Ordering::Relaxed);
        }
        if bio.op == Op::Write && bio.flags.contains(BioFlags::FUA) {
            self.durable_writes.fetch_add(1, Ordering::Relaxed);
        }
        self.below.submit(bio);
    }
}

/// Runs `work` on a new volume with a journal.
fn on_volume(work: impl AsyncFnOnce(&Rt, &Volume, &Node, &Counting)) {
    if Command::new("mke2fs").arg("-V").stderr(Stdio::null()).status().is_err() {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let args = ["-q", "-t", "ext4", image.to_str().unwrap(), "32M"];
    assert!(Command::new("mke2fs").args(args).status().unwrap().success());
    let memory: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let sim = Sim::new(Machine::free(4, Preemption::None), 7);
    let device = Counting::new(Arc::new(Jitter::new(&sim, memory.clone(), 0)));
    sim.rt()
        .block_on(async {
            let cache = PageCache::new(sim.rt(), CacheConfig::with_budget(16 << 20)).unwrap();
            let disk: Disk = cache.attach(device.clone());
            let volume = Volume::open_writable(sim.rt(), &disk, WriteOptions::default()).await.unwrap();
            let root = volume.root_node().await.unwrap();
            device.take();
            work(sim.rt(), &volume, &root, &device).await;
            drop(root);
            volume.close().await.unwrap();
        })
        .unwrap();
    let bytes =
        sim.rt().block_on(extant_block::read(&*memory, extant_block::Sector(0), 32 << 20)).unwrap().unwrap();
    std::fs::write(&image, &bytes[..]).unwrap();
    let check = Command::new("e2fsck").args(["-fn", image.to_str().unwrap()]).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

const BLOCK: [u8; 4096] = [7; 4096];

#[test]
fn a_sync_costs_two_flushes_or_one_and_what_is_not_synced_none() {
    on_volume(async |_, volume, root, device| {
        let caller = Caller::root();
        let file =
            root.create(&caller, b"file", 0o644).await.unwrap().open(&caller, Default::default()).unwrap();
        for n in 0..20 {
            file.write(n * 4096, &BLOCK).await.unwrap();
            drop(root.create(&caller, format!("other-{n}").as_bytes(), 0o644).await.unwrap());
        }
        assert_eq!(device.take(), (0, 0), "nothing was synced");
        for n in 20..60 {
            file.write(n * 4096, &BLOCK).await.unwrap();
            file.sync().await.unwrap();
            let (with_fua, without) = device.take();
            assert!(with_fua <= 1 && without <= 2, "{with_fua}, {without} without FUA");
        }
        // Overwritten in place: the data need no commit.
        file.write(0, &BLOCK).await.unwrap();
        file.datasync().await.unwrap();
        assert_eq!(device.take(), (1, 1));
        drop(root.create(&caller, b"last", 0o644).await.unwrap());
        volume.sync().await.unwrap();
        let (with_fua, without) = device.take();
        assert!(with_fua <= 1 && without <= 2, "sync of the volume: {with_fua}, {without} without FUA");
    });
}

#[test]
fn syncs_that_arrive_together_share_their_flushes() {
    const TASKS: usize = 16;
    const ROUNDS: u64 = 8;
    on_volume(async |rt, _, root, device| {
        let caller = Caller::root();
        let mut tasks = Vec::new();
        for n in 0..TASKS {
            let node = root.create(&caller, format!("file-{n}").as_bytes(), 0o644).await.unwrap();
            let file = node.open(&caller, Default::default()).unwrap();
            tasks.push(rt.spawn("writer", Class::Normal, async move {
                for n in 0..ROUNDS {
                    file.write(n * 4096, &BLOCK).await.unwrap();
                    file.sync().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let syncs = TASKS as u32 * ROUNDS as u32;
        let (with_fua, without) = device.take();
        // Some rounds take two commits, and a few tasks a third. One commit per sync would be 128.
        let told = format!("{syncs} syncs: {with_fua} flushes, {without} without FUA");
        assert!(with_fua <= 3 * ROUNDS as u32 && without <= 6 * ROUNDS as u32, "{told}");
    });
}

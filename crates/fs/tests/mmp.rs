//! Multiple-mount protection, simulated so that waits take no time. Recovery and writers keep off a
//! volume whose counter is running, and run the counter themselves.

use extant_block::{Bio, Buf, Device, IoErrorKind, Limits, MemDevice, Op, Sector, read, write};
use extant_cache::{CacheConfig, PageCache};
use extant_format::{Incompat, Mmp, MmpState, Superblock, VolumeBlock, crc32c};
use extant_fs::{Error, OpenOptions, Recovery, Volume, WriteOptions, recover};
use extant_rt::{Class, Nanos, Rt};
use extant_sim::{Machine, Preemption, Sim};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A volume with a dirty journal whose protection block says it is mounted, and that block's
/// number.
fn left_mounted() -> Option<(Vec<u8>, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let script = dir.path().join("script");
    let data = dir.path().join("data");
    std::fs::write(&data, [7; 1024]).unwrap();
    std::fs::write(&script, format!("jo\njw -b 5000 {}\njc\n", data.display())).unwrap();
    let tool = |name: &str, args: &[&str]| {
        let mut command = Command::new(name);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let path = image.to_str().unwrap();
    if !tool("mke2fs", &["-q", "-t", "ext4", "-b", "1024", path, "8M"])
        || !tool("debugfs", &["-w", "-f", script.to_str().unwrap(), path])
    {
        println!("skipped: mke2fs and debugfs are not installed");
        return None;
    }
    // Enable protection only now; debugfs would wait for the counter before writing.
    let mut bytes = std::fs::read(&image).unwrap();
    let mut sb = Superblock::parse(&bytes[1024..]).unwrap();
    let (seed, number) = (sb.checksum_seed().unwrap(), 6000);
    sb.raw_mut().s_feature_incompat = (sb.incompat() | Incompat::MMP).bits().into();
    sb.raw_mut().s_mmp_block = number.into();
    sb.raw_mut().s_mmp_update_interval = 5.into();
    sb.update_checksum();
    bytes[1024..2048].copy_from_slice(sb.as_bytes());
    let block = &mut bytes[number as usize * 1024..][..1024];
    Mmp::clean(VolumeBlock(number), 5).write_to(block, Some(seed));
    count(block, 77, seed.0);
    Some((bytes, number))
}

/// Updates the block as a mount periodically does.
fn count(block: &mut [u8], n: u32, seed: u32) {
    block[4..8].copy_from_slice(&n.to_le_bytes());
    let sum = crc32c(seed, &block[..1020]);
    block[1020..].copy_from_slice(&sum.to_le_bytes());
}

/// Recovers the volume. If `counting`, another host increments the block's sequence once a second.
fn recover_beside(counting: bool) -> Option<(Result<Recovery, Error>, Nanos)> {
    let (bytes, number) = left_mounted()?;
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let rt = sim.rt().clone();
    let device = Arc::new(MemDevice::from_bytes(bytes));
    if counting {
        let (rt, device) = (rt.clone(), device.clone());
        let other = async move {
            let seed = seed(&device).await;
            for n in 78..100 {
                rt.sleep(Nanos::from_secs(1)).await;
                let block = read(&*device, Sector(number * 2), 1024).await.unwrap();
                let state = Mmp::parse(&block, VolumeBlock(number)).unwrap().state();
                assert_eq!(state, MmpState::Mounted(n - 1));
                let mut block = Buf::from_slice(&block);
                count(&mut block, n, seed);
                write(&*device, Sector(number * 2), block).await.unwrap();
            }
        };
        drop(sim.rt().spawn("the other mount", Class::default(), other));
    }
    let done = rt.block_on(async { (recover(&rt, device, OpenOptions::default()).await, rt.now()) });
    Some(done.unwrap())
}

async fn seed(device: &MemDevice) -> u32 {
    let sb = read(device, Sector(2), 1024).await.unwrap();
    Superblock::parse(&sb).unwrap().checksum_seed().unwrap().0
}

#[test]
fn a_count_that_stands_still_was_left_by_a_crash() {
    let Some((done, at)) = recover_beside(false) else { return };
    assert!(!done.unwrap().was_clean);
    assert_eq!(
        at,
        Nanos::from_secs(22),
        "twice the interval of 5 seconds and one more, before and after it is taken"
    );
}

#[test]
fn a_count_that_moves_is_a_mount() {
    let Some((done, _)) = recover_beside(true) else { return };
    assert!(matches!(done, Err(Error::InUse { .. })), "{done:?}");
}

/// A device without its claim, as seen by another host.
#[derive(Debug)]
struct Shared(Arc<MemDevice>);

impl Device for Shared {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn submit(&self, bio: Bio) {
        self.0.submit(bio);
    }
}

async fn state(device: &MemDevice, number: u64) -> MmpState {
    let block = read(device, Sector(number * 2), 1024).await.unwrap();
    Mmp::parse(&block, VolumeBlock(number)).unwrap().state()
}

/// A path to a shared device that loses some of the next bios to one block.
#[derive(Debug)]
struct Path {
    memory: Arc<MemDevice>,
    sector: u64,
    reads: AtomicU32,
    writes: AtomicU32,
    /// Reads to lose after each lost write.
    reads_behind: AtomicU32,
}

impl Path {
    fn loses(&self, op: Op) -> bool {
        let takes = |left: u32| left.checked_sub(1);
        let lost =
            |count: &AtomicU32| count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, takes).is_ok();
        match op {
            Op::Read => lost(&self.reads),
            _ if lost(&self.writes) => {
                self.reads.fetch_add(self.reads_behind.load(Ordering::Relaxed), Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }
}

impl Device for Path {
    fn limits(&self) -> &Limits {
        self.memory.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.start.0 == self.sector && self.loses(bio.op) {
            return bio.end_as("path", Err(IoErrorKind::Os(110)));
        }
        self.memory.submit(bio);
    }
}

/// A new volume with protection, and its block's number.
fn protected() -> Option<(Vec<u8>, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-t", "ext4", "-b", "1024", "-O", "mmp", image.to_str().unwrap(), "16M"]);
    if !command.stdin(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("skipped: mke2fs is not installed");
        return None;
    }
    let bytes = std::fs::read(&image).unwrap();
    let number = Superblock::parse(&bytes[1024..]).unwrap().raw().s_mmp_block.get();
    Some((bytes, number))
}

/// Opens a volume and runs `strike` two seconds later. Returns the result of a sync one second
/// after the counter's round `rounds`; a round takes five seconds.
fn after(rounds: u64, strike: impl AsyncFnOnce(&Path, u32)) -> Option<Result<(), Error>> {
    let (bytes, number) = protected()?;
    let memory = Arc::new(MemDevice::from_bytes(bytes));
    let (reads, writes, reads_behind) = Default::default();
    let sector = number * 2;
    let path = Arc::new(Path { memory: memory.clone(), sector, reads, writes, reads_behind });
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let rt = sim.rt().clone();
    let synced = rt.block_on(async {
        let volume = open(&rt, path.clone()).await.unwrap();
        rt.sleep(Nanos::from_secs(2)).await;
        strike(&path, seed(&memory).await).await;
        rt.sleep(Nanos::from_secs(5 * rounds - 1)).await;
        volume.sync().await
    });
    Some(synced.unwrap())
}

/// Another host writes this number to the block.
async fn take(path: &Path, state: u32, seed: u32) {
    let mut block = Buf::from_slice(&read(&*path.memory, Sector(path.sector), 1024).await.unwrap());
    count(&mut block, state, seed);
    write(&*path.memory, Sector(path.sector), block).await.unwrap();
}

#[test]
fn a_lost_look_does_not_adopt_the_number_of_another_host() {
    const CHECKING: u32 = 0xe24d_4d50;
    for state in [7, CHECKING, 0xff4d_4d50] {
        for lost in [1, 2] {
            // The first round that can read the block.
            let rounds = lost;
            let synced = after(rounds.into(), async |path, seed| {
                take(path, state, seed).await;
                path.reads.store(lost, Ordering::Relaxed);
            });
            let Some(synced) = synced else { return };
            assert!(matches!(synced, Err(Error::InUse { .. })), "{state:#x}, {lost} lost: {synced:?}");
        }
    }
}

#[test]
fn a_lost_look_or_count_of_a_writer_that_is_alone_costs_nothing() {
    for (reads, writes, behind) in
        [(1, 0, 0), (2, 0, 0), (3, 0, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1), (0, 1, 2)]
    {
        let synced = after(4, async |path, _| {
            path.reads.store(reads, Ordering::Relaxed);
            path.writes.store(writes, Ordering::Relaxed);
            path.reads_behind.store(behind, Ordering::Relaxed);
        });
        let Some(synced) = synced else { return };
        assert!(synced.is_ok(), "{reads} reads and {writes} writes lost, {behind} behind them: {synced:?}");
    }
}

#[test]
fn a_writer_that_cannot_count_stops_before_another_host_takes_the_volume() {
    let synced = after(3, async |path, _| path.reads.store(100, Ordering::Relaxed));
    let Some(synced) = synced else { return };
    assert!(matches!(synced, Err(Error::Io(_))), "{synced:?}");
}

#[test]
fn an_interval_of_a_day_is_no_shorter_one() {
    let Some((mut bytes, number)) = protected() else { return };
    let mut sb = Superblock::parse(&bytes[1024..]).unwrap();
    sb.raw_mut().s_mmp_update_interval = 40_000.into();
    sb.update_checksum();
    bytes[1024..2048].copy_from_slice(sb.as_bytes());
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let rt = sim.rt().clone();
    let interval = rt.block_on(async {
        let volume = open(&rt, device.clone()).await.unwrap();
        let block = read(&*device, Sector(number * 2), 1024).await.unwrap();
        drop(volume);
        Mmp::parse(&block, VolumeBlock(number)).unwrap().check_interval_s()
    });
    assert_eq!(interval.unwrap(), u16::MAX);
}

/// Opens the volume for writing, with a page cache of its own.
async fn open(rt: &Rt, device: Arc<dyn Device>) -> Result<Volume, Error> {
    let disk = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap().attach(device);
    Volume::open_writable(rt, &disk, WriteOptions::default()).await
}

#[test]
fn a_writer_counts_until_it_closes_the_volume() {
    let Some((bytes, number)) = protected() else { return };
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let rt = sim.rt().clone();
    let work = async {
        let shared = || Arc::new(Shared(device.clone()));
        let volume = open(&rt, shared()).await.unwrap();
        assert_eq!(rt.now(), Nanos::ZERO, "a clean volume is opened at once");
        let MmpState::Mounted(first) = state(&device, number).await else { panic!("it is in use") };
        let second = open(&rt, shared()).await;
        assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
        assert_eq!(rt.now(), Nanos::from_secs(21), "twice the writer's interval of 10 seconds and one more");
        assert_eq!(state(&device, number).await, MmpState::Mounted(first + 4));
        volume.close().await.unwrap();
        assert_eq!(state(&device, number).await, MmpState::Clean);
        rt.sleep(Nanos::from_secs(60)).await;
        assert_eq!(state(&device, number).await, MmpState::Clean);

        // When dropped, the counter stops where it is; the next writer waits and takes the volume.
        drop(open(&rt, shared()).await.unwrap());
        let left = state(&device, number).await;
        let began = rt.now();
        let volume = open(&rt, shared()).await.unwrap();
        assert!(left != state(&device, number).await && rt.now() - began == Nanos::from_secs(42));
        // Another host takes the block without checking: nothing is written any more.
        let block = read(&*device, Sector(number * 2), 1024).await.unwrap();
        let mut block = Buf::from_slice(&block);
        count(&mut block, 5, seed(&device).await);
        write(&*device, Sector(number * 2), block).await.unwrap();
        rt.sleep(Nanos::from_secs(6)).await;
        let synced = volume.sync().await;
        assert!(matches!(synced, Err(Error::InUse { .. })), "{synced:?}");
        assert!(volume.close().await.is_err());
        assert_eq!(state(&device, number).await, MmpState::Mounted(5), "it is not ours to release");
        // That host has left, so the volume can be opened and closed cleanly.
        open(&rt, shared()).await.unwrap().close().await.unwrap();
    };
    rt.block_on(work).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, device.to_bytes()).unwrap();
    let said = Command::new("e2fsck").args(["-fn", image.to_str().unwrap()]).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}

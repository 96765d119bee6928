//! Recovery and writers keep off a volume that counts, and count themselves: in the virtual world, where waits cost no time.

use extant_block::{Bio, Buf, Device, Limits, MemDevice, Sector, read, write};
use extant_cache::{CacheConfig, PageCache};
use extant_format::{Incompat, Mmp, MmpState, Superblock, VolumeBlock, crc32c};
use extant_fs::{Error, OpenOptions, Recovery, Volume, WriteOptions, recover};
use extant_rt::{Class, Nanos, Rt};
use extant_sim::{Machine, Preemption, Sim};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A volume with a dirty journal whose protection block says that it is mounted, and that block's number.
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
    // Protected only now: debugfs would wait out the count before it wrote.
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

/// Updates the block as a mount does periodically.
fn count(block: &mut [u8], n: u32, seed: u32) {
    block[4..8].copy_from_slice(&n.to_le_bytes());
    let sum = crc32c(seed, &block[..1020]);
    block[1020..].copy_from_slice(&sum.to_le_bytes());
}

/// Recovers the volume; with `counting`, another host increments the block's sequence once a second.
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

/// A device without its claim, as another host sees it.
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

/// Opens the volume for writing, over a page cache of its own.
async fn open(rt: &Rt, device: Arc<dyn Device>) -> Result<Volume, Error> {
    let disk = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap().attach(device);
    Volume::open_writable(rt, &disk, WriteOptions::default()).await
}

#[test]
fn a_writer_counts_until_it_closes_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let path = image.to_str().unwrap();
    let tool = |name: &str, args: &[&str]| {
        Command::new(name).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output()
    };
    let made = tool("mke2fs", &["-q", "-t", "ext4", "-b", "1024", "-O", "mmp", path, "16M"]);
    if !made.is_ok_and(|made| made.status.success()) {
        println!("skipped: mke2fs is not installed");
        return;
    }
    let bytes = std::fs::read(&image).unwrap();
    let number = Superblock::parse(&bytes[1024..]).unwrap().raw().s_mmp_block.get();
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

        // Dropped, it stops where it is; the next one waits and takes it.
        drop(open(&rt, shared()).await.unwrap());
        let left = state(&device, number).await;
        let began = rt.now();
        let volume = open(&rt, shared()).await.unwrap();
        assert!(left != state(&device, number).await && rt.now() - began == Nanos::from_secs(42));
        // Another host that did not look takes the block: nothing is written any more.
        let block = read(&*device, Sector(number * 2), 1024).await.unwrap();
        let mut block = Buf::from_slice(&block);
        count(&mut block, 5, seed(&device).await);
        write(&*device, Sector(number * 2), block).await.unwrap();
        rt.sleep(Nanos::from_secs(6)).await;
        let synced = volume.sync().await;
        assert!(matches!(synced, Err(Error::InUse { .. })), "{synced:?}");
        assert!(volume.close().await.is_err());
        assert_eq!(state(&device, number).await, MmpState::Mounted(5), "it is not ours to release");
        // Left by its host, it is opened and closed cleanly.
        open(&rt, shared()).await.unwrap().close().await.unwrap();
    };
    rt.block_on(work).unwrap();
    std::fs::write(&image, device.to_bytes()).unwrap();
    let said = tool("e2fsck", &["-fn", path]).unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}

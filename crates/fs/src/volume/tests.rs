//! Opening for writing: effects on the superblocks.

mod ends;
mod owners;
mod paged;
mod stream;
mod unreadable;

use super::*;
use crate::recovery::Log;
use crate::testbed::{have_tools, make, run};
use crate::{Caller, read_superblock};
use extant_block::MemDevice;
use extant_cache::{CacheConfig, PageCache};
use extant_format::{STATE_ERROR, STATE_VALID};
use extant_rt::Rt;

fn state(rt: &Rt, disk: &Arc<MemDevice>) -> u16 {
    let sb = rt.block_on(read_superblock(&**disk, 1024)).unwrap().unwrap();
    sb.raw().s_state.get()
}

async fn open(rt: &Rt, disk: &Arc<MemDevice>, fixed_time: i64) -> Result<(Volume, PageCache)> {
    let cache = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap();
    let options = WriteOptions { fixed_time: Some(fixed_time), commit_interval: None, ..Default::default() };
    let volume = Volume::open_writable(rt, &cache.attach(disk.clone()), options).await?;
    Ok((volume, cache))
}

#[test]
fn a_volume_that_is_refused_is_not_marked_as_in_use() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 8, "-t ext2 -N 64");
    run("debugfs", &["-w", "-R", "ssv last_orphan 5", image.to_str().unwrap()]);
    let disk = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let rt = Rt::real(Default::default());
    for _ in 0..2 {
        let refused = rt.block_on(open(&rt, &disk, 0)).unwrap();
        assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
        assert_ne!(state(&rt, &disk) & STATE_VALID, 0);
    }
}

#[test]
fn an_error_that_an_empty_journal_keeps_comes_into_the_superblock() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 16, "-t ext4 -N 64");
    let mut bytes = std::fs::read(&image).unwrap();
    let rt = Rt::real(Default::default());
    let errno = |bytes: &[u8]| {
        let disk = Arc::new(MemDevice::from_bytes(bytes.to_vec()));
        let volume = rt.block_on(Volume::open(disk, OpenOptions::default())).unwrap().unwrap();
        let log = rt.block_on(Log::open(volume.view())).unwrap().unwrap().expect("a journal");
        let at = log.map.home(0).unwrap().0 as usize * volume.superblock().block_size().byte_len();
        (log.sb.clone(), at)
    };
    let (mut journal, at) = errno(&bytes);
    assert_eq!(journal.errno(), 0);
    journal.set_errno(5);
    journal.write_to(&mut bytes[at..at + 1024]);
    let disk = Arc::new(MemDevice::from_bytes(bytes));
    assert_eq!(state(&rt, &disk) & STATE_ERROR, 0);
    rt.block_on(async {
        let (volume, _cache) = open(&rt, &disk, 0).await.unwrap();
        let root = volume.root_node().await.unwrap();
        root.create(&Caller::root(), b"name", 0o644).await.unwrap();
        drop(root);
        volume.close().await.unwrap();
    })
    .unwrap();
    assert_ne!(state(&rt, &disk) & STATE_ERROR, 0);
    let bytes = disk.to_bytes();
    assert_eq!(errno(&bytes).0.errno(), 0, "the superblock has it");
    std::fs::write(&image, bytes).unwrap();
    let said = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    assert!(said.contains("clean with errors"), "{said}");
}

#[test]
fn a_small_inode_made_after_2038_says_2038() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 8, "-t ext2 -N 64 -I 128");
    let disk = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let (volume, _cache) = open(&rt, &disk, (1 << 31) + 100).await.unwrap();
        let root = volume.root_node().await.unwrap();
        let node = root.create(&Caller::root(), b"name", 0o644).await.unwrap();
        let seen = node.attributes().unwrap();
        for time in [seen.accessed, seen.modified, seen.changed] {
            assert_eq!(time.seconds, i64::from(i32::MAX));
        }
        drop((root, node));
        volume.close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_log_smaller_than_linux_makes_it_is_refused_by_name() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 16, "-t ext4 -b 1024 -J size=1 -N 64");
    let bytes = std::fs::read(&image).unwrap();
    let rt = Rt::real(Default::default());
    let disk = Arc::new(MemDevice::from_bytes(bytes.clone()));
    let at = rt.block_on(async {
        let volume = Volume::open(disk, OpenOptions::default()).await.unwrap();
        Log::open(volume.view()).await.unwrap().expect("a journal").map.home(0).unwrap().0 as usize * 1024
    });
    let at = at.unwrap();
    // Offsets of s_maxlen and s_first in the journal's superblock.
    for (offset, value, words) in [(0x10, 600u32, "s_maxlen is 600"), (0x14, 700, "a log of 324 blocks")] {
        let mut bytes = bytes.clone();
        bytes[at + offset..][..4].copy_from_slice(&value.to_be_bytes());
        if let Ok(journal) = extant_format::jbd2::JournalSuperblock::parse(&bytes[at..]) {
            journal.write_to(&mut bytes[at..at + 1024]);
        }
        let disk = Arc::new(MemDevice::from_bytes(bytes.clone()));
        let refused = rt.block_on(open(&rt, &disk, 0)).unwrap().map(drop).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
        assert!(disk.to_bytes() == bytes, "a volume that is refused is left as it is");
    }
}

#[test]
fn the_largest_operations_fit_the_smallest_log() {
    use extant_sim::{Machine, Preemption, Sim};
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for args in ["-t ext3 -b 1024 -J size=1 -N 64", "-t ext4 -b 1024 -J size=1 -N 64"] {
        make(&image, 24, args);
        let disk = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
        // The simulation reports a deadlock as a failure.
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        sim.rt()
            .block_on(async {
                let (volume, _cache) = open(sim.rt(), &disk, 1_700_000_000).await.unwrap();
                let (root, caller) = (volume.root_node().await.unwrap(), Caller::root());
                let node = root.create(&caller, b"sparse", 0o644).await.unwrap();
                let file = node.open(&caller, Default::default()).unwrap();
                // Each block needs its own map node or extent.
                for n in 0..2500 {
                    assert_eq!(file.write(n * (300 << 10), &[1; 1024]).await.unwrap(), 1024);
                }
                file.sync().await.unwrap();
                file.set_size(1 << 20).await.unwrap();
                file.write(0, &vec![2; 4 << 20]).await.unwrap();
                drop(file);
                root.unlink(&caller, b"sparse").await.unwrap();
                node.release().await;
                let dir = root.mkdir(&caller, b"dir", 0o755).await.unwrap();
                let first = dir.create(&caller, b"first", 0o644).await.unwrap();
                for n in 0..800 {
                    let name = format!("{n:04}{}", "name".repeat(60));
                    dir.link(&caller, &first, name.as_bytes()).await.unwrap();
                }
                drop((first, dir, root));
                volume.close().await.unwrap();
            })
            .unwrap();
        std::fs::write(&image, disk.to_bytes()).unwrap();
        crate::testbed::check_is_silent(&image, args);
    }
}

/// A device that counts how often it is claimed.
#[derive(Debug)]
struct Counted {
    inner: Arc<MemDevice>,
    claims: std::sync::atomic::AtomicU32,
}

impl Device for Counted {
    fn limits(&self) -> &extant_block::Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: extant_block::Bio) {
        self.inner.submit(bio);
    }

    fn claim(&self) -> std::result::Result<extant_block::Claim, extant_block::IoError> {
        self.claims.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.inner.claim()
    }
}

#[test]
fn a_recovery_keeps_its_claim_until_the_orphans_are_finished() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 8, "-t ext4 -N 64 -O ^orphan_file");
    let file = dir.path().join("file");
    std::fs::write(&file, vec![1; 10_000]).unwrap();
    for command in [
        format!("write {} file", file.display()),
        "unlink file".into(),
        "sif <12> links_count 0".into(),
        "sif <12> dtime 0".into(),
        "ssv last_orphan 12".into(),
    ] {
        run("debugfs", &["-w", "-R", &command, image.to_str().unwrap()]);
    }
    let inner = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let device = Arc::new(Counted { inner: inner.clone(), claims: Default::default() });
    let rt = Rt::real(Default::default());
    let done = rt.block_on(recover(&rt, device.clone(), OpenOptions::default())).unwrap().unwrap();
    assert_eq!((done.orphans, done.has_orphans), (1, false));
    assert_eq!(device.claims.load(std::sync::atomic::Ordering::Relaxed), 1, "claimed without a gap");
    std::fs::write(&image, inner.to_bytes()).unwrap();
    let said = run("e2fsck", &["-fn", image.to_str().unwrap()]);
    assert!(!said.contains("WARNING") && !said.contains("Fix"), "{said}");
}

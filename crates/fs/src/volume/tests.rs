//! Opening for writing, as the superblocks see it.

use super::*;
use crate::Caller;
use crate::journal::recover::Log;
use crate::testbed::{have_tools, make, run};
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
        let log = rt.block_on(Log::open(&volume)).unwrap().unwrap().expect("a journal");
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

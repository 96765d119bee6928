//! Files opened with `O_TRUNC`: a crash leaves the old contents or the new.

use super::*;
use crate::volume::WriteOptions;
use crate::{Caller, Node};
use extant_block::{MemDevice, Record};
use extant_sim::{Machine, Preemption, Sim};

struct World {
    sim: Sim,
    fresh: Vec<u8>,
    record: Arc<Record>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(args: &str, old: &[u8]) -> Option<Self> {
        if !have_tools() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), 12, args, &[old.to_vec()]);
        let fresh = std::fs::read(&image).unwrap();
        let record = Arc::new(Record::new(Arc::new(MemDevice::from_bytes(fresh.clone()))));
        Some(Self { sim: Sim::new(Machine::free(1, Preemption::None), 1), fresh, record, _dir: dir })
    }

    fn run(&self, options: WriteOptions, work: impl AsyncFnOnce(Volume, Node)) {
        let rt = self.sim.rt();
        let all = async {
            let cache = PageCache::new(rt, CacheConfig::with_budget(4 << 20)).unwrap();
            let volume =
                Volume::open_writable(rt, &cache.attach(self.record.clone()), options).await.unwrap();
            let root = volume.root_node().await.unwrap();
            work(volume, root).await;
        };
        rt.block_on(all).unwrap();
    }

    /// The file's contents after a crash following each write, in order, with consecutive
    /// duplicates removed.
    fn contents(&self) -> Vec<Vec<u8>> {
        let log = self.record.log();
        let mut image = self.fresh.clone();
        let mut all: Vec<Vec<u8>> = Vec::new();
        for change in &log.changes {
            change.apply(&mut image, 0..change.sectors());
            let disk = Arc::new(MemDevice::from_bytes(image.clone()));
            let rt = Rt::real(Default::default());
            let found = rt.block_on(async {
                let volume = Volume::open(disk, crate::OpenOptions::default()).await.unwrap();
                let root = volume.root().await.unwrap();
                let number = volume.lookup(&root, b"0").await.unwrap().unwrap();
                let inode = volume.inode(number).await.unwrap();
                let mut bytes = vec![0; inode.size() as usize];
                let file = volume.open_file(inode).await.unwrap();
                let len = file.read_at(0, &mut bytes).await.unwrap();
                assert_eq!(len, bytes.len());
                bytes
            });
            let found = found.unwrap();
            if all.last() != Some(&found) {
                all.push(found);
            }
        }
        all
    }
}

fn offline() -> WriteOptions {
    WriteOptions { fixed_time: Some(NOW), commit_interval: None, ..WriteOptions::default() }
}

async fn open(root: &Node) -> OpenFile {
    let caller = Caller::root();
    root.lookup(&caller, b"0").await.unwrap().open(&caller, FileOptions::default()).unwrap()
}

#[test]
fn a_crash_leaves_the_old_contents_or_the_new() {
    let mut rng = Rng::labelled(1, "emptied");
    for args in ["-t ext4 -b 4096 -N 64", "-t ext3 -b 1024 -N 64", "-t ext4 -b 1024 -N 64 -O ^has_journal"] {
        let (old, new) = (bytes(&mut rng, 300_000), bytes(&mut rng, 50_000));
        let Some(world) = World::new(args, &old) else { return };
        world.run(offline(), async |volume, root| {
            let caller = Caller::root();
            let file = open(&root).await;
            file.empty().await.unwrap();
            assert_eq!((file.size(), file.read(0, &mut [0; 9]).await.unwrap()), (0, 0));
            let seen = root.lookup(&caller, b"0").await.unwrap().attributes().unwrap();
            assert_eq!(seen.size, 0);
            // Meanwhile, other changes are made durable.
            root.create(&caller, b"other", 0o644).await.unwrap();
            root.sync().await.unwrap();
            file.write(0, &new[..20_000]).await.unwrap();
            root.create(&caller, b"another", 0o644).await.unwrap();
            root.sync().await.unwrap();
            file.write(20_000, &new[20_000..]).await.unwrap();
            drop((file, root));
            volume.close().await.unwrap();
        });
        let found = world.contents();
        assert!(found.first() == Some(&old) && found.last() == Some(&new), "{args}");
        assert_eq!(found.len(), 2, "{args}: {:?}", found.iter().map(Vec::len).collect::<Vec<_>>());
        let image = world._dir.path().join("after");
        std::fs::write(&image, image_of(&world)).unwrap();
        check_is_silent(&image, args);
    }
}

fn image_of(world: &World) -> Vec<u8> {
    let log = world.record.log();
    let mut image = world.fresh.clone();
    log.changes.iter().for_each(|change| change.apply(&mut image, 0..change.sectors()));
    image
}

#[test]
fn without_new_contents_the_file_is_empty_when_it_was_closed() {
    let Some(world) = World::new("-t ext4 -b 4096 -N 64", &[1; 10_000]) else { return };
    let options = WriteOptions { fixed_time: Some(NOW), ..WriteOptions::default() };
    world.run(options, async |volume, root| {
        let file = open(&root).await;
        file.empty().await.unwrap();
        drop(file);
        world.sim.rt().sleep(extant_rt::Nanos::from_secs(10)).await;
        // Dropping the volume acts as a crash.
        drop((root, volume));
    });
    assert_eq!(world.contents(), [vec![1; 10_000], vec![]]);
}

#[test]
fn an_emptied_file_is_synced_deleted_and_resized() {
    let Some(world) = World::new("-t ext4 -b 1024 -N 64", &[1; 200_000]) else { return };
    world.run(offline(), async |volume, root| {
        let caller = Caller::root();
        let file = open(&root).await;
        let free = volume.space().blocks_free;
        file.empty().await.unwrap();
        file.sync().await.unwrap();
        assert!(volume.space().blocks_free >= free + 195);
        file.write(0, &[2; 5000]).await.unwrap();
        file.sync().await.unwrap();
        file.empty().await.unwrap();
        file.set_size(3000).await.unwrap();
        let mut read = vec![7; 4000];
        assert_eq!(file.read(0, &mut read).await.unwrap(), 3000);
        assert_eq!(read[..3000], [0; 3000]);
        file.write(0, &[3; 3000]).await.unwrap();
        file.sync().await.unwrap();
        // Emptied repeatedly, the last time for good.
        file.empty().await.unwrap();
        file.write(0, &[4; 9000]).await.unwrap();
        file.empty().await.unwrap();
        file.write(100_000, &[5; 100]).await.unwrap();
        assert_eq!(file.size(), 100_100);
        root.unlink(&caller, b"0").await.unwrap();
        drop(file);
        drop(root);
        volume.close().await.unwrap();
    });
    let image = world._dir.path().join("after");
    std::fs::write(&image, image_of(&world)).unwrap();
    check_is_silent(&image, "emptied files");
}

#[test]
fn new_contents_find_the_room_of_the_old() {
    let Some(world) = World::new("-t ext4 -b 1024 -N 64 -m 0", &[1; 4 << 20]) else { return };
    world.run(offline(), async |volume, root| {
        let caller = Caller::root();
        let hog = root.create(&caller, b"hog", 0o644).await.unwrap();
        let hog = hog.open(&caller, FileOptions::default()).unwrap();
        let mut at = 0;
        while let Ok(written) = hog.write(at, &[9; 64 << 10]).await {
            at += written as u64;
        }
        hog.sync().await.unwrap();
        let file = open(&root).await;
        file.empty().await.unwrap();
        let mut at = 0;
        while at < 3 << 20 {
            at += file.write(at, &[2; 256 << 10]).await.unwrap() as u64;
        }
        drop((file, hog, root));
        volume.close().await.unwrap();
    });
    let found = world.contents();
    assert!(found.last() == Some(&vec![2; 3 << 20]));
}

//! Files with data=journal: their data as seen by the device, a replay and readers.

use super::*;
use crate::names::Caller;
use crate::volume::WriteOptions;
use extant_block::MemDevice;
use extant_format::InodeFlags;

/// A volume in memory, with a journal and a single file.
struct Journalled {
    // In this order: the file is dropped before its volume, and that before its cache.
    file: OpenFile,
    volume: Volume,
    cache: PageCache,
    memory: Arc<MemDevice>,
    number: InodeNumber,
}

impl Journalled {
    async fn open(rt: &Rt, memory: Arc<MemDevice>, number: InodeNumber) -> Self {
        let cache = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap();
        let options =
            WriteOptions { fixed_time: Some(NOW), commit_interval: None, ..WriteOptions::default() };
        let volume = Volume::open_writable(rt, &cache.attach(memory.clone()), options).await.unwrap();
        let file = volume.open_for_writing(number, FileOptions::default()).await.unwrap();
        Self { file, volume, cache, memory, number }
    }

    async fn reopened(self, rt: &Rt) -> Self {
        let (memory, number) = (self.memory.clone(), self.number);
        self.close().await;
        Self::open(rt, memory, number).await
    }

    async fn close(self) {
        let Self { file, volume, cache, .. } = self;
        drop(file);
        volume.close().await.unwrap();
        cache.audit();
    }

    async fn set_journalled(&self, name: &[u8], journalled: bool) {
        let caller = &Caller::root();
        let node = self.volume.root_node().await.unwrap().lookup(caller, name).await.unwrap();
        let mut flags = node.attributes().unwrap().flags;
        flags.set(InodeFlags::JOURNAL_DATA, journalled);
        node.set_flags(caller, flags).await.unwrap();
    }

    async fn commit_home(&self) {
        self.file.contents.writer.journal.commit_home().await.unwrap();
    }

    async fn write(&self, contents: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        self.file.write(at as u64, bytes).await.unwrap();
        self.file.sync().await.unwrap();
        contents.resize(contents.len().max(at + bytes.len()), 0);
        contents[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Checks what readers get without pages in the cache.
    async fn reads(&self, contents: &[u8], what: &str) {
        self.file.mapping.invalidate(ByteRange::ALL).await.unwrap();
        let mut found = vec![1; contents.len() + 10];
        assert_eq!(self.file.read(0, &mut found).await.unwrap(), contents.len(), "{what}");
        let first = found.iter().zip(contents).position(|(a, b)| a != b);
        assert_eq!(first, None, "{what}: byte differs");
        self.file.mapping.invalidate(ByteRange::ALL).await.unwrap();
        let (found, read) = self.file.read_direct(4096, Buf::zeroed(8192)).await;
        let expected = &contents[4096..contents.len().min(4096 + 8192)];
        assert_eq!(read.unwrap(), expected.len(), "{what}");
        assert!(found[..expected.len()] == *expected, "{what}: directly");
    }

    /// The bytes on the device at the places of the file's blocks.
    async fn at_home(&self, contents: &[u8]) -> Vec<u8> {
        let device = self.memory.to_bytes();
        let mut home = vec![0; contents.len()];
        for extent in self.file.extents(ByteRange::ALL).await.unwrap() {
            let (from, at) = (extent.offset as usize, extent.device_offset as usize);
            let len = (extent.bytes as usize).min(contents.len() - from);
            home[from..from + len].copy_from_slice(&device[at..at + len]);
        }
        home
    }
}

/// Makes a volume with files `0`, `1`, … of these contents. With `all`, all file data go through
/// the log.
fn volume(args: &str, mib: usize, all: bool, files: &[Vec<u8>]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), mib, args, files);
    if all {
        let said = run("tune2fs", &["-o", "journal_data", image.to_str().unwrap()]);
        assert!(said.starts_with("tune2fs 1."), "{said}");
    }
    (dir, image)
}

fn memory(image: &Path) -> Arc<MemDevice> {
    Arc::new(MemDevice::from_bytes(std::fs::read(image).unwrap()))
}

/// Checks a file's contents against a crash now, replayed both by e2fsck and by our recovery.
async fn after_crash(memory: &MemDevice, dir: &Path, number: InodeNumber, contents: &[u8], what: &str) {
    let crashed = memory.to_bytes();
    let copy = dir.join("crashed");
    std::fs::write(&copy, &crashed).unwrap();
    run("e2fsck", &["-fy", copy.to_str().unwrap()]);
    check_is_silent(&copy, what);
    assert!(dumped(&copy, number) == contents, "{what}: after e2fsck's replay");
    let device = Arc::new(MemDevice::from_bytes(crashed));
    let volume = Volume::open(device, Default::default()).await.unwrap();
    let inode = volume.inode(number).await.unwrap();
    let mut found = vec![0; contents.len() + 1];
    let read = volume.open_file(inode).await.unwrap().read_at(0, &mut found).await.unwrap();
    assert!(found[..read] == *contents, "{what}: through our view of the log");
}

#[test]
fn data_come_to_their_place_by_checkpoints_alone() {
    if !have_tools() {
        return;
    }
    for (args, all, kib) in [
        ("-t ext4 -b 1024 -J size=1 -N 64", false, 1500),
        ("-t ext4 -b 4096 -N 64", true, 300),
        ("-t ext3 -b 1024 -J size=1 -N 64", true, 700),
        ("-t ext4 -b 4096 -O inline_data -I 512 -N 64", false, 200),
        ("-t ext4 -b 16384 -N 64", true, 300),
    ] {
        let (dir, image) = volume(args, if args.contains("16384") { 64 } else { 12 }, all, &[vec![3; 50]]);
        let rt = Rt::real(Default::default());
        let mut rng = Rng::labelled(1, args);
        rt.block_on(async {
            let number = numbers(&image, 1).await[0];
            let mut bed = Journalled::open(&rt, memory(&image), number).await;
            if !all {
                bed.set_journalled(b"0", true).await;
            }
            let mut contents = vec![3; 50];
            let mut long = bytes(&mut rng, kib << 10);
            // Starts like a block of the journal itself.
            long.chunks_mut(16384).for_each(|block| block[..4].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98]));
            bed.write(&mut contents, 0, &long).await;
            bed.commit_home().await;
            bed.reads(&contents, args).await;
            let old = contents.clone();
            let middle = bytes(&mut rng, 40_000);
            bed.write(&mut contents, 5_000, &middle).await;
            assert!(bed.at_home(&contents).await == old, "{args}: the log alone has the new bytes");
            bed.reads(&contents, args).await;
            after_crash(&bed.memory, dir.path(), number, &contents, args).await;
            bed.commit_home().await;
            assert!(bed.at_home(&contents).await == contents, "{args}: home");
            bed.reads(&contents, args).await;
            // None of the data is in memory.
            bed = bed.reopened(&rt).await;
            bed.write(&mut contents, 4096, &[9; 4096]).await;
            let end = contents.len();
            bed.write(&mut contents, end, &middle[..3000]).await;
            bed.reads(&contents, args).await;
            after_crash(&bed.memory, dir.path(), number, &contents, args).await;
            // Over unwritten blocks, and blocks that were freed and reallocated.
            let (start, len) = (16 * 1024, 64 * 1024);
            bed.file.fallocate(Fallocate::PunchHole, start, len).await.unwrap();
            contents[start as usize..(start + len) as usize].fill(0);
            if !args.contains("ext3") {
                bed.file.fallocate(Fallocate::ZeroRange { keep_size: true }, start, 2 * len).await.unwrap();
                contents[start as usize..(start + 2 * len) as usize].fill(0);
            }
            bed.write(&mut contents, 20_000, &middle[..9000]).await;
            bed.reads(&contents, args).await;
            after_crash(&bed.memory, dir.path(), number, &contents, args).await;
            let memory = bed.memory.clone();
            bed.close().await;
            std::fs::write(&image, memory.to_bytes()).unwrap();
            check_is_silent(&image, args);
            assert!(dumped(&image, number) == contents, "{args}: at the end");
        })
        .unwrap();
    }
}

#[test]
fn no_replay_comes_over_the_next_owner_of_freed_blocks() {
    if !have_tools() {
        return;
    }
    let (dir, image) = volume("-t ext4 -b 1024 -J size=1 -N 64", 6, false, &[vec![], vec![]]);
    let rt = Rt::real(Default::default());
    let mut rng = Rng::labelled(1, "revoked");
    rt.block_on(async {
        let numbers = numbers(&image, 2).await;
        let bed = Journalled::open(&rt, memory(&image), numbers[0]).await;
        bed.set_journalled(b"0", true).await;
        bed.write(&mut Vec::new(), 0, &bytes(&mut rng, 60_000)).await;
        let places = bed.file.extents(ByteRange::ALL).await.unwrap();
        bed.file.set_size(0).await.unwrap();
        bed.file.sync().await.unwrap();
        let options = FileOptions { reserved_blocks: true, ..FileOptions::default() };
        let other = bed.volume.open_for_writing(numbers[1], options).await.unwrap();
        let contents = bytes(&mut rng, (bed.volume.space().blocks_free as usize - 20) * 1024);
        assert_eq!(other.write(0, &contents).await.unwrap(), contents.len());
        other.sync().await.unwrap();
        let taken = other.extents(ByteRange::ALL).await.unwrap();
        let ends = |extent: &FileExtent| (extent.device_offset, extent.device_offset + extent.bytes);
        let overlaps = |a: &FileExtent, b: &FileExtent| ends(a).0 < ends(b).1 && ends(b).0 < ends(a).1;
        assert!(taken.iter().any(|new| overlaps(new, &places[0])), "{places:?} {taken:?}");
        after_crash(&bed.memory, dir.path(), numbers[1], &contents, "an ordinary file").await;
        drop(other);
        bed.close().await;
    })
    .unwrap();
}

#[test]
fn a_file_may_be_journalled_for_a_while() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 -b 1024 -J size=1 -N 64", "-t ext4 -b 4096 -O ^has_journal -N 64"] {
        let (dir, image) = volume(args, 12, false, &[vec![5; 20_000]]);
        let rt = Rt::real(Default::default());
        let mut rng = Rng::labelled(1, args);
        rt.block_on(async {
            let number = numbers(&image, 1).await[0];
            let bed = Journalled::open(&rt, memory(&image), number).await;
            let mut contents = vec![5; 20_000];
            for round in 0..3 {
                let what = format!("{args}, round {round}");
                bed.write(&mut contents, 3000, &bytes(&mut rng, 30_000)).await;
                // Still dirty when the flag is set.
                let late = bytes(&mut rng, 2000);
                bed.file.write(500, &late).await.unwrap();
                contents[500..2500].copy_from_slice(&late);
                bed.set_journalled(b"0", true).await;
                bed.reads(&contents, &what).await;
                bed.write(&mut contents, 8000, &bytes(&mut rng, 9000)).await;
                bed.reads(&contents, &what).await;
                bed.file.write(500, &late[..700]).await.unwrap();
                bed.set_journalled(b"0", false).await;
                bed.reads(&contents, &what).await;
                bed.write(&mut contents, 7000, &bytes(&mut rng, 12_000)).await;
                bed.reads(&contents, &what).await;
                if !args.contains("^has_journal") {
                    after_crash(&bed.memory, dir.path(), number, &contents, &what).await;
                }
            }
            bed.close().await;
        })
        .unwrap();
    }
}

#[test]
fn a_journalled_file_is_defragmented() {
    if !have_tools() {
        return;
    }
    let args = "-t ext4 -b 1024 -J size=1 -N 64";
    let (dir, image) = volume(args, 12, true, &[vec![]]);
    let rt = Rt::real(Default::default());
    let mut rng = Rng::labelled(1, args);
    rt.block_on(async {
        let number = numbers(&image, 1).await[0];
        let bed = Journalled::open(&rt, memory(&image), number).await;
        let mut contents = Vec::new();
        for n in (0..40).rev() {
            bed.write(&mut contents, n * 1024, &bytes(&mut rng, 1024)).await;
        }
        let done = bed.file.defragment().await.unwrap();
        assert!(done.runs_before > 20 && done.runs_after < 4, "{done:?}");
        bed.file.sync().await.unwrap();
        bed.reads(&contents, "moved").await;
        after_crash(&bed.memory, dir.path(), number, &contents, "moved").await;
        bed.write(&mut contents, 5000, &bytes(&mut rng, 7000)).await;
        bed.reads(&contents, "moved and written").await;
        after_crash(&bed.memory, dir.path(), number, &contents, "moved and written").await;
        bed.close().await;
    })
    .unwrap();
}

/// Inline contents leave the inode at write-back of the first page, not at the write.
#[test]
fn flags_that_write_back_changes_meanwhile_stay_changed() {
    if !have_tools() {
        return;
    }
    let args = "-t ext4 -b 4096 -O inline_data -I 256 -N 64";
    let (_dir, image) = volume(args, 12, false, &[vec![]]);
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let number = numbers(&image, 1).await[0];
        let mut bed = Journalled::open(&rt, memory(&image), number).await;
        let flags = |bed: &Journalled| bed.file.contents.cell.read(extant_format::Inode::flags);
        assert!(flags(&bed).contains(InodeFlags::INLINE_DATA), "mke2fs makes it so");
        bed.file.write(0, &[5; 100]).await.unwrap();
        bed.set_journalled(b"0", true).await;
        assert!(!flags(&bed).contains(InodeFlags::INLINE_DATA));
        assert!(flags(&bed).contains(InodeFlags::EXTENTS | InodeFlags::JOURNAL_DATA));
        bed = bed.reopened(&rt).await;
        let mut found = [0; 200];
        assert_eq!(bed.file.read(0, &mut found).await.unwrap(), 100);
        assert_eq!(found[..100], [5; 100]);
        let memory = bed.memory.clone();
        bed.close().await;
        std::fs::write(&image, memory.to_bytes()).unwrap();
    })
    .unwrap();
    check_is_silent(&image, args);
}

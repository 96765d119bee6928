//! Volumes open for reading: data read stays cached, and each byte matches the volume.

mod bed;
mod past;

use bed::{fsck, image, writable};
use extant::{FileOptions, InodeFlags, OpenOptions, Volume};
use extant_block::{Bio, Claim, Device, FileDevice, IoError, Limits, Op, Sector};
use extant_image::{SizePolicy, Timestamp, VolumeOptions};
use extant_rt::{Class, Rt};
use std::fmt;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Counts bytes read from a device, by bios and by readers' own threads, and bytes written.
#[derive(Debug)]
struct Counted {
    below: FileDevice,
    bio_bytes: AtomicU64,
    here_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// Reads of readers' own threads fail.
    fails_here: AtomicBool,
    /// Done in the middle of the next long read of a reader's own thread.
    meanwhile: Mutex<Option<Meanwhile>>,
}

struct Meanwhile(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Counted {
    fn open(rt: &Rt, path: &Path, write: bool) -> Arc<Self> {
        let options = extant_block::FileOptions { write, direct: false };
        let below = FileDevice::open(path, options).unwrap().driven_by(rt);
        let (bio_bytes, here_bytes, written_bytes, fails_here, meanwhile) = Default::default();
        Arc::new(Self { below, bio_bytes, here_bytes, written_bytes, fails_here, meanwhile })
    }

    fn bio_bytes(&self) -> u64 {
        self.bio_bytes.load(Ordering::Relaxed)
    }

    fn here_bytes(&self) -> u64 {
        self.here_bytes.load(Ordering::Relaxed)
    }

    fn read_bytes(&self) -> u64 {
        self.bio_bytes() + self.here_bytes()
    }
}

impl Device for Counted {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn submit(&self, bio: Bio) {
        match bio.op {
            Op::Read => self.bio_bytes.fetch_add(bio.bytes, Ordering::Relaxed),
            _ => self.written_bytes.fetch_add(bio.bytes, Ordering::Relaxed),
        };
        self.below.submit(bio);
    }

    fn reads_here(&self) -> bool {
        self.below.reads_here()
    }

    fn is_cached_by_host(&self) -> bool {
        self.below.is_cached_by_host()
    }

    fn read_here(&self, start: Sector, to: &mut [IoSliceMut<'_>]) -> bool {
        if self.fails_here.load(Ordering::Relaxed) {
            return false;
        }
        let bytes = to.iter().map(|part| part.len() as u64).sum();
        self.here_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let [to] = to
            && to.len() > 1 << 16
            && let Some(Meanwhile(work)) = self.meanwhile.lock().unwrap().take()
        {
            // Half of them, up to the middle of a page.
            let half = to.len() / 2 + 512;
            let (first, rest) = to.split_at_mut(half);
            assert!(self.below.read_here(start, &mut [IoSliceMut::new(first)]));
            work();
            let start = Sector(start.0 + half as u64 / Sector::BYTES);
            return self.below.read_here(start, &mut [IoSliceMut::new(rest)]);
        }
        self.below.read_here(start, to)
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.below.claim()
    }
}

/// Bytes that differ from place to place and are never zero.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1).collect()
}

#[test]
fn a_volume_open_for_reading_reads_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let large = pattern(5 << 20, 1);
    volume.root().write("large", &large).unwrap();
    let small: Vec<_> = (0..200).map(|n| (format!("small {n}"), pattern(n * 97, n as u64))).collect();
    for (name, bytes) in &small {
        volume.root().write(name, bytes).unwrap();
    }
    // A hole, then bytes that end inside a block.
    let sparse = volume.root().open_with("sparse", FileOptions::new().write(true).create(true)).unwrap();
    sparse.write_all_at(1 << 20, b"end").unwrap();
    drop(sparse);
    volume.close().unwrap();
    fsck(&path);

    let rt = Rt::real(Default::default());
    let device = Counted::open(&rt, &path, false);
    let volume = Volume::open_device(&rt, device.clone(), &OpenOptions::new()).unwrap();
    let root = volume.root();
    let look = || {
        assert_eq!(root.read("large").unwrap(), large);
        for (name, bytes) in &small {
            assert_eq!(&root.read(name).unwrap(), bytes, "{name}");
        }
        let sparse = root.read("sparse").unwrap();
        assert!(sparse.len() == (1 << 20) + 3 && sparse.ends_with(b"\0end"));
        assert!(sparse[..1 << 20].iter().all(|&byte| byte == 0));
        let file = root.open("large").unwrap();
        for at in [0, 1, 4095, 4096, 1 << 20, (5 << 20) - 7, 5 << 20, (5 << 20) + 1, u64::MAX] {
            let mut bytes = [0; 10_000];
            let read = file.read_at(at, &mut bytes).unwrap();
            let expected = large.get(at.min(5 << 20) as usize..).unwrap();
            assert_eq!(bytes[..read], expected[..expected.len().min(10_000)], "from byte {at}");
        }
    };
    look();
    let first = device.read_bytes();
    look();
    assert_eq!(device.read_bytes(), first, "the second pass reads from memory alone");
}

#[test]
fn a_thread_that_misses_reads_a_buffered_image_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let contents = pattern((5 << 20) - 100, 1);
    volume.root().write("file", &contents).unwrap();
    volume.close().unwrap();
    for write in [false, true] {
        let rt = Rt::real(Default::default());
        let device = Counted::open(&rt, &path, write);
        let volume = Volume::open_device(&rt, device.clone(), &OpenOptions::new().write(write)).unwrap();
        let file = volume.open_file("file").unwrap();
        let look = |at: usize, len: usize| {
            let mut bytes = vec![0; len];
            let read = file.read_at(at as u64, &mut bytes).unwrap();
            assert!(
                bytes[..read] == contents[at..contents.len().min(at + len)],
                "{len} bytes from byte {at}"
            );
        };
        // Finds the map.
        look(0, 1);
        let bios = device.bio_bytes();
        let here = device.here_bytes();
        // Far from each other, so that nothing is read ahead.
        for page in [700, 300, 1100, 410] {
            look(page * 4096 + 10, 100);
        }
        // Parts of five pages, and the end of the file, past which there is nothing.
        look(500 * 4096 + 4000, 4 * 4096);
        look(1279 * 4096, 8192);
        assert_eq!((device.bio_bytes(), device.here_bytes()), (bios, here + 10 * 4096));
        look(500 * 4096, 4096);
        assert_eq!(device.here_bytes(), here + 10 * 4096, "it is cached now");

        // Where that fails, or from a task, a bio reads.
        device.fails_here.store(true, Ordering::Relaxed);
        look(900 * 4096, 4096);
        device.fails_here.store(false, Ordering::Relaxed);
        let awaited = file.asynch().clone();
        let task = rt.spawn("reader", Class::Normal, async move {
            let mut bytes = [0; 4096];
            awaited.read_at(100 * 4096, &mut bytes).await.map(|_| bytes)
        });
        let bytes = rt.block_on(task).unwrap().unwrap().unwrap();
        assert!(bytes[..] == contents[100 * 4096..][..4096]);
        assert_eq!((device.bio_bytes(), device.here_bytes()), (bios + 2 * 4096, here + 10 * 4096));
        drop(file);
        volume.close().unwrap();
    }
}

#[test]
fn thousands_of_small_files_are_read_from_memory_again() {
    const FILES: u64 = 4200;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let options = VolumeOptions {
        size: SizePolicy::Fixed(32 << 20),
        inodes: Some(FILES as u32 + 100),
        ..VolumeOptions::default()
    };
    let rt = Rt::real(Default::default());
    let created = Timestamp { seconds: 1_700_000_000, nanos: 0 };
    extant_image::mkfs(&path, &options, created, &rt, Arc::new(|_, _| {})).unwrap();
    let volume = writable(&path);
    let contents: Vec<_> = (0..FILES).map(|n| pattern(300, n)).collect();
    for (n, bytes) in contents.iter().enumerate() {
        volume.root().write(format!("{n}"), bytes).unwrap();
    }
    // The same name in another directory.
    volume.root().create_dir("dir").unwrap();
    volume.root().write("dir/0", "another").unwrap();
    volume.close().unwrap();

    let device = Counted::open(&rt, &path, false);
    let volume = Volume::open_device(&rt, device.clone(), &OpenOptions::new()).unwrap();
    let root = volume.root();
    let look = |files: usize| {
        for (n, bytes) in contents.iter().enumerate().take(files) {
            assert_eq!(&root.read(format!("{n}")).unwrap(), bytes, "file {n}");
        }
        assert_eq!(root.read("dir/0").unwrap(), b"another");
        assert!(root.read("dir/1").is_err());
    };
    look(FILES as usize);
    let first = device.read_bytes();
    look(200);
    assert_eq!(device.read_bytes(), first, "the first files are still in memory");
}

#[test]
fn data_in_the_journal_is_read_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let file = volume.root().open_with("f", FileOptions::new().read(true).write(true).create(true)).unwrap();
    volume.root().set_flags("f", InodeFlags::JOURNAL_DATA).unwrap();
    // The second block begins with the journal's magic number, which the log escapes.
    let mut bytes = pattern(3 * 4096, 2);
    bytes[4096..4100].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
    file.write_all_at(0, &bytes).unwrap();
    file.sync_all().unwrap();
    let copy = dir.path().join("copy.img");
    std::fs::copy(&path, &copy).unwrap();
    let copied = Volume::open(&copy, &OpenOptions::new()).unwrap();
    for _ in 0..2 {
        assert_eq!(copied.root().read("f").unwrap(), bytes);
    }
    drop(file);
    volume.close().unwrap();
}

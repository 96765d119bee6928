//! Damage found by operations on a volume open for writing: what continues to work, and what the
//! superblock records, checked with dumpe2fs, e2fsck and the kernel.

use extant_block::{Bio, BioFlags, Device, IoErrorKind, Limits, MemDevice, Op};
use extant_cache::{CacheConfig, PageCache};
use extant_fs::{Caller, Error, ErrorPolicy, FileOptions, Node, OpenOptions, Volume, WriteOptions, recover};
use extant_rt::Rt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NOW: i64 = 1_700_000_000;
const JOURNAL: &str = "-t ext4 -b 1024 -J size=1";

fn run(tool: &str, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(tool);
    command.args(args).env("TZ", "UTC").env("LC_ALL", "C").stdin(Stdio::null());
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code(), said)
}

/// A volume with a sound file, and one (inode 12) whose extent tree has no magic number.
struct Bed {
    _dir: tempfile::TempDir,
    image: PathBuf,
    rt: Rt,
    disk: Arc<MemDevice>,
}

impl Bed {
    fn new(args: &str) -> Option<Self> {
        let installed = |tool| {
            let quiet = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
            quiet.is_ok()
        };
        if !["mke2fs", "debugfs", "tune2fs"].into_iter().all(installed) {
            println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (image, data, script) = (dir.path().join("image"), dir.path().join("data"), dir.path().join("s"));
        let path = image.to_str().unwrap();
        let mut mke2fs: Vec<&str> = args.split(' ').collect();
        mke2fs.extend(["-q", "-F", "-N", "64", path, "8M"]);
        assert_eq!(run("mke2fs", &mke2fs).0, Some(0));
        std::fs::write(&data, "contents").unwrap();
        let block = if args.contains("ext2") { "block[IND] 7" } else { "block[0] 0" };
        let lines = format!("write {0} bad\nwrite {0} good\nsif bad {block}\n", data.display());
        std::fs::write(&script, lines).unwrap();
        run("debugfs", &["-w", "-f", script.to_str().unwrap(), path]);
        let disk = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
        Some(Self { _dir: dir, image, rt: Rt::real(Default::default()), disk })
    }

    /// Opens the volume and runs `work` with its root directory. Unless `work` closes the volume,
    /// it is dropped as in a crash.
    fn with(&self, errors: Option<ErrorPolicy>, work: impl AsyncFnOnce(Volume, Node)) {
        self.over(self.disk.clone(), errors, work);
    }

    fn over(
        &self,
        device: Arc<dyn Device>,
        errors: Option<ErrorPolicy>,
        work: impl AsyncFnOnce(Volume, Node),
    ) {
        let cache = PageCache::new(&self.rt, CacheConfig::with_budget(4 << 20)).unwrap();
        let disk = cache.attach(device);
        let options =
            WriteOptions { fixed_time: Some(NOW), commit_interval: None, errors, ..Default::default() };
        let all = async {
            let volume = Volume::open_writable(&self.rt, &disk, options).await.unwrap();
            let root = volume.root_node().await.unwrap();
            work(volume, root).await;
        };
        self.rt.block_on(all).unwrap();
    }

    /// Writes the image to a file, for tools.
    fn file(&self) -> &str {
        std::fs::write(&self.image, self.disk.to_bytes()).unwrap();
        self.image.to_str().unwrap()
    }

    fn take_back(&self) {
        let bytes = std::fs::read(&self.image).unwrap();
        let all =
            extant_block::write(&*self.disk, extant_block::Sector(0), extant_block::Buf::from_slice(&bytes));
        self.rt.block_on(all).unwrap().unwrap();
    }

    /// The output of `dumpe2fs -h`.
    fn header(&self) -> Header {
        Header(run("dumpe2fs", &["-h", self.file()]).1)
    }
}

struct Header(String);

impl Header {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

async fn read(root: &Node, name: &[u8]) -> Result<usize, Error> {
    let caller = Caller::root();
    let file = root.lookup(&caller, name).await?.open(&caller, FileOptions::default())?;
    file.read(0, &mut [0; 100]).await
}

async fn create(root: &Node, name: &[u8]) -> Result<Node, Error> {
    root.create(&Caller::root(), name, 0o644).await
}

#[test]
fn errors_continue_records_and_goes_on() {
    let Some(bed) = Bed::new(JOURNAL) else { return };
    let before = bed.disk.to_bytes();
    bed.rt
        .block_on(async {
            let volume = Volume::open(bed.disk.clone(), OpenOptions::default()).await.unwrap();
            let bad = volume.inode(extant_format::InodeNumber(12)).await.unwrap();
            let opened = volume.open_file(bad).await;
            let read = match opened {
                Ok(file) => file.read_at(0, &mut [0; 10]).await.map(drop),
                Err(error) => Err(error),
            };
            assert!(matches!(read, Err(Error::Corrupt(_))), "{read:?}");
        })
        .unwrap();
    assert!(bed.disk.to_bytes() == before, "a volume that is open for reading is left as it is");

    bed.with(None, async |volume, root| {
        assert!(matches!(read(&root, b"bad").await, Err(Error::Corrupt(_))));
        create(&root, b"new").await.unwrap();
        assert!(matches!(read(&root, b"bad").await, Err(Error::Corrupt(_))));
        assert_eq!(read(&root, b"good").await.unwrap(), 8);
        drop(root);
        volume.close().await.unwrap();
    });
    let header = bed.header();
    assert_eq!(header.field("Filesystem state"), Some("clean with errors"));
    assert_eq!(header.field("FS Error count"), Some("2"));
    assert_eq!(header.field("First error inode #"), Some("12"));
    assert_eq!(header.field("First error time"), Some("Tue Nov 14 22:13:20 2023"));
    assert_eq!(header.field("First error function"), Some("inode 12: extent root"));
    assert_eq!(header.field("First error err"), Some("EFSCORRUPTED"));
    assert_eq!(header.field("Last error inode #"), Some("12"));
    let (_, said) = run("e2fsck", &["-p", bed.file()]);
    assert!(said.contains("contains a file system with errors, check forced"), "{said}");
}

#[test]
fn the_kernel_records_the_same_of_the_same_damage() {
    let Some(bed) = Bed::new(JOURNAL) else { return };
    if !extant_testbed::can_mount() {
        return;
    }
    let mount = extant_testbed::Mount::new(&bed.image, &bed.image.with_extension("mount"), "errors=continue");
    let found = std::fs::read(mount.path().join("bad")).unwrap_err();
    let good = std::fs::read(mount.path().join("good")).unwrap();
    drop(mount);
    assert_eq!((found.raw_os_error(), &good[..]), (Some(117), &b"contents"[..]));
    let theirs = Header(run("dumpe2fs", &["-h", bed.image.to_str().unwrap()]).1);

    bed.with(Some(ErrorPolicy::Continue), async |volume, root| {
        assert_eq!(read(&root, b"bad").await.unwrap_err().errno(), 117);
        drop(root);
        volume.close().await.unwrap();
    });
    let ours = bed.header();
    for field in ["Filesystem state", "First error inode #", "First error block #", "First error err"] {
        assert_eq!(ours.field(field), theirs.field(field), "{field}");
    }
}

#[test]
fn errors_remount_ro_ends_writing() {
    let Some(bed) = Bed::new(JOURNAL) else { return };
    run("tune2fs", &["-e", "remount-ro", bed.file()]);
    bed.take_back();
    bed.with(None, async |volume, root| {
        let before = create(&root, b"synced").await.unwrap();
        volume.sync().await.unwrap();
        assert!(matches!(read(&root, b"bad").await, Err(Error::Corrupt(_))));
        assert!(matches!(create(&root, b"new").await, Err(Error::ReadOnly)));
        assert_eq!(read(&root, b"good").await.unwrap(), 8);
        drop((before, root));
        assert!(volume.close().await.is_err());
    });
    let header = bed.header();
    assert_eq!(header.field("Filesystem state"), Some("clean with errors"));
    assert!(header.field("Filesystem features").unwrap().contains("needs_recovery"));
    assert_eq!(
        (header.field("FS Error count"), header.field("First error inode #")),
        (Some("1"), Some("12"))
    );
    assert_eq!(header.field("Journal errno"), Some("-5"));
    // The next mount takes the error over from the journal, and keeps the record.
    bed.with(Some(ErrorPolicy::Continue), async |volume, root| {
        root.lookup(&Caller::root(), b"synced").await.unwrap();
        drop(root);
        volume.close().await.unwrap();
    });
    let header = bed.header();
    assert_eq!(header.field("Filesystem state"), Some("clean with errors"));
    assert_eq!((header.field("FS Error count"), header.field("Journal errno")), (Some("1"), None));
    let (_, said) = run("e2fsck", &["-p", bed.file()]);
    assert!(said.contains("check forced"), "{said}");
}

#[test]
fn errors_panic_stops_the_volume() {
    let Some(bed) = Bed::new(JOURNAL) else { return };
    bed.with(Some(ErrorPolicy::Panic), async |volume, root| {
        assert_eq!(read(&root, b"good").await.unwrap(), 8);
        assert!(matches!(read(&root, b"bad").await, Err(Error::Corrupt(_))));
        assert!(matches!(read(&root, b"good").await, Err(Error::Halted(_))));
        assert!(matches!(create(&root, b"new").await, Err(Error::Halted(_))));
        drop(root);
        assert!(matches!(volume.close().await, Err(Error::Halted(_))));
    });
    assert_eq!(bed.header().field("FS Error count"), Some("1"));
}

#[test]
fn a_volume_without_a_journal_has_errors_too() {
    let Some(bed) = Bed::new("-t ext2 -b 1024") else { return };
    let reads = async |root: &Node| {
        let caller = Caller::root();
        let file = root.lookup(&caller, b"bad").await.unwrap().open(&caller, FileOptions::default()).unwrap();
        // The map's indirect block points into the volume's own metadata.
        let grown = file.write(20 * 1024, b"x").await;
        let synced = file.sync().await;
        assert!(matches!(grown.map(drop).and(synced), Err(Error::Corrupt(_))));
    };
    let clean = bed.disk.to_bytes();
    bed.with(Some(ErrorPolicy::Continue), async |volume, root| {
        reads(&root).await;
        drop(root);
        let _ = volume.close().await;
    });
    assert_eq!(bed.header().field("Filesystem state"), Some("clean with errors"));
    std::fs::write(&bed.image, clean).unwrap();
    bed.take_back();
    bed.with(Some(ErrorPolicy::ReadOnly), async |volume, root| {
        reads(&root).await;
        assert!(matches!(create(&root, b"new").await, Err(Error::ReadOnly)));
        drop(root);
        assert!(volume.close().await.is_err());
    });
    // Nothing was committed before the error, so the volume was never marked as in use.
    assert_eq!(bed.header().field("Filesystem state"), Some("clean with errors"));
}

#[test]
fn recovery_keeps_the_record_over_an_older_copy_in_the_log() {
    let Some(bed) = Bed::new(JOURNAL) else { return };
    bed.with(Some(ErrorPolicy::ReadOnly), async |volume, root| {
        // The orphan list begins in the superblock, so this puts the superblock into the log.
        let orphan = create(&root, b"orphan").await.unwrap();
        root.unlink(&Caller::root(), b"orphan").await.unwrap();
        volume.sync().await.unwrap();
        assert!(matches!(read(&root, b"bad").await, Err(Error::Corrupt(_))));
        drop((orphan, root));
    });
    let crashed = bed.disk.to_bytes();
    let count = |bed: &Bed| bed.header().field("FS Error count").map(str::to_owned);
    assert_eq!(count(&bed).as_deref(), Some("1"));
    let seen = bed.rt.block_on(Volume::open(bed.disk.clone(), OpenOptions::default())).unwrap().unwrap();
    assert_eq!(seen.superblock().raw().s_error_count.get(), 1);
    drop(seen);
    bed.rt.block_on(recover(&bed.rt, bed.disk.clone(), OpenOptions::default())).unwrap().unwrap();
    assert_eq!(bed.header().field("Filesystem state"), Some("clean with errors"));
    assert_eq!(count(&bed).as_deref(), Some("1"));
    std::fs::write(&bed.image, crashed).unwrap();
    bed.take_back();
    bed.with(Some(ErrorPolicy::Continue), async |volume, root| {
        drop(root);
        volume.close().await.unwrap();
    });
    assert_eq!(count(&bed).as_deref(), Some("1"));
}

/// Fails metadata writes from some time on, but accepts those with FUA.
#[derive(Debug)]
struct Failing {
    inner: Arc<MemDevice>,
    fails: AtomicBool,
}

impl Device for Failing {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let is_log =
            bio.op == Op::Write && bio.flags.contains(BioFlags::META) && !bio.flags.contains(BioFlags::FUA);
        if is_log && self.fails.load(Ordering::Relaxed) {
            return bio.end_as(&self.limits().name, Err(IoErrorKind::Os(5)));
        }
        self.inner.submit(bio);
    }
}

#[test]
fn a_journal_that_gives_up_says_so_under_every_policy() {
    for policy in [ErrorPolicy::Continue, ErrorPolicy::ReadOnly] {
        let Some(bed) = Bed::new(JOURNAL) else { return };
        let device = Arc::new(Failing { inner: bed.disk.clone(), fails: AtomicBool::new(false) });
        bed.over(device.clone(), Some(policy), async |volume, root| {
            create(&root, b"new").await.unwrap();
            device.fails.store(true, Ordering::Relaxed);
            assert!(matches!(volume.sync().await, Err(Error::Io(_))));
            assert!(matches!(create(&root, b"other").await, Err(Error::ReadOnly)));
            drop(root);
            assert!(volume.close().await.is_err());
        });
        let header = bed.header();
        assert_eq!(header.field("Filesystem state"), Some("clean with errors"));
        assert_eq!(header.field("FS Error count"), Some("1"));
        assert_eq!(header.field("First error err"), Some("EIO"));
        assert_eq!(header.field("Journal errno"), Some("-5"));
        let (code, said) = run("e2fsck", &["-fy", bed.file()]);
        assert!(code.is_some_and(|code| code <= 1 || said.contains("bad")), "{said}");
    }
}

#[test]
fn a_group_with_a_damaged_bitmap_is_recorded() {
    let Some(bed) = Bed::new(JOURNAL) else { return };
    let (_, said) = run("dumpe2fs", &[bed.file()]);
    let line = said.lines().find(|line| line.contains("Inode bitmap at")).unwrap();
    let block: usize =
        line.split("Inode bitmap at ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let mut bytes = std::fs::read(&bed.image).unwrap();
    bytes[block * 1024 + 1] ^= 0xff;
    std::fs::write(&bed.image, bytes).unwrap();
    bed.take_back();
    bed.with(None, async |volume, root| {
        let _ = create(&root, b"new").await;
        drop(root);
        volume.close().await.unwrap();
    });
    let header = bed.header();
    assert_eq!(header.field("Filesystem state"), Some("clean with errors"));
    assert_eq!(header.field("First error err"), Some("EFSBADCRC"));
}

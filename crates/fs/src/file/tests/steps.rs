//! Files removed in several transactions: a crash in between leaves the file unchanged, truncated,
//! or gone.

use super::crash::Volatile;
use super::*;
use crate::meta::RemovalStep;
use crate::names::Caller;
use crate::volume::WriteOptions;
use extant_block::{Limits, MemDevice, Record};
use extant_rt::{Class, Nanos};
use extant_sim::{Machine, Sim};
use extant_testbed::{LoopDevice, Mount};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

const K: usize = 1024;
/// Every second block of the file is a hole.
const DATA_BLOCKS: usize = 200;
/// Blocks that a step frees.
const STEP_BLOCKS: u32 = 16;
/// Steps that a removal of all data takes, not counting one that overlaps another.
const STEPS: usize = DATA_BLOCKS / STEP_BLOCKS as usize;

const KINDS: [&str; 2] =
    ["-t ext4 -b 1024 -J size=1 -N 64 -O ^orphan_file", "-t ext3 -b 1024 -I 128 -J size=1 -N 64"];

/// A machine on which a step of a removal takes so long that other tasks run after each step.
fn machine() -> Machine {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/vm-2026.toml");
    Machine::load_with(&file, &["journal_handle_ns=200_000".parse().unwrap()]).unwrap()
}

async fn open(rt: &Rt, device: Arc<dyn Device>) -> (PageCache, Volume) {
    let cache = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap();
    let step = RemovalStep { groups: 2, data_blocks: STEP_BLOCKS, metadata_blocks: STEP_BLOCKS };
    let options = WriteOptions {
        fixed_time: Some(NOW),
        commit_interval: None,
        removal_step: step,
        ..WriteOptions::default()
    };
    let volume = Volume::open_writable(rt, &cache.attach(device), options).await.unwrap();
    (cache, volume)
}

/// Disks as crashes leave them while a file's blocks are freed in steps.
struct Crashes {
    dir: tempfile::TempDir,
    args: &'static str,
    number: InodeNumber,
    /// The file's contents before.
    contents: Vec<u8>,
    disks: Vec<Vec<u8>>,
}

/// Lets `work` change a file with a large map while another task commits everything done so far.
/// Returns the disks that a power cut leaves after each write and flush.
fn crashes(args: &'static str, work: impl AsyncFn(&Volume, InodeNumber)) -> Option<Crashes> {
    if !have_tools() {
        return None;
    }
    // In memory if possible, because e2fsck waits until its writes are on the disk.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let image = make(dir.path(), 4, args, &[vec![]]);
    let sim = Sim::new(machine(), 1);
    let memory = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let (mut contents, mut fresh) = (Vec::new(), Vec::new());
    let (number, log) = sim
        .rt()
        .block_on(async {
            let number = numbers(&image, 1).await[0];
            let (_cache, volume) = open(sim.rt(), memory.clone()).await;
            let file = volume.open_for_writing(number, FileOptions::default()).await.unwrap();
            // Extents that fill several leaves, and several blocks of pointers.
            for n in 0..DATA_BLOCKS {
                let at = 2 * n * K;
                contents.resize(at, 0);
                contents.extend(vec![1 + (n % 99) as u8; K]);
                file.write(at as u64, &contents[at..]).await.unwrap();
            }
            file.sync().await.unwrap();
            drop(file);
            volume.close().await.unwrap();
            fresh = memory.to_bytes();

            let limits = Limits { volatile_cache: true, ..memory.limits().clone() };
            let record = Arc::new(Record::new(Arc::new(Volatile { inner: memory.clone(), limits })));
            let (_cache, volume) = open(sim.rt(), record.clone()).await;
            let (journal, is_over) =
                (volume.writer().unwrap().journal.clone(), Arc::new(AtomicBool::new(false)));
            let (rt, is_told) = (sim.rt().clone(), is_over.clone());
            let committer = sim.rt().spawn("committer", Class::Normal, async move {
                while !is_told.load(Ordering::Relaxed) {
                    journal.commit(journal.running()).await.unwrap();
                    rt.sleep(Nanos::from_micros(10)).await;
                }
            });
            work(&volume, number).await;
            is_over.store(true, Ordering::Relaxed);
            committer.await.unwrap();
            volume.close().await.unwrap();
            (number, record.log())
        })
        .unwrap();
    std::fs::write(&image, memory.to_bytes()).unwrap();
    check_is_sound(&image, args);
    let mut disks: Vec<Vec<u8>> = Vec::new();
    for events in 0..=log.events.len() {
        for lucky in [false, true] {
            let disk = log.disk_after(&fresh, events, lucky);
            if !disks.contains(&disk) {
                disks.push(disk);
            }
        }
    }
    Some(Crashes { dir, args, number, contents, disks })
}

/// e2fsck finds no error, and no orphan is left.
fn check_is_sound(image: &Path, what: &str) {
    check_is_silent(image, what);
    let said = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    let is_left = |orphan: &str| said.contains(orphan);
    let is_any_left = is_left("First orphan inode") || is_left("orphan_present");
    assert!(said.contains("Inode count:") && !is_any_left, "{what}: {said}");
}

/// State of the file after a recovery.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Whole,
    /// The blocks from the second on are cut off.
    Cut,
    Gone,
    Neither(usize),
}

impl Crashes {
    fn image(&self) -> PathBuf {
        self.dir.path().join("crashed")
    }

    fn end(&self, found: Option<Vec<u8>>) -> End {
        match found {
            None => End::Gone,
            Some(found) if found == self.contents => End::Whole,
            Some(found) if found[..] == self.contents[..K] => End::Cut,
            Some(found) => End::Neither(found.len()),
        }
    }

    /// The file on a recovered volume, which has no errors.
    fn judged(&self, what: &str) -> End {
        let image = self.image();
        check_is_sound(&image, what);
        let request = format!("stat <{}>", self.number);
        let is_gone = run("debugfs", &["-R", &request, image.to_str().unwrap()]).contains("Links: 0");
        self.end((!is_gone).then(|| dumped(&image, self.number)))
    }

    /// After our recovery.
    fn recovered(&self, disk: &[u8], what: &str) -> End {
        let memory = Arc::new(MemDevice::from_bytes(disk.to_vec()));
        let sim = Sim::new(machine(), 1);
        let recovering = async {
            let (_cache, volume) = open(sim.rt(), memory.clone()).await;
            volume.close().await.unwrap();
        };
        sim.rt().block_on(recovering).unwrap();
        std::fs::write(self.image(), memory.to_bytes()).unwrap();
        self.judged(&format!("our recovery of {what}"))
    }

    /// After e2fsck, which may only report that it replays the log and finishes an orphan.
    fn repaired(&self, disk: &[u8], what: &str) -> End {
        let expected = [
            "recovering journal",
            "Clearing orphaned inode",
            "Truncating orphaned inode",
            "Setting free",
            "Free blocks count wrong (",
            "Free inodes count wrong (",
            "FILE SYSTEM WAS MODIFIED",
            // An extent tree that could be flatter is not damage.
            "could be shorter",
            "could be narrower",
            "Pass ",
            " files (",
        ];
        let image = self.image();
        std::fs::write(&image, disk).unwrap();
        let said = run("e2fsck", &["-fy", image.to_str().unwrap()]);
        let is_strange = |line: &&str| {
            let is_expected = expected.iter().any(|word| line.contains(word));
            let is_answer = ["", "Fix? yes", "Clear? yes"].contains(&line.trim());
            !line.starts_with("e2fsck ") && !is_expected && !is_answer
        };
        let lines: Vec<&str> = said.lines().filter(is_strange).collect();
        assert!(lines.is_empty(), "{what}: e2fsck says {}", lines.join("\n"));
        self.judged(&format!("e2fsck's repair of {what}"))
    }

    /// After the kernel's mount.
    fn mounted(&self, disk: &[u8], what: &str) -> End {
        std::fs::write(self.image(), disk).unwrap();
        let at = self.dir.path().join("mount");
        std::fs::create_dir_all(&at).unwrap();
        let device = LoopDevice::attach(&self.image(), &[]).unwrap();
        let mount = Mount::of_device(&device, &at, "ext4").unwrap();
        let found = self.end(std::fs::read(at.join("0")).ok());
        drop(mount);
        drop(device);
        assert_eq!(found, self.judged(&format!("the kernel's mount of {what}")), "{what}");
        found
    }

    /// The file's block count in units of 512 bytes, as a reader that replays the log sees it.
    fn blocks_512(&self, disk: &[u8]) -> u64 {
        let memory = Arc::new(MemDevice::from_bytes(disk.to_vec()));
        let sim = Sim::new(machine(), 1);
        let reading = async {
            let volume = Volume::open(memory, Default::default()).await.unwrap();
            volume.inode(self.number).await.unwrap().blocks_512(volume.superblock())
        };
        sim.rt().block_on(reading).unwrap()
    }

    /// Checks that each crash leaves the file whole or as `after` says, for every recovery alike.
    /// Some crashes must come between steps.
    fn check(&self, after: &End) {
        let (mut sizes, mut whole) = (BTreeSet::new(), 0);
        let has_kernel = extant_testbed::mounts_are_possible();
        for (nth, disk) in self.disks.iter().enumerate() {
            let what = format!("{}, crash {nth} of {}", self.args, self.disks.len());
            let is_new = sizes.insert(self.blocks_512(disk));
            let ours = self.recovered(disk, &what);
            assert!(ours == End::Whole || ours == *after, "{what}: {ours:?} after our recovery");
            assert_eq!(self.repaired(disk, &what), ours, "{what}: e2fsck's repair and our recovery");
            if is_new && has_kernel {
                assert_eq!(self.mounted(disk, &what), ours, "{what}: the kernel's mount and our recovery");
            }
            whole += usize::from(ours == End::Whole);
        }
        let all = self.disks.len();
        println!(
            "{}: {all} crashes, {whole} of them before the first step, {} sizes",
            self.args,
            sizes.len()
        );
        assert!(
            whole > 0 && whole < all,
            "{}: {whole} of {all} crashes came before the first step",
            self.args
        );
        // The original size, the final one, and one after each step except the last.
        assert!(sizes.len() > STEPS, "{}: {} steps were seen", self.args, sizes.len());
    }
}

#[test]
fn a_file_that_shrinks_in_steps_is_whole_or_cut_after_each() {
    for args in KINDS {
        let crashes = crashes(args, async |volume, number| {
            let file = volume.open_for_writing(number, FileOptions::default()).await.unwrap();
            file.set_size(K as u64).await.unwrap();
        });
        let Some(crashes) = crashes else { return };
        crashes.check(&End::Cut);
    }
}

#[test]
fn a_file_that_is_deleted_in_steps_is_whole_or_gone_after_each() {
    for args in KINDS {
        let crashes = crashes(args, async |volume, _| {
            volume.root_node().await.unwrap().unlink(&Caller::root(), b"0").await.unwrap();
        });
        let Some(crashes) = crashes else { return };
        crashes.check(&End::Gone);
    }
}

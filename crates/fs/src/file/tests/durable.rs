//! The state of the device after syncs and size changes, while write-back is active or after it has
//! failed.

use super::*;
use extant_block::{Bio, IoErrorKind, Limits, MemDevice, Op, Sector};
use extant_rt::{Class, Nanos};
use extant_sim::{Machine, Preemption, Sim};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A device that can hold back writes or reads, fail reads of some sectors, and fail writes of some
/// bytes.
#[derive(Debug)]
pub(super) struct Gate {
    inner: Arc<dyn Device>,
    pub(super) holds: AtomicBool,
    pub(super) holds_reads: AtomicBool,
    pub(super) held: Mutex<Vec<Bio>>,
    pub(super) unreadable: Mutex<Option<std::ops::Range<u64>>>,
    /// Writes with a segment that starts with this byte fail.
    pub(super) unwritable: Mutex<Option<u8>>,
}

impl Gate {
    pub(super) fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            holds: AtomicBool::new(false),
            holds_reads: AtomicBool::new(false),
            held: Mutex::default(),
            unreadable: Mutex::default(),
            unwritable: Mutex::default(),
        })
    }

    /// The bytes a crash would leave now.
    pub(super) async fn bytes(&self) -> Vec<u8> {
        let len = self.inner.limits().capacity_bytes as usize;
        extant_block::read(&*self.inner, Sector(0), len).await.unwrap().to_vec()
    }

    pub(super) fn release(&self) {
        self.holds.store(false, Ordering::Relaxed);
        self.holds_reads.store(false, Ordering::Relaxed);
        let held = std::mem::take(&mut *self.held.lock());
        held.into_iter().for_each(|bio| self.inner.submit(bio));
    }
}

impl Device for Gate {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let bad = self.unreadable.lock().clone();
        if bio.op == Op::Read && bad.is_some_and(|bad| bad.contains(&bio.start.0)) {
            return bio.end_as("gate", Err(IoErrorKind::Os(5)));
        }
        let bad = *self.unwritable.lock();
        let begins_with = |byte| bio.segments.iter().any(|segment| segment.as_slice()[0] == byte);
        if bio.op == Op::Write && bad.is_some_and(begins_with) {
            return bio.end_as("gate", Err(IoErrorKind::Os(5)));
        }
        let holds = match bio.op {
            Op::Write => self.holds.load(Ordering::Relaxed),
            Op::Read => self.holds_reads.load(Ordering::Relaxed),
            _ => false,
        };
        if holds {
            self.held.lock().push(bio);
            return;
        }
        self.inner.submit(bio);
    }
}

pub(super) const PLAIN: &str = "-t ext4 -b 4096 -O ^has_journal -N 64";
pub(super) const B: u64 = 4096;

/// Runs `work` in the virtual world on the only file of a new volume. Returns its inode and the
/// final contents of the device.
pub(super) fn with_gate(
    args: &str,
    contents: Vec<u8>,
    debugfs: impl Fn(InodeNumber) -> Vec<String>,
    work: impl AsyncFnOnce(&Rt, &Bed, &Gate, InodeNumber),
) -> Option<(tempfile::TempDir, PathBuf, InodeNumber)> {
    let found = with_files(args, vec![contents], debugfs, async |rt, bed, gate, numbers| {
        work(rt, bed, gate, numbers[0]).await;
    });
    found.map(|(dir, image, numbers)| (dir, image, numbers[0]))
}

/// Like [`with_gate`], but for several files with these contents.
pub(super) fn with_files(
    args: &str,
    contents: Vec<Vec<u8>>,
    debugfs: impl Fn(InodeNumber) -> Vec<String>,
    work: impl AsyncFnOnce(&Rt, &Bed, &Gate, &[InodeNumber]),
) -> Option<(tempfile::TempDir, PathBuf, Vec<InodeNumber>)> {
    if !have_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), 8, args, &contents);
    let sim = Sim::new(Machine::free(2, Preemption::None), 1);
    let numbers = sim.rt().block_on(numbers(&image, contents.len())).unwrap();
    for request in debugfs(numbers[0]) {
        run("debugfs", &["-w", "-R", &request, image.to_str().unwrap()]);
    }
    let memory = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    sim.rt()
        .block_on(async {
            let gate = Gate::new(memory.clone());
            let bed = Bed::open(sim.rt(), gate.clone(), 8 << 20).await;
            work(sim.rt(), &bed, &gate, &numbers).await;
        })
        .unwrap();
    std::fs::write(&image, memory.to_bytes()).unwrap();
    Some((dir, image, numbers))
}

/// Ten unwritten blocks with holes between them; their extents fill a node outside the inode.
pub(super) fn unwritten(number: InodeNumber) -> Vec<String> {
    let runs = (0..10).map(|n| format!("fallocate <{number}> {0} {0}", 2 * n));
    runs.chain([format!("sif <{number}> size {}", 20 * B)]).collect()
}

pub(super) async fn commit(bed: &Bed) {
    bed.writer.journal.commit(bed.writer.journal.running()).await.unwrap();
}

#[test]
fn a_sync_makes_conversions_durable_that_change_a_leaf_alone() {
    let data = vec![7; B as usize];
    let written = data.clone();
    let found = with_gate(PLAIN, vec![], unwritten, async |_, bed, _, number| {
        let (cell, file) = bed.file(number, FileOptions::default()).await;
        assert_eq!(cell.read(|inode| inode.map()[6]), 1, "the extents are in a leaf");
        file.write(4 * B, &written).await.unwrap();
        file.datasync().await.unwrap();
    });
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after the sync");
    assert!(dumped(&image, number)[4 * B as usize..][..data.len()] == data);
}

#[test]
fn a_truncation_is_not_undone_by_writes_that_land_later() {
    let found = with_gate(
        PLAIN,
        vec![],
        |_| vec![],
        async |rt, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            let file = Arc::new(file);
            file.write(0, &vec![7; 16 * B as usize]).await.unwrap();
            gate.holds.store(true, Ordering::Relaxed);
            let writing = file.clone();
            let writing = rt.spawn("write-back", Class::Normal, async move {
                writing.mapping.write_back(ByteRange::new(0, B)).await.unwrap();
            });
            rt.sleep(Nanos::from_millis(1)).await;
            assert_eq!(gate.held.lock().len(), 1);
            let cutting = file.clone();
            let cutting =
                rt.spawn("cut", Class::Normal, async move { cutting.set_size(4 * B).await.unwrap() });
            rt.sleep(Nanos::from_millis(100)).await;
            gate.release();
            cutting.await.unwrap();
            writing.await.unwrap();
            file.sync().await.unwrap();
            assert_eq!(file.size(), 4 * B);
        },
    );
    let Some((_dir, image, number)) = found else { return };
    assert!(dumped(&image, number) == vec![7; 4 * B as usize]);
}

#[test]
fn contents_leave_the_inode_only_for_their_block() {
    let args = "-t ext4 -b 4096 -O ^has_journal,inline_data -I 512 -N 64";
    let found = with_gate(
        args,
        vec![3; 100],
        |_| vec![],
        async |_, bed, _, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.write(64 * B, &[7; B as usize]).await.unwrap();
            // A later block is written and committed while block 0 has not been written back.
            file.mapping.write_back(ByteRange::new(64 * B, 65 * B)).await.unwrap();
            commit(bed).await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    assert!(dumped(&image, number).starts_with(&[3; 100]));
}

#[test]
fn a_write_that_fails_in_a_hole_leaves_nothing_behind() {
    let start = vec![3; 2 * B as usize];
    let found = with_gate(
        PLAIN,
        start,
        |_| vec![],
        async |_, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.set_size(40 * B).await.unwrap();
            // Block 0 is partly overwritten. The holes after it are reserved together with it.
            file.contents.know(BlockRange::one(0)).await.unwrap();
            let at = file.contents.live.lock().map.place_of(0).unwrap().0 * (B / Sector::BYTES);
            *gate.unreadable.lock() = Some(at..at + 8);
            let free = bed.writer.alloc.statfs().free;
            assert!(matches!(file.write(100, &vec![7; 10 * B as usize]).await, Err(Error::Io(_))));
            *gate.unreadable.lock() = None;
            assert_eq!(bed.writer.alloc.statfs().free, free, "the reservation is given back");
            file.write(40 * B, b"end").await.unwrap();
            file.sync().await.unwrap();
            drop(file);
        },
    );
    let Some((_dir, image, number)) = found else { return };
    assert_eq!(dumped(&image, number).len() as u64, 40 * B + 3);
}

#[test]
fn a_truncation_that_finds_a_damaged_map_does_not_make_holes_of_it() {
    let found = with_gate(PLAIN, vec![], unwritten, async |_, bed, gate, number| {
        let (_, file) = bed.file(number, FileOptions::default()).await;
        // The leaf has not been read before.
        *gate.unreadable.lock() = Some(0..u64::MAX);
        file.set_size(4 * B).await.unwrap_err();
        assert!(file.write(8 * B, &[7; B as usize]).await.is_err(), "the block mapped there is unknown");
    });
    assert!(found.is_none_or(|(_dir, image, _)| image.exists()));
}

#[test]
fn a_file_is_kept_while_a_write_to_it_is_in_flight() {
    with_gate(
        PLAIN,
        vec![3; B as usize],
        |_| vec![],
        async |rt, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.write(0, &[7; 100]).await.unwrap();
            gate.holds.store(true, Ordering::Relaxed);
            let writing = file.mapping.clone();
            let writing = rt.spawn("write-back", Class::Normal, async move {
                writing.write_back(ByteRange::ALL).await.unwrap();
            });
            rt.sleep(Nanos::from_millis(1)).await;
            assert_eq!(gate.held.lock().len(), 1);
            assert!(!file.mapping.is_settled());
            gate.release();
            writing.await.unwrap();
            assert!(file.mapping.is_settled());
        },
    );
}

#[test]
fn a_copied_hole_is_durable_where_writes_are_synchronous() {
    for options in [
        FileOptions { sync: true, ..FileOptions::default() },
        FileOptions { datasync: true, ..FileOptions::default() },
    ] {
        let mut crashed = None;
        let found = with_files(
            PLAIN,
            vec![vec![], vec![5; 100]],
            |_| vec![],
            async |_, bed, gate, numbers| {
                let (_, from) = bed.file(numbers[0], FileOptions::default()).await;
                let (_, to) = bed.file(numbers[1], options).await;
                from.set_size(4 * B).await.unwrap();
                assert_eq!(from.copy_range(B, &to, B, 3 * B).await.unwrap(), 3 * B);
                crashed = Some(gate.bytes().await);
            },
        );
        let Some((dir, _, numbers)) = found else { return };
        let image = dir.path().join("crashed");
        std::fs::write(&image, crashed.unwrap()).unwrap();
        assert_eq!(dumped(&image, numbers[1]).len() as u64, 4 * B, "{options:?}");
    }
}

#[test]
fn a_long_copy_is_synced_once_where_writes_are_synchronous() {
    const LONG: u64 = 1 << 20;
    with_files(
        PLAIN,
        vec![vec![6; LONG as usize], vec![]],
        |_| vec![],
        async |_, bed, _, numbers| {
            let (_, from) = bed.file(numbers[0], FileOptions::default()).await;
            let (_, to) = bed.file(numbers[1], FileOptions { sync: true, ..FileOptions::default() }).await;
            let commits = || bed.writer.journal.committed().0;
            let before = commits();
            to.write(0, &vec![6; LONG as usize]).await.unwrap();
            let of_write = commits() - before;
            assert_eq!(from.copy_range(0, &to, LONG, LONG).await.unwrap(), LONG);
            assert_eq!(commits() - before - of_write, of_write);
        },
    );
}

#[test]
fn a_collapse_that_cannot_read_the_last_block_leaves_a_file_that_can_be_synced() {
    let mut start: Vec<u8> = (1..=10).flat_map(|mark| vec![mark; B as usize]).collect();
    start.extend([99; 100]);
    let mut expected = start.clone();
    expected.drain(B as usize..2 * B as usize);
    expected.resize(start.len(), 0);
    let found = with_gate(
        PLAIN,
        start,
        |_| vec![],
        async |_, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.contents.know(BlockRange::one(10)).await.unwrap();
            let at = file.contents.live.lock().map.place_of(10).unwrap().0 * (B / Sector::BYTES);
            *gate.unreadable.lock() = Some(at..at + 8);
            assert!(matches!(file.fallocate(Fallocate::CollapseRange, B, B).await, Err(Error::Io(_))));
            *gate.unreadable.lock() = None;
            file.sync().await.unwrap();
            let mut read = vec![1; expected.len()];
            assert_eq!(file.read(0, &mut read).await.unwrap(), expected.len());
            assert!(read == expected);
            drop(file);
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after a collapse that failed");
    assert!(dumped(&image, number) == expected);
}

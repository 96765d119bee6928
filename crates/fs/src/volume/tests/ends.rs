//! The end of writing: a close with concurrent writers, a drop with I/O in flight, an open that
//! does not complete.

use super::*;
use crate::FileOptions;
use crate::journal::Credits;
use extant_block::{Bio, Claim, IoError, IoErrorKind, Limits, Op};
use extant_format::{Corrupt, Place};
use extant_rt::{Class, Nanos};
use extant_sim::{Machine, Preemption, Sim};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const KIB: u64 = 1 << 10;

/// A device that allows one claim at a time and holds back bios on request.
#[derive(Debug)]
pub(super) struct Gate {
    memory: Arc<MemDevice>,
    /// The operation to hold back.
    holds: Mutex<Option<Op>>,
    /// Bios of any kind to let through before holding one back.
    passes: Mutex<Option<u32>>,
    held: Mutex<Vec<Bio>>,
    /// Number of bios that changed the device.
    changes: AtomicU32,
    is_claimed: Arc<AtomicBool>,
}

struct Free(Arc<AtomicBool>);

impl Drop for Free {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Gate {
    pub(super) fn new(image: &[u8]) -> Arc<Self> {
        let memory = Arc::new(MemDevice::from_bytes(image.to_vec()));
        let (holds, passes, held, changes, is_claimed) = Default::default();
        Arc::new(Self { memory, holds, passes, held, changes, is_claimed })
    }

    /// The contents of the device.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.memory.to_bytes()
    }

    fn hold(&self, op: Op) {
        *self.holds.lock() = Some(op);
    }

    /// Submits the held bios; new ones are held again.
    fn step(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        held.into_iter().for_each(|bio| self.memory.submit(bio));
    }

    fn release(&self) {
        (*self.holds.lock(), *self.passes.lock()) = (None, None);
        self.step();
    }
}

impl Device for Gate {
    fn limits(&self) -> &Limits {
        self.memory.limits()
    }

    fn submit(&self, bio: Bio) {
        if matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes) {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        let is_last = match &mut *self.passes.lock() {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        if is_last || *self.holds.lock() == Some(bio.op) {
            self.held.lock().push(bio);
            return;
        }
        self.memory.submit(bio);
    }

    fn claim(&self) -> std::result::Result<Claim, IoError> {
        if self.is_claimed.swap(true, Ordering::SeqCst) {
            let bio = Bio::range(Op::Write, extant_block::Sector(0), 0);
            return Err(bio.error("gate", IoErrorKind::Claimed));
        }
        Ok(Claim::holding(Free(self.is_claimed.clone())))
    }
}

pub(super) fn image(mib: usize, args: &str) -> Option<Vec<u8>> {
    if !have_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    make(&path, mib, args);
    Some(std::fs::read(path).unwrap())
}

pub(super) fn world() -> Sim {
    Sim::new(Machine::free(2, Preemption::None), 1)
}

pub(super) async fn opened(rt: &Rt, gate: &Arc<Gate>) -> (Volume, PageCache) {
    opened_on(rt, gate.clone()).await
}

pub(super) async fn opened_on(rt: &Rt, device: Arc<dyn Device>) -> (Volume, PageCache) {
    let cache = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap();
    let disk = cache.attach(device);
    (Volume::open_writable(rt, &disk, WriteOptions::default()).await.unwrap(), cache)
}

pub(super) async fn created(volume: &Volume, name: &[u8]) -> crate::OpenFile {
    let root = volume.root_node().await.unwrap();
    let node = root.create(&Caller::root(), name, 0o644).await.unwrap();
    node.open(&Caller::root(), FileOptions::default()).unwrap()
}

/// The contents of a file as on the device.
async fn stored(gate: &Gate, name: &[u8]) -> Vec<u8> {
    let volume = Volume::open(gate.memory.clone(), OpenOptions::default()).await.unwrap();
    let inode = volume.resolve(name, crate::Follow::Yes).await.unwrap();
    let mut bytes = vec![0; inode.size() as usize];
    let read = volume.open_file(inode).await.unwrap().read_at(0, &mut bytes).await.unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

#[test]
fn a_write_beside_a_close_is_kept_or_fails() {
    let Some(image) = image(16, "-t ext4 -N 64") else { return };
    let sim = world();
    let rt = sim.rt();
    rt.block_on(async {
        let gate = Gate::new(&image);
        let (volume, _cache) = opened(rt, &gate).await;
        let (large, small) = (created(&volume, b"large").await, created(&volume, b"small").await);
        volume.sync().await.unwrap();
        large.write(0, &[1; 256 << 10]).await.unwrap();
        gate.hold(Op::Write);
        let closing = rt.spawn("close", Class::Normal, volume.clone().close());
        rt.sleep(Nanos::from_secs(1)).await;
        assert!(!gate.held.lock().is_empty(), "the large file is being written back");
        let written = small.write(0, b"acknowledged").await;
        gate.release();
        closing.await.unwrap().unwrap();
        assert_eq!(stored(&gate, b"/large").await, [1; 256 << 10]);
        match written {
            Ok(_) => assert_eq!(stored(&gate, b"/small").await, b"acknowledged"),
            Err(error) => assert!(matches!(error, Error::ReadOnly), "{error}"),
        }
        assert!(matches!(small.set_size(1).await, Err(Error::ReadOnly)));
    })
    .unwrap();
}

#[test]
fn a_trim_that_is_dropped_keeps_its_blocks_until_their_discard_has_ended() {
    let Some(image) = image(8, "-t ext4 -b 4096 -O ^has_journal -N 64") else { return };
    let sim = world();
    let rt = sim.rt();
    rt.block_on(async {
        let gate = Gate::new(&image);
        let (volume, _cache) = opened(rt, &gate).await;
        let file = created(&volume, b"file").await;
        gate.hold(Op::Discard);
        {
            let trimming = pin!(volume.trim(0..u64::MAX, 0));
            let later = pin!(rt.sleep(Nanos::from_secs(1)));
            assert!(matches!(select(trimming, later).await, Either::Right(_)), "it waits for the discard");
        }
        let part = [7; 256 << 10];
        let mut size = 0;
        loop {
            let mut write = Box::pin(file.write(size, &part));
            let ended = match select(write.as_mut(), pin!(rt.sleep(Nanos::from_secs(1)))).await {
                Either::Left((written, _)) => Some(written),
                Either::Right(_) => None,
            };
            let Some(written) = ended else {
                gate.release();
                size += write.await.unwrap() as u64;
                break;
            };
            size += written.expect("a write waits for the discard") as u64;
        }
        while let Ok(written) = file.write(size, &part).await {
            size += written as u64;
        }
        file.sync().await.unwrap();
        assert!(size > 4096 * KIB, "the volume was filled: {size} bytes");
        drop(file);
        volume.close().await.unwrap();
        let stored = stored(&gate, b"/file").await;
        assert!(stored.len() as u64 == size && stored.iter().all(|&byte| byte == 7));
    })
    .unwrap();
}

#[test]
fn a_close_waits_for_the_discard_in_flight_and_ends_the_trim() {
    let Some(image) = image(32, "-t ext4 -b 4096 -N 64") else { return };
    let sim = world();
    let rt = sim.rt();
    rt.block_on(async {
        let gate = Gate::new(&image);
        let (volume, _cache) = opened(rt, &gate).await;
        gate.hold(Op::Discard);
        let trimmed = volume.clone();
        let trim = async move { trimmed.trim(0..u64::MAX, 0).await };
        let trimming = rt.spawn("trim", Class::Normal, trim);
        rt.sleep(Nanos::from_secs(1)).await;
        assert_eq!(gate.held.lock().len(), 1);
        let is_closed = Arc::new(AtomicBool::new(false));
        let (closed, told) = (volume.clone().close(), is_closed.clone());
        let close = async move {
            closed.await.unwrap();
            told.store(true, Ordering::SeqCst);
        };
        let closing = rt.spawn("close", Class::Normal, close);
        rt.sleep(Nanos::from_secs(1)).await;
        assert!(!is_closed.load(Ordering::SeqCst), "a discard is in flight");
        gate.step();
        closing.await.unwrap();
        let changes = gate.changes.load(Ordering::SeqCst);
        rt.sleep(Nanos::from_secs(1)).await;
        gate.release();
        assert!(matches!(trimming.await.unwrap(), Err(Error::ReadOnly)));
        assert_eq!(gate.changes.load(Ordering::SeqCst), changes);
    })
    .unwrap();
}

#[test]
fn a_dropped_volume_has_its_device_claimed_until_its_writes_have_ended() {
    let Some(image) = image(16, "-t ext4 -N 64") else { return };
    let sim = world();
    let rt = sim.rt();
    rt.block_on(async {
        let gate = Gate::new(&image);
        let (volume, _cache) = opened(rt, &gate).await;
        let file = created(&volume, b"file").await;
        file.write(0, &[1; 64 << 10]).await.unwrap();
        gate.hold(Op::Write);
        {
            let writing = pin!(file.write_back());
            let later = pin!(rt.sleep(Nanos::from_secs(1)));
            assert!(matches!(select(writing, later).await, Either::Right(_)));
        }
        drop((file, volume));
        assert!(gate.claim().is_err(), "its data are in flight");
        let changes = gate.changes.load(Ordering::SeqCst);
        gate.release();
        rt.sleep(Nanos::from_secs(60)).await;
        assert_eq!(gate.changes.load(Ordering::SeqCst), changes);
        assert!(gate.claim().is_ok());
    })
    .unwrap();
}

/// The image of a volume that was dropped with two open, deleted files whose maps have nodes.
async fn with_orphans(rt: &Rt, image: &[u8]) -> Vec<u8> {
    let gate = Gate::new(image);
    let (volume, _cache) = opened(rt, &gate).await;
    let root = volume.root_node().await.unwrap();
    let mut open = Vec::new();
    for name in [b"one", b"two"] {
        let file = created(&volume, name).await;
        for n in 0..8 {
            file.write(n * 8 * KIB, &[1; 1024]).await.unwrap();
        }
        file.sync().await.unwrap();
        root.unlink(&Caller::root(), name).await.unwrap();
        open.push(file);
    }
    volume.sync().await.unwrap();
    let bytes = gate.bytes();
    drop(open);
    bytes
}

#[test]
fn an_open_for_writing_that_ends_early_writes_nothing_more() {
    let Some(image) = image(8, "-t ext4 -b 1024 -J size=1 -N 64") else { return };
    let sim = world();
    let rt = sim.rt();
    rt.block_on(async {
        let image = with_orphans(rt, &image).await;
        let mut cut = 0;
        for passes in 0.. {
            let gate = Gate::new(&image);
            *gate.passes.lock() = Some(passes);
            let cache = PageCache::new(rt, CacheConfig::with_budget(2 << 20)).unwrap();
            let disk = cache.attach(gate.clone());
            {
                let opening = pin!(Volume::open_writable(rt, &disk, WriteOptions::default()));
                let later = pin!(rt.sleep(Nanos::from_millis(10)));
                if let Either::Left((opened, _)) = select(opening, later).await {
                    assert_eq!(opened.unwrap().orphans().0, 2);
                    break;
                }
            }
            let changes = gate.changes.load(Ordering::SeqCst);
            gate.release();
            rt.sleep(Nanos::from_secs(30)).await;
            assert_eq!(gate.changes.load(Ordering::SeqCst), changes, "after {passes} bios");
            assert!(gate.claim().is_ok(), "after {passes} bios");
            cut += 1;
        }
        assert!(cut > 10, "{cut}");
    })
    .unwrap();
}

#[test]
fn errors_that_a_dropped_caller_leaves_are_recorded_by_the_next() {
    let Some(image) = image(16, "-t ext4 -N 64") else { return };
    let sim = world();
    let rt = sim.rt();
    rt.block_on(async {
        let gate = Gate::new(&image);
        let cache = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap();
        let disk = cache.attach(gate.clone());
        let options = WriteOptions { errors: Some(crate::ErrorPolicy::Continue), ..WriteOptions::default() };
        let volume = Volume::open_writable(rt, &disk, options).await.unwrap();
        let writer = volume.writer().unwrap();
        let met: Error = Corrupt::field(Place::Superblock, "s_state", 1, "another one").into();
        writer.errors.note(&met);
        writer.errors.note(&met);
        {
            // The commit waits for this operation, and later operations wait for the commit.
            let _handle = writer.journal.start(Credits(1)).now_or_never().unwrap().unwrap();
            assert!(writer.journal.commit(writer.journal.running()).now_or_never().is_none());
            assert!(writer.heed_noted().now_or_never().is_none());
        }
        writer.heed_noted().await;
        assert_eq!(writer.store.superblock_unlogged().raw().s_error_count.get(), 2);
        volume.close().await.unwrap();
    })
    .unwrap();
}

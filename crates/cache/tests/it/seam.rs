//! Tests the file system's interface: placing of runs, completion, exclusion, errors.

use crate::common::{Gate, run, sleep, virtual_world, world};
use extant_block::Sector;
use extant_cache::control::{Asking, DirtyControl, Numbers, Orders, Verdict};
use extant_cache::{
    Answer, Backing, BackingError, BackingErrorKind, ByteRange, CacheConfig, CacheError, DirtyRun, Disk,
    Mapping, PAGE_BYTES, PageCache, Placed, ReadExtent, ReadFrom, WouldWait, WriteExtent, WriteTo,
    WrittenRun,
};
use extant_rt::{Nanos, Rt};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

const PAGE: u64 = PAGE_BYTES as u64;

/// A file whose 4 KiB blocks are placed when first written back, one after another.
#[derive(Debug, Default)]
pub(crate) struct Toy {
    pub(crate) map: Mutex<BTreeMap<u64, u64>>,
    next: Mutex<u64>,
    pub(crate) inline: Mutex<Option<Arc<[u8]>>>,
    /// Every run that was placed: its bytes, and the size.
    pub(crate) prepared: Mutex<Vec<(ByteRange, u64)>>,
    pub(crate) finished: Mutex<Vec<WrittenRun>>,
    pub(crate) abandoned: Mutex<Vec<ByteRange>>,
    pub(crate) refuses: AtomicBool,
    pub(crate) panics: AtomicBool,
    /// Thread of the last `finish_write`.
    pub(crate) finished_on: Mutex<Option<std::thread::ThreadId>>,
    /// The file that `finish_write` dirties: an exempt file of metadata.
    pub(crate) meta: Mutex<Option<Mapping>>,
}

#[derive(Debug, thiserror::Error)]
#[error("quota of user {user} is used up")]
pub(crate) struct OverQuota {
    pub(crate) user: u32,
}

impl Backing for Toy {
    fn block_bytes(&self) -> u32 {
        4096
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        if let Some(bytes) = self.inline.lock().clone() {
            let bytes = bytes.get(range.start as usize..).unwrap_or_default().into();
            return Answer::ok(ReadExtent { from: ReadFrom::Inline(bytes), bytes: range.len() });
        }
        let from = match self.map.lock().get(&(range.start / PAGE)) {
            Some(block) => ReadFrom::Device(Sector(block * 8)),
            None => ReadFrom::Hole,
        };
        Answer::ok(ReadExtent { from, bytes: PAGE.min(range.len()) })
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        if self.refuses.load(Ordering::SeqCst) {
            return Answer::err(BackingError::new(BackingErrorKind::Quota, OverQuota { user: 7 }));
        }
        self.prepared.lock().push((run.range(), run.size_bytes));
        if self.inline.lock().is_some() {
            let extent = WriteExtent { to: WriteTo::Backing, ..WriteExtent::new(run.range(), Sector(0)) };
            return Answer::ok(Placed::overwrite(extent));
        }
        let (map, mut next) = (self.map.lock(), self.next.lock());
        let mut placed = Placed::default();
        for piece in run.pieces {
            for page in piece.start / PAGE..piece.end.div_ceil(PAGE) {
                let block = *map.get(&page).unwrap_or_else(|| {
                    placed.changes_map = true;
                    *next += 1;
                    &*next
                });
                let range = ByteRange::at(page * PAGE, PAGE).intersect(*piece);
                placed
                    .extents
                    .push(WriteExtent { note: block, ..WriteExtent::new(range, Sector(block * 8)) });
            }
        }
        Answer::ok(placed)
    }

    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()> {
        assert!(!self.panics.load(Ordering::SeqCst), "an assertion of the file system");
        *self.finished_on.lock() = Some(std::thread::current().id());
        for written in &run.extents {
            if let Some(bytes) = &written.bytes {
                *self.inline.lock() = Some(bytes[..run.size_bytes as usize].into());
            } else if written.result.is_ok() {
                self.map.lock().insert(written.extent.range.start / PAGE, written.extent.note);
            }
        }
        self.finished.lock().push(run.clone());
        let Some(meta) = self.meta.lock().clone() else { return Answer::ok(()) };
        let nth = self.finished.lock().len() as u64;
        Answer::later(async move {
            // Bitmap, inode, extent leaf: three blocks of metadata.
            for block in 0..3 {
                meta.open().exempt().write((nth * 3 + block) * PAGE, &[9; PAGE_BYTES]).await.unwrap();
            }
            Ok(())
        })
    }

    fn abandoned(&self, range: ByteRange) {
        self.abandoned.lock().push(range);
    }
}

pub(crate) fn toy(rt: &Rt, config: CacheConfig) -> (PageCache, Disk, Arc<Gate>, Arc<Toy>, Mapping) {
    let cache = PageCache::new(rt, config).unwrap();
    let gate = Gate::new(16 << 20);
    let disk = cache.attach(gate.clone());
    let backing = Arc::new(Toy::default());
    let mapping = disk.mapping(backing.clone(), 1, 0);
    (cache, disk, gate, backing, mapping)
}

#[test]
fn a_run_is_placed_once_and_finished_once_and_an_overwrite_is_not_finished() {
    let rt = world();
    let config =
        CacheConfig { run_bytes: Some(1 << 20), bio_bytes: 64 << 10, ..CacheConfig::with_budget(4 << 20) };
    let (cache, _disk, gate, toy, mapping) = toy(&rt, config);
    let file = mapping.open();
    run(&rt, file.write(0, &vec![1; 100 * PAGE_BYTES + 10])).unwrap();
    run(&rt, file.sync()).unwrap();
    let size = 100 * PAGE + 10;
    assert_eq!(*toy.prepared.lock(), [(ByteRange::new(0, 101 * PAGE), size)]);
    assert_eq!(toy.finished.lock().len(), 1);
    let ended = toy.finished.lock()[0].clone();
    assert_eq!((ended.extents.len(), ended.size_bytes), (101, size));
    assert!(ended.extents.iter().all(|written| written.result.is_ok()));
    assert!(gate.writes.load(Ordering::SeqCst) >= 7, "bios are shorter than the run");
    run(&rt, file.write(5 * PAGE, &[2; PAGE_BYTES])).unwrap();
    run(&rt, file.sync()).unwrap();
    assert_eq!((toy.prepared.lock().len(), toy.finished.lock().len()), (2, 1));
    cache.audit();
}

#[test]
fn the_size_of_a_run_is_that_from_before_it_was_taken() {
    let rt = world();
    let (cache, _disk, gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    let file = mapping.open();
    run(&rt, file.write(0, &[7; 100])).unwrap();
    gate.hold();
    run(&rt, async {
        let mut flush = std::pin::pin!(mapping.write_back(..));
        while gate.held() == 0 {
            assert!(std::future::poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx).is_pending())).await);
        }
        file.write(100, &[8; 200]).await.unwrap();
        gate.release();
        flush.await.unwrap();
    });
    assert_eq!(toy.finished.lock()[0].size_bytes, 100, "bytes from 100 on were not in the run");
    assert_eq!(gate.mem.to_bytes()[PAGE_BYTES..][98..102], [7, 7, 0, 0]);
    run(&rt, file.sync()).unwrap();
    cache.audit();
}

#[test]
fn a_thread_that_reaps_a_bio_does_not_finish_the_run() {
    let rt = world();
    let (cache, _disk, gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    run(&rt, mapping.open().write(0, &[7; 100])).unwrap();
    gate.hold();
    let background = mapping.clone();
    let task = rt.spawn("flush", Default::default(), async move { background.write_back(..).await });
    gate.wait_held(1);
    gate.release();
    run(&rt, task).unwrap().unwrap();
    let finished_on = toy.finished_on.lock().expect("it was finished");
    assert_ne!(finished_on, std::thread::current().id(), "this thread only reaped the bio");
    cache.audit();
}

#[test]
fn a_caller_that_leaves_while_it_finishes_a_run_leaves_nothing_behind() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (cache, disk, gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    let meta = disk.mapping(Arc::new(extant_cache::FlatFile::new(Sector(16384), 4 << 20)), 9, 4 << 20);
    // The metadata must be read first, which takes as long as the gate is held.
    *toy.meta.lock() = Some(meta.clone());
    run(&rt, async {
        mapping.open().write(0, &[7; 100]).await.unwrap();
        let mut sync = Box::pin(mapping.write_back(..));
        let _ = std::future::poll_fn(|cx| Poll::Ready(sync.as_mut().poll(cx).is_pending())).await;
        gate.hold();
        drop(sync);
    });
    gate.release();
    while cache.usage().writeback > 0 {
        sleep(&rt, 1);
    }
    run(&rt, cache.sync()).unwrap();
    assert_eq!(toy.finished.lock().len(), 1);
    cache.audit();
}

#[test]
fn a_completion_that_dirties_metadata_does_not_wait_for_its_own_room() {
    let rt = world();
    let mut config = CacheConfig::with_budget(256 * PAGE);
    config.dirty_bytes = Some(32 * PAGE);
    config.background_bytes = Some(16 * PAGE);
    let (cache, disk, _gate, toy, mapping) = toy(&rt, config);
    let meta = disk.mapping(Arc::new(extant_cache::FlatFile::new(Sector(16384), 4 << 20)), 9, 4 << 20);
    *toy.meta.lock() = Some(meta);
    let file = mapping.open();
    let writer = rt.spawn("writer", Default::default(), async move {
        for page in 0..256 {
            file.write(page * PAGE, &[1; PAGE_BYTES]).await.unwrap();
        }
        file.sync().await.unwrap();
    });
    run(&rt, writer).unwrap();
    *toy.meta.lock() = None;
    run(&rt, cache.sync()).unwrap();
    cache.audit();
}

#[test]
fn a_panic_of_the_backing_is_an_error_of_its_file_and_ends_the_run() {
    let rt = world();
    let (cache, _disk, _gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    toy.panics.store(true, Ordering::SeqCst);
    let file = mapping.open();
    run(&rt, file.write(0, &[7; 100])).unwrap();
    match run(&rt, file.sync()) {
        Err(CacheError::Backing(error)) => assert_eq!(error.kind(), BackingErrorKind::Panicked, "{error}"),
        other => panic!("{other:?}"),
    }
    toy.panics.store(false, Ordering::SeqCst);
    run(&rt, file.sync()).unwrap();
    assert_eq!(mapping.dirty_pages(), 0);
    cache.audit();
}

#[test]
fn a_file_systems_own_error_comes_back_as_it_was() {
    let rt = world();
    let (cache, _disk, _gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    toy.refuses.store(true, Ordering::SeqCst);
    let file = mapping.open();
    run(&rt, file.write(0, &[7; 100])).unwrap();
    let Err(CacheError::Backing(error)) = run(&rt, file.sync()) else { panic!("it has no place") };
    assert_eq!(error.kind(), BackingErrorKind::Quota);
    assert_eq!(error.get::<OverQuota>().map(|own| own.user), Some(7));
    assert_eq!(error.to_string(), "quota of user 7 is used up");
    toy.refuses.store(false, Ordering::SeqCst);
    run(&rt, file.sync()).unwrap();
    cache.audit();
}

#[test]
fn dirty_pages_that_are_cut_off_are_given_up() {
    let rt = world();
    let (cache, _disk, _gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    let file = mapping.open();
    run(&rt, file.write(0, &[7; 10 * PAGE_BYTES])).unwrap();
    run(&rt, mapping.punch(2 * PAGE..4 * PAGE)).unwrap();
    run(&rt, mapping.set_size(7 * PAGE)).unwrap();
    let pages = |start, end| ByteRange::new(start * PAGE, end * PAGE);
    assert_eq!(*toy.abandoned.lock(), [pages(2, 4), pages(7, 10)]);
    run(&rt, file.sync()).unwrap();
    drop((file, mapping));
    assert_eq!(toy.abandoned.lock().len(), 2, "pages that were written back were not given up");
    cache.audit();
}

#[test]
fn inline_data_is_read_from_the_backing_and_written_back_to_it() {
    let rt = world();
    let (cache, _disk, gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    *toy.inline.lock() = Some(Arc::from(&b"hello"[..]));
    run(&rt, mapping.set_size(5)).unwrap();
    let file = mapping.open();
    let mut buf = [9; 10];
    assert_eq!((run(&rt, file.read(0, &mut buf)).unwrap(), &buf[..5]), (5, &b"hello"[..]));
    run(&rt, file.write(7, b"you")).unwrap();
    run(&rt, file.sync()).unwrap();
    assert_eq!(toy.inline.lock().as_deref(), Some(&b"hello\0\0you"[..]));
    assert_eq!((gate.reads.load(Ordering::SeqCst), gate.writes.load(Ordering::SeqCst)), (0, 0));
    cache.audit();
}

#[test]
fn no_other_task_brings_pages_in_during_an_exclusion() {
    let rt = world();
    let (cache, _disk, gate, toy, mapping) = toy(&rt, CacheConfig::with_budget(1 << 20));
    let file = mapping.open();
    run(&rt, file.write(0, &[1; 4 * PAGE_BYTES])).unwrap();
    run(&rt, file.sync()).unwrap();
    run(&rt, async {
        let exclusion = mapping.exclude(PAGE..2 * PAGE).await;
        mapping.invalidate(PAGE..2 * PAGE).await.unwrap();
        let mut buf = [0; 8];
        let mut read = Box::pin(file.read(PAGE, &mut buf));
        let mut other = Box::pin(mapping.exclude(PAGE + 5..PAGE + 6));
        for _ in 0..20 {
            let waits = std::future::poll_fn(|cx| {
                Poll::Ready(read.as_mut().poll(cx).is_pending() && other.as_mut().poll(cx).is_pending())
            });
            assert!(waits.await);
            rt.yield_now().await;
        }
        // Pages next to the excluded one can be read as usual.
        assert_eq!(file.read(2 * PAGE, &mut [0; 8]).await.unwrap(), 8);
        // Direct I/O writes what the reader must see.
        let block = toy.map.lock()[&1];
        let bytes = extant_block::Buf::from_slice(&[5; PAGE_BYTES]);
        extant_block::write(&gate.mem, Sector(block * 8), bytes).await.unwrap();
        drop(exclusion);
        drop(other.await);
        assert_eq!(read.await.unwrap(), 8);
        assert_eq!(buf, [5; 8]);
    });
    cache.audit();
}

#[test]
fn a_write_tells_how_much_it_did_before_an_error() {
    let rt = world();
    let (cache, _disk, gate, mapping) =
        crate::common::one_file(&rt, CacheConfig::with_budget(1 << 20), 1 << 20, 1 << 20);
    gate.fail_reads.store(true, Ordering::SeqCst);
    // Three whole pages, and then part of one that must be read first.
    let stopped = run(&rt, mapping.open().write(0, &[1; 3 * PAGE_BYTES + 10])).unwrap_err();
    assert_eq!(stopped.done_bytes, 3 * PAGE_BYTES);
    assert!(matches!(stopped.error, CacheError::Io(_)), "{stopped}");
    gate.fail_reads.store(false, Ordering::SeqCst);
    run(&rt, cache.sync()).unwrap();
    cache.audit();
}

#[test]
fn callers_that_must_not_wait_hear_that_they_would() {
    let rt = world();
    let (cache, _disk, gate, mapping) =
        crate::common::one_file(&rt, CacheConfig::with_budget(1 << 20), 1 << 20, 1 << 20);
    let file = mapping.open();
    let mut buf = [0; 2 * PAGE_BYTES];
    assert_eq!(file.try_read(0, &mut buf), Err(WouldWait { done_bytes: 0 }));
    assert_eq!(file.try_write(0, &[3; PAGE_BYTES]), Ok(()));
    assert_eq!(file.try_read(0, &mut buf), Err(WouldWait { done_bytes: PAGE_BYTES }));
    assert_eq!(file.try_read(0, &mut buf[..10]), Ok(10));
    assert_eq!(
        file.try_write(PAGE - 1, &[4; 2]),
        Err(WouldWait { done_bytes: 1 }),
        "the next page is not there"
    );
    assert_eq!(gate.reads.load(Ordering::SeqCst), 0);
    run(&rt, file.sync()).unwrap();
    cache.audit();
}

/// Pauses every writer that has dirtied a page.
#[derive(Debug)]
struct Pauses(Arc<AtomicBool>);

impl DirtyControl for Pauses {
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders {
        let until = now.saturating_add(Nanos::from_secs(1));
        let writer = match asking.is_some() && self.0.load(Ordering::SeqCst) {
            true => Verdict::Pause { until, pages: 1, rule: "test" },
            false => Verdict::Go { pages: 1 },
        };
        Orders { writer, ..Orders::none(numbers) }
    }
}

#[test]
fn a_writer_that_must_not_wait_hears_of_a_pause_and_writes_nothing() {
    let rt = world();
    let pauses = Arc::new(AtomicBool::new(true));
    let control = Box::new(Pauses(pauses.clone()));
    let config = CacheConfig { control, ..CacheConfig::with_budget(1 << 20) };
    let (cache, _disk, _gate, mapping) = crate::common::one_file(&rt, config, 1 << 20, 0);
    let file = mapping.open();
    let page = [3; PAGE_BYTES];
    assert_eq!(file.try_write(0, &page), Ok(()));
    assert_eq!(file.try_write(PAGE, &page), Err(WouldWait { done_bytes: 0 }));
    assert_eq!((mapping.dirty_pages(), mapping.size()), (1, PAGE));
    pauses.store(false, Ordering::SeqCst);
    assert_eq!(file.try_write(PAGE, &page), Ok(()));
    run(&rt, file.sync()).unwrap();
    cache.audit();
}

#[test]
fn an_unpaced_writer_goes_on_where_others_pause() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let control = Box::new(Pauses(Arc::new(AtomicBool::new(true))));
    let config = CacheConfig { control, ..CacheConfig::with_budget(1 << 20) };
    let (cache, _disk, _gate, mapping) = crate::common::one_file(&rt, config, 1 << 20, 0);
    let write_ten = |file: extant_cache::CachedOpenFile| {
        run(&rt, async {
            let begun = rt.now();
            for page in 0..10 {
                file.write(page * PAGE, &[3; PAGE_BYTES]).await.unwrap();
            }
            rt.now().saturating_sub(begun)
        })
    };
    assert!(write_ten(mapping.open().unpaced()) < Nanos::from_secs(1));
    run(&rt, cache.sync()).unwrap();
    assert!(write_ten(mapping.open()) >= Nanos::from_secs(1));
    cache.audit();
}

//! Loom models of the cache's waits: every interleaving of small cases.
//!
//! `RUSTFLAGS="--cfg extant_loom" cargo test -p extant-cache --release --lib models::`
//!
//! The code is the cache's own; loom replaces the locks and counters of the waits
//! ([`extant_rt::sync`]). State under other locks changes in one step, and loom switches threads
//! between such steps.
//!
//! For a journalled client the models cover the end of runs, a truncation that overtakes a run,
//! exclusions, the version of a block that a commit takes, and readers that wait for a single frame
//! while it is written back and cut off. Whole transactions and crashes are tested in
//! `tests/it/journalled.rs`, in virtual worlds with many seeds: loom would never finish exploring
//! their interleavings.

use crate::blocks::{BlockRef, Blocks, EditToken};
use crate::waits::{Condition, Waiting, Waits};
use crate::{
    Answer, Backing, ByteRange, CacheConfig, DirtyRun, Disk, PAGE_BYTES, PageCache, Placed, ReadExtent,
    ReadFrom, WriteExtent, WriteTo, WrittenRun,
};
use extant_block::{Bio, Device, Limits, MemDevice, Sector};
use extant_rt::{
    Charge, Class, Nanos, Origin, ReschedPoint, Rt, RtError, ShutdownReport, TaskFuture, TaskUsage, TimerId,
    Tracer, WaitConfig, WaitsOn, World,
};
use loom::future::block_on;
use loom::sync::Arc as LoomArc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Counter;
use std::task::{Context, Waker};

const PAGE: u64 = PAGE_BYTES as u64;

/// Runs `body` in every interleaving with at most `preemptions` preemptive switches.
fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(body);
}

/// A stock of items to wait for; `left` counts them.
struct Stock {
    waits: Arc<Waits>,
    left: AtomicUsize,
}

impl Stock {
    fn empty() -> LoomArc<Self> {
        let rt = Rt::from_world(Arc::new(Stage), Tracer::default());
        LoomArc::new(Self { waits: Waits::new(&rt), left: AtomicUsize::new(0) })
    }

    fn add(&self, n: usize) {
        self.left.fetch_add(n, Ordering::SeqCst);
        self.waits.wake(Condition::Frames, n);
    }

    fn take(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }

    /// Waits as a caller that needs a frame does.
    async fn wait_and_take(&self) {
        let mut waiting = Waiting::No;
        while !self.take() {
            waiting.wait(&self.waits, Condition::Frames).await;
        }
        waiting.took(|_| true);
    }
}

#[test]
fn every_waiter_gets_a_frame_where_there_is_one_for_each() {
    model(2, || {
        let stock = Stock::empty();
        let waiter = {
            let stock = stock.clone();
            thread::spawn(move || block_on(stock.wait_and_take()))
        };
        let giver = {
            let stock = stock.clone();
            thread::spawn(move || stock.add(1))
        };
        stock.add(1);
        block_on(stock.wait_and_take());
        waiter.join().unwrap();
        giver.join().unwrap();
    });
}

#[test]
fn two_frames_at_once_wake_two_waiters() {
    model(2, || {
        let stock = Stock::empty();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let stock = stock.clone();
                thread::spawn(move || block_on(stock.wait_and_take()))
            })
            .collect();
        stock.add(2);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

#[test]
fn a_waiter_that_leaves_hands_its_wake_on() {
    model(2, || {
        let stock = Stock::empty();
        let quitter = {
            let stock = stock.clone();
            thread::spawn(move || {
                let mut wait = pin!(stock.wait_and_take());
                // The waiter may have taken a frame before it leaves.
                wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
            })
        };
        let waiter = {
            let stock = stock.clone();
            thread::spawn(move || block_on(stock.wait_and_take()))
        };
        stock.add(1);
        if quitter.join().unwrap() {
            stock.add(1);
        }
        waiter.join().unwrap();
    });
}

#[test]
fn a_waiter_that_finds_it_needs_nothing_hands_its_token_on() {
    model(2, || {
        let stock = Stock::empty();
        let content = {
            let stock = stock.clone();
            thread::spawn(move || {
                block_on(async {
                    let mut waiting = Waiting::No;
                    waiting.wait(&stock.waits, Condition::Frames).await;
                    if stock.left.load(Ordering::SeqCst) == 0 {
                        waiting.wait(&stock.waits, Condition::Frames).await;
                    }
                    // Another task has loaded the page.
                    waiting.leave();
                });
            })
        };
        let waiter = {
            let stock = stock.clone();
            thread::spawn(move || block_on(stock.wait_and_take()))
        };
        stock.add(1);
        waiter.join().unwrap();
        stock.add(1);
        content.join().unwrap();
    });
}

/// A world without time, whose completion tasks are loom threads. Flushers never run.
struct Stage;

impl World for Stage {
    fn now(&self) -> Nanos {
        Nanos::ZERO
    }
    fn wall_time(&self) -> (i64, u32) {
        (0, 0)
    }
    fn seed(&self) -> u64 {
        1
    }
    fn spawn(&self, name: &str, _: Class, future: TaskFuture) {
        match name {
            "write-back completion" => drop(thread::spawn(move || block_on(future))),
            // If a flusher is dropped, the cache assumes that the runtime has shut down.
            _ => std::mem::forget(future),
        }
    }
    fn block_on(&self, _: Pin<&mut (dyn Future<Output = ()> + '_)>) -> Result<(), RtError> {
        unreachable!("models use loom's")
    }
    fn charge(&self, _: Charge) {}
    fn timer(&self, _: Nanos, _: &Waker) -> TimerId {
        unreachable!("there is no time")
    }
    fn cancel_timer(&self, _: TimerId) {}
    fn stint(&self) -> Nanos {
        Nanos::ZERO
    }
    fn task_usage(&self) -> TaskUsage {
        TaskUsage::default()
    }
    fn should_yield(&self, _: ReschedPoint) -> bool {
        false
    }
    fn waits_on(&self, _: WaitsOn) {}
    fn origin(&self) -> Origin {
        Origin::default()
    }
    fn shutdown(&self) -> ShutdownReport {
        ShutdownReport::default()
    }
}

/// Completes each write on a thread of its own.
#[derive(Debug)]
struct Threaded(MemDevice);

impl Device for Threaded {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }
    fn submit(&self, bio: Bio) {
        drop(thread::spawn(move || bio.end(Ok(()))));
    }
}

/// Places each piece at its own offset on the device.
fn in_place(run: &DirtyRun<'_>) -> Placed {
    let extent = |range: &ByteRange| WriteExtent {
        range: *range,
        to: WriteTo::Device(Sector(range.start / 512)),
        zero_before: 0,
        zero_after: 0,
        note: 0,
    };
    Placed { extents: run.pieces.iter().map(extent).collect(), ..Placed::default() }
}

/// A backing that logs a change of its map after each write.
#[derive(Debug, Default)]
struct Logged {
    finished: Counter,
}

impl Backing for Logged {
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        Answer::ok(ReadExtent { from: ReadFrom::Hole, bytes: range.len() })
    }
    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        Answer::ok(Placed { changes_map: true, ..in_place(&run) })
    }
    fn finish_write<'a>(&'a self, _: &'a WrittenRun) -> Answer<'a, ()> {
        self.finished.fetch_add(1, Ordering::SeqCst);
        Answer::ok(())
    }
}

/// Writes in place, without `finish_write`, and reads holes.
#[derive(Debug)]
struct InPlace;

impl Backing for InPlace {
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        Answer::ok(ReadExtent { from: ReadFrom::Hole, bytes: range.len() })
    }
    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        Answer::ok(in_place(&run))
    }
    fn finish_write<'a>(&'a self, _: &'a WrittenRun) -> Answer<'a, ()> {
        unreachable!("no map changes")
    }
}

fn disk() -> (PageCache, Disk) {
    let rt = Rt::from_world(Arc::new(Stage), Tracer::default());
    let mut config = CacheConfig::with_budget(16 * PAGE);
    config.page_waits = WaitConfig { bucket_bits: 1, ..WaitConfig::new("pages") };
    config.phantom_frames = true;
    let cache = PageCache::new(&rt, config).unwrap();
    let disk = cache.attach(Arc::new(Threaded(MemDevice::new(1 << 16))));
    (cache, disk)
}

#[test]
fn a_sync_returns_when_the_backing_has_heard_of_the_end_from_any_thread() {
    model(1, || {
        let (_cache, disk) = disk();
        let backing = Arc::new(Logged::default());
        let mapping = disk.mapping(backing.clone(), 1, 0);
        let file = mapping.open();
        block_on(file.write(0, &[1; PAGE_BYTES])).unwrap();
        block_on(file.sync_range(..)).unwrap();
        assert_eq!(backing.finished.load(Ordering::SeqCst), 1);
        assert!(mapping.is_settled());
    });
}

#[test]
fn a_caller_that_waits_for_anothers_run_returns_when_it_has_ended() {
    model(2, || {
        let (_cache, disk) = disk();
        let backing = Arc::new(Logged::default());
        let mapping = disk.mapping(backing.clone(), 1, 0);
        let file = mapping.open();
        block_on(file.write(0, &[1; PAGE_BYTES])).unwrap();
        // Started, then dropped.
        let _ = pin!(mapping.write_back(..)).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        block_on(mapping.wait_written(..));
        assert_eq!(backing.finished.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_truncation_waits_for_the_run_that_it_overtakes() {
    model(2, || {
        let (_cache, disk) = disk();
        let backing = Arc::new(Logged::default());
        let mapping = disk.mapping(backing.clone(), 1, 0);
        block_on(mapping.open().write(0, &[1; PAGE_BYTES])).unwrap();
        // Started, then dropped.
        let _ = pin!(mapping.write_back(..)).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let cut = {
            let (mapping, backing) = (mapping.clone(), backing.clone());
            thread::spawn(move || {
                block_on(mapping.set_size(0)).unwrap();
                assert_eq!(backing.finished.load(Ordering::SeqCst), 1, "blocks are freed after this");
            })
        };
        block_on(mapping.wait_written(..));
        cut.join().unwrap();
        assert_eq!((mapping.cached_pages(), mapping.dirty_pages()), (0, 0));
        assert!(mapping.is_settled());
    });
}

/// Like loom's `block_on`, but lets other threads run whenever the future is pending.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    block_on(poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            thread::yield_now();
        }
        polled
    }))
}

/// A cache of one frame, which holds a page in flight.
fn short_of_memory() -> (PageCache, Disk, crate::Mapping) {
    let (cache, disk) = disk();
    assert_eq!(cache.set_budget(PAGE), 0);
    let written = disk.mapping(Arc::new(InPlace), 1, 0);
    run(written.open().write(0, &[1; PAGE_BYTES])).unwrap();
    // Started, then dropped.
    let _ = pin!(written.write_back(..)).as_mut().poll(&mut Context::from_waker(Waker::noop()));
    (cache, disk, written)
}

/// Reads a page of a file on a thread of its own.
fn reader(file: &crate::Mapping, page: u64) -> thread::JoinHandle<()> {
    let file = file.open();
    thread::spawn(move || {
        let mut byte = [1];
        run(file.read(page * PAGE, &mut byte)).unwrap();
        assert_eq!(byte, [0], "a hole");
    })
}

#[test]
fn readers_that_wait_for_the_one_frame_have_it_in_turn_after_its_write_back() {
    model(1, || {
        let (_cache, disk, _written) = short_of_memory();
        let holes = disk.mapping(Arc::new(InPlace), 2, 2 * PAGE);
        let readers = [reader(&holes, 0), reader(&holes, 1)];
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn a_reader_has_the_one_frame_that_a_truncation_frees() {
    model(1, || {
        let (cache, disk, written) = short_of_memory();
        let holes = disk.mapping(Arc::new(InPlace), 2, 2 * PAGE);
        let reader = reader(&holes, 0);
        run(written.set_size(0)).unwrap();
        reader.join().unwrap();
        assert_eq!((written.cached_pages(), cache.usage().dirty), (0, 0));
    });
}

#[test]
fn a_reader_that_leaves_hands_on_the_one_frame_that_a_truncation_frees() {
    model(1, || {
        let (_cache, disk, written) = short_of_memory();
        let holes = disk.mapping(Arc::new(InPlace), 2, 2 * PAGE);
        let quitter = {
            let file = holes.open();
            thread::spawn(move || {
                let mut byte = [1];
                let mut read = pin!(file.read(0, &mut byte));
                for _ in 0..2 {
                    if read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                        return;
                    }
                    thread::yield_now();
                }
            })
        };
        let reader = reader(&holes, 1);
        run(written.set_size(0)).unwrap();
        quitter.join().unwrap();
        reader.join().unwrap();
    });
}

/// An edit token of the transaction with this number.
struct Epoch(u64);

impl EditToken for Epoch {
    fn epoch(&self) -> u64 {
        self.0
    }
    fn first_touch(&mut self, _: &BlockRef) {}
}

#[test]
fn a_commit_takes_a_block_as_its_epoch_left_it_while_the_next_one_changes_it() {
    model(3, || {
        let blocks = Blocks::new(Arc::new(MemDevice::new(1 << 16)), 1024, 1 << 14);
        let block = blocks.create(3);
        block.edit(&mut Epoch(1)).fill(1);
        let editor = {
            let block = block.clone();
            thread::spawn(move || {
                for part in 0..2 {
                    block.edit(&mut Epoch(2))[part * 512..][..512].fill(2);
                    thread::yield_now();
                }
            })
        };
        thread::yield_now();
        let frozen = block.take(1, |bytes| assert_eq!(bytes[..], [1; 1024]));
        thread::yield_now();
        assert_eq!(frozen.bytes()[..], [1; 1024], "it is written while the block changes");
        editor.join().unwrap();
        assert_eq!(block.take(2, |_| ()).bytes()[..], [2; 1024]);
    });
}

#[test]
fn no_page_enters_an_excluded_range_and_its_writer_hears_of_the_end() {
    model(2, || {
        let (_cache, disk) = disk();
        let mapping = disk.mapping(Arc::new(Logged::default()), 1, 0);
        let excludes = |mapping: crate::Mapping| {
            let exclusion = block_on(mapping.exclude(0..2 * PAGE));
            let before = mapping.cached_pages();
            thread::yield_now();
            assert_eq!(mapping.cached_pages(), before, "a page came in");
            drop(exclusion);
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let mapping = mapping.clone();
                thread::spawn(move || excludes(mapping))
            })
            .collect();
        block_on(mapping.open().write(0, &[1; PAGE_BYTES])).unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(mapping.cached_pages(), 1);
    });
}

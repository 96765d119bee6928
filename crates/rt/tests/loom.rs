//! Loom tests of the wait table: every interleaving of small cases.
//!
//! `RUSTFLAGS="--cfg extant_loom" cargo test -p extant-rt --release --test loom`
#![cfg(extant_loom)]

use extant_rt::{Flag, Nanos, RealConfig, Rt, RwLock, WaitConfig, WaitKey, WaitTable};
use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const LOCKED: Flag = Flag::new(0, 1);

struct World {
    table: WaitTable,
    word: AtomicU32,
    inside: AtomicU32,
}

/// Runs `body` in every interleaving with at most three preemptive switches.
fn model(word: u32, body: impl Fn(Arc<World>) + Send + Sync + 'static) {
    let rt = Rt::real(RealConfig { seed: Some(1), ..RealConfig::default() });
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let config = WaitConfig { bucket_bits: 1, ..WaitConfig::new("loom") };
        let (word, inside) = (AtomicU32::new(word), AtomicU32::new(0));
        body(Arc::new(World { table: WaitTable::new(&rt, config), word, inside }));
    });
}

async fn critical(world: &World) {
    world.table.lock(1, &world.word, LOCKED).await;
    assert_eq!(world.inside.fetch_add(1, Ordering::Relaxed), 0, "two hold the lock");
    world.inside.fetch_sub(1, Ordering::Relaxed);
    world.table.unlock(1, &world.word, LOCKED);
}

#[test]
fn a_lock_is_held_by_one_and_reaches_all() {
    model(0, |world| {
        let other = world.clone();
        let thread = thread::spawn(move || block_on(critical(&other)));
        block_on(critical(&world));
        thread.join().unwrap();
        assert_eq!(world.word.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_waiter_that_gives_up_does_not_take_the_lock_with_it() {
    model(LOCKED.mask(), |world| {
        let (quitter, waiter) = (world.clone(), world.clone());
        let quits = thread::spawn(move || {
            let mut lock = pin!(quitter.table.lock(1, &quitter.word, LOCKED));
            let got = lock.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if got == Poll::Ready(()) {
                quitter.table.unlock(1, &quitter.word, LOCKED);
            }
        });
        let waits = thread::spawn(move || block_on(critical(&waiter)));
        world.table.unlock(1, &world.word, LOCKED);
        quits.join().unwrap();
        waits.join().unwrap();
        assert_eq!(world.word.load(Ordering::Relaxed) & LOCKED.mask(), 0);
    });
}

#[test]
fn a_waiter_for_the_end_of_io_hears_of_it() {
    model(LOCKED.mask(), |world| {
        let other = world.clone();
        let thread = thread::spawn(move || {
            other.inside.store(1, Ordering::Relaxed);
            other.table.clear(1, &other.word, LOCKED);
        });
        block_on(world.table.wait_while(1, &world.word, LOCKED));
        assert_eq!(world.inside.load(Ordering::Relaxed), 1, "writes before it are seen");
        thread.join().unwrap();
    });
}

#[test]
fn a_waiter_for_a_condition_hears_of_it() {
    model(0, |world| {
        let other = world.clone();
        let thread = thread::spawn(move || {
            other.word.store(1, Ordering::Relaxed);
            other.table.wake(WaitKey::new(1));
        });
        block_on(world.table.wait_until(WaitKey::new(1), || world.word.load(Ordering::Relaxed) == 1));
        thread.join().unwrap();
    });
}

#[test]
fn a_waiter_and_a_lock_waiter_of_the_same_page_are_both_served() {
    model(LOCKED.mask(), |world| {
        let (locker, watcher) = (world.clone(), world.clone());
        let locks = thread::spawn(move || block_on(critical(&locker)));
        let watches = thread::spawn(move || block_on(watcher.table.wait_while(1, &watcher.word, LOCKED)));
        world.table.unlock(1, &world.word, LOCKED);
        locks.join().unwrap();
        watches.join().unwrap();
    });
}

/// A reader-writer lock, and what it guards.
struct Shared {
    lock: RwLock,
    /// Number of readers inside; a writer counts as a thousand.
    inside: AtomicU32,
    /// Changed by writers.
    value: AtomicU32,
}

/// Like [`model`]. With a `patience` of zero, a lock given to a task is up for grabs until the task
/// picks it up; otherwise it stays the task's own.
fn locks(patience: Nanos, body: impl Fn(Arc<Shared>) + Send + Sync + 'static) {
    locks_within(3, patience, body);
}

/// Like [`locks`], with at most this many preemptive switches.
fn locks_within(preemptions: usize, patience: Nanos, body: impl Fn(Arc<Shared>) + Send + Sync + 'static) {
    let rt = Rt::real(RealConfig { seed: Some(1), ..RealConfig::default() });
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let config = WaitConfig { bucket_bits: 1, ..WaitConfig::new("loom") };
        // Loom's pointers are for sharing loom's types, but the table belongs to the lock.
        let table = std::sync::Arc::new(WaitTable::new(&rt, config).with_patience(patience));
        let (inside, value) = (AtomicU32::new(0), AtomicU32::new(0));
        body(Arc::new(Shared { lock: RwLock::new(&table), inside, value }));
    });
}

async fn writes(shared: &Shared) {
    let _held = shared.lock.write().await;
    assert_eq!(shared.inside.fetch_add(1000, Ordering::Relaxed), 0, "a writer is alone");
    shared.value.store(shared.value.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    shared.inside.fetch_sub(1000, Ordering::Relaxed);
}

async fn reads(shared: &Shared) -> u32 {
    let _held = shared.lock.read().await;
    assert!(shared.inside.fetch_add(1, Ordering::Relaxed) < 1000, "no writer is in");
    let value = shared.value.load(Ordering::Relaxed);
    shared.inside.fetch_sub(1, Ordering::Relaxed);
    value
}

const PATIENCES: [Nanos; 2] = [Nanos::ZERO, Nanos::MAX];

#[test]
fn two_writers_get_it_one_after_the_other() {
    for patience in PATIENCES {
        locks(patience, |shared| {
            let other = shared.clone();
            let thread = thread::spawn(move || block_on(writes(&other)));
            block_on(writes(&shared));
            thread.join().unwrap();
            assert_eq!(block_on(reads(&shared)), 2, "what both did is seen");
            assert!(shared.lock.try_write().is_some());
        });
    }
}

#[test]
fn readers_and_a_writer_keep_each_other_out() {
    for patience in PATIENCES {
        // Two switches: with three, these three threads take longer than all other models together.
        locks_within(2, patience, |shared| {
            let (reader, writer) = (shared.clone(), shared.clone());
            let reading = thread::spawn(move || block_on(reads(&reader)));
            let writing = thread::spawn(move || block_on(writes(&writer)));
            assert!(block_on(reads(&shared)) <= 1);
            assert!(reading.join().unwrap() <= 1);
            writing.join().unwrap();
            assert!(shared.lock.try_write().is_some());
        });
    }
}

#[test]
fn a_writer_that_gives_up_takes_the_lock_with_it_from_nobody() {
    for patience in PATIENCES {
        locks(patience, |shared| {
            let (quitter, waiter) = (shared.clone(), shared.clone());
            let held = shared.lock.try_write().expect("free");
            let quits = thread::spawn(move || {
                let mut taking = pin!(quitter.lock.write());
                drop(taking.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            });
            let waits = thread::spawn(move || block_on(reads(&waiter)));
            drop(held);
            quits.join().unwrap();
            waits.join().unwrap();
            assert!(shared.lock.try_write().is_some());
        });
    }
}

#[test]
fn a_lock_that_is_taken_back_is_its_old_owners_no_more() {
    locks(Nanos::ZERO, |shared| {
        let (late, other) = (shared.clone(), shared.clone());
        let held = shared.lock.try_write().expect("free");
        let comes_late = thread::spawn(move || {
            let mut taking = pin!(late.lock.write());
            // Polled by hand, and again once it may have been given the lock and lost it.
            let first = taking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            thread::yield_now();
            match first {
                Poll::Ready(held) => drop(held),
                Poll::Pending => drop(block_on(taking)),
            }
        });
        let writes_too = thread::spawn(move || block_on(writes(&other)));
        drop(held);
        comes_late.join().unwrap();
        writes_too.join().unwrap();
        assert!(shared.lock.try_write().is_some());
    });
}

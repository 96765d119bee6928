//! Tests of the reader-writer lock through its public interface. Not for loom, which replaces its
//! atomics: see `loom.rs`.
#![cfg(not(extant_loom))]

use extant_rt::{Class, Nanos, ReadGuard, RealConfig, Rng, Rt, RwLock, TaskMutex, WaitConfig, WaitTable};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

fn world() -> Rt {
    Rt::real(RealConfig { worker_threads: Some(4), blocking_threads: Some(2), seed: Some(1) })
}

/// A table that never takes a lock from the waiter it was given to.
fn patient(rt: &Rt) -> Arc<WaitTable> {
    Arc::new(WaitTable::new(rt, WaitConfig::new("test")).with_patience(Nanos::MAX))
}

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    fn wakes(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A future that is polled by hand.
struct Held<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    bell: Arc<Bell>,
}

impl<'a, T> Held<'a, T> {
    fn new(future: impl Future<Output = T> + 'a) -> Self {
        Self { future: Box::pin(future), bell: Arc::default() }
    }

    fn poll(&mut self) -> Poll<T> {
        self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.bell.clone())))
    }

    fn expect(&mut self, what: &str) -> T {
        match self.poll() {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("{what}"),
        }
    }
}

#[test]
fn takers_get_it_in_order_and_readers_in_a_row_share_it() {
    let lock = RwLock::new(&patient(&world()));
    let first = lock.try_write().expect("free");
    let mut readers = [Held::new(lock.read()), Held::new(lock.read())];
    let mut writer = Held::new(lock.write());
    let mut late = Held::new(lock.read());
    assert!(readers.iter_mut().all(|reader| reader.poll().is_pending()));
    assert!(writer.poll().is_pending() && late.poll().is_pending());
    drop(first);
    assert_eq!([readers[0].bell.wakes(), readers[1].bell.wakes()], [1, 1]);
    assert_eq!([writer.bell.wakes(), late.bell.wakes()], [0, 0], "nobody is woken for nothing");
    assert!(lock.try_read().is_none(), "a reader does not overtake a writer that waits");
    let held: Vec<ReadGuard<'_>> = readers.iter_mut().map(|reader| reader.expect("it has it")).collect();
    drop(held);
    assert_eq!([writer.bell.wakes(), late.bell.wakes()], [1, 0]);
    let wrote = writer.expect("its turn");
    assert!(lock.try_read().is_none() && lock.try_write().is_none());
    drop(wrote);
    drop(late.expect("the last one"));
    assert!(lock.try_write().is_some());
}

#[test]
fn readers_are_polled_once_while_writers_have_it_one_after_the_other() {
    let table = patient(&world());
    let lock = RwLock::new(&table);
    let first = lock.try_write().expect("free");
    let mut second = Held::new(lock.write());
    assert!(second.poll().is_pending());
    let mut readers = [Held::new(lock.read()), Held::new(lock.read())];
    let mut polls = 0;
    let mut seen = [u64::MAX; 2];
    let mut poll_all = |readers: &mut [Held<'_, ReadGuard<'_>>; 2]| {
        for _ in 0..1_000 {
            for (reader, seen) in readers.iter_mut().zip(&mut seen) {
                let wakes = reader.bell.wakes();
                if *seen != wakes {
                    *seen = wakes;
                    polls += 1;
                    assert!(reader.poll().is_pending());
                }
            }
        }
        polls
    };
    assert_eq!(poll_all(&mut readers), 2);
    drop(first);
    let second = second.expect("its turn");
    assert_eq!(poll_all(&mut readers), 2, "they wait quietly");
    drop(second);
    assert!(readers.iter_mut().all(|reader| reader.poll().is_ready()));
    assert_eq!(table.stats().spurious, 0);
}

#[test]
fn who_leaves_takes_nothing_along() {
    let lock = RwLock::new(&patient(&world()));
    // A writer that waits for a reader goes away: the readers behind it need not wait.
    let first = lock.try_read().expect("free");
    let (mut writer, mut reader) = (Held::new(lock.write()), Held::new(lock.read()));
    assert!(writer.poll().is_pending() && reader.poll().is_pending());
    drop(writer);
    assert_eq!(reader.bell.wakes(), 1);
    drop((first, reader.expect("beside the first")));
    // A waiter that was given the lock goes away before it notices.
    let first = lock.try_write().expect("free");
    let (mut given, mut next) = (Held::new(lock.write()), Held::new(lock.write()));
    assert!(given.poll().is_pending() && next.poll().is_pending());
    drop(first);
    assert_eq!([given.bell.wakes(), next.bell.wakes()], [1, 0]);
    drop(given);
    assert_eq!(next.bell.wakes(), 1);
    drop(next.expect("it was passed on"));
    // The last waiter goes away.
    let first = lock.try_write().expect("free");
    let mut last = Held::new(lock.read());
    assert!(last.poll().is_pending());
    drop(last);
    drop(first);
    assert!(lock.try_read().is_some());
}

#[test]
fn one_that_does_not_come_for_it_loses_it_to_those_who_wait() {
    let table = WaitTable::new(&world(), WaitConfig::new("test")).with_patience(Nanos::ZERO);
    let lock = RwLock::new(&Arc::new(table));
    let first = lock.try_write().expect("free");
    let mut kept = [Held::new(lock.read()), Held::new(lock.read())];
    assert!(kept.iter_mut().all(|kept| kept.poll().is_pending()));
    let mut waits = Held::new(lock.write());
    assert!(waits.poll().is_pending());
    drop(first);
    assert!(kept.iter().all(|kept| kept.bell.wakes() == 1), "both were given it");
    let wrote = waits.expect("they do not use it");
    // These are polled too late, and wait like others.
    assert!(kept.iter_mut().all(|kept| kept.poll().is_pending()));
    drop(wrote);
    let read: Vec<_> = kept.iter_mut().map(|kept| kept.expect("their turn")).collect();
    assert!(lock.try_write().is_none());
    drop(read);
    drop(lock.try_write().expect("all have left"));
    // A waiter whose lock was taken back goes away.
    let first = lock.try_write().expect("free");
    let (mut kept, mut waits) = (Held::new(lock.write()), Held::new(lock.write()));
    assert!(kept.poll().is_pending() && waits.poll().is_pending());
    drop(first);
    let wrote = waits.expect("the other does not come");
    drop(kept);
    assert!(lock.try_read().is_none(), "it gave back nothing that was not its own");
    drop(wrote);
    assert!(lock.try_write().is_some());
}

#[test]
fn those_who_wait_are_woken_when_one_does_not_come_for_it() {
    let rt = world();
    let table = WaitTable::new(&rt, WaitConfig::new("test")).with_patience(Nanos::from_millis(1));
    let lock = RwLock::new(&Arc::new(table));
    let first = lock.try_write().expect("free");
    let mut kept: Vec<_> = (0..3).map(|_| Held::new(lock.write())).collect();
    assert!(kept.iter_mut().all(|kept| kept.poll().is_pending()));
    let mut waits = Held::new(lock.read());
    assert!(waits.poll().is_pending());
    drop(first);
    // Each waiter ahead of the reader is given the lock once, and the next check takes it back.
    let rings = async {
        let mut seen = 0;
        loop {
            if waits.bell.wakes() > seen {
                seen = waits.bell.wakes();
                if let Poll::Ready(read) = waits.poll() {
                    return drop(read);
                }
            }
            rt.yield_now().await;
        }
    };
    rt.block_on(rings).unwrap();
}

#[test]
fn tasks_and_threads_that_fight_for_it_all_get_it_and_writers_alone() {
    let rt = world();
    for seed in 0..6 {
        // In some runs the patience is short, so that locks are also taken back from slow waiters.
        let patience = if seed % 2 == 0 { Nanos::from_micros(20) } else { Nanos::from_millis(50) };
        let config = WaitConfig { bucket_bits: 1, ..WaitConfig::new("fight") };
        let table = Arc::new(WaitTable::new(&rt, config).with_patience(patience));
        let locks: Arc<Vec<_>> = Arc::new((0..3).map(|_| (RwLock::new(&table), AtomicI64::new(0))).collect());
        let tasks: Vec<_> = (0..12)
            .map(|n| {
                let (locks, world) = (locks.clone(), rt.clone());
                let mut rng = Rng::new(seed * 100 + n);
                let fight = async move {
                    for _ in 0..200 {
                        let (lock, inside) = &locks[rng.below(3) as usize];
                        if rng.below(4) == 0 {
                            // Gives up after one or two polls.
                            let mut taking = pin!(lock.write());
                            let mut polls = 1 + rng.below(2);
                            std::future::poll_fn(|cx| {
                                polls -= 1;
                                let got = taking.as_mut().poll(cx).is_ready();
                                if got || polls == 0 { Poll::Ready(()) } else { Poll::Pending }
                            })
                            .await;
                        } else if rng.below(3) == 0 {
                            let _held = lock.write().await;
                            assert_eq!(inside.swap(-1, Ordering::SeqCst), 0, "a writer is alone");
                            if rng.below(2) == 0 {
                                world.yield_now().await;
                            }
                            assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                        } else {
                            let _held = lock.read().await;
                            assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "no writer is in");
                            if rng.below(2) == 0 {
                                world.yield_now().await;
                            }
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                };
                rt.spawn("fighter", Class::Normal, fight)
            })
            .collect();
        for task in tasks {
            rt.block_on(task).unwrap().unwrap_or_else(|ended| panic!("seed {seed}: {ended}"));
        }
        for (lock, _) in &*locks {
            assert!(lock.try_write().is_some(), "seed {seed}: everybody has left");
        }
    }
}

#[test]
fn a_value_is_one_tasks_at_a_time() {
    let rt = world();
    let sum = Arc::new(TaskMutex::new(&patient(&rt), vec![0_u64]));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (sum, rt) = (sum.clone(), rt.clone());
            rt.clone().spawn("adds", Class::Normal, async move {
                for _ in 0..100 {
                    let mut sum = sum.lock().await;
                    let before = sum[0];
                    rt.yield_now().await;
                    sum[0] = before + 1;
                }
            })
        })
        .collect();
    for task in tasks {
        rt.block_on(task).unwrap().unwrap();
    }
    assert_eq!(*sum.try_lock().expect("free"), [800]);
}

#[test]
fn one_that_is_given_it_at_the_end_of_the_world_keeps_no_other_waiting() {
    let rt = world();
    let patience = Nanos::from_millis(300);
    let table = WaitTable::new(&rt, WaitConfig::new("test")).with_patience(patience);
    let lock = RwLock::new(&Arc::new(table));
    let first = lock.try_write().expect("free");
    let mut kept = Held::new(lock.write());
    let mut waits = Held::new(lock.read());
    assert!(kept.poll().is_pending() && waits.poll().is_pending());
    drop(first);
    // The alarm rings early, and is armed anew.
    let _ = rt.shutdown(Nanos::ZERO);
    let before = rt.now();
    while waits.bell.wakes() == 0 {
        assert!(rt.now() - before < Nanos::from_secs(10), "the waiter sleeps for ever");
        rt.block_on(rt.sleep(Nanos::from_millis(5))).unwrap();
    }
    drop(waits.expect("the other did not come"));
    drop(kept.expect("late, but free"));
}

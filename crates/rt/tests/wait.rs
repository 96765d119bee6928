//! Tests of the wait table through its public interface. Not for loom, which replaces its atomics:
//! see `loom.rs`.
#![cfg(not(extant_loom))]

use extant_rt::wait::{Discipline, Hash};
use extant_rt::{Class, Flag, RealConfig, Rng, Rt, WaitConfig, WaitKey, WaitTable};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Counts this thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn world() -> Rt {
    Rt::real(RealConfig { worker_threads: Some(2), blocking_threads: Some(2), seed: Some(1) })
}

fn table(rt: &Rt, discipline: Discipline) -> WaitTable {
    WaitTable::new(rt, WaitConfig { discipline, ..WaitConfig::new("test") })
}

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

const LOCKED: Flag = Flag::new(0, 1);
const WRITEBACK: Flag = Flag::new(2, 3);

#[test]
fn a_wake_up_among_a_hundred_thousand_waiters_in_256_buckets_examines_one() {
    const WAITERS: u64 = 100_000;
    let rt = world();
    let table = table(&rt, Discipline::Keyed);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let words: Vec<AtomicU32> = (0..WAITERS).map(|_| AtomicU32::new(WRITEBACK.mask())).collect();
    let mut waits: Vec<_> =
        words.iter().zip(0..).map(|(word, n)| table.wait_while(n, word, WRITEBACK)).collect();
    for wait in &mut waits {
        assert!(poll(Pin::new(wait), &waker).is_pending());
    }
    for (n, word) in (0..).zip(&words) {
        table.clear(n, word, WRITEBACK);
        if n < 100 {
            assert_eq!((table.stats().examined, table.stats().woken), (n + 1, n + 1));
        }
    }
    for wait in &mut waits {
        assert!(poll(Pin::new(wait), &waker).is_ready());
    }
    let stats = table.stats();
    assert_eq!((stats.waits, stats.examined, stats.woken, stats.spurious), (WAITERS, WAITERS, WAITERS, 0));
    assert_eq!(bell.0.load(Ordering::SeqCst), WAITERS);
}

#[test]
fn the_older_disciplines_look_at_the_whole_bucket() {
    // All eight keys are in the same bucket of a table of two.
    let rt = world();
    for (discipline, examined, woken) in
        [(Discipline::Keyed, 1, 1), (Discipline::Filtered, 8, 1), (Discipline::WholeBucket, 8, 8)]
    {
        let table = WaitTable::new(&rt, WaitConfig { bucket_bits: 1, discipline, ..WaitConfig::new("test") });
        let bucket = |key| Hash::Golden.bucket(key, 1);
        let keys: Vec<u64> = (0..).filter(|key| bucket(*key) == 0).take(8).collect();
        let words: Vec<AtomicU32> = keys.iter().map(|_| AtomicU32::new(LOCKED.mask())).collect();
        let mut waits: Vec<_> =
            keys.iter().zip(&words).map(|(key, word)| table.wait_while(*key, word, LOCKED)).collect();
        let poll_all = |waits: &mut Vec<_>| {
            waits.iter_mut().map(|wait| poll(Pin::new(wait), Waker::noop())).filter(Poll::is_ready).count()
        };
        assert_eq!(poll_all(&mut waits), 0);
        table.clear(keys[3], &words[3], LOCKED);
        assert_eq!((table.stats().examined, table.stats().woken), (examined, woken), "{discipline:?}");
        assert_eq!(poll(Pin::new(&mut waits[3]), Waker::noop()), Poll::Ready(()));
        drop(waits.remove(3));
        assert_eq!(poll_all(&mut waits), 0);
        assert_eq!(table.stats().spurious, woken - 1, "{discipline:?}");
    }
}

#[test]
fn a_lock_goes_to_its_waiters_one_at_a_time_in_order() {
    let rt = world();
    let table = table(&rt, Discipline::Keyed);
    let word = AtomicU32::new(0);
    assert!(table.try_lock(&word, LOCKED));
    let bells: Vec<_> = (0..5).map(|_| Arc::new(Bell::default())).collect();
    let wakers: Vec<_> = bells.iter().map(|bell| Waker::from(bell.clone())).collect();
    let mut locks: Vec<_> = (0..5).map(|_| table.lock(9, &word, LOCKED)).collect();
    for (lock, waker) in locks.iter_mut().zip(&wakers) {
        assert!(poll(Pin::new(lock), waker).is_pending());
    }
    for n in 0..5 {
        table.unlock(9, &word, LOCKED);
        assert!(!table.try_lock(&word, LOCKED), "it never is free while it has waiters");
        let rung: Vec<_> = bells.iter().map(|bell| bell.0.load(Ordering::SeqCst)).collect();
        assert_eq!(rung, (0..5).map(|m| u64::from(m <= n)).collect::<Vec<_>>(), "only the next is woken");
        assert!(poll(Pin::new(&mut locks[n]), &wakers[n]).is_ready());
    }
    table.unlock(9, &word, LOCKED);
    assert_eq!(word.load(Ordering::SeqCst), 0, "no bit is left behind");
    assert_eq!(table.stats().handed_over, 5);
    assert_eq!(table.stats().examined, 5);
}

#[test]
fn a_lock_that_is_given_to_a_future_that_is_dropped_passes_on() {
    let rt = world();
    let table = table(&rt, Discipline::Keyed);
    let word = AtomicU32::new(0);
    assert!(table.try_lock(&word, LOCKED));
    let mut first = table.lock(9, &word, LOCKED);
    let mut second = table.lock(9, &word, LOCKED);
    let mut third = table.lock(9, &word, LOCKED);
    for lock in [&mut first, &mut second, &mut third] {
        assert!(poll(Pin::new(lock), Waker::noop()).is_pending());
    }
    drop(second); // gives up while waiting
    table.unlock(9, &word, LOCKED);
    drop(first); // gives up while it owns the lock
    assert!(poll(Pin::new(&mut third), Waker::noop()).is_ready());
    table.unlock(9, &word, LOCKED);
    assert_eq!(word.load(Ordering::SeqCst), 0);
    assert_eq!(table.stats().cancelled, 2);
}

#[test]
fn flags_of_one_word_do_not_disturb_each_other() {
    let rt = world();
    let table = table(&rt, Discipline::Keyed);
    let word = AtomicU32::new(LOCKED.mask() | WRITEBACK.mask() | 1 << 31);
    let mut unlocked = table.wait_while(9, &word, LOCKED);
    let mut written = table.wait_while(9, &word, WRITEBACK);
    assert!(poll(Pin::new(&mut unlocked), Waker::noop()).is_pending());
    assert!(poll(Pin::new(&mut written), Waker::noop()).is_pending());
    table.clear(9, &word, WRITEBACK);
    assert!(poll(Pin::new(&mut unlocked), Waker::noop()).is_pending());
    assert!(poll(Pin::new(&mut written), Waker::noop()).is_ready());
    table.unlock(9, &word, LOCKED);
    assert!(poll(Pin::new(&mut unlocked), Waker::noop()).is_ready());
    assert_eq!(word.load(Ordering::SeqCst), 1 << 31);
}

#[test]
fn a_batch_wakes_more_than_it_has_room_for() {
    let rt = world();
    let table = table(&rt, Discipline::Keyed);
    let word = AtomicU32::new(LOCKED.mask());
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut waits: Vec<_> = (0..1_000).map(|_| table.wait_while(9, &word, LOCKED)).collect();
    let mut locks: Vec<_> = (0..40).map(|_| table.lock(9, &word, LOCKED)).collect();
    waits.iter_mut().for_each(|wait| assert!(poll(Pin::new(wait), &waker).is_pending()));
    locks.iter_mut().for_each(|lock| assert!(poll(Pin::new(lock), &waker).is_pending()));
    let mut batch = table.batch();
    for _ in 0..40 {
        batch.unlock(9, &word, LOCKED);
    }
    drop(batch);
    assert_eq!(bell.0.load(Ordering::SeqCst), 1_040);
    assert!(waits.iter_mut().all(|wait| poll(Pin::new(wait), &waker).is_ready()));
    assert!(locks.iter_mut().all(|lock| poll(Pin::new(lock), &waker).is_ready()));
}

#[test]
fn a_wait_costs_no_allocation_once_the_table_has_grown() {
    let rt = world();
    let table = table(&rt, Discipline::Keyed);
    let (mut rng, mut measured) = (Rng::new(3), 0);
    for round in 0..40 {
        let words: [AtomicU32; 64] = std::array::from_fn(|_| AtomicU32::new(LOCKED.mask()));
        let keys: [u64; 64] = std::array::from_fn(|_| rng.below(1 << 40));
        let before = ALLOCATIONS.get();
        for chunk in 0..8 {
            // Only eight waiters wait at a time, so that no round needs more room than the previous
            // one.
            let at = |n: usize| chunk * 8 + n;
            let mut waits: [_; 8] =
                std::array::from_fn(|n| table.wait_while(keys[at(n)], &words[at(n)], LOCKED));
            waits.iter_mut().for_each(|wait| assert!(poll(Pin::new(wait), Waker::noop()).is_pending()));
            (0..8).for_each(|n| table.unlock(keys[at(n)], &words[at(n)], LOCKED));
            waits.iter_mut().for_each(|wait| assert!(poll(Pin::new(wait), Waker::noop()).is_ready()));
        }
        if round == 0 {
            // Grow every bucket to the most that eight waiters can need of it.
            let word = AtomicU32::new(LOCKED.mask());
            let mut keys: Vec<Vec<u64>> = vec![Vec::new(); 256];
            (0..20_000).for_each(|key| keys[Hash::Golden.bucket(key, 8)].push(key));
            for keys in &keys {
                let mut waits: Vec<_> =
                    keys[..16].iter().map(|key| table.wait_while(*key, &word, LOCKED)).collect();
                waits.iter_mut().for_each(|wait| assert!(poll(Pin::new(wait), Waker::noop()).is_pending()));
            }
        } else {
            measured += ALLOCATIONS.get() - before;
        }
    }
    assert_eq!(measured, 0);
}

#[test]
fn threads_and_tasks_that_fight_for_locks_all_get_them_and_never_two_at_once() {
    let rt = world();
    for discipline in [Discipline::Keyed, Discipline::Filtered, Discipline::WholeBucket] {
        let config = WaitConfig { bucket_bits: 1, discipline, ..WaitConfig::new("fight") };
        let table = Arc::new(WaitTable::new(&rt, config));
        let pages: Arc<[(AtomicU32, AtomicU32)]> = (0..4).map(|_| Default::default()).collect();
        let fight = |seed: u64| {
            let (table, pages) = (table.clone(), pages.clone());
            async move {
                let mut rng = Rng::new(seed);
                for _ in 0..500 {
                    let n = rng.below(4) as usize;
                    let (word, inside) = &pages[n];
                    if rng.below(4) == 0 {
                        // Gives up after one poll, whatever the result.
                        let mut lock = Some(table.lock(n as u64, word, LOCKED));
                        let got = std::future::poll_fn(|cx| {
                            let got =
                                lock.as_mut().is_some_and(|lock| poll(Pin::new(lock), cx.waker()).is_ready());
                            lock = None;
                            Poll::Ready(got)
                        });
                        if !got.await {
                            continue;
                        }
                    } else {
                        table.lock(n as u64, word, LOCKED).await;
                    }
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                    if rng.below(3) == 0 {
                        std::thread::yield_now();
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    table.unlock(n as u64, word, LOCKED);
                }
            }
        };
        let tasks: Vec<_> = (0..4).map(|n| rt.spawn("fighter", Class::Normal, fight(n))).collect();
        std::thread::scope(|scope| {
            for n in 4..6 {
                let (rt, fight) = (&rt, fight(n));
                scope.spawn(move || rt.block_on(fight).unwrap());
            }
        });
        rt.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        })
        .unwrap();
        assert!(pages.iter().all(|(word, _)| word.load(Ordering::SeqCst) & LOCKED.mask() == 0));
    }
}

#[test]
fn a_waiter_for_a_condition_never_misses_it() {
    let rt = world();
    let table = Arc::new(table(&rt, Discipline::Keyed));
    let turn = Arc::new(AtomicU64::new(0));
    const KEY: WaitKey = WaitKey::new(7);
    let player = |me: u64| {
        let (table, turn) = (table.clone(), turn.clone());
        async move {
            for round in 0..2_000 {
                table.wait_until(KEY, || turn.load(Ordering::Relaxed) == 2 * round + me).await;
                turn.fetch_add(1, Ordering::Relaxed);
                table.wake(KEY);
            }
        }
    };
    let other = rt.spawn("other", Class::Normal, player(1));
    rt.block_on(player(0)).unwrap();
    rt.block_on(other).unwrap().unwrap();
    assert_eq!(turn.load(Ordering::Relaxed), 4_000);
}

#[test]
#[should_panic(expected = "only the holder of a lock gives it back")]
fn giving_back_a_lock_that_is_not_held_is_an_error() {
    let rt = world();
    table(&rt, Discipline::Keyed).unlock(1, &AtomicU32::new(0), LOCKED);
}

#[test]
fn a_future_may_move_to_another_waker_while_it_waits() {
    let rt = world();
    let table = table(&rt, Discipline::Keyed);
    let word = AtomicU32::new(LOCKED.mask());
    let (old, new) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
    let mut wait = pin!(table.wait_while(1, &word, LOCKED));
    assert!(poll(wait.as_mut(), &Waker::from(old.clone())).is_pending());
    assert!(poll(wait.as_mut(), &Waker::from(new.clone())).is_pending());
    table.unlock(1, &word, LOCKED);
    assert_eq!((old.0.load(Ordering::SeqCst), new.0.load(Ordering::SeqCst)), (0, 1));
    assert!(poll(wait.as_mut(), Waker::noop()).is_ready());
}

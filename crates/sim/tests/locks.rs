//! Locks that are contended: their time.

use extant_rt::{Class, Cpu, Nanos, Rt, SleepLock, SpinLock};
use extant_sim::{Machine, Preemption, Sim};
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;

const US: fn(u64) -> Nanos = Nanos::from_micros;

/// The beginning and the end of each hold.
type Log = Vec<(Nanos, Nanos)>;

fn machine(processors: usize, preemption: Preemption) -> Machine {
    let mut machine = Machine::free(processors, preemption);
    machine.processors.lock_contended = Nanos(300);
    machine
}

fn lock_wait(sim: &Sim) -> (u64, Nanos) {
    let spent = sim.spent();
    let spent = spent.iter().find(|spent| spent.key == "lock_wait_ns");
    spent.map_or((0, Nanos::ZERO), |spent| (spent.units, spent.time))
}

#[test]
fn a_taker_on_another_processor_spins_until_the_holders_time_is_over() {
    let sim = Sim::new(machine(2, Preemption::None), 1);
    let rt = sim.rt();
    let lock = Arc::new(SpinLock::new(()));
    let holds_for_10_after = |before: u64| {
        let (rt, lock) = (rt.clone(), lock.clone());
        async move {
            rt.charge(Cpu(US(before)));
            let guard = lock.lock(&rt);
            rt.charge(Cpu(US(10)));
            drop(guard);
            rt.now()
        }
    };
    let ends = rt.block_on(async {
        let a = rt.spawn("a", Class::Normal, holds_for_10_after(5));
        let b = rt.spawn("b", Class::Normal, holds_for_10_after(8));
        let ends = (a.await.unwrap(), b.await.unwrap());
        rt.sleep_until(US(100)).await;
        ends
    });
    // The first has it from 5 to 15; the second comes at 8, and begins at 15 with the transfer.
    assert_eq!(ends.unwrap(), (US(15), US(25) + Nanos(300)));
    assert_eq!(lock_wait(&sim), (1, US(7)));
    let busy: u64 = sim.stats().busy.iter().map(|busy| busy.0).sum();
    assert_eq!(Nanos(busy), US(15 + 25) + Nanos(300), "a taker spins on its own processor");
}

#[test]
fn a_hold_before_one_that_was_charged_ahead_waits_for_nothing_unless_it_lasts_into_it() {
    for (long, expected) in [(10, 11), (60, 111)] {
        let sim = Sim::new(machine(2, Preemption::None), 1);
        let rt = sim.rt();
        let lock = Arc::new(SpinLock::new(()));
        let holds = |before: u64, span: u64| {
            let (rt, lock) = (rt.clone(), lock.clone());
            async move {
                rt.charge(Cpu(US(before)));
                let guard = lock.lock(&rt);
                rt.charge(Cpu(US(span)));
                drop(guard);
                rt.now()
            }
        };
        let end = rt.block_on(async {
            let a = rt.spawn("a", Class::Normal, holds(50, 1));
            let b = rt.spawn("b", Class::Normal, holds(1, long));
            a.await.unwrap();
            b.await.unwrap()
        });
        let transfer = if long == 60 { Nanos(300) } else { Nanos::ZERO };
        assert_eq!(end.unwrap(), US(expected) + transfer, "held for {long} us");
    }
}

/// Random tasks that take the lock now and then; the holds, in the order in which they were taken.
fn random_holds(seed: u64, processors: usize, preemption: Preemption) -> (Log, Sim) {
    let sim = Sim::new(machine(processors, preemption), seed);
    let rt = sim.rt();
    let lock = Arc::new(SpinLock::new(Log::new()));
    let task = |n: u64| {
        let (rt, lock) = (rt.clone(), lock.clone());
        async move {
            let mut rng = rt.rng(&format!("task {n}"));
            for _ in 0..50 {
                rt.charge(Cpu(Nanos(rng.below(30_000))));
                let came = rt.now();
                let span = Nanos(rng.below(20_000));
                let place = {
                    let mut holds = lock.lock(&rt);
                    rt.charge(Cpu(span));
                    holds.push((Nanos::ZERO, span));
                    holds.len() - 1
                };
                let now = rt.now();
                assert!(now >= came + span, "a wait is not negative");
                lock.lock(&rt)[place].0 = now;
                if rng.below(3) == 0 {
                    rt.sleep(Nanos(rng.below(40_000))).await;
                } else {
                    rt.resched().await;
                }
            }
        }
    };
    rt.block_on(async {
        let tasks: Vec<_> = (0..6).map(|n| rt.spawn("task", Class::Normal, task(n))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    })
    .unwrap();
    let mut holds = lock.lock(rt).iter().map(|(end, span)| (*end - *span, *end)).collect::<Log>();
    holds.retain(|(from, until)| from < until);
    holds.sort();
    (holds, sim)
}

#[test]
fn holds_never_overlap_and_one_processor_never_waits() {
    for seed in 0..30 {
        for processors in 1..5 {
            for preemption in [Preemption::None, Preemption::Voluntary] {
                let (holds, sim) = random_holds(seed, processors, preemption);
                let overlaps = holds.windows(2).filter(|pair| pair[1].0 < pair[0].1).count();
                assert_eq!(overlaps, 0, "seed {seed}, {processors} processors, {preemption}");
                let (waits, time) = lock_wait(&sim);
                assert_eq!(waits == 0, processors == 1, "seed {seed}, {processors} processors: {time}");
            }
        }
    }
}

/// When a task that wants the lock at 2 ms has it, which another took at 0 for 10 ms and an urgent one interrupts at 1 ms for 20 ms.
fn taken_beside_a_preempted_holder(preemption: Preemption) -> Nanos {
    let sim = Sim::new(machine(2, preemption), 1);
    let rt = sim.rt();
    let lock = Arc::new(SleepLock::new("inode", ()));
    let spawn = |name, class, at: u64, work: fn(Rt, Arc<SleepLock<()>>) -> extant_rt::TaskFuture| {
        let (rt2, lock) = (rt.clone(), lock.clone());
        rt.spawn(name, class, async move {
            rt2.sleep_until(Nanos::from_millis(at)).await;
            work(rt2.clone(), lock).await;
            rt2.now()
        })
    };
    let taken = rt.block_on(async {
        let hog = |rt: Rt, _| -> extant_rt::TaskFuture {
            Box::pin(async move { rt.charge(Cpu(Nanos::from_millis(20))) })
        };
        let holder = spawn("holder", Class::Normal, 0, |rt, lock| {
            Box::pin(async move { lock.with(&rt, |()| rt.charge(Cpu(Nanos::from_millis(10)))).await })
        });
        // Two urgent tasks: one for each processor.
        let hogs = [spawn("hog", Class::RealTime(1), 1, hog), spawn("hog", Class::RealTime(1), 1, hog)];
        let second = spawn("taker", Class::Normal, 2, |rt, lock| {
            Box::pin(async move { lock.with(&rt, |()| ()).await })
        });
        holder.await.unwrap();
        for hog in hogs {
            hog.await.unwrap();
        }
        second.await.unwrap()
    });
    taken.unwrap()
}

#[test]
fn takers_of_a_sleeping_lock_wait_for_a_holder_that_was_preempted() {
    assert_eq!(taken_beside_a_preempted_holder(Preemption::None), Nanos::from_millis(21));
    assert_eq!(taken_beside_a_preempted_holder(Preemption::Full), Nanos::from_millis(30));
}

#[test]
fn a_sleeping_lock_that_is_free_is_no_place_to_lose_the_processor() {
    let sim = Sim::new(machine(1, Preemption::None), 1);
    let rt = sim.rt();
    let lock = Arc::new(SleepLock::new("inode", ()));
    let twice = || {
        let (rt, lock) = (rt.clone(), lock.clone());
        async move {
            for _ in 0..2 {
                rt.charge(Cpu(Nanos::from_millis(60)));
                lock.with(&rt, |()| rt.charge(Cpu(Nanos::from_millis(10)))).await;
            }
            rt.now()
        }
    };
    let ends = rt.block_on(async {
        let tasks = [(); 2].map(|()| rt.spawn("task", Class::Normal, twice()));
        let [a, b] = tasks;
        (a.await.unwrap(), b.await.unwrap())
    });
    assert_eq!(ends.unwrap(), (Nanos::from_millis(140), Nanos::from_millis(280)), "none is cut at 100 ms");
}

#[test]
fn a_sleeping_lock_goes_to_its_takers_in_order_and_past_those_that_gave_up() {
    // One gives up while it waits, or after it was handed the lock and before it heard of it.
    for gives_up in [US(100), US(2_500)] {
        let sim = Sim::new(machine(4, Preemption::None), 1);
        let rt = sim.rt();
        let lock = Arc::new(SleepLock::new("inode", Vec::new()));
        let takes = |n: u64| {
            let (rt, lock) = (rt.clone(), lock.clone());
            async move {
                rt.sleep_until(US(n)).await;
                let work = |order: &mut Vec<(u64, Nanos)>| {
                    order.push((n, rt.now()));
                    rt.charge(Cpu(Nanos::from_millis(1)));
                };
                lock.with(&rt, work).await;
            }
        };
        let order = rt.block_on(async {
            let tasks = [4, 1, 2].map(|n| rt.spawn("task", Class::Normal, takes(n)));
            rt.sleep_until(US(3)).await;
            let mut wait = Box::pin(lock.with(rt, |_| ()));
            let waits = std::future::poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_pending())).await;
            assert!(waits);
            rt.sleep_until(gives_up).await;
            drop(wait);
            for task in tasks {
                task.await.unwrap();
            }
            lock.with(rt, |order| order.clone()).await
        });
        let last = US(2_001).max(gives_up);
        assert_eq!(order.unwrap(), [(1, US(1)), (2, US(1_001)), (4, last)]);
    }
}

#[test]
fn the_real_world_has_the_same_locks() {
    let rt = Rt::real(Default::default());
    let lock = Arc::new((SpinLock::new(0), SleepLock::new("count", 0)));
    let add = || {
        let (rt, lock) = (rt.clone(), lock.clone());
        async move {
            for _ in 0..100 {
                *lock.0.lock(&rt) += 1;
                lock.1.with(&rt, |count| *count += 1).await;
                rt.yield_now().await;
            }
        }
    };
    rt.block_on(async {
        let tasks = [(); 4].map(|()| rt.spawn("adds", Class::Normal, add()));
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!((*lock.0.lock(&rt), lock.1.with(&rt, |count| *count).await), (400, 400));
    })
    .unwrap();
}

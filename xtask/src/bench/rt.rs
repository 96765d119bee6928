//! The runtime against its targets and against `parking_lot`'s condition variable, and the virtual world's speed.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a bench reads the clock and starts threads itself

use super::{Result, median};
use extant_rt::{Class, Cost, Event, Flag, Key, Nanos, RealConfig, Rt, WaitConfig, WaitTable};
use extant_sim::{Machine, Preemption, Sim};
use parking_lot::{Condvar, Mutex};
use std::future::Future;
use std::hint::black_box;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Instant;

pub(super) fn run(args: &[&str]) -> Result<()> {
    let rounds = match *args {
        [] => 7,
        ["--rounds", n] => n.parse()?,
        _ => return Err("usage: cargo xtask bench rt [--rounds N]".into()),
    };
    println!("{:<58} {:>12} {:>12} {:>7}", "medians", "measured", "target", "ratio");
    let report = |what: &str, measured: f64, unit: &str, target: f64| {
        println!("{what:<58} {measured:>9.2} {unit:<2} {target:>9.2} {unit:<2} {:>7.2}", measured / target);
    };
    let of = |bench: &dyn Fn() -> f64| median((0..rounds).map(|_| bench()).collect());
    let rt = &Rt::real(RealConfig::default());

    report("charge in the real world", of(&|| charge(rt)), "ns", 2.0);
    report("trace point, disabled", of(&|| trace(rt)), "ns", 2.0);
    println!("{:<58} {:>9.2} ns", "block_on of a future that is ready", of(&|| ready(rt)));
    println!("{:<58} {:>9.2} ns", "reading the clock", of(&|| clock(rt)));
    report("wake of a single waiter", of(&|| single_wake(rt)), "ns", 150.0);
    println!("{:<58} {:>9.2} ns", "  the same for a task of the executor", of(&|| task_wake(rt)));
    println!("{:<58} {:>9.2} ns", "wake where nobody waits", of(&|| idle_wake(rt)));
    println!("{:<58} {:>9.2} ns", "wait and wake on one thread", of(&|| wait_and_wake(rt)));

    // Side by side, alternated; more rounds, since who runs where is the scheduler's luck.
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds * 3 {
        ours.push(round_trip_table(rt));
        theirs.push(round_trip_condvar());
    }
    report("wait+wake round trip, two threads; target: condvar", median(ours), "ns", median(theirs));

    let (nanos, examined) = crowd(rt);
    report("waiters examined by a wake, 100,000 in 256 buckets", examined, "", 1.0);
    println!("{:<58} {:>9.2} ns", "  that wake takes", nanos);

    for (name, machine) in [("a free machine", free()), ("the Turion's costs", turion()?)] {
        let speeds = |which: usize| of(&|| events(machine.clone())[which] / 1e6);
        report(&format!("virtual world, 512 sleepers, {name}: events"), speeds(0), "M/s", 5.0);
        println!("{:<58} {:>9.2} M/s", "  of these, polls of a task", speeds(1));
    }
    report("virtual world, device calls", of(&|| calls() / 1e6), "M/s", 5.0);
    Ok(())
}

/// Nanoseconds for each of `n` runs of `work`.
fn each(n: u64, mut work: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..n).for_each(&mut work);
    start.elapsed().as_nanos() as f64 / n as f64
}

fn charge(rt: &Rt) -> f64 {
    each(50_000_000, |n| black_box(rt).charge(Cost::PageCopy(black_box(n))))
}

fn trace(rt: &Rt) -> f64 {
    each(50_000_000, |n| black_box(rt).trace(Event::Mark { what: "bench", number: black_box(n) }))
}

fn ready(rt: &Rt) -> f64 {
    each(5_000_000, |n| {
        let _ = black_box(rt.block_on(async { black_box(n) }));
    })
}

fn clock(rt: &Rt) -> f64 {
    each(5_000_000, |_| {
        black_box(rt.now());
    })
}

const BUSY: Flag = Flag::new(0, 1);

/// Wakes of waiters, each alone with its key in its bucket.
fn single_wake(rt: &Rt) -> f64 {
    struct Counts(AtomicU64);
    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let counts = Arc::new(Counts(AtomicU64::new(0)));
    let waker = Waker::from(counts.clone());
    let table = WaitTable::new(rt, WaitConfig { bucket_bits: 10, ..WaitConfig::new("bench") });
    let words: Vec<AtomicU32> = (0..256).map(|_| AtomicU32::new(0)).collect();
    let mut spent = 0.0;
    for _ in 0..400 {
        words.iter().for_each(|word| word.store(BUSY.mask(), Ordering::Relaxed));
        let mut waits: Vec<_> = (0..).zip(&words).map(|(n, word)| table.wait_while(n, word, BUSY)).collect();
        waits.iter_mut().for_each(|wait| assert!(poll(wait, &waker).is_pending()));
        spent += each(256, |n| table.clear(n, &words[n as usize], BUSY));
        waits.iter_mut().for_each(|wait| assert!(poll(wait, &waker).is_ready()));
    }
    assert_eq!(counts.0.load(Ordering::Relaxed), 400 * 256);
    spent / 400.0
}

/// The same with tasks of the executor, which a busy thread is about to run: what the waker of a task adds.
fn task_wake(_: &Rt) -> f64 {
    let rt = &Rt::real(RealConfig { worker_threads: Some(1), ..RealConfig::default() });
    let table = Arc::new(WaitTable::new(rt, WaitConfig { bucket_bits: 10, ..WaitConfig::new("bench") }));
    let words: Arc<[AtomicU32]> = (0..256).map(|_| AtomicU32::new(BUSY.mask())).collect();
    let tasks: Vec<_> =
        (0..256)
            .map(|n| {
                let (table, words) = (table.clone(), words.clone());
                rt.spawn("waiter", Class::Normal, async move {
                    table.wait_while(n, &words[n as usize], BUSY).await
                })
            })
            .collect();
    let waker = {
        let (rt2, table, words) = (rt.clone(), table.clone(), words.clone());
        rt.spawn("waker", Class::Normal, async move {
            while table.stats().waits < 256 {
                rt2.yield_now().await;
            }
            each(256, |n| table.clear(n, &words[n as usize], BUSY))
        })
    };
    rt.block_on(async {
        let spent = waker.await;
        for task in tasks {
            task.await.ok();
        }
        spent
    })
    .expect("it ends")
    .expect("it ends")
}

fn idle_wake(rt: &Rt) -> f64 {
    let table = WaitTable::new(rt, WaitConfig::new("bench"));
    each(5_000_000, |n| table.wake(Key::new(n)))
}

fn wait_and_wake(rt: &Rt) -> f64 {
    let table = WaitTable::new(rt, WaitConfig::new("bench"));
    let word = AtomicU32::new(0);
    each(2_000_000, |n| {
        word.store(BUSY.mask(), Ordering::Relaxed);
        let mut wait = table.wait_while(n, &word, BUSY);
        assert!(poll(&mut wait, Waker::noop()).is_pending());
        table.clear(n, &word, BUSY);
        assert!(poll(&mut wait, Waker::noop()).is_ready());
    })
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> std::task::Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

const TRIPS: u64 = 10_000;

/// Two threads take turns; a trip is there and back.
fn round_trip_table(rt: &Rt) -> f64 {
    let table = &WaitTable::new(rt, WaitConfig::new("bench"));
    let turn = &AtomicU64::new(0);
    let play = |me: u64| {
        for round in 0..TRIPS {
            let mine = || turn.load(Ordering::Acquire) == 2 * round + me;
            rt.block_on(table.wait_until(Key::new(1), mine)).expect("it ends");
            turn.fetch_add(1, Ordering::AcqRel);
            table.wake(Key::new(1));
        }
    };
    two_threads(play)
}

fn round_trip_condvar() -> f64 {
    let turn = &Mutex::new(0);
    let changed = &Condvar::new();
    let play = |me: u64| {
        for round in 0..TRIPS {
            let mut now = turn.lock();
            while *now != 2 * round + me {
                changed.wait(&mut now);
            }
            *now += 1;
            drop(now);
            changed.notify_all();
        }
    };
    two_threads(play)
}

fn two_threads(play: impl Fn(u64) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| play(0));
        play(1);
    });
    start.elapsed().as_nanos() as f64 / TRIPS as f64
}

/// Nanoseconds and waiters examined per wake among 100,000 waiters on distinct keys in 256 buckets.
fn crowd(rt: &Rt) -> (f64, f64) {
    const WAITERS: u64 = 100_000;
    let table = WaitTable::new(rt, WaitConfig::new("bench"));
    let words: Vec<AtomicU32> = (0..WAITERS).map(|_| AtomicU32::new(BUSY.mask())).collect();
    let mut waits: Vec<_> = (0..).zip(&words).map(|(n, word)| table.wait_while(n, word, BUSY)).collect();
    waits.iter_mut().for_each(|wait| assert!(poll(wait, Waker::noop()).is_pending()));
    let nanos = each(WAITERS, |n| table.clear(n, &words[n as usize], BUSY));
    (nanos, table.stats().examined as f64 / WAITERS as f64)
}

fn free() -> Machine {
    Machine::free(4, Preemption::Voluntary)
}

fn turion() -> Result<Machine> {
    Ok(Machine::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines/turion-2010.toml"))?)
}

/// Events and polls a second: 512 tasks, each sleeping and working a little, again and again.
fn events(machine: Machine) -> [f64; 2] {
    let sim = Sim::new(machine, 1);
    let rt = sim.rt();
    let start = Instant::now();
    rt.block_on(async {
        let sleeper = |n: u64| {
            let rt = rt.clone();
            async move {
                for _ in 0..2_000 {
                    rt.sleep(Nanos(1_000_000 + n * 977)).await;
                    rt.charge(Cost::Cpu(Nanos(300)));
                }
            }
        };
        let tasks: Vec<_> = (0..512).map(|n| rt.spawn("sleeper", Class::Normal, sleeper(n))).collect();
        for task in tasks {
            task.await.expect("it ends");
        }
    })
    .expect("it ends");
    let seconds = start.elapsed().as_secs_f64();
    let stats = sim.stats();
    [stats.events as f64 / seconds, stats.polls as f64 / seconds]
}

/// Calls a second of 512 modelled devices, each of which has itself called again.
fn calls() -> f64 {
    const CALLS: u64 = 2_000;
    fn tick(devices: extant_sim::DeviceClock, left: u64) {
        if left > 0 {
            let at = Nanos(devices.now().0 + 1_000 + left);
            devices.clone().call_at(at, move || tick(devices, left - 1));
        }
    }
    let sim = Sim::new(free(), 1);
    (0..512).for_each(|_| tick(sim.devices(), CALLS));
    let start = Instant::now();
    sim.rt().block_on(sim.rt().sleep(Nanos::from_secs(10))).expect("it ends");
    sim.stats().events as f64 / start.elapsed().as_secs_f64()
}

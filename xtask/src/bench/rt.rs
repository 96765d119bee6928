//! The runtime against its targets and against `parking_lot`'s condition variable, and the speed of
//! the virtual world.
// A benchmark reads the clock and starts threads itself.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use super::{Result, median};
use extant_rt::{Class, Cost, Cpu, Flag, Nanos, RealConfig, Rt, TaskEvent, WaitConfig, WaitKey, WaitTable};
use extant_sim::{Machine, Preemption, Sim};
use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::future::Future;
use std::hint::black_box;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Instant;

type Measure<'a> = Box<dyn Fn() -> f64 + 'a>;

/// A line of the report: what is measured, its unit, the measurement, and optionally what it is
/// compared with: a constant, or a measurement that alternates with ours.
type Line<'a> = (&'a str, &'a str, Measure<'a>, Option<Measure<'a>>);

fn line<'a>(what: &'a str, unit: &'a str, ours: impl Fn() -> f64 + 'a) -> Line<'a> {
    (what, unit, Box::new(ours), None)
}

fn held<'a>(line: Line<'a>, against: impl Fn() -> f64 + 'a) -> Line<'a> {
    (line.0, line.1, line.2, Some(Box::new(against)))
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let (mut rounds, mut only) = (7, "");
    for pair in args.chunks(2) {
        match *pair {
            ["--rounds", n] => rounds = n.parse()?,
            ["--only", text] => only = text,
            _ => return Err("usage: cargo xtask bench rt [--rounds N] [--only PART-OF-A-NAME]".into()),
        }
    }
    let rt = &Rt::real(RealConfig::default());
    let turion = turion()?;
    let lines = [
        held(line("charge in the real world", "ns", || charge(rt)), || 2.0),
        held(line("trace point, disabled", "ns", || trace(rt)), || 2.0),
        line("block_on of a future that is ready", "ns", || ready(rt)),
        line("reading the clock", "ns", || clock(rt)),
        held(line("wake of a single waiter", "ns", || single_wake(rt)), || 150.0),
        held(line("  the same for a task of the executor", "ns", task_wake), || 150.0),
        line("wake where nobody waits", "ns", || idle_wake(rt)),
        line("wait and wake on one thread", "ns", || wait_and_wake(rt)),
        held(line("wait+wake, on one processor; condvar", "ns", || table_trip(rt, [0, 0])), || {
            condvar_trip([0, 0])
        }),
        held(line("wait+wake, on two processors; condvar", "ns", || table_trip(rt, [0, 1])), || {
            condvar_trip([0, 1])
        }),
        held(line("waiters examined by a wake of 100,000", "", || crowd(rt).1), || 1.0),
        line("  that wake", "ns", || crowd(rt).0),
        held(line("events, 512 sleepers, free machine", "M/s", || events(free())[0]), || 5.0),
        line("  of these, polls of a task", "M/s", || events(free())[1]),
        held(line("events, 512 sleepers, the Turion's costs", "M/s", || events(turion.clone())[0]), || 5.0),
        held(line("events, 512 devices", "M/s", calls), || 5.0),
    ];
    println!("{:<44} {:>12}     {:>12}     {:>7}", "medians", "measured", "against", "ratio");
    for (what, unit, ours, against) in lines.iter().filter(|line| line.0.contains(only)) {
        let (mut measured, mut other) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            measured.push(ours());
            other.extend(against.as_ref().map(|against| against()));
        }
        let measured = median(measured);
        print!("{what:<44} {measured:>12.2} {unit:<3}");
        if against.is_some() {
            let other = median(other);
            print!(" {other:>12.2} {unit:<3} {:>7.2}", measured / other);
        }
        println!();
    }
    Ok(())
}

/// Nanoseconds per run of `work`, over `n` runs.
fn each(n: u64, mut work: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..n).for_each(&mut work);
    start.elapsed().as_nanos() as f64 / n as f64
}

fn charge(rt: &Rt) -> f64 {
    each(50_000_000, |n| black_box(rt).charge(Cost::WaitScan(black_box(n))))
}

fn trace(rt: &Rt) -> f64 {
    each(50_000_000, |n| black_box(rt).trace(TaskEvent::Woke { key: black_box(n), examined: 1, woken: 1 }))
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

/// Nanoseconds per wake of a waiter that is alone with its key in its bucket.
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

/// The same with tasks of an executor whose only thread is busy. The difference is the cost of a
/// task's waker.
fn task_wake() -> f64 {
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
    each(5_000_000, |n| table.wake(WaitKey::new(n)))
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

/// Two threads alternate; a trip is one wake in each direction.
fn table_trip(rt: &Rt, processors: [usize; 2]) -> f64 {
    let table = &WaitTable::new(rt, WaitConfig::new("bench"));
    let turn = &AtomicU64::new(0);
    let play = |me: u64| {
        for round in 0..TRIPS {
            let mine = || turn.load(Ordering::Acquire) == 2 * round + me;
            rt.block_on(table.wait_until(WaitKey::new(1), mine)).expect("it ends");
            turn.fetch_add(1, Ordering::AcqRel);
            table.wake(WaitKey::new(1));
        }
    };
    two_threads(play, processors)
}

fn condvar_trip(processors: [usize; 2]) -> f64 {
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
    two_threads(play, processors)
}

/// Nanoseconds per trip of two threads, pinned to processors; otherwise the scheduler's placement
/// would decide the result.
fn two_threads(play: impl Fn(u64) + Sync, processors: [usize; 2]) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (player, processor) in (0..).zip(processors) {
            let play = &play;
            scope.spawn(move || {
                let mut only = CpuSet::new();
                only.set(processor);
                // If a processor does not exist, the thread stays where it is.
                let _ = sched_setaffinity(None, &only);
                play(player);
            });
        }
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

/// Millions of events and of polls per second: 512 tasks that repeatedly sleep and work a little.
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
                    rt.charge(Cpu(Nanos(300)));
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
    [stats.events as f64 / seconds / 1e6, stats.polls as f64 / seconds / 1e6]
}

/// Millions of callbacks per second of 512 modelled devices, each of which reschedules itself.
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
    sim.stats().events as f64 / start.elapsed().as_secs_f64() / 1e6
}

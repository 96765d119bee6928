//! Scenarios, each run twice: the same seed must give the same trace, byte for byte; another seed,
//! a different one.

use extant_rt::trace::ChromeSink;
use extant_rt::wait::Discipline;
use extant_rt::{Class, Cpu, Flag, Nanos, Rt, Task, WaitConfig, WaitTable};
use extant_sim::{Machine, Preemption, Sim};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

extant_rt::costs! {
    /// Kernel work known only to these tests.
    enum Cost of "scenarios" {
        /// Redirtying pages that a writeback pass cannot write yet.
        PageRedirty = "page_redirty_ns",
    }
}

fn machine(name: &str) -> Machine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines").join(name);
    Machine::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

/// The trace of a scenario, in Chrome's format.
fn trace(machine: &Machine, seed: u64, scenario: fn(&Rt) -> Vec<Task<()>>) -> Vec<u8> {
    let sim = Sim::new(machine.clone(), seed);
    let sink = Arc::new(ChromeSink::new(Vec::new()));
    let rt = sim.rt();
    rt.set_sink(Some(sink.clone()));
    rt.block_on(async {
        for task in scenario(rt) {
            task.await.unwrap();
        }
    })
    .unwrap();
    rt.set_sink(None);
    sink.finish().unwrap();
    drop(sim);
    Arc::into_inner(sink).expect("the world has dropped its sink").into_inner()
}

fn repeats(scenario: fn(&Rt) -> Vec<Task<()>>) {
    for name in ["turion-2010.toml", "e3000-2004.toml"] {
        for preemption in Preemption::ALL {
            let machine = machine(name).with_preemption(preemption);
            let first = trace(&machine, 1, scenario);
            assert!(first.len() > 10_000, "{name}, {preemption}: there is something to compare");
            assert!(
                first == trace(&machine, 1, scenario),
                "{name}, {preemption}: the same seed gives the same trace"
            );
            assert!(
                first != trace(&machine, 2, scenario),
                "{name}, {preemption}: another seed gives another"
            );
            let json: serde_json::Value = serde_json::from_slice(&first).expect("the trace is JSON");
            assert!(json.as_array().is_some_and(|events| events.len() > 100));
        }
    }
}

/// Tasks of all classes that sleep, work, yield and spawn at random.
fn crowd(rt: &Rt) -> Vec<Task<()>> {
    let member = |n: u64| {
        let rt = rt.clone();
        async move {
            let mut rng = rt.rng(&format!("member {n}"));
            for _ in 0..30 {
                match rng.below(6) {
                    0 => rt.sleep(Nanos(rng.below(3_000_000))).await,
                    1 => rt.yield_now().await,
                    2 => rt.resched().await,
                    3 => rt.might_sleep().await,
                    4 => {
                        let (rt2, work) = (rt.clone(), rng.below(50_000));
                        let child =
                            rt.spawn("child", Class::Normal, async move { rt2.charge(Cpu(Nanos(work))) });
                        child.await.unwrap();
                    }
                    _ => {}
                }
                rt.charge(Cost::PageRedirty(rng.below(200)));
            }
        }
    };
    let class = |n| match n % 4 {
        0 => Class::RealTime(n as u8 + 1),
        1 => Class::Idle,
        _ => Class::Normal,
    };
    (0..20).map(|n| rt.spawn(&format!("member {n}"), class(n), member(n))).collect()
}

#[test]
fn a_crowd_repeats() {
    repeats(crowd);
}

/// cyclictest next to a task that redirties a random number of pages without yielding.
fn cyclictest_beside_redirtying(rt: &Rt) -> Vec<Task<()>> {
    let cyclictest = {
        let rt = rt.clone();
        async move {
            for n in 1..=200 {
                rt.sleep_until(Nanos::from_micros(500 * n)).await;
            }
        }
    };
    let writeback = {
        let rt = rt.clone();
        async move {
            let mut rng = rt.rng("dirty pages");
            for _ in 0..50 {
                rt.charge(Cost::PageRedirty(rng.below(2_000)));
                rt.sleep(Nanos::from_micros(300)).await;
            }
        }
    };
    vec![
        rt.spawn("cyclictest", Class::RealTime(80), cyclictest),
        rt.spawn("writeback", Class::Normal, writeback),
    ]
}

#[test]
fn cyclictest_beside_redirtying_repeats() {
    repeats(cyclictest_beside_redirtying);
}

/// Tasks that lock pages of one small table per discipline, and hold them for random times.
fn lockers(rt: &Rt) -> Vec<Task<()>> {
    const LOCKED: Flag = Flag::new(0, 1);
    let mut tasks = Vec::new();
    for discipline in [Discipline::Keyed, Discipline::Filtered, Discipline::WholeBucket] {
        let table = Arc::new(WaitTable::new(
            rt,
            WaitConfig { bucket_bits: 1, discipline, ..WaitConfig::new("pages") },
        ));
        let pages: Arc<[AtomicU32]> = (0..5).map(|_| AtomicU32::new(0)).collect();
        for n in 0..8 {
            let (rt2, table, pages) = (rt.clone(), table.clone(), pages.clone());
            let locker = async move {
                let mut rng = rt2.rng(&format!("{discipline:?} {n}"));
                for _ in 0..30 {
                    let page = rng.below(5);
                    table.lock(page, &pages[page as usize], LOCKED).await;
                    rt2.sleep(Nanos(rng.below(200_000))).await;
                    table.unlock(page, &pages[page as usize], LOCKED);
                }
            };
            tasks.push(rt.spawn(&format!("{discipline:?} {n}"), Class::Normal, locker));
        }
    }
    tasks
}

#[test]
fn lockers_repeat() {
    repeats(lockers);
}

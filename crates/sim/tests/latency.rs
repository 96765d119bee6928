//! Scheduling latency against arithmetic: cyclictest next to a task that loops for L without
//! yielding.
//!
//! A sample whose alarm falls into a loop of length L waits for the loop's end. With alarms spread
//! evenly over a cycle of C that has one loop, a fraction L/C of the samples waits, L/2 on average,
//! so the mean is L²/2C. That arithmetic explains the latency reported in the ext4 thread of March
//! 2010.

use extant_rt::{Class, Cpu, Nanos, Rt};
use extant_sim::{Machine, Preemption, Sim};

/// The figures printed by `cyclictest -i`, in nanoseconds.
#[derive(Debug)]
struct Latency {
    mean: f64,
    max: u64,
    late: usize,
    samples: usize,
}

/// Sleeps from alarm to alarm like cyclictest with absolute timers: after a delay of several
/// periods the missed alarms fire at once, each with its own lateness.
async fn cyclictest(rt: Rt, interval: Nanos, samples: usize) -> Latency {
    let mut late = Vec::with_capacity(samples);
    let mut at = rt.now();
    for _ in 0..samples {
        at += interval;
        rt.sleep_until(at).await;
        late.push((rt.now() - at).0);
    }
    Latency {
        mean: late.iter().sum::<u64>() as f64 / samples as f64,
        max: *late.iter().max().unwrap(),
        late: late.iter().filter(|late| **late > 0).count(),
        samples,
    }
}

/// Latency next to a loop of `length` in steps of `step`, once per `cycle`. A `polite` loop calls
/// `might_sleep` after each step.
fn beside_a_loop(preemption: Preemption, length: u64, step: u64, cycle: u64, polite: bool) -> Latency {
    let sim = Sim::new(Machine::free(1, preemption), 1);
    let rt = sim.rt();
    let looping = {
        let rt = rt.clone();
        async move {
            let mut start = Nanos::ZERO;
            loop {
                for _ in 0..length / step {
                    rt.charge(Cpu(Nanos(step)));
                    if polite {
                        rt.might_sleep().await;
                    }
                }
                start += Nanos(cycle);
                rt.sleep_until(start).await;
            }
        }
    };
    drop(rt.spawn("loop", Class::Normal, looping));
    let test = rt.spawn(
        "cyclictest",
        Class::RealTime(80),
        cyclictest(rt.clone(), Nanos::from_micros(5_000), 20_000),
    );
    rt.block_on(test).unwrap().unwrap()
}

const US: u64 = 1_000;
const L: u64 = 70_000 * US;
/// A cycle of 50 intervals plus a golden section of one, so that alarms hit it evenly everywhere.
const C: u64 = 253_090 * US + 170;
/// L²/2C.
const MEAN: f64 = (L as f64) * (L as f64) / (2.0 * C as f64);

#[track_caller]
fn assert_near(measured: f64, expected: f64, within: f64) {
    let off = (measured / expected - 1.0).abs();
    assert!(off <= within, "measured {measured}, expected {expected}: {:.2} % off", off * 100.0);
}

#[test]
fn without_preemption_the_mean_is_the_loops_length_squared_over_twice_the_cycle() {
    for (mode, polite) in
        [(Preemption::None, false), (Preemption::None, true), (Preemption::Voluntary, false)]
    {
        let seen = beside_a_loop(mode, L, L / 1_000, C, polite);
        assert_near(seen.mean, MEAN, 0.01);
        assert_near(seen.late as f64 / seen.samples as f64, L as f64 / C as f64, 0.01);
        assert!(seen.max <= L && seen.max > L - 5_000 * US / 10, "{mode}: {seen:?}");
    }
}

#[test]
fn with_voluntary_preemption_a_loop_that_might_sleep_delays_by_one_step_at_most() {
    let step = L / 1_000;
    let seen = beside_a_loop(Preemption::Voluntary, L, step, C, true);
    // The same formula, for a thousand loops of one step per cycle.
    let expected = 1_000.0 * (step as f64) * (step as f64) / (2.0 * C as f64);
    assert_near(seen.mean, expected, 0.03);
    assert!(seen.max <= step, "{seen:?}");
}

#[test]
fn with_full_preemption_nothing_delays() {
    for polite in [false, true] {
        let seen = beside_a_loop(Preemption::Full, L, L / 1_000, C, polite);
        assert_eq!((seen.max, seen.late), (0, 0));
    }
}

#[test]
fn the_mean_follows_the_square_of_the_length() {
    let mean = |length| beside_a_loop(Preemption::None, length, length, C, false).mean;
    assert_near(mean(L) / mean(L / 2), 4.0, 0.02);
    assert_near(mean(L / 2) / mean(L / 4), 4.0, 0.02);
}

/// Writeback pass of 2.6.33 over 32,768 dirty pages: round k maps 2,048 blocks and redirties the
/// rest (the mechanism described in the thread).
#[test]
fn the_rounds_of_one_writeback_pass_add_up() {
    let sim = Sim::new(Machine::free(1, Preemption::Voluntary), 1);
    let rt = sim.rt();
    let period = Nanos(3_728_090_170); // 128 MiB at 36 MB/s
    let redirty = 2_295; // ns per page: 70.5 ms for 30,720 pages
    let writeback = {
        let rt = rt.clone();
        async move {
            let mut start = Nanos::ZERO;
            loop {
                for round in 1..16 {
                    let pages = 32_768 - 2_048 * round;
                    rt.charge(Cpu(Nanos(pages * redirty)));
                    rt.might_sleep().await;
                    rt.sleep(Nanos::from_millis(130)).await;
                }
                start += period;
                rt.sleep_until(start).await;
            }
        }
    };
    drop(rt.spawn("writeback", Class::Normal, writeback));
    let test =
        rt.spawn("cyclictest", Class::RealTime(80), cyclictest(rt.clone(), Nanos::from_millis(5), 100_000));
    let seen = rt.block_on(test).unwrap().unwrap();
    let sum: f64 = (1..16).map(|round| ((32_768 - 2_048 * round) * redirty) as f64).map(|l| l * l).sum();
    assert_near(seen.mean, sum / (2.0 * period.0 as f64), 0.05);
    assert!(seen.max as f64 > 0.93 * 70.5e6 && seen.max as f64 <= 70.51e6, "{seen:?}");
}

//! Tests of the state machine alone: which task runs where, and when.

use super::*;
use crate::machine::{Machine, Preemption, Wakeup};
use extant_rt::Rng;

const TICK: Nanos = Nanos::from_millis(1);
const MS: fn(u64) -> Nanos = Nanos::from_millis;

fn processors(count: usize, preemption: Preemption) -> Processors {
    let mut processors = Machine::free(count, preemption).processors;
    processors.run_queues = RunQueues::PerProcessor;
    processors
}

/// What a task does in one poll.
#[derive(Clone)]
struct Act {
    /// Processor time.
    charge: Nanos,
    /// The tasks that it wakes at the end of the charge.
    wakes: Vec<usize>,
    /// `Some` if it wakes itself; true if at a preemption point.
    again: Option<bool>,
    ends: bool,
}

fn waits(charge: Nanos) -> Act {
    Act { charge, wakes: Vec::new(), again: None, ends: false }
}

struct Bench {
    core: Core,
    ids: Vec<TaskId>,
    /// Time, task and processor of each poll.
    polls: Vec<(Nanos, usize, u32)>,
    charged: Nanos,
}

impl Bench {
    fn new(model: Processors, classes: &[Class]) -> Self {
        let mut core = Core::new(model, TICK, Tracer::default());
        let add = |class: &Class| core.add("task", *class, None, |_| Waker::noop().clone());
        let ids = classes.iter().map(add).collect();
        Self { core, ids, polls: Vec::new(), charged: Nanos::ZERO }
    }

    /// Wakes a task at `at` from processor `waker`.
    fn wake(&mut self, task: usize, at: Nanos, waker: u32) {
        self.core.wake(self.ids[task], at, waker);
    }

    /// Runs until no event is left. `act` decides what each poll does; `see` inspects every state.
    fn run(&mut self, mut act: impl FnMut(usize, Nanos) -> Act, mut see: impl FnMut(&Core)) {
        loop {
            let step = self.core.advance();
            see(&self.core);
            let (id, processor) = match step {
                None => continue,
                Some(Step::Poll { id, processor }) => (id, processor),
                Some(_) => return,
            };
            let task = self.ids.iter().position(|other| *other == id).unwrap();
            let now = self.core.now;
            self.polls.push((now, task, processor));
            self.core.lend(id);
            let Act { charge, wakes, again, ends } = act(task, now);
            let end = now + charge;
            self.charged += charge;
            for other in wakes {
                if self.core.can_be_woken(self.ids[other]) {
                    self.core.stats.wakes += 1;
                    self.core.wake(self.ids[other], end, processor);
                }
            }
            if let Some(offers) = again {
                self.core.wake(id, now, processor);
                if offers {
                    // If no other task wants the processor, a real task would continue without a
                    // new poll; the result is the same.
                    self.core.offers(id, end, Nanos::from_secs(10));
                    self.core.task(id.index).offered = true;
                }
            }
            self.core.polled(id, None, if ends { After::End } else { After::Wait }, end);
        }
    }

    /// Runs tasks whose polls charge the listed milliseconds, and which then wait forever.
    fn run_lists(&mut self, lists: &[&[u64]]) {
        let mut next = vec![0; lists.len()];
        self.run(
            |task, _| {
                let charge = MS(lists[task].get(next[task]).copied().unwrap_or(0));
                next[task] += 1;
                waits(charge)
            },
            |_| {},
        );
    }
}

/// The polls, with times in milliseconds.
fn in_ms(bench: &Bench) -> Vec<(u64, usize, u32)> {
    bench.polls.iter().map(|(at, task, number)| (at.0 / 1_000_000, *task, *number)).collect()
}

#[test]
fn between_two_busy_processors_a_woken_task_follows_its_waker_once_its_caches_are_cold() {
    for (sleep_us, expected) in [(2_400, 1), (2_600, 2)] {
        let mut bench = Bench::new(processors(3, Preemption::None), &[Class::Normal; 4]);
        for (task, number) in [(0, 1), (1, 1), (2, 2), (3, 0)] {
            bench.wake(task, Nanos(task as u64), number);
        }
        bench.wake(0, MS(10) + Nanos::from_micros(sleep_us), 2);
        let mut queued_at = None;
        bench.run(
            |task, _| waits(MS(if task == 0 { 10 } else { 90 })),
            |core| {
                let task = core.tasks[0].as_ref().unwrap();
                if core.now > MS(11) && task.state == State::Queued {
                    queued_at.get_or_insert(task.processor);
                }
            },
        );
        assert_eq!(queued_at, Some(expected), "asleep for {sleep_us} us");
    }
}

#[test]
fn a_task_that_is_woken_by_an_idle_processor_runs_there() {
    let mut bench = Bench::new(processors(4, Preemption::None), &[Class::Normal]);
    bench.wake(0, Nanos::ZERO, 1);
    bench.wake(0, MS(100), 2);
    bench.run_lists(&[&[10, 1]]);
    assert_eq!(in_ms(&bench), [(0, 0, 1), (100, 0, 2)]);
    assert_eq!(bench.core.stats.migrations, 1);
}

#[test]
fn without_affine_wake_ups_a_task_stays_where_it_ran() {
    let mut model = processors(4, Preemption::None);
    model.wake_affine = false;
    let mut bench = Bench::new(model, &[Class::Normal]);
    bench.wake(0, Nanos::ZERO, 1);
    bench.wake(0, MS(100), 2);
    bench.run_lists(&[&[10, 1]]);
    assert_eq!(in_ms(&bench), [(0, 0, 1), (100, 0, 1)]);
}

#[test]
fn a_woken_task_is_not_taken_from_an_idle_processor_to_a_busy_one() {
    let mut bench = Bench::new(processors(3, Preemption::None), &[Class::Normal; 2]);
    bench.wake(0, Nanos::ZERO, 1);
    bench.wake(1, Nanos::ZERO, 2);
    bench.wake(0, MS(50), 2);
    bench.run_lists(&[&[10, 5], &[100]]);
    assert_eq!(in_ms(&bench), [(0, 0, 1), (0, 1, 2), (50, 0, 1)]);
}

#[test]
fn a_woken_task_waits_for_its_processor_while_another_is_idle_until_that_looks() {
    let mut bench = Bench::new(processors(2, Preemption::None), &[Class::Normal; 2]);
    bench.wake(0, Nanos::ZERO, 0);
    bench.wake(1, MS(1), 0);
    bench.run_lists(&[&[100], &[10]]);
    let (at, task, number) = bench.polls[1];
    assert_eq!((task, number), (1, 1), "the idle one takes it");
    assert!(at > MS(1) && at <= MS(12), "at a tick: {at}");
    assert_eq!(bench.core.stats.pulled, 1);
    assert_eq!(bench.core.stats.idle_exits, 2);
}

#[test]
fn a_shared_queue_gives_a_woken_task_to_any_idle_processor_at_once() {
    let mut model = processors(2, Preemption::None);
    model.run_queues = RunQueues::Shared;
    let mut bench = Bench::new(model, &[Class::Normal; 2]);
    bench.wake(0, Nanos::ZERO, 0);
    bench.wake(1, MS(1), 0);
    bench.run_lists(&[&[100], &[10]]);
    assert_eq!(in_ms(&bench), [(0, 0, 0), (1, 1, 1)]);
    assert_eq!((bench.core.stats.pulled, bench.core.stats.idle_exits), (0, 2));
}

#[test]
fn a_processor_that_runs_out_of_work_takes_a_task_that_has_waited_and_was_never_idle() {
    // When processor 1 runs out of work, task 2 has waited 9 ms, and task 3 for less than caches
    // stay warm.
    let mut bench = Bench::new(processors(2, Preemption::None), &[Class::Normal; 4]);
    bench.wake(0, Nanos::ZERO, 0);
    bench.wake(1, Nanos::ZERO, 1);
    bench.wake(2, MS(1), 0);
    bench.wake(3, MS(9), 0);
    bench.run_lists(&[&[100], &[10], &[100], &[5]]);
    assert_eq!(bench.polls[2], (MS(10), 2, 1));
    assert_eq!(
        bench.core.stats.idle_exits, 2,
        "neither task 2's nor task 3's turn began on an idle processor"
    );
}

#[test]
fn a_migration_is_paid_once_and_by_the_processor_that_runs_the_task() {
    let mut model = processors(4, Preemption::None);
    model.migration = Nanos(7_000);
    let mut bench = Bench::new(model, &[Class::Normal]);
    bench.wake(0, Nanos::ZERO, 1);
    bench.wake(0, MS(100), 2);
    bench.wake(0, MS(200), 2);
    bench.run_lists(&[&[1, 1, 1]]);
    assert_eq!(bench.polls.iter().map(|poll| poll.2).collect::<Vec<_>>(), [1, 2, 2]);
    assert_eq!(bench.polls[1].0, MS(100) + Nanos(7_000));
    assert_eq!(bench.polls[2].0, MS(200));
    assert_eq!(bench.core.stats.migrations, 1);
    assert_eq!(bench.core.busy(), [Nanos::ZERO, MS(1), MS(2) + Nanos(7_000), Nanos::ZERO]);
}

/// The time at which a task that slept gets to run. It is woken 10 ms into another task's 30 ms of
/// work, which has a preemption point at 20 ms.
fn sleepers_turn(preemption: Preemption, wakeup: Wakeup) -> Nanos {
    let mut model = processors(1, preemption);
    model.wakeup = wakeup;
    let mut bench = Bench::new(model, &[Class::Normal; 2]);
    bench.wake(0, MS(500), 0);
    bench.wake(1, MS(1000), 0);
    bench.wake(0, MS(1010), 0);
    let mut polls = 0;
    bench.run(
        |task, _| match task {
            0 => waits(MS(1)),
            _ => {
                polls += 1;
                let again = (polls == 1).then_some(true);
                Act { again, ..waits(MS(if polls == 1 { 20 } else { 10 })) }
            }
        },
        |_| {},
    );
    bench.polls.iter().filter(|poll| poll.1 == 0).nth(1).unwrap().0
}

#[test]
fn a_better_priority_takes_the_processor_as_the_preemption_mode_lets_it() {
    // The tasks slept for 1 s and 0.5 s. Sleep only counts until a task is interactive, so they are
    // equals.
    for preemption in Preemption::ALL {
        assert_eq!(sleepers_turn(preemption, Wakeup::None), MS(1030), "{preemption}");
        assert_eq!(sleepers_turn(preemption, Wakeup::O1), MS(1030), "{preemption}: equals");
    }
    for (preemption, expected) in
        [(Preemption::None, 320), (Preemption::Voluntary, 320), (Preemption::Full, 310)]
    {
        let mut model = processors(1, preemption);
        model.wakeup = Wakeup::O1;
        let mut bench = Bench::new(model, &[Class::Normal; 2]);
        // Task 1 runs from the start; task 0 sleeps and wakes at 310 ms.
        bench.wake(1, Nanos::ZERO, 0);
        bench.wake(0, MS(310), 0);
        bench.run(
            |task, now| match task {
                0 => waits(MS(1)),
                _ if now < MS(400) => Act { again: Some(true), ..waits(MS(20)) },
                _ => waits(MS(1)),
            },
            |_| {},
        );
        let turn = bench.polls.iter().find(|poll| poll.1 == 0).unwrap().0;
        assert_eq!(turn, MS(expected), "{preemption}");
    }
}

#[test]
fn a_task_that_used_up_its_slice_waits_for_the_round_to_end() {
    let mut model = processors(1, Preemption::None);
    model.wakeup = Wakeup::O1;
    let mut bench = Bench::new(model, &[Class::Normal; 2]);
    // Task 1 has slept 50 ms, which improves it by 5. It is still better than task 0 after running
    // for a slice.
    bench.wake(0, Nanos::ZERO, 0);
    bench.wake(1, MS(50), 0);
    let mut left = [7, 7];
    bench.run(
        |task, _| {
            left[task] -= 1;
            Act { again: (left[task] > 0).then_some(true), ..waits(MS(20)) }
        },
        |_| {},
    );
    let order: Vec<usize> = bench.polls.iter().map(|poll| poll.1).collect();
    assert_eq!(order, [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0]);
}

#[test]
fn each_turn_of_equals_lasts_a_slice_however_often_they_offer_their_processor() {
    let mut model = processors(1, Preemption::None);
    model.wakeup = Wakeup::O1;
    let mut bench = Bench::new(model, &[Class::Normal; 2]);
    bench.wake(0, Nanos::ZERO, 0);
    bench.wake(1, Nanos::ZERO, 0);
    let mut left = [15, 15];
    bench.run(
        |task, _| {
            left[task] -= 1;
            Act { again: (left[task] > 0).then_some(true), ..waits(MS(20)) }
        },
        |_| {},
    );
    let turns = bench.polls.chunk_by(|a, b| a.1 == b.1).map(|turn| turn.len());
    assert_eq!(turns.collect::<Vec<_>>(), [5; 6]);
}

#[test]
fn real_time_stays_above_dynamic_priorities_on_its_own_processor_only() {
    let mut model = processors(2, Preemption::Full);
    model.wakeup = Wakeup::O1;
    let mut bench = Bench::new(model, &[Class::Normal, Class::RealTime(1), Class::Idle]);
    bench.wake(0, Nanos::ZERO, 0);
    bench.wake(1, MS(5), 0);
    bench.wake(2, MS(5), 0);
    bench.run_lists(&[&[10], &[1], &[1]]);
    assert_eq!(in_ms(&bench)[..2], [(0, 0, 0), (5, 1, 0)]);
}

/// Random tasks on a random machine. Returns each poll and the stats, for comparison.
fn random_run(seed: u64, run_queues: RunQueues) -> (Vec<(Nanos, usize, u32)>, Stats) {
    let mut rng = Rng::labelled(seed, "machine");
    let count = 1 + rng.below(6) as usize;
    let preemption = Preemption::ALL[rng.below(3) as usize];
    let mut model = processors(count, preemption);
    model.run_queues = run_queues;
    model.wakeup = match (run_queues, rng.below(2)) {
        (RunQueues::PerProcessor, 0) => Wakeup::O1,
        _ => Wakeup::None,
    };
    model.timeslice = MS(1 + rng.below(20));
    model.context_switch = Nanos(rng.below(20_000));
    model.idle_exit = Nanos(rng.below(5_000));
    model.migration = Nanos(rng.below(50_000));
    let about = format!("seed {seed}: {model:?}");
    let tasks = 1 + rng.below(4 * count as u64 + 4) as usize;
    let mut class = || match rng.below(12) {
        0 => Class::Idle,
        1 => Class::RealTime(rng.below(3) as u8),
        _ => Class::Normal,
    };
    let classes: Vec<Class> = (0..tasks).map(|_| class()).collect();
    let mut bench = Bench::new(model.clone(), &classes);
    for task in 0..tasks {
        bench.wake(task, Nanos::from_micros(rng.below(20_000)), rng.below(count as u64) as u32);
        // Some wake-ups come from outside any task, as from an interrupt.
        for _ in 0..20 {
            bench.wake(task, Nanos::from_micros(rng.below(2_000_000)), 0);
        }
    }
    let mut polls_left = 3_000;
    // For each pair of processors, since when the first has been idle while the second had a
    // running and a queued task.
    let mut idle_beside: Vec<Option<Nanos>> = vec![None; count * count];
    // The bound is the longest interval between attempts, plus the ticks until the load average
    // shows two tasks, plus one attempt that spares hot tasks.
    let bound = MS(4 + 3 + 2);
    bench.run(
        |_, _| {
            polls_left -= 1;
            if polls_left < 0 {
                return Act { ends: true, ..waits(Nanos::ZERO) };
            }
            let short = rng.below(3) > 0;
            let charge = Nanos(1 + rng.below(if short { 100_000 } else { 8_000_000 }));
            let wakes = (0..rng.below(3)).map(|_| rng.below(tasks as u64) as usize).collect();
            let again = (rng.below(3) == 0).then(|| rng.below(2) == 0);
            Act { charge, wakes, again, ends: false }
        },
        |core| {
            let in_queue = core.queues.iter().map(TaskQueue::len).sum::<usize>();
            assert_eq!(core.queued, in_queue, "{about}");
            for (pair, since) in idle_beside.iter_mut().enumerate() {
                let (number, other) = (pair / count, pair % count);
                let is_idle = core.processors[number].phase == Phase::Idle;
                if run_queues == RunQueues::Shared {
                    assert!(
                        !is_idle || in_queue == 0,
                        "{about}: {number} idles with a ready task, {}",
                        core.now
                    );
                    continue;
                }
                if let Some(since) = *since {
                    let span = core.now - since;
                    assert!(
                        span <= bound,
                        "{about}: {number} idle for {span} beside {other} at {}",
                        core.now
                    );
                }
                let is_beside = is_idle && core.queues[other].len() > 0;
                *since = since.or(Some(core.now)).filter(|_| is_beside);
            }
        },
    );
    let stats = Stats { busy: bench.core.busy(), ..bench.core.stats.clone() };
    let busy: u64 = stats.busy.iter().map(|busy| busy.0).sum();
    let costs = model.context_switch.0 * stats.switches
        + model.migration.0 * stats.migrations
        + model.idle_exit.0 * stats.idle_exits;
    if preemption == Preemption::Full {
        // An interrupted switch costs less.
        assert!((bench.charged.0..=bench.charged.0 + costs).contains(&busy), "{about}");
    } else {
        assert_eq!(busy, bench.charged.0 + costs, "{about}");
    }
    (bench.polls, stats)
}

#[test]
fn no_processor_idles_for_long_beside_work_and_no_time_is_lost_on_random_machines() {
    for seed in 0..200 {
        for run_queues in [RunQueues::PerProcessor, RunQueues::Shared] {
            let first = random_run(seed, run_queues);
            assert!(first == random_run(seed, run_queues), "seed {seed}: another run, another result");
        }
    }
}

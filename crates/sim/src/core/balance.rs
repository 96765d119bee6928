//! Load balancing between per-processor run queues: where a woken task goes, and when a processor
//! pulls tasks from another.
//!
//! The rules are those of Linux 2.6 with scheduling domains (kernel/sched.c of 2.6.7, in -mm from
//! early 2004: `try_to_wake_up`, `find_busiest_group`, `load_balance`, `load_balance_newidle`,
//! `rebalance_tick`, `can_migrate_task`), for one domain of processors that share nothing
//! (`SD_CPU_INIT`). Left out: the time that balancing itself takes, pushing a running task away
//! (`active_load_balance`), balancing at `exec`, affinities, siblings of a core (`wake_idle`) and
//! nodes. A new task starts on its parent's processor.

use super::queue_of_tasks::Rank;
use super::{Core, Happening, Phase};
use crate::machine::{Preemption, RunQueues, Wakeup};
use extant_rt::{Class, Nanos};

/// Load of one task (kernel: `SCHED_LOAD_SCALE`).
const ONE: u64 = 128;
/// Load ratio in percent above which two processors are out of balance (`imbalance_pct`).
const IMBALANCE_PERCENT: u64 = 125;
/// Load ratio in percent from which a woken task follows its waker despite warm caches:
/// [`IMBALANCE_PERCENT`] plus half its excess over 100.
const WAKE_PERCENT: u64 = IMBALANCE_PERCENT + (IMBALANCE_PERCENT - 100) / 2;
/// A task that ran or was queued less than this long ago is cache-hot on its processor
/// (`cache_hot_time`).
const HOT: Nanos = Nanos(2_500_000);
/// Failed attempts before cache-hot tasks may be pulled too (`cache_nice_tries`).
const NICE_TRIES: u32 = 1;
/// Minimum and maximum milliseconds between attempts of an idle processor (`min_interval`,
/// `max_interval`).
const INTERVAL_MS: (u64, u64) = (1, 4);
/// A busy processor waits this many times longer (`busy_factor`).
const BUSY_FACTOR: u64 = 64;

/// When a processor looks for tasks to pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// At a tick, while it runs a task.
    Busy,
    /// At a tick, while it is idle.
    Idle,
    /// It is about to become idle.
    NewlyIdle,
}

/// A processor's load average and balancing state.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    /// Moving average of runnable tasks, times [`ONE`], up to `load_tick` (`cpu_load`).
    load: u64,
    load_tick: u64,
    last_tick: u64,
    interval_ms: u64,
    failed: u32,
    /// When the pending balance event fires.
    armed: Option<Nanos>,
    turn: u32,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            load: 0,
            load_tick: 0,
            last_tick: 0,
            interval_ms: INTERVAL_MS.0,
            failed: 0,
            armed: None,
            turn: 0,
        }
    }
}

/// Whether a woken task moves to its waker's processor. `load` is a lower bound for its own
/// processor's load, `waker_load` an upper bound for the waker's.
fn follows_waker(load: u64, waker_load: u64, is_hot: bool) -> bool {
    let from_idle_to_busy = load < ONE / 2 && waker_load > ONE / 2;
    !from_idle_to_busy && (!is_hot || WAKE_PERCENT * waker_load <= 100 * load)
}

/// How many tasks a processor with load `this` should pull from the busiest other one; `None` if in
/// balance. `busiest` is that processor's load, `total` the load of all processors including
/// `this`, and `count` their number.
fn imbalance(this: u64, busiest: u64, total: u64, count: u64, occasion: Occasion) -> Option<usize> {
    let wanted = || {
        let average = total / count;
        if this >= busiest || this >= average || 100 * busiest <= IMBALANCE_PERCENT * this {
            return None;
        }
        let move_load = (busiest - average).min(average - this);
        if move_load >= ONE - 1 {
            return Some(((move_load + 1) / ONE) as usize);
        }
        if busiest - this >= 2 * ONE {
            return Some(1);
        }
        // Move one task only if processor use rises by at least an eighth of a processor.
        let before = busiest.min(ONE) + this.min(ONE);
        let after = busiest.saturating_sub(ONE).min(ONE) + (this + busiest.min(ONE)).min(ONE);
        (after >= before + ONE / 8).then_some(1)
    };
    let any = occasion == Occasion::NewlyIdle || (occasion == Occasion::Idle && busiest > ONE);
    wanted().or((busiest > 0 && any).then_some(1))
}

impl Core {
    pub(super) fn is_per_processor(&self) -> bool {
        self.model.run_queues == RunQueues::PerProcessor
    }

    pub(super) fn is_idle(&self, number: u32) -> bool {
        self.processors[number as usize].phase == Phase::Idle
    }

    /// Offset of this processor's tick; ticks are spread evenly over a tick's length.
    fn tick_offset(&self, number: u32) -> u64 {
        self.tick.0 * u64::from(number) / self.processors.len() as u64
    }

    fn tick_number(&self, number: u32) -> u64 {
        (self.now.0 + self.tick_offset(number)) / self.tick.0
    }

    fn can_run(&self, number: u32) -> u64 {
        self.queues[number as usize].len() as u64 + u64::from(!self.is_idle(number))
    }

    /// Updates a processor's load average. Must be called before its number of tasks changes.
    pub(super) fn note_load(&mut self, number: u32) {
        if !self.is_per_processor() {
            return;
        }
        let (tick, tasks) = (self.tick_number(number), self.can_run(number) * ONE);
        let balance = &mut self.processors[number as usize].balance;
        for _ in balance.load_tick..tick {
            let next = (balance.load + tasks) / 2;
            if next == balance.load {
                break;
            }
            balance.load = next;
        }
        balance.load_tick = tick;
    }

    /// Lower and upper bounds of this processor's load.
    fn load_between(&mut self, number: u32) -> (u64, u64) {
        self.note_load(number);
        let (average, tasks) = (self.processors[number as usize].balance.load, self.can_run(number) * ONE);
        (average.min(tasks), average.max(tasks))
    }

    /// The processor on which a woken task should run.
    pub(super) fn place(&mut self, index: u32, waker: u32) -> u32 {
        let (now, is_affine) = (self.now, self.model.wake_affine);
        let task = self.task(index);
        let (last, is_hot) = (task.processor, now - task.slept_at < HOT);
        match task.ran_on {
            None => waker,
            Some(_) if last == waker || !is_affine => last,
            Some(_) => {
                let (load, waker_load) = (self.load_between(last).0, self.load_between(waker).1);
                if follows_waker(load, waker_load, is_hot) { waker } else { last }
            }
        }
    }

    /// Pulls tasks from the busiest processor if the imbalance is large enough. Returns how many,
    /// `None` if the loads are in balance.
    fn pull(&mut self, number: u32, occasion: Occasion) -> Option<usize> {
        let this = self.load_between(number).1;
        let (mut total, mut busiest) = (this, (0, number));
        for other in (0..self.processors.len() as u32).filter(|other| *other != number) {
            let load = self.load_between(other).0;
            total += load;
            if load > busiest.0 {
                busiest = (load, other);
            }
        }
        let (busiest_load, from) = busiest;
        let count = imbalance(this, busiest_load, total, self.processors.len() as u64, occasion)?;
        let spares_hot =
            occasion == Occasion::NewlyIdle || self.processors[number as usize].balance.failed < NICE_TRIES;
        let now = self.now;
        let movable = |index: &u32| {
            let task = self.tasks[*index as usize].as_ref();
            task.is_some_and(|task| !spares_hot || now - task.ready_at >= HOT)
        };
        let found: Vec<u32> = self.queues[from as usize].to_take().filter(movable).take(count).collect();
        for &index in &found {
            self.note_load(from);
            let (old_round, new_round) =
                (self.queues[from as usize].round(), self.queues[number as usize].round());
            self.queues[from as usize].remove(index);
            self.queued -= 1;
            self.stats.pulled += 1;
            let task = self.task(index);
            task.processor = number;
            task.rank.0 = new_round + u64::from(task.rank.0 > old_round);
            self.enqueue(index, false);
        }
        Some(found.len())
    }

    /// Pulls a task into the queue of a processor that is about to become idle, if another has one
    /// to spare.
    pub(super) fn pull_before_idle(&mut self, number: u32) {
        if self.is_per_processor() && self.queued > 0 {
            self.pull(number, Occasion::NewlyIdle);
        }
    }

    fn interval_ticks(&self, number: u32) -> u64 {
        let factor = if self.is_idle(number) { 1 } else { BUSY_FACTOR };
        let span = self.processors[number as usize].balance.interval_ms * factor * 1_000_000;
        span.div_ceil(self.tick.0).max(1)
    }

    /// Arms the processor's next balancing tick. While no task is queued anywhere none is armed:
    /// such a tick would only find balance and lengthen the interval.
    pub(super) fn arm_balance(&mut self, number: u32) {
        if !self.is_per_processor() || self.processors.len() == 1 {
            return;
        }
        if self.processors[number as usize].balance.armed.is_none() {
            if self.queued == 0 {
                return;
            }
            let (tick, interval) = (self.tick_number(number), self.interval_ticks(number));
            let balance = &mut self.processors[number as usize].balance;
            let skipped = tick.saturating_sub(balance.last_tick) / interval;
            balance.last_tick += skipped * interval;
            for _ in 0..skipped.min(2) {
                balance.interval_ms = (balance.interval_ms * 2).min(INTERVAL_MS.1);
            }
        }
        self.push_balance(number);
    }

    fn push_balance(&mut self, number: u32) {
        let interval = self.interval_ticks(number);
        let next = self.tick_number(number) + 1;
        let due = (self.processors[number as usize].balance.last_tick + interval).max(next);
        let at = Nanos(due * self.tick.0 - self.tick_offset(number));
        let balance = &mut self.processors[number as usize].balance;
        if balance.armed.is_none_or(|armed| at < armed) {
            self.armed += usize::from(balance.armed.is_none());
            balance.armed = Some(at);
            balance.turn = balance.turn.wrapping_add(1);
            let turn = balance.turn;
            self.events.push(at, Happening::Balance { number, turn });
        }
    }

    pub(super) fn arm_all_balances(&mut self) {
        if self.is_per_processor() && self.armed < self.processors.len() {
            (0..self.processors.len() as u32).for_each(|number| self.arm_balance(number));
        }
    }

    /// Consumes a balance event; returns whether to handle it.
    pub(super) fn balance_is_due(&mut self, number: u32, turn: u32) -> bool {
        let nothing_waits = self.queued == 0;
        let balance = &mut self.processors[number as usize].balance;
        if balance.turn != turn {
            return false;
        }
        balance.armed = None;
        self.armed -= 1;
        !nothing_waits
    }

    /// Balances at a processor's tick, if its interval has passed.
    pub(super) fn balance_tick(&mut self, number: u32) {
        let (tick, interval) = (self.tick_number(number), self.interval_ticks(number));
        let is_idle = self.is_idle(number);
        if tick >= self.processors[number as usize].balance.last_tick + interval {
            let moved = self.pull(number, if is_idle { Occasion::Idle } else { Occasion::Busy });
            let balance = &mut self.processors[number as usize].balance;
            balance.last_tick += interval;
            balance.interval_ms = match moved {
                None => (balance.interval_ms * 2).min(INTERVAL_MS.1),
                Some(_) => INTERVAL_MS.0,
            };
            balance.failed = match moved {
                None => balance.failed,
                // The kernel would start to push running tasks here, and resets its count. This
                // model only resets the count.
                Some(0) if balance.failed > NICE_TRIES + 1 => NICE_TRIES,
                Some(0) => balance.failed + 1,
                Some(_) => 0,
            };
        }
        if self.queued > 0 {
            self.push_balance(number);
        }
        if !is_idle {
            if self.model.preemption == Preemption::Full {
                self.preempt_on(number);
            }
        } else if let Some(index) = self.take_most_urgent(number) {
            self.stats.idle_exits += 1;
            let delay = self.model.idle_exit;
            self.assign(number, index, delay);
        }
    }

    /// A normal task's rank; `None` unless priorities are dynamic.
    pub(super) fn rank_of(&self, index: u32) -> Option<Rank> {
        let task = self.tasks[index as usize].as_ref()?;
        (self.model.wakeup == Wakeup::O1 && task.class == Class::Normal).then_some(task.rank)
    }
}

//! Queues for each processor: where a woken task goes, and when a processor takes tasks from another.
//!
//! The rules are those of Linux 2.6 with scheduling domains (kernel/sched.c of 2.6.7, in -mm from early 2004: `try_to_wake_up`,
//! `find_busiest_group`, `load_balance`, `load_balance_newidle`, `rebalance_tick`, `can_migrate_task`), for one domain of
//! processors that share nothing (`SD_CPU_INIT`). Left out: the time that balancing itself takes, pushing a running task away
//! (`active_load_balance`), balancing at `exec`, affinities, siblings of a core (`wake_idle`) and nodes. A task's first
//! processor is that of the task which spawned it.

use super::queue_of_tasks::Rank;
use super::{Core, Happening, Phase};
use crate::machine::{Preemption, RunQueues, Wakeup};
use extant_rt::{Class, Nanos};

/// One task (kernel: `SCHED_LOAD_SCALE`).
const ONE: u64 = 128;
/// Percent of another's load that are out of balance (`imbalance_pct`).
const IMBALANCE_PERCENT: u64 = 125;
/// Percent at which a woken task follows its waker though its caches are warm: half the way further.
const WAKE_PERCENT: u64 = IMBALANCE_PERCENT + (IMBALANCE_PERCENT - 100) / 2;
/// As long as this after it ran or was queued, a task's processor has its data cached (`cache_hot_time`).
const HOT: Nanos = Nanos(2_500_000);
/// Attempts that spare tasks with warm caches (`cache_nice_tries`).
const NICE_TRIES: u32 = 1;
/// Milliseconds between attempts of an idle processor: least and most (`min_interval`, `max_interval`).
const INTERVAL_MS: (u64, u64) = (1, 4);
/// A busy one waits that much longer (`busy_factor`).
const BUSY_FACTOR: u64 = 64;

/// When a processor looks for tasks of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// At a tick, while it has a task.
    Busy,
    /// At a tick, while it has none.
    Idle,
    /// It is about to become idle.
    NewlyIdle,
}

/// A processor's record of load and of balancing.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    /// Average of tasks that can run, times [`ONE`], of the ticks until `load_tick` (`cpu_load`).
    load: u64,
    load_tick: u64,
    last_tick: u64,
    interval_ms: u64,
    failed: u32,
    /// The tick's event that is to come.
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

/// Where a woken task goes: to its processor, which has this load at least, or to its waker's, which has that at most.
fn follows_waker(load: u64, waker_load: u64, is_hot: bool) -> bool {
    let from_idle_to_busy = load < ONE / 2 && waker_load > ONE / 2;
    !from_idle_to_busy && (!is_hot || WAKE_PERCENT * waker_load <= 100 * load)
}

/// Whether a processor with load `this` takes tasks from the busiest of the others, and how many. `busiest` is that one's
/// load and `total` that of all processors, `this` included; `count` is their number.
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
        // One task less there and one more here: it must make an eighth of a processor more of use.
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

    /// The ticks of the processors are spread over the length of one.
    fn tick_offset(&self, number: u32) -> u64 {
        self.tick.0 * u64::from(number) / self.processors.len() as u64
    }

    fn tick_number(&self, number: u32) -> u64 {
        (self.now.0 + self.tick_offset(number)) / self.tick.0
    }

    fn can_run(&self, number: u32) -> u64 {
        self.queues[number as usize].len() as u64 + u64::from(!self.is_idle(number))
    }

    /// Brings the average of a processor's load up to now; called before the number of its tasks changes.
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

    /// At least that much load has this processor, and at most that.
    fn load_between(&mut self, number: u32) -> (u64, u64) {
        self.note_load(number);
        let (average, tasks) = (self.processors[number as usize].balance.load, self.can_run(number) * ONE);
        (average.min(tasks), average.max(tasks))
    }

    /// The processor that a woken task shall run on.
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

    /// Takes tasks from the busiest processor, if this one has so much less to do; gives how many, `None` in balance.
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

    /// A processor is about to become idle: takes a task of another into its queue, if there is one to take.
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

    /// Makes sure that the processor looks for work of others at its next tick that is due. While nothing waits anywhere,
    /// nothing is armed: such a tick can only find balance, which makes the interval longer.
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

    /// Whether the event is to be handled.
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

    /// A processor's tick at which it may look for work of others.
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
                // Where the kernel would begin to push running tasks away, it starts to count again.
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

    /// A normal task's rank where priorities are dynamic.
    pub(super) fn rank_of(&self, index: u32) -> Option<Rank> {
        let task = self.tasks[index as usize].as_ref()?;
        (self.model.wakeup == Wakeup::O1 && task.class == Class::Normal).then_some(task.rank)
    }
}

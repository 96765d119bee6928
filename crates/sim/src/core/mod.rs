//! Processors, run queues and time: which task runs when. A state machine that runs no code itself.
//!
//! A task that gets a processor is polled at that instant. What the poll charges becomes a
//! *stretch*: the processor is busy from the time of the poll until that time plus the charges.
//! Only at its end does the task become waiting or ready again, and only then (or, under full
//! preemption, anywhere in between) can another task get the processor. If the poll affects other
//! tasks, the effect takes place at the instant that the charges had reached by then.

mod balance;
mod dynamic;
mod events;
mod processors;
mod queue_of_tasks;
mod tasks;
#[cfg(test)]
mod tests;

use crate::event::Event;
use crate::machine::{Processors, RunQueues};
use crate::queue::EventQueue;
use balance::Balance;
use dynamic::Sleepiness;
use extant_rt::{Class, Nanos, Origin, RtError, TaskFuture, TaskUsage, Tracer, WaitsOn};
use queue_of_tasks::{Rank, TaskQueue};
use std::collections::VecDeque;
use std::task::Waker;

/// A task's index in the task table, and its serial number in spawn order, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) index: u32,
    pub(crate) serial: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Queued,
    OnProcessor,
}

/// What a task does when the stretch of its last poll is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It waits, unless it was woken meanwhile.
    Wait,
    /// It has ended.
    End,
}

struct Task {
    serial: u32,
    name: Box<str>,
    class: Class,
    state: State,
    future: Option<TaskFuture>,
    waker: Waker,
    /// Whether it was woken since its last poll began.
    woken: bool,
    /// Whether its last poll ended at a preemption point, not at a wait.
    offered: bool,
    /// The rest of a stretch that was cut short.
    owed: Nanos,
    /// Set between a poll and the end of its stretch.
    after: Option<After>,
    /// The processor it runs on, or will run on.
    processor: u32,
    /// The processor it last ran on.
    ran_on: Option<u32>,
    slept_at: Nanos,
    /// State for dynamic priorities: the task's rank among the normal tasks, the sleep average
    /// behind that rank, how much of the time slice is used, and whether the slice ended since the
    /// task last got a processor.
    rank: Rank,
    sleepiness: Sleepiness,
    slice_used: Nanos,
    expired: bool,
    /// Processor time used since it last got a processor, up to the last poll.
    stint: Nanos,
    /// Total processor use, up to the last poll.
    usage: TaskUsage,
    ready_at: Nanos,
    waits_on: Option<WaitsOn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Switching to its task until this time.
    Switching(Nanos),
    /// Its task is about to be polled, or is being polled.
    Polling,
    /// Running a stretch until `until`.
    Busy {
        since: Nanos,
        until: Nanos,
    },
}

struct Processor {
    phase: Phase,
    task: u32,
    /// Serial of the task that ran last; another one costs a context switch.
    last_serial: u32,
    /// Generation; makes events of a phase that was cut short stale.
    turn: u32,
    busy: Nanos,
    balance: Balance,
}

enum Happening {
    /// Wakes a task; the number is the waker's processor.
    Wake(TaskId, u32),
    Timer {
        slot: u32,
        turn: u32,
    },
    Processor {
        number: u32,
        turn: u32,
    },
    Balance {
        number: u32,
        turn: u32,
    },
    Call(u32),
}

struct Timer {
    turn: u32,
    target: Option<Target>,
}

enum Target {
    Task(TaskId),
    Waker(Waker),
}

/// A callback of a modelled device, run at its scheduled time.
pub(crate) type Call = Box<dyn FnOnce() + Send>;

/// The world's next step.
pub(crate) enum Step {
    /// Poll this task on this processor.
    Poll { id: TaskId, processor: u32 },
    /// Wake this waker, `delay` from now.
    Wake { waker: Waker, delay: Nanos },
    /// Run this callback.
    Call(Call),
    /// The main task has ended.
    Done,
    /// Deadlock: no event is left.
    Stuck,
}

/// Counters of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events processed: timers, wake-ups, ends of switches and stretches, device callbacks.
    pub events: u64,
    /// Times a task was polled.
    pub polls: u64,
    /// Times a processor switched to a task other than the one it ran last.
    pub switches: u64,
    /// Times a runnable task lost its processor.
    pub preemptions: u64,
    /// Time spent in timer and device interrupts.
    pub interrupts: Nanos,
    /// Wake-ups charged to a task.
    pub wakes: u64,
    /// Times an idle processor was given a task (kernel: calls of `schedule()` by `cpu_idle`): by a
    /// wake-up or, with per-processor queues, by a tick that pulled one. A tick that pulls nothing
    /// leaves the processor in `cpu_idle`. A processor that pulls a task just before it goes idle
    /// never entered `cpu_idle`.
    pub idle_exits: u64,
    /// Times a task moved to a processor other than the one it last ran on.
    pub migrations: u64,
    /// Tasks that a processor pulled from another's queue.
    pub pulled: u64,
    /// Time each processor spent on tasks, context switches and interrupts.
    pub busy: Vec<Nanos>,
}

pub(crate) struct Core {
    pub(crate) now: Nanos,
    model: Processors,
    pub(crate) tracer: Tracer,
    tasks: Vec<Option<Task>>,
    free_tasks: Vec<u32>,
    last_serial: u32,
    processors: Vec<Processor>,
    /// One bit per processor, set while it is idle.
    idle: Vec<u64>,
    to_poll: VecDeque<u32>,
    /// One shared queue, or one per processor.
    queues: Vec<TaskQueue>,
    /// Number of tasks in all queues.
    queued: usize,
    /// Length of a tick.
    tick: Nanos,
    /// Processors with a pending balance tick.
    armed: usize,
    events: EventQueue<Happening>,
    timers: Vec<Timer>,
    free_timers: Vec<u32>,
    stale: usize,
    calls: Vec<Option<Call>>,
    free_calls: Vec<u32>,
    pub(crate) main: Option<TaskId>,
    main_ended: bool,
    pub(crate) fatal: Option<RtError>,
    pub(crate) polls_at_once: u64,
    pub(crate) stats: Stats,
}

impl Core {
    /// A core with all processors idle; `tick` is the kernel's tick length.
    pub(crate) fn new(model: Processors, tick: Nanos, tracer: Tracer) -> Self {
        assert!(model.timeslice > Nanos::ZERO, "the time slice must be longer than 0");
        let count = model.count;
        let queues = if model.run_queues == RunQueues::PerProcessor { count } else { 1 };
        let processor = || Processor {
            phase: Phase::Idle,
            task: 0,
            last_serial: 0,
            turn: 0,
            busy: Nanos::ZERO,
            balance: Balance::default(),
        };
        let mut idle = vec![0; count.div_ceil(64)];
        (0..count).for_each(|n| idle[n / 64] |= 1 << (n % 64));
        Self {
            now: Nanos::ZERO,
            model,
            tracer,
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            last_serial: 0,
            processors: (0..count).map(|_| processor()).collect(),
            idle,
            to_poll: VecDeque::new(),
            queues: (0..queues).map(|_| TaskQueue::default()).collect(),
            queued: 0,
            tick,
            armed: 0,
            events: EventQueue::new(),
            timers: Vec::new(),
            free_timers: Vec::new(),
            stale: 0,
            calls: Vec::new(),
            free_calls: Vec::new(),
            main: None,
            main_ended: false,
            fatal: None,
            polls_at_once: 0,
            stats: Stats::default(),
        }
    }

    fn task(&mut self, index: u32) -> &mut Task {
        self.tasks[index as usize].as_mut().expect("a task on a processor or in a queue has not ended")
    }

    fn is_alive(&self, id: TaskId) -> bool {
        self.tasks
            .get(id.index as usize)
            .and_then(Option::as_ref)
            .is_some_and(|task| task.serial == id.serial)
    }

    pub(crate) fn name(&self, id: TaskId) -> String {
        match self.tasks.get(id.index as usize).and_then(Option::as_ref) {
            Some(task) if task.serial == id.serial => task.name.to_string(),
            _ => "(none)".to_owned(),
        }
    }

    fn trace(&self, at: Nanos, processor: u32, serial: u32, event: Event) {
        if self.tracer.is_on() {
            self.tracer.record(at, Origin { lane: processor, task: serial }, event);
        }
    }

    fn happens(&mut self, at: Nanos) {
        debug_assert!(at >= self.now, "time does not run backwards");
        if at > self.now {
            self.now = at;
            self.polls_at_once = 0;
        }
        self.stats.events += 1;
    }

    /// Runs events until the world has a step to take.
    pub(crate) fn step(&mut self) -> Step {
        loop {
            if let Some(step) = self.advance() {
                return step;
            }
        }
    }

    /// Returns the next step, or handles one event on the way to it.
    fn advance(&mut self) -> Option<Step> {
        if self.main_ended {
            self.main_ended = false;
            return Some(Step::Done);
        }
        if let Some(processor) = self.to_poll.pop_front() {
            let index = self.processors[processor as usize].task;
            let serial = self.task(index).serial;
            self.stats.polls += 1;
            self.polls_at_once += 1;
            return Some(Step::Poll { id: TaskId { index, serial }, processor });
        }
        let Some((at, event)) = self.events.pop() else { return Some(Step::Stuck) };
        match event {
            Happening::Processor { number, turn } => {
                if self.processors[number as usize].turn == turn {
                    self.happens(at);
                    match self.processors[number as usize].phase {
                        Phase::Switching(_) => self.begin(number),
                        _ => self.settle(number),
                    }
                }
            }
            Happening::Wake(id, waker) => {
                self.happens(at);
                self.woken(id, Nanos::ZERO, waker);
            }
            Happening::Balance { number, turn } => {
                if self.balance_is_due(number, turn) {
                    self.happens(at);
                    self.balance_tick(number);
                }
            }
            Happening::Timer { slot, turn } => match self.take_timer(slot, turn) {
                None => self.stale = self.stale.saturating_sub(1),
                Some(target) => {
                    self.happens(at);
                    match target {
                        Target::Task(id) if self.is_alive(id) => {
                            let processor = self.task(id.index).processor;
                            let delay = self.steal(processor, self.model.timer_interrupt);
                            self.woken(id, delay, processor);
                        }
                        Target::Task(_) => {}
                        Target::Waker(waker) => {
                            let processor = self.model.interrupt_processor;
                            let delay = self.steal(processor, self.model.timer_interrupt);
                            return Some(Step::Wake { waker, delay });
                        }
                    }
                }
            },
            Happening::Call(slot) => {
                self.happens(at);
                self.free_calls.push(slot);
                if let Some(call) = self.calls[slot as usize].take() {
                    return Some(Step::Call(call));
                }
            }
        }
        None
    }

    /// Removes the main task from a world that is stuck.
    pub(crate) fn abandon_main(&mut self) {
        self.main_ended = false;
        if let Some(main) = self.main.take() {
            self.queues.iter_mut().for_each(|queue| queue.remove(main.index));
            self.queued = self.queues.iter().map(TaskQueue::len).sum();
            for number in 0..self.processors.len() as u32 {
                let processor = &mut self.processors[number as usize];
                if processor.phase != Phase::Idle && processor.task == main.index {
                    processor.phase = Phase::Idle;
                    processor.turn = processor.turn.wrapping_add(1);
                    self.to_poll.retain(|n| *n != number);
                    self.set_idle(number, true);
                }
            }
            self.tasks[main.index as usize] = None;
            self.free_tasks.push(main.index);
        }
    }

    /// One line per waiting task: its name and what it waits on.
    pub(crate) fn waiters(&self) -> String {
        let mut tasks: Vec<&Task> = self.tasks.iter().flatten().collect();
        tasks.sort_by_key(|task| task.serial);
        let line = |task: &Task| match &task.waits_on {
            Some(what) => format!("  {} waits on {what}", task.name),
            None => format!("  {} waits on something that it did not name", task.name),
        };
        tasks.into_iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Whether any task, callback or timer is left.
    pub(crate) fn has_work(&self) -> bool {
        let is_armed = |timer: &Timer| timer.target.is_some();
        self.tasks.iter().any(Option::is_some)
            || self.calls.iter().any(Option::is_some)
            || self.timers.iter().any(is_armed)
    }

    /// Removes everything. Returns the names of the remaining tasks, and the removed values for the
    /// caller to drop outside the lock.
    pub(crate) fn clear(&mut self) -> (Vec<String>, impl Sized + use<>) {
        let mut tasks: Vec<Task> = std::mem::take(&mut self.tasks).into_iter().flatten().collect();
        tasks.sort_by_key(|task| task.serial);
        let names = tasks.iter().map(|task| task.name.to_string()).collect();
        let (model, tracer, now) = (self.model.clone(), self.tracer.clone(), self.now);
        // Timer ids are never reused: an alarm armed before this may be dropped later.
        let mut timers = std::mem::take(&mut self.timers);
        let disarm = |timer: &mut Timer| {
            timer.turn = timer.turn.wrapping_add(1);
            timer.target.take()
        };
        let targets: Vec<_> = timers.iter_mut().map(disarm).collect();
        let free_timers = (0..timers.len() as u32).rev().collect();
        let (last_serial, fresh) = (self.last_serial, Self::new(model, self.tick, tracer));
        let old = std::mem::replace(self, Self { now, last_serial, timers, free_timers, ..fresh });
        self.stats = old.stats.clone();
        (names, (tasks, targets, old.calls))
    }

    /// Accounts an interrupt, of a device or a timer, that took `span`.
    pub(crate) fn interrupted(&mut self, span: Nanos) {
        self.steal(self.model.interrupt_processor, span);
    }

    pub(crate) fn busy(&self) -> Vec<Nanos> {
        self.processors.iter().map(|processor| processor.busy).collect()
    }
}

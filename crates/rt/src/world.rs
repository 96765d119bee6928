//! The interface of a world other than the real one.

use crate::{Charge, Nanos, RtError};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::Waker;

/// How urgently a task wants a processor.
///
/// The virtual world schedules by it, strictly. The real world's executor has one queue and leaves priorities to the
/// operating system: there a class changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Runs only when nothing else wants the processor.
    Idle,
    /// Everybody; among themselves in turn.
    #[default]
    Normal,
    /// Before everybody else; higher numbers first, equals in order of arrival (`SCHED_FIFO`).
    RealTime(u8),
}

/// The object of a task's wait, for the report of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsOn {
    /// A key of a wait table.
    Key {
        /// The table's name.
        table: &'static str,
        /// The key.
        key: u64,
    },
    /// A lock bit in a wait table.
    Lock {
        /// The table's name.
        table: &'static str,
        /// The key.
        key: u64,
    },
    /// The end of a task.
    Task(String),
    /// A timer.
    Timer(Nanos),
    /// Anything else, with a number to tell it apart.
    Other(&'static str, u64),
}

impl fmt::Display for WaitsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { table, key } => write!(f, "key {key:#x} of {table}"),
            Self::Lock { table, key } => write!(f, "the lock {key:#x} of {table}"),
            Self::Task(name) => write!(f, "the end of task {name}"),
            Self::Timer(at) => write!(f, "the timer at {at}"),
            Self::Other(what, number) => write!(f, "{what} {number}"),
        }
    }
}

/// A place in a task's code where it can give its processor to another task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReschedPoint {
    /// An explicit one (`cond_resched`): honoured in every preemption mode.
    Explicit,
    /// A place that might sleep (`might_sleep`): honoured under voluntary and full preemption.
    MightSleep,
}

/// Where a trace event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Processor in the virtual world; a small number for the thread in the real one.
    pub lane: u32,
    /// Task in the virtual world, counted from 1 in order of spawning; 0 where unknown.
    pub task: u32,
}

/// A task's use of the processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskUsage {
    /// Processor time that it was charged.
    pub cpu: Nanos,
    /// How often it was given a processor, having waited or made room before (kernel: `nvcsw` + `nivcsw`, after the first).
    pub turns: u64,
}

impl std::ops::AddAssign for TaskUsage {
    fn add_assign(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.turns += other.turns;
    }
}

/// How a world ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "it says what did not end"]
pub struct ShutdownReport {
    /// Names of the tasks that had not ended, in order of spawning. They were dropped; blocking work among them still
    /// runs, since nothing can stop it.
    pub in_flight: Vec<String>,
    /// Tasks that panicked during the world's life, with the panic's message; a completion that panicked on a thread that
    /// drove I/O is called "completion".
    pub panicked: Vec<(String, String)>,
}

/// A task's code, its result already bound to go where it belongs.
pub type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A world that tasks can run in instead of the real one. `sim` has the one that matters.
///
/// A world's methods are called through [`Rt`](crate::Rt), which documents them.
pub trait World: Send + Sync {
    /// The time, including what the running task was charged so far.
    fn now(&self) -> Nanos;
    /// Seconds since 1970, and nanoseconds of the second that runs.
    fn wall_time(&self) -> (i64, u32);
    /// The seed of all randomness.
    fn seed(&self) -> u64;
    /// Takes a task over.
    fn spawn(&self, name: &str, class: Class, future: TaskFuture);
    /// Runs the world until `main` is done.
    fn block_on(&self, main: Pin<&mut (dyn Future<Output = ()> + '_)>) -> Result<(), RtError>;
    /// Makes the running task pay.
    fn charge(&self, charge: Charge);
    /// Arms a timer.
    fn timer(&self, at: Nanos, waker: &Waker) -> TimerId;
    /// Disarms a timer; one that has fired is left alone.
    fn cancel_timer(&self, id: TimerId);
    /// Processor time that the running task has used since it was last given a processor.
    fn stint(&self) -> Nanos;
    /// The running task's use of the processors since it began.
    fn task_usage(&self) -> TaskUsage;
    /// Whether the running task should yield at such a point.
    fn should_yield(&self, point: ReschedPoint) -> bool;
    /// The running task is about to wait for this.
    fn waits_on(&self, what: WaitsOn);
    /// The processor and the task that run.
    fn origin(&self) -> Origin;
    /// Drops what has not ended and names it.
    fn shutdown(&self) -> ShutdownReport;
}

/// A timer that was armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u64);

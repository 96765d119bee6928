//! The interface of worlds other than the real one.

use crate::{Charge, Nanos, RtError};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::Waker;

/// How urgently a task wants a processor.
///
/// The virtual world schedules strictly by class. The real world's executor has one queue and
/// leaves priorities to the operating system; classes have no effect there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Runs only when nothing else wants the processor.
    Idle,
    /// Ordinary tasks, taking turns.
    #[default]
    Normal,
    /// Before all others; higher numbers first, equals in order of arrival (`SCHED_FIFO`).
    RealTime(u8),
}

/// What a task waits for, for deadlock reports.
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
    /// The end of the task with this name.
    Task(String),
    /// A timer.
    Timer(Nanos),
    /// Anything else, with a number to identify it.
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

/// A place in a task's code where it can yield its processor to another task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReschedPoint {
    /// An explicit yield point (`cond_resched`): honoured in every preemption mode.
    Explicit,
    /// A place that might sleep (`might_sleep`): honoured under voluntary and full preemption.
    MightSleep,
}

/// Where a trace event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The processor in the virtual world; a small thread number in the real one.
    pub lane: u32,
    /// The task in the virtual world, counted from 1 in order of spawning; 0 if unknown.
    pub task: u32,
}

/// A task's use of the processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskUsage {
    /// Processor time charged to it.
    pub cpu: Nanos,
    /// How often it got a processor after waiting or yielding (kernel: `nvcsw` + `nivcsw`, after
    /// the first).
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
#[must_use = "the report names what did not end"]
pub struct ShutdownReport {
    /// Names of the tasks that had not ended, in order of spawning. They were dropped. Blocking
    /// work among them still runs, since nothing can stop it.
    pub in_flight: Vec<String>,
    /// Tasks that panicked during the world's life, with the panic's message. A completion that
    /// panicked on a thread driving I/O is called "completion".
    pub panicked: Vec<(String, String)>,
}

/// A task's code, with its result already routed to its receiver.
pub type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A world that tasks can run in instead of the real one. The important one is in `sim`.
///
/// Its methods are called through [`Rt`](crate::Rt), which documents them.
pub trait World: Send + Sync {
    /// The time, including what the running task has been charged so far.
    fn now(&self) -> Nanos;
    /// Seconds since 1970, and nanoseconds within the current second.
    fn wall_time(&self) -> (i64, u32);
    /// The seed of all randomness.
    fn seed(&self) -> u64;
    /// Takes over a task.
    fn spawn(&self, name: &str, class: Class, future: TaskFuture);
    /// Runs the world until `main` completes.
    ///
    /// # Errors
    /// In a virtual world: a call from within it, a deadlock, or a charge without a price.
    fn block_on(&self, main: Pin<&mut (dyn Future<Output = ()> + '_)>) -> Result<(), RtError>;
    /// Charges the running task.
    fn charge(&self, charge: Charge);
    /// Arms a timer.
    fn timer(&self, at: Nanos, waker: &Waker) -> TimerId;
    /// Disarms a timer; no effect if it has fired.
    fn cancel_timer(&self, id: TimerId);
    /// Processor time the running task has used since it last got a processor.
    fn stint(&self) -> Nanos;
    /// The running task's processor usage since it began.
    fn task_usage(&self) -> TaskUsage;
    /// Whether the running task should yield at such a point.
    fn should_yield(&self, point: ReschedPoint) -> bool;
    /// The running task is about to wait for this.
    fn waits_on(&self, what: WaitsOn);
    /// The current processor and task.
    fn origin(&self) -> Origin;
    /// Drops unfinished tasks and reports their names.
    fn shutdown(&self) -> ShutdownReport;
}

/// An armed timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u64);

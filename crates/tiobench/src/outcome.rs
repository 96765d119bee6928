//! The results of a phase: time, processor use, and sleeps by caller.

use crate::host::ModelledHost;
use extant_rt::Nanos;
use extant_rt::wait::WaitStats;
use extant_sim::{Sim, Spent};
use std::sync::atomic::Ordering::Relaxed;

/// A phase of tiobench, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Every thread writes its whole file.
    Write,
    /// Every thread writes random blocks of its file.
    RandomWrite,
    /// Every thread reads its whole file.
    Read,
    /// Every thread reads random blocks of its file.
    RandomRead,
    /// All four phases.
    Whole,
    /// A crowd waits for pages, and some of them are unlocked. Not part of tiobench.
    Waiters,
}

impl Phase {
    /// The phases in the order in which they run.
    pub const ALL: [Self; 4] = [Self::Write, Self::RandomWrite, Self::Read, Self::RandomRead];

    /// The name of its workload in an experiment's file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::RandomWrite => "random write",
            Self::Read => "read",
            Self::RandomRead => "random read",
            Self::Whole => "all phases",
            Self::Waiters => "waiters",
        }
    }

    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::RandomWrite | Self::RandomRead)
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandomWrite)
    }
}

/// Calls of `schedule()` by caller, and the wake-ups that ended them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sleeps {
    /// Waiting for a page bit (kernel: `wait_on_page_bit`).
    pub page: u64,
    /// Waiting for a page lock (kernel: `__lock_page`).
    pub lock: u64,
    /// Waiting for a buffer (kernel: `__wait_on_buffer`).
    pub buffer: u64,
    /// Calls by idle processors that then received a task (kernel: `cpu_idle`).
    pub idle: u64,
    /// Waiters for pages and buffers that were woken spuriously.
    pub spurious: u64,
    /// Waiters for pages and buffers that wake-ups examined.
    pub examined: u64,
    /// Waiters for pages and buffers that were woken.
    pub woken: u64,
}

/// The results of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseOutcome {
    /// The phase.
    pub phase: Phase,
    /// Its duration.
    pub took: Nanos,
    /// Bytes that the threads read or wrote.
    pub bytes: u64,
    /// Busy time of all processors, including the program's part and interrupts.
    pub busy: Nanos,
    /// The program's part of the busy time.
    pub user: Nanos,
    /// Sleeps and wake-ups.
    pub sleeps: Sleeps,
    /// The kernel's time by kind of work.
    pub spent: Vec<Spent>,
}

impl PhaseOutcome {
    /// Time spent on a kind of work, by tasks and in interrupts.
    pub fn spent_on(&self, key: &str) -> Nanos {
        Nanos(self.spent.iter().filter(|spent| spent.key == key).map(|spent| spent.time.0).sum())
    }

    /// The kernel's time.
    pub fn system(&self) -> Nanos {
        self.busy.saturating_sub(self.user)
    }

    /// Time spent copying between the program and the cache.
    fn copies(&self) -> Nanos {
        self.spent_on("page_copy_ns")
    }

    /// A kind of work's share of the profiled functions that the model has.
    ///
    /// These are context switches (`finish_task_switch`), wake-ups from interrupts including the
    /// search for waiters (`__wake_up`), and copies (`file_read_actor`,
    /// `generic_file_aio_write_nolock`).
    pub fn share(&self, key: &str) -> f64 {
        let of = |key: &str| match key {
            "page_wake_ns" => self.spent_on(key) + self.spent_on("wait_scan_ns"),
            key => self.spent_on(key),
        };
        let all = of("context_switch_ns") + of("page_wake_ns") + self.copies();
        if all == Nanos::ZERO { 0.0 } else { of(key).as_secs_f64() / all.as_secs_f64() }
    }
}

/// Totals up to a moment.
#[derive(Clone)]
pub(crate) struct Totals {
    now: Nanos,
    busy: Nanos,
    idle: u64,
    sleeps: [u64; 3],
    waits: [WaitStats; 2],
    spent: Vec<Spent>,
}

impl Totals {
    pub(crate) fn of(sim: &Sim, host: &ModelledHost) -> Self {
        let stats = sim.stats();
        Self {
            now: sim.rt().now(),
            busy: Nanos(stats.busy.iter().map(|busy| busy.0).sum()),
            idle: stats.idle_exits,
            sleeps: [0, 1, 2].map(|n| host.sleeps[n].load(Relaxed)),
            waits: [host.pages.stats(), host.buffers.stats()],
            spent: sim.spent(),
        }
    }

    /// The results of a phase that began with the totals `before` and moved this many bytes.
    pub(crate) fn since(&self, before: &Self, phase: Phase, bytes: u64) -> PhaseOutcome {
        let spent = Spent::since(self.spent.clone(), &before.spent);
        let user = spent.iter().filter(|spent| spent.key == "user_io_ns").map(|spent| spent.time.0).sum();
        let waits = |of: fn(&WaitStats) -> u64| -> u64 {
            self.waits.iter().zip(&before.waits).map(|(now, then)| of(now) - of(then)).sum()
        };
        PhaseOutcome {
            phase,
            took: self.now.saturating_sub(before.now),
            bytes,
            busy: self.busy.saturating_sub(before.busy),
            user: Nanos(user),
            sleeps: Sleeps {
                page: self.sleeps[0] - before.sleeps[0],
                lock: self.sleeps[1] - before.sleeps[1],
                buffer: self.sleeps[2] - before.sleeps[2],
                idle: self.idle - before.idle,
                spurious: waits(|stats| stats.spurious),
                examined: waits(|stats| stats.examined),
                woken: waits(|stats| stats.woken),
            },
            spent,
        }
    }
}

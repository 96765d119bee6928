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
    pub(crate) fn total(phases: &[Self]) -> Self {
        let mut spent: Vec<Spent> = Vec::new();
        for one in phases.iter().flat_map(|phase| &phase.spent) {
            let is_same = |known: &&mut Spent| {
                (known.layer, known.key, known.interrupt) == (one.layer, one.key, one.interrupt)
            };
            match spent.iter_mut().find(is_same) {
                Some(known) => {
                    known.units += one.units;
                    known.time += one.time;
                }
                None => spent.push(*one),
            }
        }
        let sum = |of: fn(&Sleeps) -> u64| phases.iter().map(|phase| of(&phase.sleeps)).sum();
        let time = |of: fn(&Self) -> Nanos| Nanos(phases.iter().map(|phase| of(phase).0).sum());
        Self {
            phase: Phase::Whole,
            took: time(|phase| phase.took),
            bytes: phases.iter().map(|phase| phase.bytes).sum(),
            busy: time(|phase| phase.busy),
            user: time(|phase| phase.user),
            sleeps: Sleeps {
                page: sum(|sleeps| sleeps.page),
                lock: sum(|sleeps| sleeps.lock),
                buffer: sum(|sleeps| sleeps.buffer),
                idle: sum(|sleeps| sleeps.idle),
                spurious: sum(|sleeps| sleeps.spurious),
                examined: sum(|sleeps| sleeps.examined),
                woken: sum(|sleeps| sleeps.woken),
            },
            spent,
        }
    }

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

/// Totals at the end of the previous phase.
pub(crate) struct Totals {
    now: Nanos,
    busy: Nanos,
    idle: u64,
    sleeps: [u64; 3],
    waits: [WaitStats; 2],
    spent: Vec<Spent>,
}

impl Totals {
    pub(crate) fn open(sim: &Sim, host: &ModelledHost) -> Self {
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

    /// Returns the results since the last call, and starts the next phase.
    pub(crate) fn close(&mut self, phase: Phase, sim: &Sim, host: &ModelledHost) -> PhaseOutcome {
        let before = std::mem::replace(self, Self::open(sim, host));
        let earlier = |now: &Spent| {
            let is_same =
                |then: &&Spent| (then.layer, then.key, then.interrupt) == (now.layer, now.key, now.interrupt);
            before.spent.iter().find(is_same).map_or((0, Nanos::ZERO), |then| (then.units, then.time))
        };
        let since = |now: &Spent| {
            let (units, time) = earlier(now);
            Spent { units: now.units - units, time: now.time.saturating_sub(time), ..*now }
        };
        let spent: Vec<Spent> = self.spent.iter().map(since).collect();
        let user = spent.iter().filter(|spent| spent.key == "user_io_ns").map(|spent| spent.time.0).sum();
        let count = match phase.is_random() {
            true => u64::from(host.options.random_ops),
            false => host.shape.file_blocks(),
        };
        let waits = |of: fn(&WaitStats) -> u64| -> u64 {
            self.waits.iter().zip(&before.waits).map(|(now, then)| of(now) - of(then)).sum()
        };
        PhaseOutcome {
            phase,
            took: self.now.saturating_sub(before.now),
            bytes: count * u64::from(host.options.threads) * crate::host::BLOCK_BYTES,
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

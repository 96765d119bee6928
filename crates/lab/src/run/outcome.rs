//! The outcome of a workload's run.

use super::measure::{Latency, Measured};
use super::policy::QueueBounds;
use super::volume::{FilesLayout, OnDevice};
use super::written::Written;
use crate::workload::PhaseFigures;
use crate::workload::fio::Job;
use extant_rt::Nanos;
use extant_sim::{Sim, Spent};
use std::sync::Arc;

/// Measurements of a job, or with `group_reporting`, of a group of jobs.
#[derive(Clone, Debug)]
pub struct JobResult {
    /// The job; for a group, its first job.
    pub job: Arc<Job>,
    /// The group's number, from 0.
    pub group: usize,
    /// Number of processes.
    pub processes: u32,
    /// The measurements.
    pub measured: Measured,
}

/// The result of a workload.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The outcome of jobs.
    Jobs(Box<JobsOutcome>),
    /// The figures of a program's phase.
    Phase(PhaseFigures),
}

/// The result of a run of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobsOutcome {
    /// The results, in the order of the jobs.
    pub results: Vec<JobResult>,
    /// Scheduling latency while the jobs ran, if requested by [`super::Policy::cyclictest`].
    pub latency: Option<Latency>,
    /// The amount written by the disks of a modelled machine. `None` if no job writes through the
    /// page cache, or the jobs are not all measured over the same interval.
    pub written: Option<Written>,
    /// Counters of a run on volumes.
    pub on_device: Option<OnDevice>,
    /// Time until everything was durable, if requested by [`super::Policy::drains`].
    pub drained: Option<Nanos>,
    /// Layout of the files, if requested by [`super::Policy::rereads`].
    pub layout: Option<FilesLayout>,
    /// Processor use of a modelled machine while the jobs ran.
    pub processors: Option<ProcessorUse>,
    /// The same processor time by kind of work.
    pub spent: Vec<Spent>,
    /// Queue limits of a modelled machine, one entry per kind of disk.
    pub queues: Vec<QueueBounds>,
    /// Seconds since 1970 at the end, in the run's world.
    pub wall_clock: i64,
    /// Whether that world was virtual.
    pub is_virtual: bool,
}

/// Use of all processors together over a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorUse {
    /// Time spent in tasks and context switches.
    pub system: Nanos,
    /// Time spent in interrupts.
    pub interrupts: Nanos,
    /// Length of the period.
    pub over: Nanos,
}

impl ProcessorUse {
    pub(super) fn so_far(sim: &Sim) -> Self {
        let stats = sim.stats();
        let busy: u64 = stats.busy.iter().map(|busy| busy.0).sum();
        let interrupts = stats.interrupts;
        Self { system: Nanos(busy).saturating_sub(interrupts), interrupts, over: sim.rt().now() }
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            system: self.system.saturating_sub(before.system),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            over: self.over.saturating_sub(before.over),
        }
    }
}

impl Outcome {
    /// The outcome of jobs; `None` for a phase.
    pub fn jobs(&self) -> Option<&JobsOutcome> {
        match self {
            Self::Jobs(jobs) => Some(jobs),
            Self::Phase(_) => None,
        }
    }
}

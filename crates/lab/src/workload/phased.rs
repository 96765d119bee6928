//! Programs that run in phases instead of jobs.

use crate::figure::Figure;
use extant_history::waits::MakeWaits;
use extant_history::{Choice, MakeElevator};
use extant_rt::CostTable;
use extant_sim::Machine;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// A program whose phases follow each other in one run. Each phase is a workload of the experiment.
pub(crate) trait PhasedWorkload: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// Its phases in the order in which they run.
    fn phases(&self) -> Vec<Phase>;

    /// The kinds of work that only this program charges for.
    fn costs(&self) -> &'static CostTable;

    /// Describes the first option that is invalid on a machine, if any.
    fn fault(&self, machine: &Machine) -> Option<String>;

    /// Runs the phases up to the last of `wanted`.
    ///
    /// # Errors
    /// What prevented the run, or stopped it.
    fn run(
        &self,
        machine: &Machine,
        policies: PhasePolicies,
        seed: u64,
        wanted: &[Phase],
    ) -> Result<Vec<PhaseFigures>, String>;
}

/// A phase, and the figures to show of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// The name of its workload.
    pub(crate) name: &'static str,
    /// The columns of each table.
    pub(crate) tables: &'static [&'static [Figure]],
    /// The columns where machines are compared.
    pub(crate) columns: &'static [Figure],
}

/// The policies that such a program runs under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhasePolicies {
    /// How waiters for pages are woken.
    pub(crate) page_waits: Choice<MakeWaits>,
    /// How waiters for buffers are woken.
    pub(crate) buffer_waits: Choice<MakeWaits>,
    pub(crate) elevator: Choice<MakeElevator>,
    /// Requests of each kind in a disk's queue.
    pub(crate) requests: usize,
}

/// The figures of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseFigures {
    /// The phase.
    pub phase: &'static str,
    /// Its figures.
    pub figures: BTreeMap<Figure, f64>,
}

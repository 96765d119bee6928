//! Runs of an experiment: every row on every workload. Each run depends only on its inputs, so they
//! execute in parallel on the host's processors.

use crate::figure::Figure;
use crate::run::{EventWatch, Memory, Outcome, Policy, RunError, RunEvents, figure_of, on_machine};
use crate::setup::{ExperimentError, Row, Setup, Workload};
use crate::workload::{Phase, PhasePolicies, PhasedWorkload};
use extant_rt::{RealConfig, Rt, Sink};
use extant_sim::Machine;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The result of one workload under one policy.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The policy's row.
    pub row: String,
    /// The workload.
    pub workload: String,
    /// The seed of the run.
    pub seed: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The mean of a figure over some runs; `None` unless every run has it.
pub(crate) fn mean(figure: Figure, cells: &[&Cell], result: usize) -> Option<f64> {
    let each: Option<Vec<f64>> = cells.iter().map(|cell| figure_of(figure, &cell.outcome, result)).collect();
    each.filter(|each| !each.is_empty()).map(|each| each.iter().sum::<f64>() / each.len() as f64)
}

/// The figures of one run, by workload.
pub(crate) type Figures = BTreeMap<String, BTreeMap<Figure, f64>>;

/// A row on one workload with one seed; for a program, on all of its phases, since they follow each
/// other.
#[derive(Clone, Debug)]
pub(crate) struct ExperimentRun {
    machine: Machine,
    workloads: Vec<Workload>,
    row: Row,
    seed: u64,
    program: Option<Arc<dyn PhasedWorkload>>,
}

impl ExperimentRun {
    /// A run of an experiment, on any machine.
    pub(crate) fn new(
        setup: &Setup,
        machine: &Machine,
        workloads: &[&Workload],
        row: &Row,
        seed: u64,
    ) -> Self {
        Self {
            machine: machine.clone(),
            workloads: workloads.iter().map(|workload| (*workload).clone()).collect(),
            row: row.clone(),
            seed,
            program: setup.program.clone(),
        }
    }

    /// Runs of a row on these workloads: one for all phases of a program, else one for each.
    pub(crate) fn of_row(
        setup: &Setup,
        machine: &Machine,
        workloads: &[&Workload],
        row: &Row,
        seed: u64,
    ) -> Vec<Self> {
        let together = if setup.program.is_some() { workloads.len().max(1) } else { 1 };
        workloads.chunks(together).map(|some| Self::new(setup, machine, some, row, seed)).collect()
    }

    /// The name of its row.
    pub(crate) fn row(&self) -> &str {
        &self.row.name
    }

    /// Row, workload and seed as pairs of name and value.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let mut names = vec![("row".to_owned(), self.row.name.clone())];
        if let [workload] = &self.workloads[..] {
            names.push(("workload".to_owned(), workload.name.clone()));
        }
        names.push(("seed".to_owned(), self.seed.to_string()));
        names
    }

    /// Everything its outcome depends on, apart from the program.
    pub(crate) fn contents(&self) -> String {
        let Self { machine, workloads, row: Row { name, policies, .. }, seed, program } = self;
        format!("{machine:?}\n{workloads:?}\n{name} {policies:?}\n{seed}\n{program:?}\n")
    }

    /// Runs it.
    ///
    /// # Errors
    /// If the run fails.
    pub(crate) fn cells(&self) -> Result<Vec<Cell>, ExperimentError> {
        self.watched(EventSinks::default())
    }

    fn watched(&self, watched: EventSinks<'_>) -> Result<Vec<Cell>, ExperimentError> {
        match &self.program {
            Some(program) => self.run_phases(&**program),
            None => self.workloads.iter().map(|workload| self.run_jobs(workload, &watched)).collect(),
        }
    }

    /// Runs the row and returns, for each cell, the data needed for drawings.
    fn seen(&self) -> Result<Vec<(Cell, RunEvents)>, ExperimentError> {
        let watch = Arc::new(EventWatch::default());
        let cells = self.watched(EventSinks { sink: Some(watch.clone()), blktrace: None })?;
        Ok(cells.into_iter().map(|cell| (cell, watch.take())).collect())
    }

    /// Runs the row and returns its figures.
    ///
    /// # Errors
    /// If the run fails.
    pub(crate) fn figures(&self) -> Result<Figures, ExperimentError> {
        let of = |cell: &Cell| {
            let value = |figure: &Figure| Some((*figure, figure_of(*figure, &cell.outcome, 0)?));
            (cell.workload.clone(), Figure::ALL.iter().filter_map(value).collect())
        };
        Ok(self.cells()?.iter().map(of).collect())
    }

    /// Runs the program once and returns a cell for each requested phase.
    fn run_phases(&self, program: &dyn PhasedWorkload) -> Result<Vec<Cell>, ExperimentError> {
        let of_row = &self.row.policies;
        let policies = PhasePolicies {
            page_waits: of_row.page_waits,
            buffer_waits: of_row.buffer_waits,
            elevator: of_row.elevator,
            requests: of_row.requests,
        };
        let wanted: Vec<Phase> = self.workloads.iter().filter_map(|workload| workload.phase).collect();
        let phases = program.run(&self.machine, policies, self.seed, &wanted).map_err(|problem| {
            let program = program.name();
            self.failed(program, RunError::Program { program, problem })
        })?;
        let cell = |workload: &Workload| {
            let figures = phases.iter().find(|figures| figures.phase == workload.name)?;
            Some(self.cell(workload, Outcome::Phase(figures.clone())))
        };
        Ok(self.workloads.iter().filter_map(cell).collect())
    }

    fn run_jobs(&self, workload: &Workload, watched: &EventSinks<'_>) -> Result<Cell, ExperimentError> {
        let of_row = &self.row.policies;
        let policy = Policy {
            elevator: of_row.elevator,
            requests: of_row.requests_on(&self.machine),
            memory: Memory {
                control: Some(of_row.dirty_control),
                pass: Some(of_row.write_back_pass),
                run_bytes: of_row.run_bytes.or(workload.memory.run_bytes),
                ..workload.memory.clone()
            },
            cyclictest: workload.cyclictest,
            volume: workload.volume.clone(),
            direct_io: of_row.direct_io,
            allocator: of_row.allocator,
            drains: workload.drains,
            rereads: workload.rereads,
            blktrace: watched.blktrace.map(Path::to_owned),
        };
        let mut machine = self.machine.clone();
        if let Some(mode) = of_row.preemption {
            machine = machine.with_preemption(mode);
        }
        match on_machine(&workload.jobs, machine, &policy, self.seed, watched.sink.clone()) {
            Ok(outcome) => Ok(self.cell(workload, Outcome::Jobs(Box::new(outcome)))),
            Err(error) => Err(self.failed(&workload.name, error)),
        }
    }

    fn cell(&self, workload: &Workload, outcome: Outcome) -> Cell {
        Cell { row: self.row.name.clone(), workload: workload.name.clone(), seed: self.seed, outcome }
    }

    fn failed(&self, workload: &str, error: RunError) -> ExperimentError {
        ExperimentError::Run { row: self.row.name.clone(), workload: workload.to_owned(), error }
    }
}

/// Where the events of a run go.
#[derive(Default)]
struct EventSinks<'a> {
    sink: Option<Arc<dyn Sink>>,
    blktrace: Option<&'a Path>,
}

/// Every row on every workload with every seed.
pub(crate) fn runs(setup: &Setup) -> Vec<ExperimentRun> {
    let of = |workloads: &[&Workload], row: &Row| -> Vec<ExperimentRun> {
        let seeds = setup.seeds.iter();
        seeds.map(|seed| ExperimentRun::new(setup, &setup.machine, workloads, row, *seed)).collect()
    };
    let all: Vec<&Workload> = setup.workloads.iter().collect();
    if setup.program.is_some() {
        return setup.rows.iter().flat_map(|row| of(&all, row)).collect();
    }
    let of_workload = |workload: &&Workload| -> Vec<ExperimentRun> {
        setup.rows.iter().filter(|row| row.runs(workload)).flat_map(|row| of(&[*workload], row)).collect()
    };
    all.iter().flat_map(of_workload).collect()
}

/// Runs every policy on every workload with every seed, each in its own world.
///
/// With `blktrace`, writes a blktrace of each disk to `BASE.DISK.blktrace.0`; each run overwrites
/// the last one's.
///
/// # Errors
/// The first run that fails.
pub fn run_experiment(setup: &Setup, blktrace: Option<&Path>) -> Result<Vec<Cell>, ExperimentError> {
    let cells = match blktrace {
        None => side_by_side(runs(setup), ExperimentRun::cells)?,
        // Execute one run at a time, so that the last run's blktraces remain.
        Some(_) => {
            let run = |run: ExperimentRun| run.watched(EventSinks { sink: None, blktrace });
            runs(setup).into_iter().map(run).collect::<Result<_, _>>()?
        }
    };
    Ok(cells.into_iter().flatten().collect())
}

/// Like [`run_experiment`], but also returns the data needed for drawings of each run.
///
/// # Errors
/// As [`run_experiment`].
pub(crate) fn run_watched(setup: &Setup) -> Result<Vec<(Cell, RunEvents)>, ExperimentError> {
    Ok(side_by_side(runs(setup), ExperimentRun::seen)?.into_iter().flatten().collect())
}

/// Executes runs in parallel on all processors, and returns their results in order.
pub(crate) fn side_by_side<T: Send + 'static, R: Send + 'static>(
    runs: Vec<T>,
    each: impl Fn(&T) -> Result<R, ExperimentError> + Send + Sync + 'static,
) -> Result<Vec<R>, ExperimentError> {
    at_most(std::thread::available_parallelism().map_or(1, usize::from), runs, each)
}

/// Like [`side_by_side`], with `threads` runs at a time.
pub(crate) fn at_most<T: Send + 'static, R: Send + 'static>(
    threads: usize,
    runs: Vec<T>,
    each: impl Fn(&T) -> Result<R, ExperimentError> + Send + Sync + 'static,
) -> Result<Vec<R>, ExperimentError> {
    let rt = Rt::real(RealConfig { blocking_threads: Some(threads), ..RealConfig::default() });
    let each = Arc::new(each);
    let stopped = |error: &dyn std::fmt::Display| {
        ExperimentError::File("the runs side by side".to_owned(), error.to_string())
    };
    let all = async {
        let begin = |run: T| {
            let each = each.clone();
            rt.spawn_blocking("a run of an experiment", move || each(&run))
        };
        let tasks: Vec<_> = runs.into_iter().map(begin).collect();
        let mut done = Vec::new();
        for task in tasks {
            done.push(task.await.map_err(|error| stopped(&error))??);
        }
        Ok::<_, ExperimentError>(done)
    };
    rt.block_on(all).map_err(|error| stopped(&error))?
}

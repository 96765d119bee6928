//! Runs of an experiment. Each depends only on its inputs, so they execute in parallel on the
//! host's processors.

use super::{Cell, Experiment, ExperimentError, Figure, Load, Row};
use crate::run::{Memory, Outcome, Policy, RunError, Seen, Watch, on_machine};
use crate::workload::{Phase, PhasePolicies, PhasedWorkload};
use extant_rt::{RealConfig, Rt, Sink};
use extant_sim::Machine;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The figures of one run, by workload.
pub(crate) type Figures = BTreeMap<String, BTreeMap<Figure, f64>>;

/// A row on one workload with one seed; for a program, on all of its phases, since they
/// follow each other.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Index of the point in [`Experiment::range_labels`]; 0 is the nominal one.
    pub(crate) point: usize,
    pub(super) machine: Machine,
    pub(super) loads: Vec<Load>,
    pub(super) row: Row,
    pub(super) seed: u64,
    pub(super) program: Option<Arc<dyn PhasedWorkload>>,
}

impl Run {
    /// The name of its row.
    pub(crate) fn row(&self) -> &str {
        &self.row.name
    }

    /// Row, workload and seed as pairs of name and value.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let mut names = vec![("row".to_owned(), self.row.name.clone())];
        if let [load] = &self.loads[..] {
            names.push(("workload".to_owned(), load.name.clone()));
        }
        names.push(("seed".to_owned(), self.seed.to_string()));
        names
    }

    /// Everything its outcome depends on, apart from the program.
    pub(crate) fn contents(&self) -> String {
        let mut row = self.row.clone();
        (row.published, row.calibrated) = (BTreeMap::new(), BTreeMap::new());
        (row.not_derivable, row.workloads) = (BTreeMap::new(), Vec::new());
        let Self { machine, loads, seed, program, .. } = self;
        format!("{machine:?}\n{loads:?}\n{row:?}\n{seed}\n{program:?}\n")
    }

    /// Runs it.
    ///
    /// # Errors
    /// If the run fails.
    pub(crate) fn cells(&self) -> Result<Vec<Cell>, ExperimentError> {
        self.watched(Watched::default())
    }

    fn watched(&self, watched: Watched<'_>) -> Result<Vec<Cell>, ExperimentError> {
        let Self { machine, loads, row, seed, .. } = self;
        match &self.program {
            Some(program) => run_phases(machine, &**program, loads, row, *seed),
            None => loads.iter().map(|load| run_one(machine, load, row, *seed, watched.clone())).collect(),
        }
    }

    /// Runs it and returns, for each cell, the data needed for drawings.
    fn seen(&self) -> Result<Vec<(Cell, Seen)>, ExperimentError> {
        let watch = Arc::new(Watch::default());
        let cells = self.watched(Watched { sink: Some(watch.clone()), blktrace: None })?;
        Ok(cells.into_iter().map(|cell| (cell, watch.take())).collect())
    }

    /// Runs it and returns its figures.
    ///
    /// # Errors
    /// If the run fails.
    pub(crate) fn figures(&self) -> Result<Figures, ExperimentError> {
        let of = |cell: &Cell| {
            let each = Figure::ALL.into_iter().filter_map(|figure| Some((figure, figure.of(cell, 0)?)));
            (cell.workload.clone(), each.collect())
        };
        Ok(self.cells()?.iter().map(of).collect())
    }
}

impl Experiment {
    /// Every row on every workload with every seed.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let run = |loads: Vec<Load>, row: &Row, seed: u64| {
            let (machine, row, program) = (self.machine.clone(), row.clone(), self.program.clone());
            Run { point: 0, machine, loads, row, seed, program }
        };
        let mut runs = Vec::new();
        if self.program.is_some() {
            for row in &self.rows {
                runs.extend(self.seeds.iter().map(|seed| run(self.workloads.clone(), row, *seed)));
            }
            return runs;
        }
        for load in &self.workloads {
            for row in self.rows.iter().filter(|row| row.runs(load)) {
                runs.extend(self.seeds.iter().map(|seed| run(vec![load.clone()], row, *seed)));
            }
        }
        runs
    }

    /// Runs every policy on every workload with every seed, each in its own world.
    ///
    /// # Errors
    /// The first run that fails.
    pub fn run(&self) -> Result<Vec<Cell>, ExperimentError> {
        let cells = match &self.blktrace {
            None => side_by_side(self.runs(), Run::cells)?,
            // One at a time, so that the blktraces left are those of the last run.
            Some(_) => {
                let blktrace = self.blktrace.as_deref();
                let run = |run: Run| run.watched(Watched { sink: None, blktrace });
                self.runs().into_iter().map(run).collect::<Result<_, _>>()?
            }
        };
        Ok(cells.into_iter().flatten().collect())
    }

    /// Like [`Experiment::run`], but also returns the data needed for drawings of each run.
    ///
    /// # Errors
    /// As [`Experiment::run`].
    pub(crate) fn run_watched(&self) -> Result<Vec<(Cell, Seen)>, ExperimentError> {
        Ok(side_by_side(self.runs(), Run::seen)?.into_iter().flatten().collect())
    }

    /// A run of one row on one workload with the first seed, on another machine.
    pub(super) fn run_on(&self, machine: &Machine, load: &Load, row: &Row) -> Run {
        let (machine, loads, row) = (machine.clone(), vec![load.clone()], row.clone());
        Run { point: 0, machine, loads, row, seed: self.seeds[0], program: self.program.clone() }
    }
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

/// Runs a program once and returns a cell for each requested phase.
fn run_phases(
    machine: &Machine,
    program: &dyn PhasedWorkload,
    loads: &[Load],
    row: &Row,
    seed: u64,
) -> Result<Vec<Cell>, ExperimentError> {
    let ours = extant_history::waits::OURS;
    let policies = PhasePolicies {
        page_waits: row.page_waits.as_deref().unwrap_or(ours),
        buffer_waits: row.buffer_waits.as_deref().unwrap_or(ours),
        elevator: &row.elevator,
        requests: row.requests,
    };
    let wanted: Vec<Phase> = loads.iter().filter_map(|load| load.phase).collect();
    let phases = program.run(machine, &policies, seed, &wanted).map_err(|problem| {
        let (row, workload, program) = (row.name.clone(), program.name().to_owned(), program.name());
        ExperimentError::Run { row, workload, error: RunError::Program { program, problem } }
    })?;
    let cell = |load: &Load| {
        let figures = phases.iter().find(|figures| figures.phase == load.name)?;
        let outcome = Outcome::Phase(figures.clone());
        Some(Cell { row: row.name.clone(), workload: load.name.clone(), seed, outcome })
    };
    Ok(loads.iter().filter_map(cell).collect())
}

/// Where the events of a run go.
#[derive(Clone, Default)]
struct Watched<'a> {
    sink: Option<Arc<dyn Sink>>,
    blktrace: Option<&'a Path>,
}

fn run_one(
    machine: &Machine,
    load: &Load,
    row: &Row,
    seed: u64,
    watched: Watched<'_>,
) -> Result<Cell, ExperimentError> {
    let policy = Policy {
        elevator: row.elevator.clone(),
        requests: row.requests_on(machine),
        memory: Memory {
            control: row.dirty_control.clone(),
            pass: row.write_back_pass.clone(),
            run_bytes: row.run_bytes.or(load.memory.run_bytes),
            ..load.memory.clone()
        },
        cyclictest: load.cyclictest,
        volume: load.volume.clone(),
        direct_io: row.direct_io.clone(),
        allocator: row.allocator.clone(),
        drains: load.drains,
        rereads: load.rereads,
        blktrace: watched.blktrace.map(Path::to_owned),
    };
    let mut machine = machine.clone();
    if let Some(mode) = row.preemption {
        machine = machine.with_preemption(mode);
    }
    let (row, workload) = (row.name.clone(), load.name.clone());
    match on_machine(&load.jobs, machine, &policy, seed, watched.sink) {
        Ok(outcome) => Ok(Cell { row, workload, seed, outcome: Outcome::Jobs(Box::new(outcome)) }),
        Err(error) => Err(ExperimentError::Run { row, workload, error }),
    }
}

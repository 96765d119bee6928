//! Sweeps: one run for each combination of values, seeds and policies.
//!
//! Each result is stored under the digest of everything it depends on. Runs depend only on their
//! inputs, so any number of commands may share a folder of results and each take a part of the runs
//! (`--shard K/N`), on this machine or on others. A command that is killed loses only the runs in
//! progress.

mod combinations;
mod ranges;
mod results_store;

pub use combinations::grid_table;
pub(crate) use ranges::range_runs;
pub(crate) use results_store::{ResultsStore, stored_figures};

use crate::experiment::{ExperimentRun, at_most, runs};
use crate::figure::Figure;
use crate::report::fio_json;
use crate::run::{Policy, on_machine};
use crate::setup::{self, Axis, ExperimentError, Setup, machine};
use crate::workload::fio::{self, Job, JobError};
use extant_history::{Choice, MakeDirtyControl, MakeElevator};
use extant_sim::{Machine, ModelError, Setting};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How to execute the runs of a sweep.
#[derive(Clone, Debug, Default)]
pub struct SweepOptions {
    /// The folder that stores results; if `None`, nothing is stored.
    pub results: Option<PathBuf>,
    /// How many runs to execute at a time; one per processor if not given.
    pub at_a_time: Option<usize>,
}

/// A part of a sweep's runs: which one, counted from 1, of how many. `None` is all of them.
pub type SweepPart = Option<(usize, usize)>;

/// Whether the run with this number, from 0, is in the part.
fn is_mine(shard: SweepPart, number: usize) -> bool {
    shard.is_none_or(|(which, of)| number % of == which - 1)
}

/// Plain jobs to sweep over.
#[derive(Clone, Debug)]
pub struct SweptJobs {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// The machine's file.
    pub machine: PathBuf,
    /// The policy; axes override parts of it.
    pub policy: Policy,
    /// Values for keys of the machine's file.
    pub axes: Vec<Axis>,
    /// Values for options of the jobs.
    pub options: Vec<(String, Vec<String>)>,
    /// Elevators; the policy's if empty.
    pub elevators: Vec<Choice<MakeElevator>>,
    /// Dirty memory controllers; the policy's if empty.
    pub controls: Vec<Choice<MakeDirtyControl>>,
    /// Seeds.
    pub seeds: Vec<u64>,
}

/// One run of a sweep.
#[derive(Clone, Debug)]
struct SweepRun {
    /// Names and values that distinguish it from other runs.
    label: Vec<(String, String)>,
    work: SweptWork,
}

#[derive(Clone, Debug)]
enum SweptWork {
    Row(Box<ExperimentRun>),
    Jobs { jobs: Vec<Job>, machine: Box<Machine>, policy: Box<Policy>, seed: u64 },
}

/// A sweep, or a part of it, expanded.
#[derive(Clone, Debug)]
pub struct Sweep {
    tasks: Vec<SweepRun>,
    /// Number of runs in all parts.
    runs: usize,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Done {
    /// The digest of everything it depends on.
    pub digest: String,
    /// Names and values that distinguish it from other runs.
    pub label: Vec<(String, String)>,
    /// Its figures.
    pub result: Value,
}

/// Why jobs cannot be swept over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SweepError {
    /// The machine was refused.
    #[error(transparent)]
    Machine(#[from] ModelError),
    /// A job was refused.
    #[error(transparent)]
    Job(#[from] JobError),
}

/// Reports progress: finished runs, how many of these were already stored, and the total.
pub type SweepProgress = Arc<dyn Fn(usize, usize, usize) + Send + Sync>;

impl SweptWork {
    fn contents(&self) -> String {
        match self {
            Self::Row(run) => run.contents(),
            Self::Jobs { jobs, machine, policy, seed } => {
                format!("{machine:?}\n{jobs:?}\n{policy:?}\n{seed}\n")
            }
        }
    }

    fn result(&self) -> Result<Value, ExperimentError> {
        match self {
            Self::Row(run) => Ok(results_store::json_of(run.row(), &run.figures()?)),
            Self::Jobs { jobs, machine, policy, seed } => {
                let outcome =
                    on_machine(jobs, (**machine).clone(), policy, *seed, None).map_err(|error| {
                        let (row, workload) = (policy.elevator.to_string(), "the jobs".to_owned());
                        ExperimentError::Run { row, workload, error }
                    })?;
                let mut json = fio_json(&outcome);
                // Only these fields differ between identical runs.
                for key in ["timestamp", "timestamp_ms"] {
                    json.as_object_mut().and_then(|all| all.remove(key));
                }
                Ok(json)
            }
        }
    }
}

impl Sweep {
    /// Every row of an experiment on every workload, at every combination of the axes' values. Uses
    /// `seeds`, or the experiment's own if empty.
    ///
    /// # Errors
    /// The machine rejects a value.
    pub fn of_experiment(
        setup: &Setup,
        axes: &[Axis],
        seeds: &[u64],
        shard: SweepPart,
    ) -> Result<Self, ModelError> {
        let mut all = Vec::new();
        for combination in Axis::combinations(axes) {
            let mut one = setup.clone();
            one.machine = setup.machine_with(&combination)?;
            if !seeds.is_empty() {
                one.seeds = seeds.to_vec();
            }
            all.extend(runs(&one).into_iter().map(|run| (combination.clone(), run)));
        }
        let runs = all.len();
        let mine = all.into_iter().enumerate().filter(|(number, _)| is_mine(shard, *number));
        let tasks = mine.map(|(_, (settings, run))| {
            let mut label = labels(&settings);
            label.extend(run.names());
            SweepRun { label, work: SweptWork::Row(Box::new(run)) }
        });
        Ok(Self { tasks: tasks.collect(), runs })
    }

    /// Jobs under every combination of values, policies and seeds.
    ///
    /// Only the part's own values are tried. Otherwise each of thousands of parts would read the
    /// machine thousands of times.
    ///
    /// # Errors
    /// The machine or a job rejects a value.
    pub fn of_jobs(swept: &SweptJobs, shard: SweepPart) -> Result<Self, SweepError> {
        let (mut tasks, mut runs) = (Vec::new(), 0);
        let elevators = match &swept.elevators[..] {
            [] => vec![swept.policy.elevator],
            list => list.to_vec(),
        };
        let controls: Vec<Option<Choice<MakeDirtyControl>>> = match &swept.controls[..] {
            [] => vec![swept.policy.memory.control],
            list => list.iter().copied().map(Some).collect(),
        };
        let named = |(key, values): &(String, Vec<String>)| -> Vec<(String, String)> {
            values.iter().map(|value| (key.clone(), value.clone())).collect()
        };
        let options = setup::combinations(swept.options.iter().map(named));
        for settings in Axis::combinations(&swept.axes) {
            let mut machine = None;
            for options in options.iter() {
                let mut jobs = None;
                for elevator in elevators.iter().copied() {
                    for control in controls.iter().copied() {
                        for seed in &swept.seeds {
                            runs += 1;
                            if !is_mine(shard, runs - 1) {
                                continue;
                            }
                            let machine = match &machine {
                                Some(machine) => machine,
                                None => machine.insert(machine::load(&swept.machine, &settings)?),
                            };
                            let jobs = match &jobs {
                                Some(jobs) => jobs,
                                None => jobs.insert(fio::changed(&swept.jobs, options)?),
                            };
                            let mut policy = swept.policy.clone();
                            policy.elevator = elevator;
                            policy.memory.control = control;
                            let mut label = labels(&settings);
                            label.extend(options.iter().cloned());
                            label.push(("elevator".to_owned(), elevator.to_string()));
                            label.extend(
                                control.map(|policy| ("dirty-control".to_owned(), policy.to_string())),
                            );
                            label.push(("seed".to_owned(), seed.to_string()));
                            let (jobs, machine) = (jobs.clone(), Box::new(machine.clone()));
                            let work =
                                SweptWork::Jobs { jobs, machine, policy: Box::new(policy), seed: *seed };
                            tasks.push(SweepRun { label, work });
                        }
                    }
                }
            }
        }
        Ok(Self { tasks, runs })
    }

    /// Number of runs in all parts.
    pub fn len(&self) -> usize {
        self.runs
    }

    /// Whether there are no runs.
    pub fn is_empty(&self) -> bool {
        self.runs == 0
    }

    /// Executes the runs in parallel, skipping those already stored.
    ///
    /// # Errors
    /// The first run that fails, or if results cannot be stored.
    pub fn run(&self, plan: &SweepOptions, progress: SweepProgress) -> Result<Vec<Done>, ExperimentError> {
        let tasks = self.tasks.clone();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = plan.at_a_time.unwrap_or(threads);
        let store = plan.results.as_deref().map(ResultsStore::open).transpose()?;
        let program = if store.is_none() { results_store::program()? } else { [0; 32] };
        let (over, kept, all) = (AtomicUsize::new(0), AtomicUsize::new(0), tasks.len());
        progress(0, 0, all);
        at_most(threads, tasks, move |task: &SweepRun| {
            let contents = task.work.contents();
            let digest = match &store {
                Some(store) => store.digest(&contents),
                None => results_store::digest(&program, &contents),
            };
            let found = store.as_ref().and_then(|store| store.find(&digest));
            kept.fetch_add(usize::from(found.is_some()), Ordering::Relaxed);
            let result = match (found, &store) {
                (Some(result), _) => result,
                (None, None) => task.work.result()?,
                (None, Some(store)) => {
                    let result = task.work.result()?;
                    store.keep(&digest, &result)?;
                    result
                }
            };
            let done = over.fetch_add(1, Ordering::Relaxed) + 1;
            progress(done, kept.load(Ordering::Relaxed), all);
            Ok(Done { digest, label: task.label.clone(), result })
        })
    }
}

fn labels(settings: &[Setting]) -> Vec<(String, String)> {
    settings
        .iter()
        .map(|setting| setting.parts())
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Formats the results as one JSON object.
pub fn json(done: &[Done]) -> Value {
    let one = |done: &Done| {
        let label: Map<String, Value> =
            done.label.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))).collect();
        json!({"digest": done.digest, "of": label, "result": done.result})
    };
    json!({"runs": done.iter().map(one).collect::<Vec<_>>()})
}

/// Formats the results as a table, with a line for each job, or each workload of an experiment, of
/// every run.
pub fn table(done: &[Done]) -> String {
    let mut out = String::new();
    for Done { label, result, .. } in done {
        let name: Vec<String> = label.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let name = name.join(" ");
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        if let Some(workloads) = result["figures"].as_object() {
            for (workload, figures) in workloads {
                let shown = Figure::ALL.iter().filter_map(|figure| {
                    let value = figures.get(figure.key())?.as_f64()?;
                    Some(format!("{} {value:.*}", figure.title(), figure.digits()))
                });
                let _ = writeln!(out, "{name} workload={workload}: {}", shown.collect::<Vec<_>>().join(", "));
            }
        }
        for job in result["jobs"].as_array().into_iter().flatten() {
            let mut cells = Vec::new();
            for side in ["read", "write"] {
                let side_of = &job[side];
                if number(&side_of["total_ios"]) > 0.0 {
                    cells.push(format!(
                        "{side} {:.0} iops, {:.1} MiB/s, mean {:.1} us, p99 {:.1} us",
                        number(&side_of["iops"]),
                        number(&side_of["bw_bytes"]) / f64::from(1 << 20),
                        number(&side_of["clat_ns"]["mean"]) / 1e3,
                        number(&side_of["clat_ns"]["percentile"]["99.000000"]) / 1e3
                    ));
                }
            }
            if number(&job["sync"]["total_ios"]) > 0.0 {
                let lat = &job["sync"]["lat_ns"];
                let p99 = number(&lat["percentile"]["99.000000"]) / 1e3;
                cells.push(format!("sync mean {:.1} us, p99 {p99:.1} us", number(&lat["mean"]) / 1e3));
            }
            let job = job["jobname"].as_str().unwrap_or("?");
            let _ = writeln!(out, "{name} job={job}: {}", cells.join("; "));
        }
    }
    out
}

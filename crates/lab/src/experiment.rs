//! Experiments: a machine, workloads and policies, and published measurements to compare with.
//!
//! An experiment is a folder like `experiments/cfq-idle`: `experiment.toml` names machine, workloads and policies, `jobs/`
//! holds the workloads, and `expected.txt` the table that comes out. Every policy runs every workload; where a row was
//! published, the table says how far the model is from it.

use crate::fio::{self, JobError};
use crate::run::{Cyclictest, Latency, Memory, Outcome, Policy, RunError, on_machine};
use crate::text::{self, Kind};
use extant_rt::Nanos;
use extant_sim::{Machine, ModelError, Preemption};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// An experiment, read from its file.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// A description of the model and the source of the published numbers.
    pub source: String,
    machine: Machine,
    seeds: Vec<u64>,
    workloads: Vec<Load>,
    rows: Vec<Row>,
    check: Part,
}

/// The part of an experiment whose table `expected.txt` holds: all of it, unless that takes long.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Part {
    workloads: Vec<String>,
    rows: Vec<String>,
    /// How long each workload runs, without warm-up.
    seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    source: String,
    machine: PathBuf,
    seeds: Vec<u64>,
    workload: Vec<Workload>,
    row: Vec<Row>,
    #[serde(default)]
    check: Part,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Workload {
    name: String,
    jobs: PathBuf,
    /// The page cache, where it is not as the machine's file says.
    cache_bytes: Option<u64>,
    dirty_limit_bytes: Option<u64>,
    dirty_background_bytes: Option<u64>,
    /// Scheduling latency is measured beside the jobs.
    cyclictest: Option<Cyclictest>,
}

/// A workload with its jobs.
#[derive(Clone, Debug)]
struct Load {
    name: String,
    jobs: Vec<fio::Job>,
    memory: Memory,
    cyclictest: Option<Cyclictest>,
}

/// A policy under a name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    elevator: String,
    requests: usize,
    /// Controller of dirty memory; ours if not given.
    dirty_control: Option<String>,
    /// Pass of write-back; ours if not given.
    write_back_pass: Option<String>,
    /// When tasks are preempted, where it is not as the machine's file says.
    #[serde(default, deserialize_with = "preemption")]
    preemption: Option<Preemption>,
    /// Published measurements, by workload.
    #[serde(default)]
    published: BTreeMap<String, Published>,
}

/// Published figures of the first job of a workload; those that were not are left out.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    iops: Option<f64>,
    mean_ms: Option<f64>,
    max_ms: Option<f64>,
    deviation_ms: Option<f64>,
    mib_s: Option<f64>,
    /// Scheduling latency beside the jobs.
    latency_min_us: Option<f64>,
    latency_mean_us: Option<f64>,
    latency_max_us: Option<f64>,
}

fn preemption<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Preemption>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

impl Published {
    /// In the order of the table's columns.
    fn figures(&self) -> [Option<f64>; 5] {
        [self.iops, self.mean_ms, self.max_ms, self.deviation_ms, self.mib_s]
    }

    /// Of scheduling latency, likewise.
    fn latency(&self) -> [Option<f64>; 3] {
        [self.latency_min_us, self.latency_mean_us, self.latency_max_us]
    }
}

/// Why an experiment was not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    /// A file could not be read.
    #[error("{0}: {1}")]
    File(String, String),
    /// The experiment's file does not say what is expected.
    #[error("{file}: {problem}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, key and what is wrong with it.
        problem: String,
    },
    /// The machine's file was refused.
    #[error(transparent)]
    Machine(#[from] ModelError),
    /// A job file was refused.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A row or workload was asked for that the experiment does not have.
    #[error("the experiment has no {kind} \"{name}\"; it has: {known}")]
    Unknown {
        /// A row, or a workload.
        kind: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A run did not come to its end.
    #[error("row \"{row}\", workload \"{workload}\": {error}")]
    Run {
        /// The row.
        row: String,
        /// The workload.
        workload: String,
        /// Why.
        error: RunError,
    },
}

/// One run of a workload under a policy.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The policy's row.
    pub row: String,
    /// The workload.
    pub workload: String,
    /// The seed of its world.
    pub seed: u64,
    /// The outcome.
    pub outcome: Outcome,
}

fn text(path: &Path, kind: Kind) -> Result<String, ExperimentError> {
    text::read(path, kind).map_err(|problem| ExperimentError::File(path.display().to_string(), problem))
}

impl Experiment {
    /// Reads an experiment, from its file or from `experiment.toml` in its folder, with its machine and jobs, whose paths
    /// are relative to the file's.
    ///
    /// # Errors
    /// Names the file and what is wrong in it.
    pub fn load(path: &Path) -> Result<Self, ExperimentError> {
        let path = &if path.is_dir() { path.join("experiment.toml") } else { path.to_owned() };
        let File { name, source, machine, seeds, workload, row, check } =
            toml::from_str(&text(path, Kind::Experiment)?).map_err(|error| ExperimentError::Syntax {
                file: path.display().to_string(),
                problem: error.to_string().trim_end().to_owned(),
            })?;
        if seeds.is_empty() {
            let problem = "seeds: an experiment needs at least one".to_owned();
            return Err(ExperimentError::Syntax { file: path.display().to_string(), problem });
        }
        let beside = |other: &Path| path.parent().unwrap_or(Path::new("")).join(other);
        let mut workloads = Vec::new();
        for Workload { name, jobs, cache_bytes, dirty_limit_bytes, dirty_background_bytes, cyclictest } in
            workload
        {
            let jobs = beside(&jobs);
            let jobs = fio::job_file(&jobs.display().to_string(), &text(&jobs, Kind::Jobs)?)?;
            let limits =
                Memory { cache_bytes, dirty_limit_bytes, dirty_background_bytes, ..Memory::default() };
            workloads.push(Load { name, jobs, memory: limits, cyclictest });
        }
        let unknown = |row: &Row| {
            row.published.keys().find(|name| !workloads.iter().any(|load| load.name == **name)).cloned()
        };
        let absurd = |row: &Row| {
            let of = |(name, published): (&String, &Published)| {
                let mut figures = published.figures().into_iter().chain(published.latency()).flatten();
                let wrong = figures.find(|figure| !figure.is_finite() || *figure <= 0.0);
                wrong.map(|figure| {
                    format!("published.{name}: {figure} was never measured; give a number above 0")
                })
            };
            row.published.iter().find_map(of)
        };
        if let Some(problem) = row.iter().find_map(absurd) {
            return Err(ExperimentError::Syntax { file: path.display().to_string(), problem });
        }
        if let Some(stranger) = row.iter().find_map(unknown) {
            let problem = format!("published.{stranger}: no workload has this name");
            return Err(ExperimentError::Syntax { file: path.display().to_string(), problem });
        }
        let machine = crate::machine::load(&beside(&machine))?;
        Ok(Self { name, source, machine, seeds, workloads, rows: row, check })
    }

    /// The same with these workloads and these rows only; an empty list is all of them.
    ///
    /// # Errors
    /// [`ExperimentError::Unknown`], with the names that there are.
    pub fn only(mut self, workloads: &[String], rows: &[String]) -> Result<Self, ExperimentError> {
        keep("workload", &mut self.workloads, workloads, |load| &load.name)?;
        keep("row", &mut self.rows, rows, |row| &row.name)?;
        Ok(self)
    }

    /// The same for this long only, and without what its jobs have as warm-up: for a look, or a test.
    pub fn for_only(mut self, span: Nanos) -> Self {
        for job in self.workloads.iter_mut().flat_map(|load| &mut load.jobs) {
            (job.ramp, job.runtime) = (Nanos::ZERO, Some(span));
        }
        self
    }

    /// The part whose table `expected.txt` in the experiment's folder holds.
    ///
    /// # Errors
    /// [`ExperimentError::Unknown`] if the part names what the experiment does not have.
    pub fn checked_part(self) -> Result<Self, ExperimentError> {
        let Part { workloads, rows, seconds } = self.check.clone();
        let part = self.only(&workloads, &rows)?;
        Ok(match seconds {
            Some(seconds) => part.for_only(Nanos::from_secs(seconds)),
            None => part,
        })
    }

    /// Runs every policy on every workload with every seed, each in a world of its own.
    ///
    /// # Errors
    /// The first run that did not come to its end.
    pub fn run(&self) -> Result<Vec<Cell>, ExperimentError> {
        let mut cells = Vec::new();
        for Load { name: workload, jobs, memory, cyclictest } in &self.workloads {
            for row in &self.rows {
                let policy = Policy {
                    elevator: row.elevator.clone(),
                    requests: row.requests,
                    memory: Memory {
                        control: row.dirty_control.clone(),
                        pass: row.write_back_pass.clone(),
                        ..memory.clone()
                    },
                    cyclictest: *cyclictest,
                };
                let mut machine = self.machine.clone();
                if let Some(mode) = row.preemption {
                    machine = machine.with_preemption(mode);
                }
                for &seed in &self.seeds {
                    let outcome =
                        on_machine(jobs, machine.clone(), &policy, seed, None).map_err(|error| {
                            ExperimentError::Run { row: row.name.clone(), workload: workload.clone(), error }
                        })?;
                    cells.push(Cell { row: row.name.clone(), workload: workload.clone(), seed, outcome });
                }
            }
        }
        Ok(cells)
    }

    /// The results as a table, means over the seeds, with the published figures and the model's error under those that
    /// have them.
    pub fn table(&self, cells: &[Cell]) -> String {
        let mut out = format!("{}\n{}\n", self.name, self.source.trim());
        for Load { name: workload, cyclictest, .. } in &self.workloads {
            let of = |row: &Row| -> Vec<&Cell> {
                cells.iter().filter(|cell| (&cell.row, &cell.workload) == (&row.name, workload)).collect()
            };
            let _ = writeln!(
                out,
                "\n{workload:<28}{:>10}{:>12}{:>12}{:>12}{:>12}",
                "iops", "mean ms", "max ms", "stdev ms", "MiB/s"
            );
            self.rows.iter().for_each(|row| lines(&mut out, row, workload, &of(row)));
            if cyclictest.is_some() {
                let title = format!("{workload}, latency");
                let _ = writeln!(
                    out,
                    "\n{title:<28}{:>10}{:>12}{:>12}{:>12}",
                    "min us", "mean us", "max us", "samples"
                );
                self.rows.iter().for_each(|row| latency_lines(&mut out, row, workload, &of(row)));
            }
        }
        out
    }
}

fn keep<T>(
    kind: &'static str,
    all: &mut Vec<T>,
    wanted: &[String],
    name: impl Fn(&T) -> &String,
) -> Result<(), ExperimentError> {
    if let Some(stranger) = wanted.iter().find(|wanted| !all.iter().any(|item| name(item) == *wanted)) {
        let known: Vec<String> = all.iter().map(|item| format!("\"{}\"", name(item))).collect();
        return Err(ExperimentError::Unknown { kind, name: stranger.clone(), known: known.join(", ") });
    }
    all.retain(|item| wanted.is_empty() || wanted.contains(name(item)));
    Ok(())
}

/// Requests a second; mean, longest and standard deviation of the latency in ms; MiB a second.
fn figures(cell: &Cell, report: usize) -> [f64; 5] {
    let measured = &cell.outcome.reports[report].measured;
    let read = if measured.read.ios > 0 { &measured.read } else { &measured.write };
    let completion = &read.completion;
    let latencies =
        [completion.mean_ns, completion.max_ns as f64, completion.deviation_ns()].map(|ns| ns / 1e6);
    let [mean, max, deviation] = latencies;
    [read.iops(measured.runtime), mean, max, deviation, read.bytes_s(measured.runtime) / f64::from(1 << 20)]
}

/// Scheduling latency, means over the seeds, with the published figures and the model's error.
fn latency_lines(out: &mut String, row: &Row, workload: &str, cells: &[&Cell]) {
    let seen: Vec<_> = cells.iter().filter_map(|cell| cell.outcome.latency.as_ref()).collect();
    if seen.is_empty() {
        return;
    }
    let mean = |of: &dyn Fn(&Latency) -> f64| {
        seen.iter().map(|latency| of(latency)).sum::<f64>() / seen.len() as f64
    };
    let got = [
        mean(&|latency| latency.min_ns as f64 / 1e3),
        mean(&|latency| latency.mean_ns / 1e3),
        mean(&|latency| latency.max_ns as f64 / 1e3),
    ];
    let line = |figures: [Option<f64>; 3], shown: &dyn Fn(usize, f64) -> String| -> String {
        let cell = |n: usize| figures[n].map(|figure| shown(n, figure)).unwrap_or_default();
        format!("{:>10}{:>12}{:>12}", cell(0), cell(1), cell(2))
    };
    let plain = |_: usize, figure: f64| format!("{figure:.0}");
    let samples = mean(&|latency| latency.count as f64);
    let _ = writeln!(out, "  {:<26}{}{samples:>12.0}", row.name, line(got.map(Some), &plain));
    if let Some(published) = row.published.get(workload).map(Published::latency) {
        let error = |n: usize, figure: f64| format!("{:+.0}%", (got[n] / figure - 1.0) * 100.0);
        let _ = writeln!(out, "    {:<24}{}", "published", line(published, &plain).trim_end());
        let _ = writeln!(out, "    {:<24}{}", "error", line(published, &error).trim_end());
    }
}

fn lines(out: &mut String, row: &Row, workload: &str, cells: &[&Cell]) {
    let Some(first) = cells.first() else { return };
    for (number, report) in first.outcome.reports.iter().enumerate() {
        let mut got = [0.0; 5];
        for cell in cells {
            let one = figures(cell, number);
            (0..got.len()).for_each(|n| got[n] += one[n] / cells.len() as f64);
        }
        let name = if number == 0 { row.name.as_str() } else { "" };
        let job = if first.outcome.reports.len() > 1 { report.job.name.as_str() } else { "" };
        let _ = write!(out, "  {name:<16}{job:<10}");
        let _ = write!(out, "{:>10.0}{:>12.1}{:>12.0}{:>12.0}", got[0], got[1], got[2], got[3]);
        let _ = writeln!(out, "{:>12.1}", got[4]);
        let figures = row.published.get(workload).filter(|_| number == 0).map(Published::figures);
        if let Some(figures) = figures.filter(|figures| figures.iter().any(Option::is_some)) {
            let line = |f: &dyn Fn(usize, f64) -> String| -> String {
                let cell = |n: usize, width: usize| {
                    format!("{:>width$}", figures[n].map(|figure| f(n, figure)).unwrap_or_default())
                };
                (1..figures.len()).fold(cell(0, 10), |line, n| line + &cell(n, 12))
            };
            let plain = line(&|n, f| format!("{f:.*}", usize::from(n == 1 || n == 4)));
            let _ = writeln!(out, "    {:<24}{}", "published", plain.trim_end());
            let error = line(&|n, f| format!("{:+.0}%", (got[n] / f - 1.0) * 100.0));
            let _ = writeln!(out, "    {:<24}{}", "error", error.trim_end());
        }
    }
}

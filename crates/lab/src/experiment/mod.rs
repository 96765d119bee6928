//! Experiments: a machine, workloads and policies, and published measurements to compare with.
//!
//! An experiment is a folder such as `experiments/cfq-idle`. `experiment.toml` names the machine,
//! workloads and policies; `jobs/` holds the workloads; `expected.txt` holds the resulting table.
//! Every policy runs every workload. Where a row was published, the table shows the model's error.

mod band;
mod compared;
mod constant;
mod figure;
mod ranges;
mod runs;
mod table;

pub use band::Axis;
pub use compared::{Compared, Headline, Part};
pub(crate) use compared::{EACH_ROW, EachRow};
pub use constant::Constant;
pub use figure::Figure;
pub(crate) use runs::{Figures, Run, at_most, side_by_side};

use crate::fio::{self, JobError};
use crate::run::{Cyclictest, Memory, Outcome, Policies, RunError, VolumeSpec};
use crate::text::{self, Kind};
use crate::workload::{Phase, PhasedWorkload, phased_program};
use band::{Band, Point};
use extant_rt::Nanos;
use extant_sim::{Machine, ModelError, Preemption, Setting};
use ranges::{RangePoint, Ranges};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An experiment, read from its file.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// Describes the model and the source of the published numbers.
    pub source: String,
    /// Parts of the source's setup that the model leaves out.
    pub leaves_out: Vec<String>,
    machine_file: PathBuf,
    settings: Vec<Setting>,
    machine: Machine,
    seeds: Vec<u64>,
    workloads: Vec<Load>,
    rows: Vec<Row>,
    check: Checked,
    band: Option<Band>,
    points: Vec<Point>,
    program: Option<Arc<dyn PhasedWorkload>>,
    constants: Vec<Constant>,
    /// Figures to show in a summary.
    headline: Vec<Figure>,
    /// By workload: figures to show in a report for every row.
    all_rows: BTreeMap<String, Vec<Figure>>,
    /// The largest value of a figure that the source measured for its disks and their link, in any
    /// row.
    carried: BTreeMap<Figure, f64>,
    /// Folder of another experiment with the same published figures; they are counted there.
    pub(crate) repeats: Option<String>,
    ranges: Ranges,
    range_points: Vec<RangePoint>,
    blktrace: Option<PathBuf>,
}

/// The part of an experiment whose table is in `expected.txt`: all of it, unless that takes too
/// long.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Checked {
    workloads: Vec<String>,
    rows: Vec<String>,
    /// How long each workload runs, without warm-up.
    seconds: Option<u64>,
    /// Options of the program that replace the experiment's.
    #[serde(rename = "tiobench", deserialize_with = "phased_program")]
    program: Option<Arc<dyn PhasedWorkload>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    source: String,
    #[serde(default)]
    leaves_out: Vec<String>,
    machine: PathBuf,
    /// Values that override keys of the machine's file, as `--set` takes them.
    #[serde(default)]
    set: Vec<String>,
    seeds: Vec<u64>,
    #[serde(default)]
    workload: Vec<Workload>,
    /// A program that runs instead of jobs; its phases are the workloads.
    #[serde(default, rename = "tiobench", deserialize_with = "phased_program")]
    program: Option<Arc<dyn PhasedWorkload>>,
    row: Vec<Row>,
    #[serde(default)]
    check: Checked,
    band: Option<Band>,
    #[serde(default)]
    constant: Vec<Constant>,
    #[serde(default)]
    headline: Vec<Figure>,
    #[serde(default)]
    all_rows: BTreeMap<String, Vec<Figure>>,
    #[serde(default)]
    carried: BTreeMap<Figure, f64>,
    repeats: Option<String>,
    #[serde(default)]
    ranges: Ranges,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Workload {
    name: String,
    jobs: PathBuf,
    /// Page cache settings that override the machine's file.
    cache_bytes: Option<u64>,
    dirty_limit_bytes: Option<u64>,
    dirty_background_bytes: Option<u64>,
    /// Contiguous pages leave write-back together in runs of this many bytes; if not given, those
    /// of one bio do.
    run_bytes: Option<u64>,
    /// Measures scheduling latency while the jobs run.
    cyclictest: Option<Cyclictest>,
    /// The volume, or volumes, that hold the jobs' files; without one, each file is a single extent
    /// of its disk.
    volume: Option<VolumeSpec>,
    /// The run ends when everything written is durable.
    #[serde(default)]
    drains: bool,
    /// After the run, the jobs' files on the volume are read again.
    #[serde(default)]
    rereads: bool,
}

/// A workload with its jobs.
#[derive(Clone, Debug)]
struct Load {
    name: String,
    jobs: Vec<fio::Job>,
    memory: Memory,
    cyclictest: Option<Cyclictest>,
    volume: Option<VolumeSpec>,
    drains: bool,
    rereads: bool,
    /// The phase of a program, which has no jobs; `None` for other workloads.
    phase: Option<Phase>,
}

impl Load {
    fn of_phase(phase: Phase) -> Self {
        let (name, jobs, memory) = (phase.name.to_owned(), Vec::new(), Memory::default());
        Self {
            name,
            jobs,
            memory,
            cyclictest: None,
            volume: None,
            drains: false,
            rereads: false,
            phase: Some(phase),
        }
    }
}

/// A named policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    elevator: String,
    requests: usize,
    /// Controller of dirty memory; ours if not given.
    dirty_control: Option<String>,
    /// Write-back pass; ours if not given.
    write_back_pass: Option<String>,
    /// Overrides the workload's setting: contiguous pages leave write-back together in runs of this
    /// many bytes.
    run_bytes: Option<u64>,
    /// Policy of direct I/O on a volume; ours if not given.
    direct_io: Option<String>,
    /// Allocator of a volume's blocks; ours if not given.
    allocator: Option<String>,
    /// The workloads to run it on; all if empty.
    #[serde(default)]
    workloads: Vec<String>,
    /// How a program's waiters for pages are woken; ours if not given.
    page_waits: Option<String>,
    /// How a program's waiters for buffers are woken; ours if not given.
    buffer_waits: Option<String>,
    /// Whether this is what Linux does today.
    #[serde(default)]
    today: bool,
    /// When tasks are preempted; overrides the machine's file.
    #[serde(default, deserialize_with = "preemption")]
    preemption: Option<Preemption>,
    /// Published measurements, by workload.
    #[serde(default)]
    published: BTreeMap<String, BTreeMap<Figure, f64>>,
    /// Errors that the source states for the published figures, in their units, by workload.
    #[serde(default)]
    margin: BTreeMap<String, BTreeMap<Figure, f64>>,
    /// Whether the row may be fitted to although it is from after a change; none of its figures is
    /// a prediction.
    #[serde(default)]
    visible: bool,
    /// The published figures that the machine's constants were fitted to, by workload.
    #[serde(default)]
    calibrated: BTreeMap<String, Vec<Figure>>,
    /// The published figures declared in advance as not derivable from the model, by workload.
    #[serde(default)]
    not_derivable: BTreeMap<String, Vec<Figure>>,
}

impl Row {
    /// Requests of its queues. `None` means the disks' tags: the row has no elevator and asks for
    /// more than there are.
    fn requests_on(&self, machine: &Machine) -> Option<usize> {
        let too_many = || machine.disks.iter().any(|disk| disk.queue_depth() < self.requests);
        (!extant_history::uses_tags(&self.elevator) || !too_many()).then_some(self.requests)
    }

    fn runs(&self, load: &Load) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&load.name)
    }
}

fn preemption<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Preemption>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

/// Why an experiment failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    /// A file could not be read.
    #[error("{0}: {1}")]
    File(String, String),
    /// The experiment file is malformed.
    #[error("{file}: {problem}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, key and problem.
        problem: String,
    },
    /// The machine's file was refused.
    #[error(transparent)]
    Machine(#[from] ModelError),
    /// A job file was refused.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The experiment has no row or workload of the requested name.
    #[error("the experiment has no {kind} \"{name}\"; it has: {known}")]
    Unknown {
        /// "row" or "workload".
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// A run failed.
    #[error("row \"{row}\", workload \"{workload}\": {error}")]
    Run {
        /// The row.
        row: String,
        /// The workload.
        workload: String,
        /// The error.
        error: RunError,
    },
}

/// Name of the row with our policies.
const OURS: &str = "extant";

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

fn text(path: &Path, kind: Kind) -> Result<String, ExperimentError> {
    text::read(path, kind).map_err(|problem| ExperimentError::File(path.display().to_string(), problem))
}

impl Experiment {
    /// Reads an experiment with its machine and jobs.
    ///
    /// `path` is the experiment file, or a folder that contains `experiment.toml`. Paths in the
    /// file are relative to the file.
    ///
    /// # Errors
    /// Names the file and the problem in it.
    pub fn load(path: &Path) -> Result<Self, ExperimentError> {
        Self::load_with(path, &[])
    }

    /// Reads an experiment and overrides some keys of its machine's file.
    ///
    /// # Errors
    /// As [`Experiment::load`].
    pub fn load_with(path: &Path, more: &[Setting]) -> Result<Self, ExperimentError> {
        let path = &if path.is_dir() { path.join("experiment.toml") } else { path.to_owned() };
        let syntax = |problem: String| ExperimentError::Syntax { file: path.display().to_string(), problem };
        let file: File = toml::from_str(&text(path, Kind::Experiment)?)
            .map_err(|error| syntax(error.to_string().trim_end().to_owned()))?;
        let File {
            name,
            source,
            leaves_out,
            machine,
            set,
            seeds,
            workload,
            program,
            row,
            check,
            band,
            constant,
            headline,
            all_rows,
            carried,
            repeats,
            ranges,
        } = file;
        if seeds.is_empty() {
            return Err(syntax("seeds: an experiment needs at least one".to_owned()));
        }
        let settings = set.iter().map(|setting| setting.parse()).collect::<Result<Vec<Setting>, String>>();
        let mut settings = settings.map_err(|problem| syntax(format!("set: {problem}")))?;
        settings.extend_from_slice(more);
        let beside = |other: &Path| path.parent().unwrap_or(Path::new("")).join(other);
        let mut workloads = Vec::new();
        for workload in workload {
            let jobs = beside(&workload.jobs);
            let jobs = fio::job_file(&jobs.display().to_string(), &text(&jobs, Kind::Jobs)?)?;
            let Workload { name, cache_bytes, dirty_limit_bytes, dirty_background_bytes, run_bytes, .. } =
                workload;
            let memory = Memory {
                cache_bytes,
                dirty_limit_bytes,
                dirty_background_bytes,
                run_bytes,
                ..Memory::default()
            };
            let Workload { cyclictest, volume, drains, rereads, .. } = workload;
            workloads.push(Load { name, jobs, memory, cyclictest, volume, drains, rereads, phase: None });
        }
        match (&program, workloads.is_empty()) {
            (Some(program), true) => workloads = program.phases().into_iter().map(Load::of_phase).collect(),
            (Some(program), false) => {
                let name = program.name();
                return Err(syntax(format!("{name}: its phases are the workloads; leave [[workload]] out")));
            }
            (None, true) => return Err(syntax("workload: an experiment needs at least one".to_owned())),
            (None, false) => {}
        }
        if let Some(problem) = row.iter().find_map(|row| fault(row, &workloads)) {
            return Err(syntax(problem));
        }
        // If a source has several rows from before the change, the file defines no constants, and
        // the reader has to judge.
        let fitted = (!constant.is_empty()).then(|| before_only(&row)).flatten();
        if let Some(problem) = fitted.or_else(|| constant.iter().find_map(|one| one.fault(&row))) {
            return Err(syntax(problem));
        }
        let machine_file = beside(&machine);
        let machine = load_machine(&machine_file, &settings, program.as_deref())?;
        if let Some(name) = all_rows.keys().find(|name| !workloads.iter().any(|load| load.name == **name)) {
            return Err(syntax(format!("all_rows.{name}: no workload has this name")));
        }
        if let Some((name, _)) = all_rows.iter().find(|(_, figures)| figures.len() > EACH_ROW) {
            return Err(syntax(format!("all_rows.{name}: give {EACH_ROW} figures at most")));
        }
        if workloads.iter().any(|load| load.volume.is_some()) {
            machine.check_costs(&[extant_fs::Cost::table()])?;
        }
        if let Some(problem) = volume_fault(&workloads, &row) {
            return Err(syntax(problem));
        }
        if row.iter().any(|row| row.allocator.is_some()) {
            machine.check_costs(&[extant_history::alloc::Cost::table()])?;
        }
        if let Some(problem) = workloads.iter().find_map(|load| too_large(load, &machine)) {
            return Err(syntax(problem));
        }
        if let Some((program, problem)) =
            program.as_ref().and_then(|program| Some((program.name(), program.fault(&machine)?)))
        {
            return Err(syntax(format!("{program}: {problem}")));
        }
        let mut experiment = Self {
            name,
            source,
            leaves_out,
            machine_file,
            settings,
            machine,
            seeds,
            workloads,
            rows: row,
            check,
            band: None,
            points: Vec::new(),
            program,
            constants: constant,
            headline,
            all_rows,
            carried,
            repeats,
            ranges: Ranges::default(),
            range_points: Vec::new(),
            blktrace: None,
        };
        experiment.check_constants().map_err(&syntax)?;
        experiment.range_points = experiment.points_of(&ranges, beside)?;
        experiment.ranges = ranges;
        if let Some(band) = band {
            let machines = band.machines.iter().map(|file| beside(file)).collect();
            experiment = experiment.with_band(band, machines)?;
        }
        Ok(experiment)
    }

    /// Keeps only these workloads and rows; an empty list keeps all.
    ///
    /// # Errors
    /// [`ExperimentError::Unknown`], with the known names.
    pub fn only(mut self, workloads: &[String], rows: &[String]) -> Result<Self, ExperimentError> {
        keep("workload", &mut self.workloads, workloads, |load| &load.name)?;
        keep("row", &mut self.rows, rows, |row| &row.name)?;
        Ok(self)
    }

    /// Keeps only the first seed and the rows that take part in a comparison, and drops the band.
    ///
    /// Those rows are the published ones, today's and ours. All rows are kept if the experiment
    /// shows the figures of every row.
    pub fn nominal(mut self) -> Self {
        self.seeds.truncate(1);
        let all = !self.all_rows.is_empty();
        self.rows.retain(|row| all || !row.published.is_empty() || row.today || row.name == OURS);
        (self.band, self.points) = (None, Vec::new());
        self
    }

    /// Limits the run to `span` and skips the jobs' warm-up, for a quick look or a test.
    pub fn for_only(mut self, span: Nanos) -> Self {
        for job in self.workloads.iter_mut().flat_map(|load| &mut load.jobs) {
            (job.ramp, job.runtime) = (Nanos::ZERO, Some(span));
        }
        self
    }

    /// Writes a blktrace of each disk to `BASE.DISK.blktrace.0`; of several runs, the last one's is
    /// kept.
    #[must_use]
    pub fn with_blktrace(mut self, base: Option<PathBuf>) -> Self {
        self.blktrace = base;
        self
    }

    /// Keeps the part whose table is in the folder's `expected.txt`.
    ///
    /// # Errors
    /// [`ExperimentError::Unknown`] if the part names something that the experiment does not have.
    pub fn checked_part(self) -> Result<Self, ExperimentError> {
        let Checked { workloads, rows, seconds, program } = self.check.clone();
        let mut part = self.only(&workloads, &rows)?;
        if program.is_some() {
            part.program = program;
            // The published figures belong to the full run.
            part.rows.iter_mut().for_each(|row| row.published.clear());
        }
        Ok(match seconds {
            Some(seconds) => part.for_only(Nanos::from_secs(seconds)),
            None => part,
        })
    }

    /// The names of its workloads, in order.
    pub(crate) fn workload_names(&self) -> impl Iterator<Item = &str> {
        self.workloads.iter().map(|load| load.name.as_str())
    }

    /// The name of the program that it runs instead of jobs; such a program ends by itself.
    pub fn program(&self) -> Option<&'static str> {
        self.program.as_ref().map(|program| program.name())
    }
}

fn load_machine(
    file: &Path,
    settings: &[Setting],
    program: Option<&dyn PhasedWorkload>,
) -> Result<Machine, ModelError> {
    let costs = program.map(PhasedWorkload::costs);
    crate::machine::load_for(file, settings, costs.as_slice())
}

/// The first inconsistency in a row's published figures, if any.
fn fault(row: &Row, workloads: &[Load]) -> Option<String> {
    let names = row.published.keys().chain(row.calibrated.keys()).chain(row.not_derivable.keys());
    let names = names.chain(row.margin.keys());
    if let Some(name) = row.workloads.iter().find(|name| !workloads.iter().any(|load| load.name == **name)) {
        return Some(format!("workloads: \"{name}\" is not one"));
    }
    if let Some(name) = names.clone().find(|name| !workloads.iter().any(|load| load.name == **name)) {
        return Some(format!("published.{name}: no workload has this name"));
    }
    for (name, figures) in &row.published {
        if let Some(wrong) = figures.values().find(|figure| !figure.is_finite() || **figure <= 0.0) {
            return Some(format!("published.{name}: {wrong} was never measured; give a number above 0"));
        }
    }
    let is_there = |name: &String, figure: &Figure| {
        row.published.get(name).is_some_and(|published| published.contains_key(figure))
    };
    for (name, margins) in &row.margin {
        if let Some((figure, wrong)) =
            margins.iter().find(|(_, margin)| !margin.is_finite() || **margin <= 0.0)
        {
            return Some(format!("margin.{name}: {} of {wrong}; give a number above 0", figure.key()));
        }
    }
    let lists = |list: &BTreeMap<String, Vec<Figure>>| -> Vec<(String, Figure)> {
        list.iter().flat_map(|(name, all)| all.iter().map(move |figure| (name.clone(), *figure))).collect()
    };
    let margins =
        row.margin.iter().flat_map(|(name, all)| all.keys().map(move |figure| (name.clone(), *figure)));
    let kinds = [
        ("calibrated", lists(&row.calibrated), "nothing can be fitted to it"),
        ("not_derivable", lists(&row.not_derivable), "there is nothing to derive"),
        ("margin", margins.collect(), "it has no margin"),
    ];
    kinds.into_iter().find_map(|(kind, figures, so)| {
        let (name, figure) = figures.into_iter().find(|(name, figure)| !is_there(name, figure))?;
        Some(format!("{kind}.{name}: {} was not published, so {so}", figure.key()))
    })
}

/// The first workload whose volume is inconsistent, by itself or with a row.
fn volume_fault(workloads: &[Load], rows: &[Row]) -> Option<String> {
    workloads.iter().find_map(|load| {
        let volume = load.volume.as_ref()?;
        let by_row = |row: &Row| {
            let policies =
                Policies { direct_io: row.direct_io.as_deref(), allocator: row.allocator.as_deref() };
            volume.fault_with(policies).map(|problem| format!("row \"{}\", {problem}", row.name))
        };
        let by_row = || rows.iter().filter(|row| row.runs(load)).find_map(by_row);
        let problem = volume.fault().or_else(by_row)?;
        Some(format!("workload \"{}\", volume: {problem}", load.name))
    })
}

/// The first file of a workload that does not fit on the machine's disks, if any.
fn too_large(load: &Load, machine: &Machine) -> Option<String> {
    // Files on a volume must fit that volume instead, which may span several disks.
    if load.volume.is_some() {
        return None;
    }
    let disks = || machine.disks.iter().map(|model| (u64::from(model.count), model.capacity_bytes()));
    let largest = disks().map(|(_, bytes)| bytes).max().unwrap_or(0);
    let all: u64 = disks().map(|(count, bytes)| count.saturating_mul(bytes)).fold(0, u64::saturating_add);
    let mut files: BTreeMap<String, u64> = BTreeMap::new();
    for job in load.jobs.iter().filter(|job| job.size_bytes() > 0) {
        let length = job.offset_bytes.saturating_add(job.size_bytes());
        if length > largest {
            return Some(format!(
                "workload \"{}\", [{}]: a file of {length} bytes does not fit a disk of {largest}",
                load.name, job.name
            ));
        }
        for process in 0..job.processes {
            let known = files.entry(job.file_of(process)).or_default();
            *known = length.max(*known);
        }
    }
    let wanted = files.values().fold(0_u64, |sum, length| sum.saturating_add(*length));
    (wanted > all).then(|| {
        format!("workload \"{}\": files of {wanted} bytes do not fit disks of {all} bytes", load.name)
    })
}

/// The first calibrated figure that is not from its workload's first published row, the one before
/// the change.
fn before_only(rows: &[Row]) -> Option<String> {
    rows.iter().enumerate().find_map(|(n, row)| {
        let earlier = |workload: &String| rows[..n].iter().find(|row| row.published.contains_key(workload));
        row.calibrated.keys().find_map(|workload| {
            let first = &earlier(workload)?.name;
            Some(format!(
                "calibrated.{workload}: the row \"{}\" is a prediction; only \"{first}\" may be fitted",
                row.name
            ))
        })
    })
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

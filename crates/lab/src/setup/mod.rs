//! Experiments: a machine, workloads and policies, and published measurements to compare with.
//!
//! An experiment is a folder such as `experiments/cfq-idle`. `experiment.toml` names the machine,
//! workloads and policies; `jobs/` holds the workloads; `expected.txt` holds the resulting table.
//! Every policy runs every workload. Where a row was published, the table shows the model's error.
//!
//! A file is parsed, resolved and checked once, into a [`Setup`]. Code that runs it gets policies
//! instead of names, and need not check anything again.

mod axis;
pub(crate) mod built_in;
mod check;
mod constants;
mod errors;
pub(crate) mod input_file;
pub(crate) mod machine;
mod points;
mod toml_form;

pub use axis::Axis;
pub(crate) use axis::combinations;
pub(crate) use constants::line_of;
pub use errors::ExperimentError;
pub(crate) use points::{Grid, GridPoint, RangePoint};
pub use toml_form::Constant;

use crate::defaults;
use crate::figure::Figure;
use crate::run::{Cyclictest, FilePolicies, Memory, VolumeSpec};
use crate::workload::fio::{self, Job};
use crate::workload::{Phase, PhasedWorkload};
use extant_history::waits::MakeWaits;
use extant_history::{
    Choice, Kind, MakeAllocator, MakeDirect, MakeDirtyControl, MakeElevator, MakePass, UnknownPolicy,
    uses_tags,
};
use extant_rt::{CostTable, Nanos};
use extant_sim::{Machine, ModelError, Preemption, Setting};
use input_file::InputKind;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml_form::{CheckedForm, ExperimentForm, RowForm, WorkloadForm};

/// An experiment, read from its file.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// Describes the model and the source of the published numbers.
    pub source: String,
    /// Parts of the source's setup that the model leaves out.
    pub leaves_out: Vec<String>,
    pub(crate) machine_file: PathBuf,
    /// Values that replace those of the machine's file.
    pub(crate) settings: Vec<Setting>,
    pub(crate) machine: Machine,
    /// At least one.
    pub(crate) seeds: Vec<u64>,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) rows: Vec<Row>,
    checked: CheckedForm,
    pub(crate) grid: Option<Grid>,
    /// A program that runs instead of jobs; its phases are the workloads.
    pub(crate) program: Option<Arc<dyn PhasedWorkload>>,
    /// The machine's constants to fit, in order.
    pub constants: Vec<Constant>,
    /// Figures to show in a summary.
    pub(crate) headline: Vec<Figure>,
    /// Figures to show in a report for every row, by workload.
    pub(crate) all_rows: BTreeMap<String, Vec<Figure>>,
    /// The largest value of a figure that the source measured for its disks and their link, in any
    /// row.
    pub(crate) carried: BTreeMap<Figure, f64>,
    /// Folder of another experiment with the same published figures; they are counted there.
    pub(crate) repeats: Option<String>,
    /// The nominal point, followed by the points that change one value each.
    pub(crate) ranges: Vec<RangePoint>,
    /// Workloads to run over the ranges; all if empty.
    pub(crate) range_workloads: Vec<String>,
}

/// A workload: jobs, or a phase of the experiment's program.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) jobs: Vec<Job>,
    pub(crate) memory: Memory,
    pub(crate) cyclictest: Option<Cyclictest>,
    pub(crate) volume: Option<VolumeSpec>,
    /// The run ends when everything written is durable.
    pub(crate) drains: bool,
    /// After the run, the jobs' files on the volume are read again.
    pub(crate) rereads: bool,
    /// The phase, which has no jobs; `None` for other workloads.
    pub(crate) phase: Option<Phase>,
}

impl Workload {
    fn of_phase(phase: Phase) -> Self {
        Self {
            name: phase.name.to_owned(),
            jobs: Vec::new(),
            memory: Memory::default(),
            cyclictest: None,
            volume: None,
            drains: false,
            rereads: false,
            phase: Some(phase),
        }
    }

    fn of_jobs(form: WorkloadForm, jobs: Vec<Job>) -> Self {
        let WorkloadForm { name, cyclictest, volume, drains, rereads, .. } = form;
        let memory = Memory {
            cache_bytes: form.cache_bytes,
            dirty_limit_bytes: form.dirty_limit_bytes,
            dirty_background_bytes: form.dirty_background_bytes,
            run_bytes: form.run_bytes,
            ..Memory::default()
        };
        Self { name, jobs, memory, cyclictest, volume, drains, rereads, phase: None }
    }
}

/// A row: policies under a name, and the figures published for them.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) policies: RowPolicies,
    /// The workloads to run it on; all if empty.
    pub(crate) workloads: Vec<String>,
    /// Whether this is what Linux does today.
    pub(crate) today: bool,
    pub(crate) published: Published,
}

/// The policies of a row.
#[derive(Clone, Debug)]
pub(crate) struct RowPolicies {
    pub(crate) elevator: Choice<MakeElevator>,
    pub(crate) requests: usize,
    pub(crate) dirty_control: Choice<MakeDirtyControl>,
    pub(crate) write_back_pass: Choice<MakePass>,
    /// Overrides the workload's setting: contiguous pages leave write-back together in runs of this
    /// many bytes.
    pub(crate) run_bytes: Option<u64>,
    /// `None` means Extant's own direct I/O.
    pub(crate) direct_io: Option<Choice<MakeDirect>>,
    /// `None` means Extant's own allocator.
    pub(crate) allocator: Option<Choice<MakeAllocator>>,
    /// How a program's waiters for pages are woken.
    pub(crate) page_waits: Choice<MakeWaits>,
    /// How a program's waiters for buffers are woken.
    pub(crate) buffer_waits: Choice<MakeWaits>,
    /// When tasks are preempted; overrides the machine's file.
    pub(crate) preemption: Option<Preemption>,
}

/// Figures that a source published for a row. Every map is by workload.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    /// The measurements.
    pub(crate) figures: BTreeMap<String, BTreeMap<Figure, f64>>,
    /// Errors that the source states for them, in their units.
    pub(crate) margins: BTreeMap<String, BTreeMap<Figure, f64>>,
    /// Whether constants may be fitted to this row although it dates from after a change. If so,
    /// none of its figures counts as a prediction.
    pub(crate) visible: bool,
    /// The figures that the machine's constants were fitted to.
    pub(crate) calibrated: BTreeMap<String, Vec<Figure>>,
    /// The figures declared in advance as not derivable from the model.
    pub(crate) not_derivable: BTreeMap<String, Vec<Figure>>,
}

impl Row {
    fn resolve(form: RowForm) -> Result<Self, String> {
        let policies =
            RowPolicies::resolve(&form).map_err(|error| format!("row \"{}\": {error}", form.name))?;
        let published = Published {
            figures: form.published,
            margins: form.margin,
            visible: form.visible,
            calibrated: form.calibrated,
            not_derivable: form.not_derivable,
        };
        Ok(Self { name: form.name, policies, workloads: form.workloads, today: form.today, published })
    }

    /// Whether the row runs this workload.
    pub(crate) fn runs(&self, workload: &Workload) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&workload.name)
    }
}

impl RowPolicies {
    fn resolve(form: &RowForm) -> Result<Self, UnknownPolicy> {
        fn or_ours<F: Kind>(name: &Option<String>) -> Result<Choice<F>, UnknownPolicy> {
            name.as_deref().map_or_else(|| Ok(defaults::ours()), str::parse)
        }
        fn of_linux<F: Kind + Copy>(name: &Option<String>) -> Result<Option<Choice<F>>, UnknownPolicy> {
            name.as_deref().map_or(Ok(None), Choice::of_linux)
        }
        Ok(Self {
            elevator: form.elevator.parse()?,
            requests: form.requests,
            dirty_control: or_ours(&form.dirty_control)?,
            write_back_pass: or_ours(&form.write_back_pass)?,
            run_bytes: form.run_bytes,
            direct_io: of_linux(&form.direct_io)?,
            allocator: of_linux(&form.allocator)?,
            page_waits: or_ours(&form.page_waits)?,
            buffer_waits: or_ours(&form.buffer_waits)?,
            preemption: form.preemption,
        })
    }

    /// Requests of the row's queues. `None` means the disks' tags: the row has no elevator and asks
    /// for more requests than there are tags.
    pub(crate) fn requests_on(&self, machine: &Machine) -> Option<usize> {
        let too_many = || machine.disks.iter().any(|disk| disk.queue_depth() < self.requests);
        (!uses_tags(self.elevator.name()) || !too_many()).then_some(self.requests)
    }

    /// The policies for a volume's files.
    pub(crate) fn on_volume(&self) -> FilePolicies {
        FilePolicies { direct_io: self.direct_io, allocator: self.allocator }
    }
}

fn text(path: &Path, kind: InputKind) -> Result<String, ExperimentError> {
    input_file::read(path, kind).map_err(|problem| ExperimentError::File(path.display().to_string(), problem))
}

/// The values of a list of keys, as `--set` takes them.
fn settings_of(set: &[String]) -> Result<Vec<Setting>, String> {
    let all = set.iter().map(|setting| setting.parse());
    all.collect::<Result<_, String>>().map_err(|problem| format!("set: {problem}"))
}

impl Setup {
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
    /// As [`Setup::load`].
    pub fn load_with(path: &Path, more: &[Setting]) -> Result<Self, ExperimentError> {
        let path = &if path.is_dir() { path.join("experiment.toml") } else { path.to_owned() };
        let syntax = |problem: String| ExperimentError::Syntax { file: path.display().to_string(), problem };
        let form: ExperimentForm = toml::from_str(&text(path, InputKind::Experiment)?)
            .map_err(|error| syntax(error.to_string().trim_end().to_owned()))?;
        if form.seeds.is_empty() {
            return Err(syntax("seeds: an experiment needs at least one".to_owned()));
        }
        let mut settings = settings_of(&form.set).map_err(syntax)?;
        settings.extend_from_slice(more);
        let beside = |other: &Path| path.parent().unwrap_or(Path::new("")).join(other);
        let mut workloads = Vec::new();
        for workload in form.workload {
            let jobs = beside(&workload.jobs);
            let jobs = fio::job_file(&jobs.display().to_string(), &text(&jobs, InputKind::Jobs)?)?;
            workloads.push(Workload::of_jobs(workload, jobs));
        }
        match (&form.program, workloads.is_empty()) {
            (Some(program), true) => {
                workloads = program.phases().into_iter().map(Workload::of_phase).collect();
            }
            (Some(program), false) => {
                let name = program.name();
                return Err(syntax(format!("{name}: its phases are the workloads; leave [[workload]] out")));
            }
            (None, true) => return Err(syntax("workload: an experiment needs at least one".to_owned())),
            (None, false) => {}
        }
        let rows = form.row.into_iter().map(Row::resolve).collect::<Result<Vec<_>, _>>().map_err(syntax)?;
        if let Some(problem) = check::file_fault(&workloads, &rows, &form.constant, &form.all_rows) {
            return Err(syntax(problem));
        }
        let machine_file = beside(&form.machine);
        let costs = costs(form.program.as_deref(), &workloads, &rows);
        let mut setup = Self {
            name: form.name,
            source: form.source,
            leaves_out: form.leaves_out,
            machine: machine::load_for(&machine_file, &settings, &costs)?,
            machine_file,
            settings,
            seeds: form.seeds,
            workloads,
            rows,
            checked: form.check,
            grid: None,
            program: form.program,
            constants: form.constant,
            headline: form.headline,
            all_rows: form.all_rows,
            carried: form.carried,
            repeats: form.repeats,
            ranges: Vec::new(),
            range_workloads: form.ranges.workloads.clone(),
        };
        if let Some(problem) = check::machine_fault(&setup) {
            return Err(syntax(problem));
        }
        // A search must not fail halfway.
        setup.check_constants().map_err(syntax)?;
        setup.ranges = points::ranges(&setup, &form.ranges, beside)?;
        if let Some(form) = &form.band {
            setup.grid = Some(points::grid_of(&setup, form, beside)?);
        }
        Ok(setup)
    }

    /// Reads a machine that prices all work of this experiment.
    pub(crate) fn machine_of(&self, file: &Path, settings: &[Setting]) -> Result<Machine, ModelError> {
        machine::load_for(file, settings, &costs(self.program.as_deref(), &self.workloads, &self.rows))
    }

    /// The experiment's own machine with more keys overridden.
    pub(crate) fn machine_with(&self, more: &[Setting]) -> Result<Machine, ModelError> {
        self.machine_of(&self.machine_file, &[&self.settings, more].concat())
    }

    /// Replaces the grid with every combination of the axes' values.
    ///
    /// # Errors
    /// If the machine is refused; names its file and the setting.
    pub fn over(mut self, axes: &[Axis]) -> Result<Self, ExperimentError> {
        self.grid = Some(points::grid(&self, axes, Vec::new())?);
        Ok(self)
    }

    /// Keeps only these workloads and rows; an empty list keeps all.
    ///
    /// # Errors
    /// [`ExperimentError::Unknown`], with the known names.
    pub fn only(mut self, workloads: &[String], rows: &[String]) -> Result<Self, ExperimentError> {
        keep("workload", &mut self.workloads, workloads, |workload| &workload.name)?;
        keep("row", &mut self.rows, rows, |row| &row.name)?;
        Ok(self)
    }

    /// Keeps only the first seed and the rows that take part in a comparison, and drops the grid.
    ///
    /// Those rows are the published ones, today's and ours. All rows are kept if the experiment
    /// shows the figures of every row.
    #[must_use]
    pub fn nominal(mut self) -> Self {
        self.seeds.truncate(1);
        let all = !self.all_rows.is_empty();
        let is_compared =
            |row: &Row| !row.published.figures.is_empty() || row.today || row.name == defaults::OUR_ROW;
        self.rows.retain(|row| all || is_compared(row));
        self.grid = None;
        self
    }

    /// Limits the run to `span` and skips the jobs' warm-up, for a quick look or a test.
    #[must_use]
    pub fn for_only(mut self, span: Nanos) -> Self {
        for job in self.workloads.iter_mut().flat_map(|workload| &mut workload.jobs) {
            (job.ramp, job.runtime) = (Nanos::ZERO, Some(span));
        }
        self
    }

    /// Keeps the part whose table is in the folder's `expected.txt`.
    ///
    /// # Errors
    /// [`ExperimentError::Unknown`] if the part names something that the experiment does not have.
    pub fn checked_part(self) -> Result<Self, ExperimentError> {
        let CheckedForm { workloads, rows, seconds, program } = self.checked.clone();
        let mut part = self.only(&workloads, &rows)?;
        if program.is_some() {
            part.program = program;
            // The published figures belong to the full run.
            part.rows.iter_mut().for_each(|row| row.published.figures.clear());
        }
        Ok(match seconds {
            Some(seconds) => part.for_only(Nanos::from_secs(seconds)),
            None => part,
        })
    }
}

/// The additional kinds of work that this experiment's runs charge for. The machines of other
/// experiments need no prices for them.
fn costs(
    program: Option<&dyn PhasedWorkload>,
    workloads: &[Workload],
    rows: &[Row],
) -> Vec<&'static CostTable> {
    let has_volume = workloads.iter().any(|workload| workload.volume.is_some());
    let has_allocator = rows.iter().any(|row| row.policies.allocator.is_some());
    let program = program.map(PhasedWorkload::costs);
    let volume = has_volume.then(extant_fs::Cost::table);
    let allocator = has_allocator.then(extant_history::alloc::Cost::table);
    [program, volume, allocator].into_iter().flatten().collect()
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

//! Runs jobs.

mod cyclictest;
mod file_span;
mod measure;
mod memory;
mod offsets;
mod process;
mod target;
mod volume;
mod watch;
mod written;

pub use cyclictest::Cyclictest;
pub use measure::{Direction, Latency, Measured, Samples};
pub use memory::Memory;
pub use target::{Chosen, Policy, QueueBounds};
pub(crate) use volume::Policies;
pub use volume::{Aged, FileSystem, Layout, OnDevice, VolumeSpec};
pub(crate) use watch::{STEP, Seen, Watch};
pub use written::Written;

use crate::fio::Job;
use crate::workload::PhaseFigures;
use extant_block::StreamId;
use extant_history::UnknownPolicy;
use extant_rt::{Class, Nanos, Rng, Rt, RtError, Sink};
use extant_sim::disk::NOMINAL_SEED;
use extant_sim::{Machine, Sim, Spent};
use file_span::FileSpan;
use process::Process;
use std::sync::Arc;
use target::{Modelled, Real};

/// Why jobs were not run, or did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// No elevator or other policy has this name.
    #[error(transparent)]
    Elevator(#[from] UnknownPolicy),
    /// The machine has no `[[disk]]`.
    #[error("the machine \"{0}\" has no disks; add a [[disk]] to its file")]
    NoDisks(String),
    /// The page cache's settings are invalid.
    #[error("{key}: {problem}")]
    Memory {
        /// The setting's name in a machine's file.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Without an elevator, more requests were asked for than the disk has tags.
    #[error(
        "{disk}: \"none\" has the disk's {tags} tags for requests, not {requests} (Linux refuses that since 5.0); leave --requests out, \
         or choose \"noop\", which had requests of its own"
    )]
    BeyondTags {
        /// The disk.
        disk: String,
        /// The number requested.
        requests: usize,
        /// The disk's number of tags.
        tags: usize,
    },
    /// Pages that the jobs left dirty could not be written back.
    #[error("writing back what the jobs left in the page cache: {0}")]
    WriteBack(String),
    /// A job on a modelled machine gives no file size.
    #[error("[{0}]: size= is missing, and a modelled disk has no file to take it from")]
    NoSize(String),
    /// A file does not fit on the disk.
    #[error("[{job}]: {file} of {length} bytes does not fit on the disk")]
    Full {
        /// The job.
        job: String,
        /// The file.
        file: String,
        /// Its length in bytes.
        length: u64,
    },
    /// The job's span contains no whole block of the file.
    #[error("[{job}]: {file} has {length} bytes, less than a block from where the job begins")]
    TooSmall {
        /// The job.
        job: String,
        /// The file.
        file: String,
        /// Its length in bytes.
        length: u64,
    },
    /// A key takes effect only on a modelled machine.
    #[error("[{job}]: {key}= has no effect on real files here; leave it out, or give a machine to run on")]
    NotOnFiles {
        /// The job.
        job: String,
        /// The key.
        key: String,
    },
    /// A host file could not be used.
    #[error("{0}: {1}")]
    File(String, String),
    /// The jobs' volume could not be made or used.
    #[error("the volume: {0}")]
    Volume(String),
    /// A program that runs in phases failed.
    #[error("{program}: {problem}")]
    Program {
        /// The program.
        program: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The world stopped early.
    #[error("{0}")]
    World(String),
}

impl RunError {
    fn file(file: &str, error: &std::io::Error) -> Self {
        Self::File(file.to_owned(), error.to_string())
    }
}

impl From<RtError> for RunError {
    fn from(error: RtError) -> Self {
        Self::World(error.to_string())
    }
}

/// Measurements of a job, or with `group_reporting`, of a group of jobs.
#[derive(Clone, Debug)]
pub struct Report {
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
    /// Of jobs.
    Jobs(Box<JobsOutcome>),
    /// Of a phase of a program.
    Phase(PhaseFigures),
}

/// The result of a run of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobsOutcome {
    /// The reports, in the order of the jobs.
    pub reports: Vec<Report>,
    /// Scheduling latency while the jobs ran, if requested by [`Policy::cyclictest`].
    pub latency: Option<Latency>,
    /// The amount written by the disks of a modelled machine. `None` if no job writes through the
    /// page cache, or the jobs are not all measured over the same interval.
    pub written: Option<Written>,
    /// Counters of a run on volumes.
    pub on_device: Option<OnDevice>,
    /// Time until everything was durable, if requested by [`Policy::drains`].
    pub drained: Option<Nanos>,
    /// Layout of the files, if requested by [`Policy::rereads`].
    pub layout: Option<Layout>,
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
    /// Time of tasks and context switches.
    pub system: Nanos,
    /// Time of interrupts.
    pub interrupts: Nanos,
    /// Length of the period.
    pub over: Nanos,
}

impl ProcessorUse {
    fn so_far(sim: &Sim) -> Self {
        let stats = sim.stats();
        let busy: u64 = stats.busy.iter().map(|busy| busy.0).sum();
        let interrupts = stats.interrupts;
        Self { system: Nanos(busy).saturating_sub(interrupts), interrupts, over: sim.rt().now() }
    }

    fn since(self, before: Self) -> Self {
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

/// Runs jobs on a modelled machine, and sends its events to `sink`.
///
/// The outcome is deterministic: the same machine, jobs, policy and seed produce identical results.
///
/// # Errors
/// Inconsistent inputs are reported before anything runs; whatever stops the world is reported at
/// once. An I/O error only stops its process, and is in that process's report.
pub fn on_machine(
    jobs: &[Job],
    machine: Machine,
    policy: &Policy,
    seed: u64,
    sink: Option<Arc<dyn Sink>>,
) -> Result<JobsOutcome, RunError> {
    on_target(jobs, machine, policy, seed, sink, |_| ())
}

/// Like [`on_machine`]; calls `begun` with the target before the jobs start.
fn on_target(
    jobs: &[Job],
    machine: Machine,
    policy: &Policy,
    seed: u64,
    sink: Option<Arc<dyn Sink>>,
    begun: impl FnOnce(&Modelled),
) -> Result<JobsOutcome, RunError> {
    let queues = QueueBounds::of(&machine, policy)?;
    let mut target = Modelled::new(jobs, machine, policy, seed, sink)?;
    begun(&target);
    let rt = target.sim.rt().clone();
    let plan = plan(jobs, &rt, |job, process, stream, program| {
        let place = target.place(job, process)?;
        target.introduce(stream, program, job);
        Ok(place)
    })?;
    let seen = policy.cyclictest.map(|test| test.start(&rt));
    let before = (ProcessorUse::so_far(&target.sim), target.counts());
    let spent_before = target.sim.spent();
    let counter = written::Counter::start(&target, jobs);
    let mut outcome = execute(&rt, plan, &|stream| target.dismiss(stream))?;
    outcome.queues = queues;
    if policy.drains {
        target.drain()?;
        outcome.drained = Some(rt.now().saturating_sub(before.0.over));
    }
    outcome.latency = seen.map(|seen| seen.lock().clone());
    outcome.written = counter.and_then(|counter| counter.end(&target));
    outcome.processors = Some(ProcessorUse::so_far(&target.sim).since(before.0));
    outcome.spent = since(target.sim.spent(), &spent_before);
    outcome.on_device = target.counts().zip(before.1).map(|(now, before)| OnDevice {
        pieces: now.pieces - before.pieces,
        commands: now.commands - before.commands,
        ..now
    });
    if policy.rereads {
        outcome.layout = target.reread()?;
    }
    target.close()?;
    Ok(outcome)
}

/// Work done since `before`.
fn since(mut now: Vec<Spent>, before: &[Spent]) -> Vec<Spent> {
    for spent in &mut now {
        let same =
            |old: &&Spent| (old.layer, old.key, old.interrupt) == (spent.layer, spent.key, spent.interrupt);
        if let Some(old) = before.iter().find(same) {
            spent.units -= old.units;
            spent.time = spent.time.saturating_sub(old.time);
        }
    }
    now
}

/// Runs jobs on host files. Files to be read are created or extended if missing or too short.
///
/// # Errors
/// As [`on_machine`], and if a file cannot be created or opened.
pub fn on_files(jobs: &[Job], memory: &Memory, sink: Option<Arc<dyn Sink>>) -> Result<JobsOutcome, RunError> {
    let mut target = Real::new(jobs, memory, sink)?;
    let rt = target.rt.clone();
    let plan = plan(jobs, &rt, |job, process, _, _| target.place(job, process))?;
    let outcome = execute(&rt, plan, &|_| ())?;
    target.close()?;
    Ok(outcome)
}

/// Processes that a shell starts together begin within this time of each other.
const ARRIVALS: Nanos = Nanos::from_millis(10);

/// Start delay of a process among those started together; zero in the real world and with the
/// nominal seed.
fn arrival(rt: &Rt, job: &str, process: u32) -> Nanos {
    if !rt.is_virtual() || rt.seed() == NOMINAL_SEED {
        return Nanos::ZERO;
    }
    Nanos(Rng::labelled(rt.seed(), &format!("arrival of {job}.{process}")).below(ARRIVALS.0))
}

/// A process and the index of its report.
struct Planned {
    process: Process,
    report: usize,
}

/// Processes in waves; each wave ends before the next begins.
struct Plan {
    waves: Vec<Vec<Planned>>,
    reports: Vec<Report>,
}

fn plan(
    jobs: &[Job],
    rt: &Rt,
    mut place: impl FnMut(&Job, u32, StreamId, u64) -> Result<FileSpan, RunError>,
) -> Result<Plan, RunError> {
    let mut plan = Plan { waves: Vec::new(), reports: Vec::<Report>::new() };
    let (mut group, mut streams) = (0, 0);
    for (number, job) in jobs.iter().enumerate() {
        if number > 0 && (job.stonewall || job.new_group) {
            group += 1;
        }
        if plan.waves.is_empty() || job.stonewall {
            plan.waves.push(Vec::new());
        }
        let job = Arc::new(job.clone());
        for process in 0..job.processes {
            streams += 1;
            let stream = StreamId(streams);
            let program = number as u64 + 1;
            let place = place(&job, process, stream, program)?;
            let rng = Rng::labelled(rt.seed() ^ job.seed, &format!("{}.{process}", job.name));
            let joins =
                job.group_reporting && plan.reports.last().is_some_and(|report| report.group == group);
            if !joins {
                let measured = Measured::default();
                plan.reports.push(Report { job: job.clone(), group, processes: 0, measured });
            }
            let report = plan.reports.len() - 1;
            plan.reports[report].processes += 1;
            let arrives_after = arrival(rt, &job.name, process);
            let process = Process { rt: rt.clone(), job: job.clone(), stream, place, rng, arrives_after };
            plan.waves.last_mut().expect("there is one").push(Planned { process, report });
        }
    }
    Ok(plan)
}

/// On real files, processes of a wave get a thread each, up to this many; more share threads.
const MOST_THREADS: usize = 256;

fn execute(rt: &Rt, plan: Plan, ended: &dyn Fn(StreamId)) -> Result<JobsOutcome, RunError> {
    let Plan { waves, mut reports } = plan;
    rt.block_on(async {
        for mut wave in waves {
            // In the real world a thread that waits for its own I/O reaps it itself. A task would
            // wait for another thread to do that, and to wake it.
            if !rt.is_virtual() && wave.len() == 1 {
                for Planned { process, report } in wave.drain(..) {
                    reports[report].measured.merge(&process.run().await);
                }
            } else if !rt.is_virtual() && wave.len() <= MOST_THREADS {
                let threads: Vec<_> = wave
                    .drain(..)
                    .map(|Planned { process, report }| {
                        let (name, inside) = (process.job.name.clone(), rt.clone());
                        (report, rt.spawn_blocking(&name, move || inside.block_on(process.run())))
                    })
                    .collect();
                for (report, thread) in threads {
                    reports[report].measured.merge(&thread.await??);
                }
            }
            let tasks: Vec<_> = wave
                .into_iter()
                .map(|Planned { process, report }| {
                    let (stream, name) = (process.stream, process.job.name.clone());
                    (stream, report, rt.spawn(&name, Class::Normal, process.run()))
                })
                .collect();
            for (stream, report, task) in tasks {
                let measured = task.await?;
                reports[report].measured.merge(&measured);
                ended(stream);
            }
        }
        Ok::<(), RtError>(())
    })??;
    let (wall_clock, is_virtual) = (rt.wall_clock(), rt.is_virtual());
    Ok(JobsOutcome { reports, wall_clock, is_virtual, ..JobsOutcome::default() })
}

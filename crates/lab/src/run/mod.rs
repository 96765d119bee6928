//! Runs workloads.

mod cyclictest;
mod figures;
mod file_span;
mod host_files;
mod measure;
mod memory;
mod modelled;
mod offsets;
mod outcome;
mod policy;
mod process;
mod run_error;
mod volume;
mod watch;
mod written;

pub use cyclictest::Cyclictest;
pub(crate) use figures::figure_of;
pub use measure::{Direction, Latency, Measured, Samples};
pub use memory::Memory;
pub use outcome::{JobResult, JobsOutcome, Outcome, ProcessorUse};
pub use policy::{Chosen, Policy, QueueBounds};
pub use run_error::RunError;
pub(crate) use volume::FilePolicies;
pub use volume::{Aged, FileSystem, FilesLayout, OnDevice, VolumeSpec};
pub(crate) use watch::{EventWatch, RunEvents, STEP};
pub use written::Written;

use crate::workload::fio::Job;
use extant_block::StreamId;
use extant_rt::{Class, Nanos, Rng, Rt, RtError, Sink};
use extant_sim::disk::NOMINAL_SEED;
use extant_sim::{Machine, Spent};
use file_span::FileSpan;
use host_files::HostFiles;
use modelled::Modelled;
use process::Process;
use std::sync::Arc;

/// Runs jobs on a modelled machine, and sends its events to `sink`.
///
/// The outcome is deterministic: the same machine, jobs, policy and seed produce identical results.
///
/// # Errors
/// Inconsistent inputs are reported before anything runs; whatever stops the world is reported at
/// once. An I/O error only stops its process, and is in that process's result.
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
    let counter = written::WrittenCounter::start(&target, jobs);
    let mut outcome = execute(&rt, plan, &|stream| target.dismiss(stream))?;
    outcome.queues = queues;
    if policy.drains {
        target.drain()?;
        outcome.drained = Some(rt.now().saturating_sub(before.0.over));
    }
    outcome.latency = seen.map(|seen| seen.lock().clone());
    outcome.written = counter.and_then(|counter| counter.end(&target));
    outcome.processors = Some(ProcessorUse::so_far(&target.sim).since(before.0));
    outcome.spent = Spent::since(target.sim.spent(), &spent_before);
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

/// Runs jobs on host files. Files to be read are created or extended if missing or too short.
///
/// # Errors
/// As [`on_machine`], and if a file cannot be created or opened.
pub fn on_files(jobs: &[Job], memory: &Memory, sink: Option<Arc<dyn Sink>>) -> Result<JobsOutcome, RunError> {
    let mut target = HostFiles::new(jobs, memory, sink)?;
    let rt = target.rt.clone();
    let plan = plan(jobs, &rt, |job, process, _, _| target.place(job, process))?;
    let outcome = execute(&rt, plan, &|_| ())?;
    target.close()?;
    Ok(outcome)
}

/// Processes that a shell starts together begin within this time of each other.
const ARRIVALS: Nanos = Nanos::from_millis(10);

/// Start delay of a process that is started together with others; zero in the real world and with
/// the nominal seed.
fn arrival(rt: &Rt, job: &str, process: u32) -> Nanos {
    if !rt.is_virtual() || rt.seed() == NOMINAL_SEED {
        return Nanos::ZERO;
    }
    Nanos(Rng::labelled(rt.seed(), &format!("arrival of {job}.{process}")).below(ARRIVALS.0))
}

/// A process and the index of its result.
struct PlannedProcess {
    process: Process,
    result: usize,
}

/// Processes in waves; each wave ends before the next begins.
struct JobPlan {
    waves: Vec<Vec<PlannedProcess>>,
    results: Vec<JobResult>,
}

fn plan(
    jobs: &[Job],
    rt: &Rt,
    mut place: impl FnMut(&Job, u32, StreamId, u64) -> Result<FileSpan, RunError>,
) -> Result<JobPlan, RunError> {
    let mut plan = JobPlan { waves: Vec::new(), results: Vec::<JobResult>::new() };
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
                job.group_reporting && plan.results.last().is_some_and(|result| result.group == group);
            if !joins {
                let measured = Measured::default();
                plan.results.push(JobResult { job: job.clone(), group, processes: 0, measured });
            }
            let result = plan.results.len() - 1;
            plan.results[result].processes += 1;
            let arrives_after = arrival(rt, &job.name, process);
            let process = Process { rt: rt.clone(), job: job.clone(), stream, place, rng, arrives_after };
            plan.waves.last_mut().expect("there is one").push(PlannedProcess { process, result });
        }
    }
    Ok(plan)
}

/// On real files, each process of a wave gets its own thread, up to this many threads; further
/// processes share them.
const MOST_THREADS: usize = 256;

fn execute(rt: &Rt, plan: JobPlan, ended: &dyn Fn(StreamId)) -> Result<JobsOutcome, RunError> {
    let JobPlan { waves, mut results } = plan;
    rt.block_on(async {
        for mut wave in waves {
            // In the real world a thread that waits for its own I/O reaps it itself. A task would
            // wait for another thread to do that, and to wake it.
            if !rt.is_virtual() && wave.len() == 1 {
                for PlannedProcess { process, result } in wave.drain(..) {
                    results[result].measured.merge(&process.run().await);
                }
            } else if !rt.is_virtual() && wave.len() <= MOST_THREADS {
                let threads: Vec<_> = wave
                    .drain(..)
                    .map(|PlannedProcess { process, result }| {
                        let (name, inside) = (process.job.name.clone(), rt.clone());
                        (result, rt.spawn_blocking(&name, move || inside.block_on(process.run())))
                    })
                    .collect();
                for (result, thread) in threads {
                    results[result].measured.merge(&thread.await??);
                }
            }
            let tasks: Vec<_> = wave
                .into_iter()
                .map(|PlannedProcess { process, result }| {
                    let (stream, name) = (process.stream, process.job.name.clone());
                    (stream, result, rt.spawn(&name, Class::Normal, process.run()))
                })
                .collect();
            for (stream, result, task) in tasks {
                let measured = task.await?;
                results[result].measured.merge(&measured);
                ended(stream);
            }
        }
        Ok::<(), RtError>(())
    })??;
    let (wall_clock, is_virtual) = (rt.wall_clock(), rt.is_virtual());
    Ok(JobsOutcome { results, wall_clock, is_virtual, ..JobsOutcome::default() })
}

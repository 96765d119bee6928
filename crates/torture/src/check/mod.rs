//! Runs workloads, cuts the power at every point, recovers, and compares with the model.

mod fsck;
mod kernel;
mod recut;
mod scratch;

pub use fsck::{Fsck, Verdict};
pub use kernel::LoopMount;
pub use recut::Recuts;

use crate::states::{self, Options, Pruner, State};
use crate::{Errno, Image, Model, Op, Tree, Workload};
use extant_block::{Change, Log, LogEvent};
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;

/// A run of a workload on a recorded device.
#[derive(Clone, Debug)]
pub struct Run {
    /// Contents of the volume before the run.
    pub before: Tree,
    /// Every write and flush.
    pub log: Log,
    /// For each operation, the number of log events before it began, the number when it had
    /// returned, and its result.
    pub marks: Vec<(usize, usize, Result<u64, Errno>)>,
    /// The tree seen by a reader after the last operation, if there was one.
    pub after: Option<Tree>,
}

/// A volume after recovery.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The volume's contents.
    pub tree: Tree,
    /// The disk, including recovery's writes.
    pub image: Image,
    /// Recovery's writes and flushes.
    pub log: Log,
}

/// A file system implementation on a device.
pub trait Filesystem {
    /// Opens the volume on `image` for writing, runs the operations while recording everything sent
    /// to the device, and drops the volume like a power cut.
    ///
    /// # Errors
    /// The volume could not be opened or read at all.
    fn run(&self, image: &Image, ops: &[Op]) -> Result<Run, String>;

    /// Recovers the volume on `image`, and reads everything on it.
    ///
    /// # Errors
    /// It could not be recovered or read.
    fn recover(&self, image: &Image) -> Result<Recovered, String>;

    /// Grows every file of a copy of a recovered volume, and checks the bytes past its old end.
    ///
    /// # Errors
    /// Bytes there are not zero; the volume cannot be opened; or a file cannot be grown.
    fn check_ends(&self, _recovered: &Recovered) -> Result<(), String> {
        Ok(())
    }
}

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Workloads run.
    pub workloads: u64,
    /// Operations that returned an error.
    pub failed_ops: u64,
    /// States generated.
    pub states: u64,
    /// Distinct disks among them, each of which was recovered.
    pub distinct: u64,
    /// Disks checked by e2fsck.
    pub fsck: u64,
    /// Disks checked by the kernel.
    pub kernel: u64,
    /// Recoveries that were interrupted and repeated.
    pub recuts: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.failed_ops += other.failed_ops;
        self.states += other.states;
        self.distinct += other.distinct;
        self.fsck += other.fsck;
        self.kernel += other.kernel;
        self.recuts += other.recuts;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} workloads, {} states, {} distinct (e2fsck {}, kernel {}, cut recoveries {}), {} operations refused",
            self.workloads, self.states, self.distinct, self.fsck, self.kernel, self.recuts, self.failed_ops
        )
    }
}

/// A broken promise, with everything needed to reproduce it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The operations.
    pub workload: Workload,
    /// The disk after the power cut; `None` if there was none.
    pub state: Option<State>,
    /// Number of operations that had returned, and that had begun.
    pub progress: (usize, usize),
    /// The broken promise, and the oracle that found it.
    pub complaint: String,
    /// The last writes and flushes before the power cut.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.workload)?;
        if let Some(state) = &self.state {
            let (completed, started) = self.progress;
            writeln!(f, "{state}; {completed} operations had returned, {started} had begun")?;
        }
        f.write_str(&self.complaint)?;
        self.trace.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// The last events of a log before `cut`, one line each.
fn trace(log: &Log, cut: usize) -> Vec<String> {
    let line = |at: usize| match log.events[at] {
        LogEvent::Submitted(index) => {
            let Change { op, start, bytes, flags, .. } = &log.changes[index];
            format!("event {at}: write {index} submitted: {op} of {bytes} bytes at sector {start} {flags:?}")
        }
        LogEvent::Ended { change, ok } => {
            format!("event {at}: write {change} ended{}", if ok { "" } else { " with an error" })
        }
    };
    let cut = cut.min(log.events.len());
    (cut.saturating_sub(TRACED_EVENTS)..cut).map(line).collect()
}

/// An additional check of a disk besides our own recovery: e2fsck, or the kernel. Returns the tree
/// after its own recovery, or `None` if it skipped this disk.
pub type Oracle<'a> = &'a mut dyn FnMut(&Image, &Recovered, &mut Tally) -> Result<Option<Tree>, String>;

/// What recovered trees must satisfy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promise {
    /// With a journal: a prefix of the operations that includes everything synced.
    #[default]
    Prefix,
    /// Without a journal: everything synced is there ([`Model::explain_synced`]).
    Synced,
}

impl Promise {
    fn check(self, model: &Model, tree: &Tree, (completed, started): (usize, usize)) -> Option<String> {
        match self {
            Self::Prefix => {
                model.explain(tree, completed, started).err().map(|violation| violation.to_string())
            }
            Self::Synced => {
                model.explain_synced(tree, completed, started).err().map(|lines| lines.join("\n  "))
            }
        }
    }
}

/// How to check workloads.
pub struct Checker<'a> {
    /// The implementation under test.
    pub filesystem: &'a dyn Filesystem,
    /// The freshly made volume.
    pub base: Image,
    /// How many states to generate.
    pub options: Options,
    /// Skips reorderings of writes that the journal protects, and checks the journal's ordering
    /// rules instead.
    pub pruner: Option<Pruner>,
    /// Other recoveries, run on every distinct disk.
    pub oracles: Vec<Oracle<'a>>,
    /// The promise that trees must satisfy.
    pub promise: Promise,
    /// Age in milliseconds at which changes are durable without a sync; `None` for an offline
    /// batch.
    pub commits_within_millis: Option<u64>,
    /// Block size in bytes, if the model should use it.
    pub block_bytes: Option<u64>,
    /// Power cuts during recovery.
    pub recuts: Option<&'a mut Recuts>,
}

/// Number of events shown for a failure.
const TRACED_EVENTS: usize = 40;

/// The trees that recoveries of a disk have found, and the progress values for which the model has
/// explained them.
struct Seen {
    looks: Result<Vec<Tree>, String>,
    explained: Vec<(usize, usize)>,
}

impl Checker<'_> {
    /// Runs a workload, and checks every state that a power cut may leave.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn check(&mut self, workload: &Workload) -> Result<Tally, Box<Failure>> {
        let mut tally = Tally { workloads: 1, ..Tally::default() };
        let failure = |state: Option<&State>, progress, complaint| {
            Box::new(Failure {
                workload: workload.clone(),
                state: state.cloned(),
                progress,
                complaint,
                trace: Vec::new(),
            })
        };
        let run = self.filesystem.run(&self.base, &workload.ops).map_err(|e| failure(None, (0, 0), e))?;
        let mut model = Model::new(&run.before)
            .commits_within_millis(self.commits_within_millis)
            .in_blocks_of(self.block_bytes);
        for (op, &(_, _, result)) in workload.ops.iter().zip(&run.marks) {
            tally.failed_ops += u64::from(result.is_err());
            model.record(op, result).map_err(|e| failure(None, (0, 0), e))?;
        }
        if let Some(after) = &run.after {
            let wrong = model.compare_now(after);
            if !wrong.is_empty() {
                let complaint = format!("without any power cut:\n  {}", wrong.join("\n  "));
                return Err(failure(None, (0, 0), complaint));
            }
        }
        if let Some(pruner) = &self.pruner
            && let Some(broken) = pruner.rules(&run.log).first()
        {
            return Err(failure(None, (0, 0), format!("the log of writes breaks a rule: {broken}")));
        }
        let promises: Vec<usize> = run.marks.iter().map(|&(_, returned, _)| returned).collect();
        let mut seen: HashMap<u128, Seen, BuildHasherDefault<rustc_hash::FxHasher>> = HashMap::default();
        let mut found = None;
        let pruner = self.pruner.clone();
        let (base, options, promise) = (self.base.clone(), self.options, self.promise);
        states::each(&run.log, &base, &promises, options, pruner.as_ref(), &mut |state| {
            tally.states += 1;
            let progress = run.progress(state.cut);
            let seen = seen.entry(state.image.hash()).or_insert_with(|| {
                tally.distinct += 1;
                Seen { looks: self.look(&state.image, &mut tally), explained: Vec::new() }
            });
            if seen.explained.contains(&progress) {
                return true;
            }
            let complaint = match &seen.looks {
                Err(complaint) => Some(complaint.clone()),
                Ok(trees) => trees.iter().enumerate().find_map(|(nth, tree)| {
                    let violation = promise.check(&model, tree, progress)?;
                    let by = if nth == 0 { "our recovery" } else { "another recovery" };
                    Some(format!("{by}: {violation}"))
                }),
            };
            seen.explained.push(progress);
            if let Some(complaint) = complaint {
                let mut failure = failure(Some(&state), progress, complaint);
                failure.trace = trace(&run.log, state.cut);
                found = Some(failure);
            }
            found.is_none()
        });
        found.map_or(Ok(tally), Err)
    }

    /// The trees that our recovery and the oracles find on a disk.
    fn look(&mut self, image: &Image, tally: &mut Tally) -> Result<Vec<Tree>, String> {
        let recovered = self.filesystem.recover(image)?;
        if let Some(recuts) = &mut self.recuts {
            tally.recuts += recuts.check(self.filesystem, image, &recovered)?;
        }
        let mut trees = Vec::with_capacity(1);
        for oracle in &mut self.oracles {
            if let Some(tree) = oracle(image, &recovered, tally)? {
                trees.push(tree);
            }
        }
        trees.insert(0, recovered.tree);
        Ok(trees)
    }
}

impl Run {
    /// How many operations had returned, and how many had begun, after this many events.
    pub fn progress(&self, events: usize) -> (usize, usize) {
        let completed = self.marks.iter().take_while(|&&(_, returned, _)| returned <= events).count();
        let started = self.marks.iter().take_while(|&&(began, ..)| began <= events).count();
        (completed, started)
    }
}

#[cfg(test)]
mod tests;

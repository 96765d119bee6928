//! Runs workloads, cuts the power everywhere, recovers, and asks the model.

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

/// A workload's run over a recorded device.
#[derive(Clone, Debug)]
pub struct Run {
    /// The volume's contents before.
    pub before: Tree,
    /// Every write and flush.
    pub log: Log,
    /// For each operation, the events of the log before it began and when it had returned, and its result.
    pub marks: Vec<(usize, usize, Result<u64, Errno>)>,
    /// The tree that a reader saw after the last operation, if one looked.
    pub after: Option<Tree>,
}

/// A volume after recovery.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Its contents.
    pub tree: Tree,
    /// The disk, with what recovery wrote.
    pub image: Image,
    /// The writes and flushes of recovery.
    pub log: Log,
}

/// An implementation of a file system on a device.
pub trait Filesystem {
    /// Opens the volume on `image` for writing, does the operations, recording what goes to the device, and drops the volume
    /// as a power cut would.
    ///
    /// # Errors
    /// The volume could not be opened or read at all.
    fn run(&self, image: &Image, ops: &[Op]) -> Result<Run, String>;

    /// Recovers the volume on `image` and reads everything on it.
    ///
    /// # Errors
    /// It could not be recovered or read.
    fn recover(&self, image: &Image) -> Result<Recovered, String>;

    /// Grows every file of a recovered volume, which is left as it is, and looks behind its old end.
    ///
    /// # Errors
    /// Bytes there that are not zero; the volume cannot be opened, or a file not be grown.
    fn check_ends(&self, _recovered: &Recovered) -> Result<(), String> {
        Ok(())
    }
}

/// Numbers of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Workloads run.
    pub workloads: u64,
    /// Operations that answered with an error.
    pub failed_ops: u64,
    /// States made.
    pub states: u64,
    /// Different disks among them, each recovered.
    pub distinct: u64,
    /// Disks that e2fsck looked at.
    pub fsck: u64,
    /// Disks that the kernel looked at.
    pub kernel: u64,
    /// Recoveries that were cut off and done again.
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

/// A promise broken, with what it takes to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The operations.
    pub workload: Workload,
    /// The disk after the power cut; `None` where none was needed.
    pub state: Option<State>,
    /// The last operations that had returned and begun.
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

/// Events of a log up to `cut`, the last ones, one line each.
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

/// An extra look at a disk beside our own recovery: e2fsck, the kernel. Returns what it sees after its own recovery, or
/// `None` where it was not asked about this disk.
pub type Oracle<'a> = &'a mut dyn FnMut(&Image, &Recovered, &mut Tally) -> Result<Option<Tree>, String>;

/// The promise that recovered trees are held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promise {
    /// With a journal: a prefix of the operations, no shorter than what was synced.
    #[default]
    Prefix,
    /// Without one: what was synced is there ([`Model::explain_synced`]).
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

/// How workloads are checked.
pub struct Checker<'a> {
    /// Under test.
    pub filesystem: &'a dyn Filesystem,
    /// The freshly made volume.
    pub base: Image,
    /// How many states.
    pub options: Options,
    /// Leaves out reorderings of what the journal protects, and checks the journal's rules instead.
    pub pruner: Option<Pruner>,
    /// Other recoveries of every distinct disk.
    pub oracles: Vec<Oracle<'a>>,
    /// The promise to hold trees to.
    pub promise: Promise,
    /// Age at which changes are durable without a sync, in milliseconds; `None` of an offline batch.
    pub commits_within_millis: Option<u64>,
    /// Bytes of a block, if the model is to go by that.
    pub block_bytes: Option<u64>,
    /// Power cuts during recovery.
    pub recuts: Option<&'a mut Recuts>,
}

/// Events that a failure shows.
const TRACED_EVENTS: usize = 40;

/// The trees that recoveries of a disk saw, and the progress for which the model has explained it.
struct Seen {
    looks: Result<Vec<Tree>, String>,
    explained: Vec<(usize, usize)>,
}

impl Checker<'_> {
    /// Runs a workload and looks at every state that a power cut leaves.
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

    /// The trees that our recovery and the others see on a disk.
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
    /// How many operations had returned, and begun, after so many events.
    pub fn progress(&self, events: usize) -> (usize, usize) {
        let completed = self.marks.iter().take_while(|&&(_, returned, _)| returned <= events).count();
        let started = self.marks.iter().take_while(|&&(began, ..)| began <= events).count();
        (completed, started)
    }
}

#[cfg(test)]
mod tests;

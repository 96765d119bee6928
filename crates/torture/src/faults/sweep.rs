//! EIO at every single read, write and flush of a workload.

use super::record::{has_errors, without_record};
use super::{FailOne, FailingDevice, FaultWorkload, caught};
use crate::campaign::Profile;
use crate::check::{Fsck, Verdict};
use crate::{
    Errno, Filesystem, Image, ImageDevice, Model, Op, OurVolume, Ours, Outcome, SlowDevice, Tree, apply,
};
use extant_block::{Device, Op as BlockOp};
use extant_sim::{Machine, Preemption, Sim};
use std::sync::Arc;

/// A workload on a volume, run once per fault.
#[derive(Debug)]
pub struct Sweep {
    image: Image,
    before: Tree,
    ops: Vec<Op>,
    /// Results without a fault.
    answers: Vec<Outcome<u64>>,
    has_journal: bool,
    block_bytes: u64,
    /// Offset of the journal's superblock, in bytes.
    journal_at: Option<u64>,
    seed: u64,
    ours: Ours,
    fsck: Option<Fsck>,
}

/// A run with a fault.
struct Faulty {
    image: Image,
    /// Number of bios of the failing operation.
    seen: u64,
    /// Whether later writes have written everything that failed ones should have.
    is_made_good: bool,
    /// `None` if the volume could not be opened.
    answers: Option<Vec<Outcome<u64>>>,
    closed: Result<(), String>,
}

impl Sweep {
    /// Creates a volume of this kind, and fills it for the workload, without faults. `seed`
    /// determines the durations of bios, and random workloads.
    ///
    /// # Errors
    /// The volume cannot be created, or fails even without faults.
    pub fn new(profile: Profile, workload: &FaultWorkload, seed: u64) -> Result<Self, String> {
        let base = profile.make().map_err(|error| error.to_string())?;
        let journal_at = base.journal.first().map(|run| run.start * base.block_bytes);
        let (before, ops) = workload.ops(seed);
        let fsck = match Fsck::is_installed() {
            true => Some(Fsck::new().map_err(|error| error.to_string())?),
            false => None,
        };
        let mut sweep = Self {
            image: base.image,
            before: Tree::default(),
            ops: before,
            answers: Vec::new(),
            has_journal: profile.has_journal(),
            block_bytes: base.block_bytes,
            journal_at,
            seed,
            ours: Ours::new(seed),
            fsck,
        };
        let filled = caught(|| sweep.run(NEVER))?;
        filled.closed?;
        let recovered = sweep.ours.recover(&filled.image)?;
        (sweep.image, sweep.before, sweep.ops) = (recovered.image, recovered.tree, ops);
        let whole = caught(|| sweep.run(NEVER))?;
        whole.closed?;
        sweep.answers = whole.answers.ok_or("the volume is not opened")?;
        Ok(sweep)
    }

    /// Number of bios of this operation in the workload, including opening and closing.
    ///
    /// # Errors
    /// The workload panics.
    pub fn bios(&self, op: BlockOp) -> Result<u64, String> {
        caught(|| self.run(FailOne { op, ..NEVER })).map(|run| run.seen)
    }

    /// Runs the workload with a fault.
    ///
    /// # Errors
    /// A panic, a deadlock, an inappropriate error, or a broken promise.
    pub fn check(&self, fail: FailOne) -> Result<(), String> {
        let run = caught(|| self.run(fail))?;
        let struck = run.seen > fail.nth;
        let answers = run.answers.clone().unwrap_or_default();
        self.check_answers(&answers)?;
        let reported = run.closed.is_err() || answers != self.answers;
        // A bio for several files is retried in parts. An error that does not occur again in the
        // retry is not reported.
        let is_silent = struck && !reported;
        if is_silent && (fail.op == BlockOp::Flush || !run.is_made_good) {
            return Err("no operation reported the fault".into());
        }
        let mut model = Model::new(&self.before).after_failed_writes(self.block_bytes);
        for (op, answer) in self.ops.iter().zip(&answers) {
            match (op, answer) {
                // Acknowledged by the cache, but not written in time: treat it as a write without a
                // sync.
                (Op::Write { .. } | Op::Rewrite { .. }, Err(Errno::IO | Errno::ROFS))
                    if fail.op != BlockOp::Read && model.writes_durably(op) =>
                {
                    model.record_unsynced(op)?;
                }
                (
                    Op::Write { .. } | Op::Rewrite { .. } | Op::Truncate { .. } | Op::OpenTruncated { .. },
                    Err(Errno::IO),
                ) => model.record_interrupted(op),
                _ => model.record(op, *answer)?,
            }
        }
        let fsck = self.fsck.as_ref();
        let failed = |error: std::io::Error| error.to_string();
        let gave_up = answers.contains(&Err(Errno::ROFS));
        if gave_up && !fail.and_later && !has_errors(&run.image) {
            return Err("the volume gave up and its superblock does not say so".into());
        }
        let mut image = without_record(&run.image, self.journal_at);
        if let Some(fsck) = fsck {
            if gave_up {
                // Do the full check that the error record demands.
                fsck.mend(&run.image).map_err(failed)?;
            }
            let is_clean = run.closed.is_ok() && fsck.check(&image).map_err(failed)? == Verdict::Clean;
            // A failed deletion leaves an orphan, even on a volume that was closed.
            let may_have_orphan = run.closed.is_err() || fail.op == BlockOp::Read;
            match (is_clean, self.has_journal) {
                (true, _) => {}
                (false, true) if may_have_orphan => match fsck.repair(&image).map_err(failed)?.1 {
                    Verdict::Complains(words) if Fsck::is_wrong_repair(&words, &image) => {}
                    verdict => says_nothing(verdict)?,
                },
                (false, false) if may_have_orphan => image = fsck.mend(&image).map_err(failed)?,
                (false, _) => says_nothing(fsck.check(&image).map_err(failed)?)?,
            }
        } else if run.closed.is_err() && !self.has_journal {
            // Without a journal, e2fsck is expected to run.
            return Ok(());
        }
        let recovered = caught(|| self.ours.recover(&image))?;
        if let Some(fsck) = fsck {
            says_nothing(fsck.check(&recovered.image).map_err(failed)?)?;
        }
        let is_whole = run.closed.is_ok() && (fail.op == BlockOp::Read || is_silent);
        if is_whole {
            let wrong = model.compare_now(&recovered.tree);
            return if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n  ")) };
        }
        if self.has_journal {
            model.explain(&recovered.tree, self.ops.len(), self.ops.len()).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// The operations of a run with a fault and their results, one per line; marked if they differ
    /// from a run without it.
    ///
    /// # Errors
    /// The workload panics.
    pub fn told(&self, fail: FailOne) -> Result<String, String> {
        let run = caught(|| self.run(fail))?;
        let answers = run.answers.unwrap_or_default();
        let mut lines = String::new();
        for (n, ((op, answer), without)) in self.ops.iter().zip(&answers).zip(&self.answers).enumerate() {
            let differs = if answer == without { "" } else { "  <- differs" };
            lines.push_str(&format!("{n}: {op} = {answer:?}{differs}\n"));
        }
        lines.push_str(&format!("close = {:?}\n", run.closed));
        Ok(lines)
    }

    /// Checks the first result that differs from the run without a fault: it must come from the
    /// device, or from the volume shutting down.
    fn check_answers(&self, answers: &[Outcome<u64>]) -> Result<(), String> {
        let differs = answers.iter().zip(&self.answers).position(|(a, b)| a != b);
        let Some(at) = differs else { return Ok(()) };
        match answers[at] {
            Err(Errno::IO | Errno::ROFS) => Ok(()),
            // A partial write.
            Ok(_) if matches!(self.ops[at], Op::Write { .. } | Op::WriteHeld { .. } | Op::Rewrite { .. }) => {
                Ok(())
            }
            other => Err(format!("{} was answered with {other:?}", self.ops[at])),
        }
    }

    fn run(&self, fail: FailOne) -> Result<Faulty, String> {
        let sim = Sim::new(Machine::free(1, Preemption::None), self.seed);
        let disk = Arc::new(ImageDevice::new(self.image.clone()));
        let failing = Arc::new(FailingDevice::new(disk.clone(), fail));
        let device: Arc<dyn Device> = Arc::new(SlowDevice::new(&sim, failing.clone(), self.seed));
        let (answers, closed) = match OurVolume::open(sim.rt(), device) {
            Err(error) => (None, Err(error.to_string())),
            Ok(mut volume) => {
                let answers = self.ops.iter().map(|op| apply(&mut volume, op)).collect();
                (Some(answers), volume.close().map_err(|error| error.to_string()))
            }
        };
        let (seen, is_made_good) = (failing.seen(), failing.is_made_good());
        Ok(Faulty { image: disk.image(), seen, is_made_good, answers, closed })
    }
}

const NEVER: FailOne = FailOne { op: BlockOp::Write, nth: u64::MAX, and_later: false };

fn says_nothing(verdict: Verdict) -> Result<(), String> {
    match verdict {
        Verdict::Clean => Ok(()),
        Verdict::Complains(words) => Err(words),
    }
}

//! Campaigns: base volumes, ranges of workloads, and oracles in addition to our own recovery.

mod profile;

pub use profile::{BIGALLOC_DATA_JOURNAL, Base, DATA_JOURNAL, EA_INODE, PROFILES, Profile, UNLOGGED};

use crate::check::{Checker, Failure, Fsck, LoopMount, Promise, Recuts, Run, Tally, Verdict};
use crate::diff::Generator;
use crate::states::{Options, Pruner};
use crate::{Ace, Filesystem, Image, Op, Ours, Recovered, Tree, Workload, directed};
use std::cell::Cell;
use std::io;

/// Default commit interval of a volume, plus time for the commit itself.
const COMMIT_MILLIS: u64 = 5_500;

/// Sources of workloads.
#[derive(Debug)]
pub enum Source {
    /// ACE's workloads.
    Ace(Ace),
    /// Random sequences of this many operations, one per seed.
    Random(usize),
    /// Workloads of [`directed`].
    Directed,
}

impl Source {
    /// Number of workloads.
    pub fn len(&self) -> u64 {
        match self {
            Self::Ace(ace) => ace.len(),
            Self::Random(_) => u64::MAX,
            Self::Directed => directed::all().len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The workload with this index.
    pub fn workload(&self, index: u64) -> Workload {
        match self {
            Self::Ace(ace) => ace.workload(index),
            Self::Random(count) => {
                let mut generator = Generator::new(index);
                (generator.freezes, generator.sleeps, generator.allocates) = (true, true, true);
                (generator.moves, generator.projects) = (true, true);
                Workload { name: format!("random {index}"), ops: generator.take(*count) }
            }
            Self::Directed => directed::all().swap_remove(index as usize),
        }
    }
}

/// How thoroughly crash states are checked.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How many states to generate.
    pub options: Options,
    /// Reorders only writes that no mechanism protects.
    pub pruned: bool,
    /// e2fsck checks one in this many distinct states, once after our recovery and once instead of
    /// it; 0 for none.
    pub fsck_every: u64,
    /// After our recovery, files are grown in one of this many distinct states, and must be zero
    /// past their old ends; 0 for none.
    pub ends_every: u64,
    /// The kernel checks one in this many distinct states; 0 for none.
    pub kernel_every: u64,
    /// Recovery itself is interrupted in one of this many distinct states; 0 for none.
    pub recut_every: u64,
}

impl Default for Effort {
    fn default() -> Self {
        let options = Options::default();
        Self { options, pruned: false, fsck_every: 1, ends_every: 4, kernel_every: 0, recut_every: 0 }
    }
}

/// Checks workloads of a source on one kind of volume.
#[derive(Debug)]
pub struct Campaign {
    base: Base,
    seed: u64,
    effort: Effort,
    fsck: Option<Fsck>,
    kernel: Option<LoopMount>,
    /// Distinct states checked so far.
    looked: Cell<u64>,
    recuts: Cell<Option<Recuts>>,
    profile: Profile,
}

impl Campaign {
    /// A campaign on volumes of this kind. Unavailable oracles are left out; see
    /// [`Campaign::oracles`].
    ///
    /// # Errors
    /// The volume cannot be created.
    pub fn new(profile: Profile, seed: u64, effort: Effort) -> io::Result<Self> {
        let has_journal = profile.has_journal();
        let fsck = match (effort.fsck_every > 0 || !has_journal) && Fsck::is_installed() {
            true => Some(Fsck::new()?),
            false => None,
        };
        let kernel = match effort.kernel_every > 0 && has_journal && LoopMount::is_possible() {
            true => Some(LoopMount::new()?),
            false => None,
        };
        let recuts = (effort.recut_every > 0 && has_journal).then(|| Recuts::new(effort.recut_every, seed));
        let (looked, recuts) = (Cell::new(0), Cell::new(recuts));
        Ok(Self { base: profile.make()?, seed, effort, fsck, kernel, looked, recuts, profile })
    }

    /// The base volume of all workloads.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// Names of the oracles in use, other than our own recovery.
    pub fn oracles(&self) -> Vec<&'static str> {
        let fsck = self.fsck.as_ref().map(|_| "e2fsck");
        fsck.into_iter().chain(self.kernel.as_ref().map(|_| "kernel")).collect()
    }

    /// Checks one workload.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn check(&self, workload: &Workload) -> Result<Tally, Box<Failure>> {
        let Profile { online, short_steps, .. } = self.profile;
        self.check_with(&Ours::new(self.seed).online(online).short_steps(short_steps), workload)
    }

    /// Like [`Campaign::check`], for another implementation: a mutant.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn check_with(
        &self,
        filesystem: &dyn Filesystem,
        workload: &Workload,
    ) -> Result<Tally, Box<Failure>> {
        let Self { base, effort, fsck, kernel, .. } = self;
        let has_journal = self.profile.has_journal();
        let due = |every: u64| every > 0 && self.looked.get().is_multiple_of(every);
        let mut by_fsck = |image: &Image, recovered: &Recovered, tally: &mut Tally| {
            self.looked.set(self.looked.get() + 1);
            match fsck.as_ref().filter(|_| due(effort.fsck_every)) {
                Some(fsck) if has_journal => ask_fsck(fsck, filesystem, image, recovered, tally),
                Some(fsck) => leaves_nothing(fsck, recovered, tally).map(|()| None),
                None => Ok(None),
            }
        };
        let mut by_kernel = |image: &Image, _: &Recovered, tally: &mut Tally| {
            let Some(kernel) = kernel.as_ref().filter(|_| due(effort.kernel_every)) else {
                return Ok(None);
            };
            tally.kernel += 1;
            kernel.tree(image).map_err(|error| format!("loop mount: {error}"))?.map(Some)
        };
        let mut by_growth = |_: &Image, recovered: &Recovered, _: &mut Tally| match due(effort.ends_every) {
            true => filesystem.check_ends(recovered).map(|()| None),
            false => Ok(None),
        };
        let mended = fsck.as_ref().map(|fsck| Mended { filesystem, fsck });
        let filesystem = match &mended {
            Some(mended) if !has_journal => mended,
            _ => filesystem,
        };
        let pruner =
            (effort.pruned && has_journal).then(|| Pruner::new(base.block_bytes, base.journal.clone()));
        let mut recuts = self.recuts.take();
        let mut checker = Checker {
            filesystem,
            base: base.image.clone(),
            options: Options { seed: self.seed, ..effort.options },
            pruner,
            oracles: vec![&mut by_fsck, &mut by_growth, &mut by_kernel],
            promise: if has_journal { Promise::Prefix } else { Promise::Synced },
            commits_within_millis: self.profile.online.then_some(COMMIT_MILLIS),
            block_bytes: has_journal.then_some(base.block_bytes),
            recuts: recuts.as_mut(),
        };
        let checked = checker.check(workload);
        drop(checker);
        self.recuts.set(recuts);
        checked
    }
}

/// A file system recovered by e2fsck first, as at boot.
#[derive(Clone, Copy)]
struct Mended<'a> {
    filesystem: &'a dyn Filesystem,
    fsck: &'a Fsck,
}

impl Filesystem for Mended<'_> {
    fn run(&self, image: &Image, ops: &[Op]) -> Result<Run, String> {
        self.filesystem.run(image, ops)
    }

    fn recover(&self, image: &Image) -> Result<Recovered, String> {
        let (repaired, verdict) =
            self.fsck.repair_unlogged(image).map_err(|error| format!("e2fsck: {error}"))?;
        match verdict {
            Verdict::Complains(words) => Err(words),
            Verdict::Clean => self.filesystem.recover(&repaired),
        }
    }

    fn check_ends(&self, recovered: &Recovered) -> Result<(), String> {
        self.filesystem.check_ends(recovered)
    }
}

/// Checks that e2fsck finds nothing wrong after a repaired volume was opened and closed.
fn leaves_nothing(fsck: &Fsck, recovered: &Recovered, tally: &mut Tally) -> Result<(), String> {
    tally.fsck += 1;
    match fsck.check(&recovered.image).map_err(|error| format!("e2fsck: {error}"))? {
        Verdict::Complains(words) => Err(format!("after the volume was used: {words}")),
        Verdict::Clean => Ok(()),
    }
}

/// Checks that e2fsck finds nothing wrong after our recovery, and that it can repair the crashed
/// disk itself.
///
/// Returns the tree after that repair, or `None` if it is one of e2fsck's known wrong repairs.
fn ask_fsck(
    fsck: &Fsck,
    filesystem: &dyn Filesystem,
    image: &Image,
    recovered: &Recovered,
    tally: &mut Tally,
) -> Result<Option<Tree>, String> {
    tally.fsck += 1;
    let failed = |error: io::Error| format!("e2fsck: {error}");
    if let Verdict::Complains(words) = fsck.check(&recovered.image).map_err(failed)? {
        return Err(format!("after our recovery: {words}"));
    }
    let (repaired, verdict) = fsck.repair(image).map_err(failed)?;
    if let Verdict::Complains(words) = verdict {
        return match Fsck::is_wrong_repair(&words, image) {
            true => Ok(None),
            false => Err(format!("instead of our recovery: {words}")),
        };
    }
    let read = filesystem.recover(&repaired);
    Ok(Some(read.map_err(|error| format!("after e2fsck's repair: {error}"))?.tree))
}

//! Block selection: the free-extent indexes of all groups, and the windows of growing files.
//!
//! This code is pure: it answers a request with a run, or with the group whose bitmap must be
//! loaded first. An index contains exactly the *allocatable* blocks. It excludes blocks allocated
//! in memory but not yet logged, and blocks freed by a transaction that is not yet durable. A group
//! with such blocks stays loaded, because its bitmap alone cannot tell them apart. With `bigalloc`
//! the unit is the cluster: indexes, windows and requests count clusters, and runs are whole
//! clusters.

use super::runs::{FreeRuns, Span};
use crate::meta::PhysicalRun;
use extant_format::{BlockRange, ClusterSize, Group, InodeNumber, Superblock, UintExt, VolumeBlock};
use std::collections::{BTreeMap, BTreeSet};

/// How many blocks are wanted, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The growing file, if any; it gets a window of extra blocks behind the ones it wants.
    pub(crate) growing: Option<InodeNumber>,
    /// File length before this request, in clusters; the window is this long, or `want` if larger,
    /// within `WINDOW_MIN` and `WINDOW_MAX`.
    pub(crate) before: u32,
    /// The preferred first block.
    pub(crate) goal: VolumeBlock,
    /// Clusters wanted, at least 1.
    pub(crate) want: u32,
    /// Groups loaded for this request so far.
    pub(crate) loads: u32,
}

/// The next step for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Done: these blocks are no longer allocatable.
    Run(PhysicalRun),
    /// The bitmap of this group must be loaded.
    Load(Group),
    /// Nothing is allocatable.
    Full,
}

/// Minimum and maximum length of a window, in blocks. A window is always at least one cluster.
const WINDOW_MIN: u32 = 16;
const WINDOW_MAX: u32 = 2048;
/// Groups that a request may load in search of a run of full length, and of one eighth of that.
const LOADS_FOR_WHOLE: u32 = 8;
const LOADS_FOR_PART: u32 = 16;
/// Memory of a free run in both indexes (by position and by length), with its share of tree nodes.
pub(crate) const RUN_BYTES: u64 = 40;

#[derive(Clone, Debug)]
enum State {
    Unloaded {
        free: u32,
        /// Upper bound on the longest run: until the group has been loaded once, its number of free
        /// blocks.
        longest: u32,
    },
    Loaded {
        runs: FreeRuns,
        /// Allocations not logged, frees not durable, and windows.
        users: u32,
    },
    /// The bitmap is damaged; nothing is allocated here.
    Bad,
}

/// The groups of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    groups: Vec<State>,
    loaded: BTreeSet<u32>,
    windows: BTreeMap<InodeNumber, (Group, Span)>,
    first_block: u64,
    clusters_per_group: u32,
    cluster: ClusterSize,
}

impl Groups {
    /// Creates groups with these numbers of free clusters, none of them loaded.
    pub(crate) fn new(sb: &Superblock, free: impl Iterator<Item = u32>) -> Self {
        Self {
            groups: free.map(|free| State::Unloaded { free, longest: free }).collect(),
            loaded: BTreeSet::new(),
            windows: BTreeMap::new(),
            first_block: sb.first_data_block().0,
            clusters_per_group: sb.clusters_per_group(),
            cluster: sb.cluster_size(),
        }
    }

    /// The group of a block, and the position of the block's cluster within it.
    pub(crate) fn locate(&self, block: VolumeBlock) -> (Group, u32) {
        let n = block.0.saturating_sub(self.first_block) >> self.cluster.log2();
        let group = n / u64::from(self.clusters_per_group);
        (Group(group.fit_u32()), (n % u64::from(self.clusters_per_group)).fit_u32())
    }

    fn run(&self, group: Group, span: Span) -> PhysicalRun {
        let first = u64::from(group.0) * u64::from(self.clusters_per_group) + u64::from(span.start);
        let bits = self.cluster.log2();
        PhysicalRun::new(VolumeBlock(self.first_block + (first << bits)), u64::from(span.len) << bits)
    }

    /// The clusters of a run, in one part per group.
    pub(crate) fn split(&self, run: PhysicalRun) -> impl Iterator<Item = (Group, Span)> + use<> {
        let (Group(mut group), mut start) = self.locate(run.start);
        let blocks = BlockRange::at(run.start.0.saturating_sub(self.first_block), run.blocks);
        let (per_group, mut left) = (self.clusters_per_group, self.cluster.count(blocks));
        std::iter::from_fn(move || {
            let len = left.min(u64::from(per_group - start)).fit_u32();
            let part = (len > 0).then_some((Group(group), Span::new(start, len)));
            left -= u64::from(len);
            (group, start) = (group + 1, 0);
            part
        })
    }

    /// Allocatable clusters of a group: from its index if loaded, else from the descriptor.
    pub(crate) fn free(&self, group: Group) -> u32 {
        match &self.groups[group.0.to_usize()] {
            State::Unloaded { free, .. } => *free,
            State::Loaded { runs, .. } => runs.free(),
            State::Bad => 0,
        }
    }

    pub(crate) fn is_loaded(&self, group: Group) -> bool {
        !matches!(self.groups[group.0.to_usize()], State::Unloaded { .. })
    }

    pub(crate) fn is_bad(&self, group: Group) -> bool {
        matches!(self.groups[group.0.to_usize()], State::Bad)
    }

    /// Builds a group's index from its bitmap, unless it already has one.
    pub(crate) fn load(&mut self, group: Group, bitmap: &[u8], clusters: u32) {
        let state = &mut self.groups[group.0.to_usize()];
        if matches!(state, State::Unloaded { .. }) {
            *state = State::Loaded { runs: FreeRuns::from_bitmap(bitmap, clusters), users: 0 };
            self.loaded.insert(group.0);
        }
    }

    /// Stops allocating from a group. Returns how many allocatable clusters are lost.
    pub(crate) fn set_bad(&mut self, group: Group) -> u32 {
        let windowed: u32 =
            self.windows.values().filter(|(at, _)| *at == group).map(|(_, span)| span.len).sum();
        self.windows.retain(|_, (at, _)| *at != group);
        let lost = self.free(group) + windowed;
        self.groups[group.0.to_usize()] = State::Bad;
        self.loaded.remove(&group.0);
        lost
    }

    /// Forgets the index of a group whose bitmap contradicts its descriptor, which counts `free`
    /// clusters.
    pub(crate) fn reject(&mut self, group: Group, free: u32) {
        self.groups[group.0.to_usize()] = State::Unloaded { free, longest: free };
        self.loaded.remove(&group.0);
    }

    /// Answers a request.
    pub(crate) fn step(&mut self, request: Request) -> Step {
        assert!(request.want > 0, "a request for no blocks");
        if let Some(run) = request.growing.and_then(|file| self.continue_window(file, request)) {
            return Step::Run(run);
        }
        match self.find(request) {
            Step::Full if !self.windows.is_empty() => {
                while let Some((&file, _)) = self.windows.first_key_value() {
                    self.close_window(file);
                }
                self.find(request)
            }
            step => step,
        }
    }

    fn continue_window(&mut self, file: InodeNumber, request: Request) -> Option<PhysicalRun> {
        let (group, at) = self.locate(request.goal);
        let &(in_group, span) = self.windows.get(&file)?;
        if (in_group, span.start) != (group, at) {
            self.close_window(file);
            return None;
        }
        debug_assert!(self.is_loaded(group) && span.len > 0, "a window keeps its group loaded");
        let taken = Span::new(at, span.len.min(request.want));
        self.pin(group);
        if taken.len == span.len {
            self.windows.remove(&file);
            self.release(group);
        } else {
            self.windows.insert(file, (group, Span::new(taken.end(), span.len - taken.len)));
        }
        Some(self.run(group, taken))
    }

    fn find(&mut self, request: Request) -> Step {
        let (goal_group, at) = self.locate(request.goal);
        let goal_group = if goal_group.0.to_usize() < self.groups.len() { goal_group } else { Group(0) };
        match &self.groups[goal_group.0.to_usize()] {
            State::Unloaded { free, .. } if *free > 0 => return Step::Load(goal_group),
            State::Loaded { runs, .. } => {
                if let Some(span) = runs.exact(at, self.widened(request)) {
                    return self.take(goal_group, span, request);
                }
            }
            _ => {}
        }
        // Half a group is long enough: the next request continues it.
        let enough = request.want.min(self.clusters_per_group / 2).max(1);
        for (min, loads_max) in
            [(enough, LOADS_FOR_WHOLE), (enough.div_ceil(8), LOADS_FOR_PART), (1, u32::MAX)]
        {
            for n in 0..self.groups.len() {
                let group = (goal_group.0.to_usize() + n) % self.groups.len();
                match &self.groups[group] {
                    State::Unloaded { longest, .. } if *longest >= min && request.loads < loads_max => {
                        return Step::Load(Group(group.fit_u32()));
                    }
                    State::Loaded { runs, .. } if runs.longest() >= min => {
                        let from = if n == 0 { at } else { 0 };
                        if let Some(span) = runs.choose(from, self.widened(request), min) {
                            return self.take(Group(group.fit_u32()), span, request);
                        }
                    }
                    _ => {}
                }
            }
        }
        Step::Full
    }

    /// The groups from that of `goal` on whose free clusters make up a request for `want`, and the
    /// next one, as far as they are not loaded. Looks at `most` groups.
    pub(crate) fn not_loaded(&self, goal: VolumeBlock, want: u64, most: u32) -> Vec<Group> {
        let (first, _) = self.locate(goal);
        let end = first.0.saturating_add(most).min(self.groups.len().fit_u32());
        let mut missing = Vec::new();
        let mut left = Some(want);
        for group in (first.0..end).map(Group) {
            let Some(wanted) = left else { break };
            let free = u64::from(self.free(group));
            if free > 0 && !self.is_loaded(group) {
                missing.push(group);
            }
            left = wanted.checked_sub(free);
        }
        missing
    }

    fn widened(&self, request: Request) -> u32 {
        let clusters = |blocks: u32| (blocks >> self.cluster.log2()).max(1);
        match request.growing {
            Some(_) => {
                let kept = request.want.max(request.before);
                request.want.saturating_add(kept.clamp(clusters(WINDOW_MIN), clusters(WINDOW_MAX)))
            }
            None => request.want,
        }
    }

    /// Takes a span for a request. Whatever exceeds the request becomes the file's window.
    fn take(&mut self, group: Group, span: Span, request: Request) -> Step {
        debug_assert!(span.end() <= self.clusters_per_group, "{span:?} is outside group {group}");
        if let State::Loaded { runs, users } = &mut self.groups[group.0.to_usize()] {
            runs.take(span);
            *users += 1;
        }
        let wanted = Span::new(span.start, span.len.min(request.want));
        if let Some(file) = request.growing.filter(|_| wanted.len < span.len) {
            self.windows.insert(file, (group, Span::new(wanted.end(), span.len - wanted.len)));
            self.pin(group);
        }
        Step::Run(self.run(group, wanted))
    }

    /// The files that have a window.
    #[cfg(test)]
    pub(crate) fn windows(&self) -> impl Iterator<Item = InodeNumber> {
        self.windows.keys().copied()
    }

    /// Makes the rest of a file's window allocatable to everyone.
    pub(crate) fn close_window(&mut self, file: InodeNumber) {
        if let Some((group, span)) = self.windows.remove(&file) {
            self.give(group, span);
        }
    }

    /// Keeps a group loaded until [`Self::release`] or [`Self::give`], because it has blocks that
    /// are allocated but not logged, freed by a transaction that is not durable, or about to be
    /// freed.
    pub(crate) fn pin(&mut self, group: Group) {
        if let State::Loaded { users, .. } = &mut self.groups[group.0.to_usize()] {
            *users += 1;
        }
    }

    /// Ends a [`Self::pin`] once the allocation is logged, so that the bitmap has all of it.
    pub(crate) fn release(&mut self, group: Group) {
        if let State::Loaded { users, .. } = &mut self.groups[group.0.to_usize()] {
            *users -= 1;
        }
    }

    /// The first allocatable clusters of a loaded group at or after its cluster `at`, in a run of
    /// at least `min`, up to `most` of them.
    pub(crate) fn next_free(&self, group: Group, at: u32, min: u32, most: u32) -> Option<PhysicalRun> {
        let State::Loaded { runs, .. } = &self.groups[group.0.to_usize()] else { return None };
        let span = runs.next(at, min)?;
        Some(self.run(group, Span::new(span.start, span.len.min(most))))
    }

    /// Takes a run within one group, all of which is allocatable.
    pub(crate) fn take_run(&mut self, run: PhysicalRun) {
        let (group, start) = self.locate(run.start);
        debug_assert!(self.is_loaded(group) && !self.is_bad(group), "a run of group {group} was found");
        if let State::Loaded { runs, users } = &mut self.groups[group.0.to_usize()] {
            runs.take(Span::new(start, (run.blocks >> self.cluster.log2()).fit_u32()));
            *users += 1;
        }
    }

    /// Makes a span allocatable again. Returns `false` in a damaged group, where it is lost.
    pub(crate) fn give(&mut self, group: Group, span: Span) -> bool {
        match &mut self.groups[group.0.to_usize()] {
            State::Loaded { runs, users } => {
                debug_assert!(span.end() <= self.clusters_per_group, "{span:?} is outside group {group}");
                runs.give(span);
                *users -= 1;
                true
            }
            State::Unloaded { .. } => unreachable!("a group with users stays loaded"),
            State::Bad => false,
        }
    }

    /// Approximate memory of all indexes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.runs().to_u64() * RUN_BYTES
    }

    /// Forgets unused indexes until about `bytes` bytes are freed. Returns their groups.
    pub(crate) fn give_back(&mut self, bytes: u64) -> Vec<Group> {
        let most = self.runs().saturating_sub(bytes.div_ceil(RUN_BYTES).to_usize());
        self.shrink(usize::MAX, most, None)
    }

    /// Forgets unused indexes, except that of `but`, until at most `keep` groups are loaded and
    /// their indexes have at most `runs_max` runs. Returns the groups forgotten.
    pub(crate) fn shrink(&mut self, keep: usize, runs_max: usize, but: Option<Group>) -> Vec<Group> {
        let (mut loaded, mut runs) = (self.loaded.len(), self.runs());
        let mut idle = Vec::new();
        if loaded <= keep && runs <= runs_max {
            return idle;
        }
        for group in
            self.loaded.iter().copied().map(Group).filter(|group| Some(*group) != but).collect::<Vec<_>>()
        {
            if loaded <= keep && runs <= runs_max {
                break;
            }
            let before = self.runs_of(group);
            if self.unload(group) {
                (loaded, runs) = (loaded - 1, runs - before);
                idle.push(group);
            }
        }
        idle
    }

    fn runs_of(&self, group: Group) -> usize {
        if let State::Loaded { runs, .. } = &self.groups[group.0.to_usize()] { runs.runs() } else { 0 }
    }

    /// Number of runs in all indexes.
    fn runs(&self) -> usize {
        self.loaded.iter().map(|&n| self.runs_of(Group(n))).sum()
    }

    /// Forgets a group's index. Returns `false` if it is in use or not loaded.
    pub(crate) fn unload(&mut self, group: Group) -> bool {
        let state = &mut self.groups[group.0.to_usize()];
        let State::Loaded { runs, users: 0 } = state else { return false };
        debug_assert!(
            self.windows.values().all(|(at, _)| *at != group),
            "the window of a file is known only in memory"
        );
        *state = State::Unloaded { free: runs.free(), longest: runs.longest() };
        self.loaded.remove(&group.0);
        true
    }
}

#[cfg(test)]
#[path = "block_selection_tests.rs"]
mod tests;

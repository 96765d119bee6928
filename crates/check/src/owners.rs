//! Owners of blocks that are claimed more than once.

use crate::Code;
use crate::context::Context;
use crate::finding::{Report, Spot};
use extant_format::RoCompat;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of owners named for one run.
const OWNERS: usize = 16;
/// Maximum number of runs to report one by one.
const RUNS: usize = 4096;
/// How often the owners of a run are looked up: a hostile map may name a run any number of times.
const TOUCHES: u32 = 1024;

/// Runs of blocks with several owners, and the owners found so far.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// First block and end, in order.
    ranges: Vec<(u64, u64)>,
    owners: BTreeMap<usize, BTreeSet<u32>>,
    touches: Vec<u32>,
    /// For each run, a later one at which to continue the search for a run that still takes owners;
    /// the run itself if it does.
    next: Vec<usize>,
    /// Number of runs that did not fit in the list.
    more: u64,
}

/// A run of blocks with several owners.
#[derive(Clone, Debug)]
pub(crate) struct Contested {
    /// First block, and one past the last.
    pub(crate) blocks: (u64, u64),
    /// Inodes, in order.
    pub(crate) owners: BTreeSet<u32>,
}

impl Owners {
    /// Returns the runs with their owners.
    pub(crate) fn into_contested(mut self) -> Vec<Contested> {
        let owners =
            |n: usize, owners: &mut BTreeMap<usize, BTreeSet<u32>>| owners.remove(&n).unwrap_or_default();
        let runs = self.ranges.into_iter().enumerate();
        runs.map(|(n, blocks)| Contested { blocks, owners: owners(n, &mut self.owners) }).collect()
    }

    /// Starts with all runs that count as damage.
    pub(crate) fn new(ctx: &Context) -> Self {
        let mut new = Self::default();
        // Read-only volumes may share blocks between files on purpose.
        let on_purpose = ctx.sb.ro_compat().contains(RoCompat::SHARED_BLOCKS);
        for (start, end) in ctx.claims.shared() {
            let (start, end) = (ctx.claims.block(start), ctx.claims.block(end));
            if on_purpose && ctx.own.within(start, end).next().is_none() {
                continue;
            }
            match new.ranges.len() < RUNS {
                true => new.ranges.push((start, end)),
                false => new.more += 1,
            }
        }
        new.touches = vec![0; new.ranges.len()];
        new.next = (0..=new.ranges.len()).collect();
        new
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The first run at or after this one that still takes owners.
    fn open_from(&mut self, n: usize) -> usize {
        let mut end = n;
        while self.next[end] != end {
            end = self.next[end];
        }
        let mut at = n;
        while self.next[at] != end {
            at = std::mem::replace(&mut self.next[at], end);
        }
        end
    }

    /// Records that an inode uses these blocks.
    pub(crate) fn touch(&mut self, start: u64, len: u64, owner: u32) {
        let end = start.saturating_add(len);
        let first = self.ranges.partition_point(|range| range.1 <= start);
        let mut n = self.open_from(first);
        while self.ranges.get(n).is_some_and(|range| range.0 < end) {
            let of_range = self.owners.entry(n).or_default();
            of_range.insert(owner);
            self.touches[n] += 1;
            if of_range.len() > OWNERS || self.touches[n] >= TOUCHES {
                self.next[n] = n + 1;
            }
            n = self.open_from(n + 1);
        }
    }

    pub(crate) fn report(&self, ctx: &Context, report: &Report) {
        for (n, &(start, end)) in self.ranges.iter().enumerate() {
            let owners = self.owners.get(&n);
            let mut names: Vec<String> = owners
                .map(|owners| owners.iter().take(OWNERS).map(|owner| format!("inode {owner}")).collect())
                .unwrap_or_default();
            if owners.is_some_and(|owners| owners.len() > OWNERS) {
                names.push("others".into());
            }
            let is_own = ctx.own.within(start, end).next().is_some();
            let code = if is_own { Code::BlockOverlap } else { Code::BlockShared };
            if is_own {
                names.push("the volume's own structures".into());
            }
            let blocks = if end - start == 1 { start.to_string() } else { format!("{start}-{}", end - 1) };
            let by = if names.is_empty() { "several structures".into() } else { names.join(", ") };
            let spot = match owners.and_then(BTreeSet::first) {
                Some(&owner) => Spot::inode(owner).at_block(start),
                None => Spot::block(start),
            };
            report.add(code, spot, format!("blocks {blocks} claimed by {by}"), "one owner");
        }
        if self.more > 0 {
            let text = format!("{} more runs of blocks claimed more than once", self.more);
            report.add(Code::BlockShared, Spot::default(), text, "one owner each");
        }
    }
}

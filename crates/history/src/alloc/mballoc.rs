//! ext4's block search for small files, Linux 6.5 and 6.8 (`ext4_mb_regular_allocator`,
//! fs/ext4/mballoc.c).

use super::seam::{AllocatesAt, BlockAllocator, FileId, FreeSpace, Geometry, Request, Work};
use crate::direct::FullVolume;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a pass requires of a group (`enum criteria`, from `CR_GOAL_LEN_FAST` on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Criterion {
    /// The group's mean free run is at least as long as the goal.
    GoalFast,
    /// Like `GoalFast`, but with the goal reduced to a smaller power of two.
    BestAvailable,
    /// The group has at least as many free blocks as the goal; groups in volume order.
    GoalSlow,
    /// The group has a free block; groups in volume order.
    Any,
}

/// Groups tried in volume order before the lists are used (`s_mb_max_linear_groups` of rotational
/// disks).
const LINEAR_GROUPS: u64 = 4;
/// Maximum powers of two by which a goal is reduced (`mb_best_avail_max_trim_order`).
const TRIM_ORDERS: u32 = 3;
/// Length of a preallocation shared by small files, without a stripe (`s_mb_group_prealloc`).
const SHARED_BLOCKS: u64 = 512;
/// Maximum free runs that a request measures when none is as long as its goal (`s_mb_max_to_scan`).
const MOST_RUNS: u64 = 200;

/// What to do with a group in which no run as long as the goal starts at a multiple of the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeRule {
    /// Try the next group; the lists return the same one again (Linux 6.5 to 6.7; kernel bug
    /// 217965).
    NextGroup,
    /// Try the group's runs wherever they start (Linux 6.8: "fallback to complex scan if aligned
    /// scan doesn't work").
    AnyRun,
}

/// A group's free runs, and its position in the lists.
#[derive(Clone, Debug, Default)]
struct Group {
    /// Free runs, from first block to the block after the last, relative to the group.
    runs: BTreeMap<u64, u64>,
    free: u64,
    /// Order of the average run and position in that list.
    listed: Option<(usize, u64)>,
}

impl Group {
    fn average(&self) -> u64 {
        self.free / (self.runs.len() as u64).max(1)
    }

    fn is_good(&self, criterion: Criterion, goal: u64) -> bool {
        match criterion {
            Criterion::GoalFast | Criterion::BestAvailable => self.free >= goal && self.average() >= goal,
            Criterion::GoalSlow => self.free >= goal,
            Criterion::Any => self.free > 0,
        }
    }
}

/// Number of lists (`MB_NUM_ORDERS` for 4 KiB blocks).
const ORDERS: usize = 14;

/// The list for groups with this average run length (`mb_avg_fragment_size_order`).
fn order_of(blocks: u64) -> usize {
    let bits = 64 - blocks.leading_zeros() as usize;
    bits.saturating_sub(2).min(ORDERS - 1)
}

/// Result of searching one group.
enum Found {
    Run(Range<u64>),
    Nothing,
}

/// ext4's allocator for the small files of one volume, which share a preallocation
/// (`EXT4_MB_HINT_GROUP_ALLOC`).
#[derive(Debug)]
pub struct Mballoc {
    rule: StripeRule,
    stripe: u64,
    geometry: Geometry,
    groups: Vec<Group>,
    /// Per order: groups in the order in which they were added.
    lists: Vec<BTreeMap<u64, u64>>,
    arrivals: u64,
    /// The unused part of the shared preallocation.
    shared: Range<u64>,
}

impl Mballoc {
    /// An allocator for a volume with this free space.
    pub fn new(rule: StripeRule, space: &FreeSpace) -> Self {
        let geometry = space.geometry;
        let mut allocator = Self {
            rule,
            stripe: space.stripe_blocks,
            geometry,
            groups: vec![Group::default(); geometry.groups as usize],
            lists: vec![BTreeMap::new(); ORDERS],
            arrivals: 0,
            shared: 0..0,
        };
        for (group, run) in geometry.cut(space.free.iter().cloned()) {
            let own = &mut allocator.groups[group as usize];
            own.free += run.end - run.start;
            own.runs.insert(run.start, run.end);
        }
        (0..geometry.groups).for_each(|group| allocator.list(group));
        allocator
    }

    /// Frees the rest of the shared preallocation.
    fn give_back(&mut self) {
        let left = std::mem::replace(&mut self.shared, 0..0);
        if left.is_empty() {
            return;
        }
        let at = left.start - self.geometry.first_block;
        let group = at / self.geometry.group_blocks;
        let begin = at % self.geometry.group_blocks;
        let own = &mut self.groups[group as usize];
        let mut end = begin + (left.end - left.start);
        own.free += end - begin;
        if let Some(behind) = own.runs.remove(&end) {
            end = behind;
        }
        own.runs.insert(begin, end);
        self.list(group);
    }

    /// Appends a group to the list of its order, unless it is already there.
    fn list(&mut self, number: u64) {
        let group = &mut self.groups[number as usize];
        let order = (group.free > 0).then(|| order_of(group.average()));
        if group.listed.map(|(order, _)| order) == order {
            return;
        }
        if let Some((old, place)) = group.listed.take() {
            self.lists[old].remove(&place);
        }
        if let Some(order) = order {
            self.arrivals += 1;
            group.listed = Some((order, self.arrivals));
            self.lists[order].insert(self.arrivals, number);
        }
    }

    /// Finds and takes a run of free blocks: `goal` blocks if possible. A shorter run of at least
    /// `least` blocks may end the search early.
    fn search(
        &mut self,
        near: u64,
        goal: u64,
        least: u64,
        work: &mut Work,
    ) -> Result<Range<u64>, FullVolume> {
        for criterion in [Criterion::GoalFast, Criterion::BestAvailable, Criterion::GoalSlow, Criterion::Any]
        {
            if let Some((group, run)) = self.pass(criterion, near, goal, least, work) {
                return Ok(self.take(group, run));
            }
        }
        Err(FullVolume)
    }

    /// One pass over as many groups as the volume has, in the order of the criterion.
    fn pass(
        &self,
        criterion: Criterion,
        near: u64,
        goal: u64,
        least: u64,
        work: &mut Work,
    ) -> Option<(u64, Range<u64>)> {
        let groups = self.geometry.groups;
        let by_lists = matches!(criterion, Criterion::GoalFast | Criterion::BestAvailable);
        let linear = if by_lists { LINEAR_GROUPS.min(groups) } else { groups };
        let mut best: Option<(u64, Range<u64>)> = None;
        let mut runs = 0;
        for n in 0..linear {
            let number = (near + n) % groups;
            work.considered += 1;
            if !self.groups[number as usize].is_good(criterion, goal) {
                continue;
            }
            if let Found::Run(run) = self.look_into(number, criterion, goal, work) {
                return Some((number, run));
            }
            if criterion == Criterion::Any {
                let (seen, longest) = self.longest(number, MOST_RUNS - runs);
                (runs, work.runs) = (runs + seen, work.runs + seen);
                let length = |run: &Range<u64>| run.end - run.start;
                if longest.as_ref().map(length) > best.as_ref().map(|(_, run)| length(run)) {
                    best = longest.map(|run| (number, run));
                }
                if runs >= MOST_RUNS && best.as_ref().is_some_and(|(_, run)| length(run) >= least) {
                    break;
                }
            }
        }
        if !by_lists {
            return best;
        }
        // Nothing changes during the search: the lists return the same group each time.
        let (number, goal, seen) = self.choose(criterion, goal, least)?;
        let mut turn = Work { considered: seen, ..Work::default() };
        let found = self.look_into(number, criterion, goal, &mut turn);
        match found {
            Found::Run(run) => {
                work.add(turn, 1);
                Some((number, run))
            }
            Found::Nothing => {
                work.add(turn, groups - linear);
                None
            }
        }
    }

    /// The first good group in the lists, the goal it is good for, and how many groups were
    /// checked.
    fn choose(&self, criterion: Criterion, goal: u64, least: u64) -> Option<(u64, u64, u64)> {
        let mut considered = 0;
        let mut first_good = |order: usize, goal: u64| {
            self.lists[order].values().copied().find(|number| {
                considered += 1;
                self.groups[*number as usize].is_good(criterion, goal)
            })
        };
        if criterion == Criterion::GoalFast {
            let found = (order_of(goal)..ORDERS).find_map(|order| first_good(order, goal))?;
            return Some((found, goal, considered));
        }
        let bits = 63 - goal.leading_zeros();
        let mut fewest = bits.saturating_sub(TRIM_ORDERS);
        if self.stripe > 1 {
            fewest = fewest.max(63 - self.stripe.leading_zeros());
        }
        fewest = fewest.max(64 - least.leading_zeros()).min(bits);
        let found = (fewest..=bits).rev().find_map(|bits| {
            let cut = if self.stripe > 1 { (1_u64 << bits).next_multiple_of(self.stripe) } else { 1 << bits };
            first_good(order_of(cut), cut).map(|number| (number, cut))
        });
        found.map(|(number, cut)| (number, cut, considered))
    }

    /// Searches a group for a run of `goal` blocks.
    fn look_into(&self, number: u64, criterion: Criterion, goal: u64, work: &mut Work) -> Found {
        work.searched += 1;
        let is_fast = matches!(criterion, Criterion::GoalFast | Criterion::BestAvailable);
        if is_fast && self.stripe > 1 && goal.is_multiple_of(self.stripe) {
            if let Some(start) = self.aligned(number, work) {
                return Found::Run(start..start + self.stripe);
            }
            if self.rule == StripeRule::NextGroup {
                return Found::Nothing;
            }
        }
        for (start, end) in &self.groups[number as usize].runs {
            work.runs += 1;
            if end - start >= goal {
                return Found::Run(*start..start + goal);
            }
        }
        Found::Nothing
    }

    /// The first multiple of the stripe at which a whole stripe is free (`ext4_mb_scan_aligned`).
    fn aligned(&self, number: u64, work: &mut Work) -> Option<u64> {
        let begin = self.geometry.first_block + number * self.geometry.group_blocks;
        let runs = &self.groups[number as usize].runs;
        let mut at = begin.next_multiple_of(self.stripe) - begin;
        while at < self.geometry.group_blocks {
            work.probed += 1;
            if let Some((_, end)) = runs.range(..=at).next_back()
                && at + self.stripe <= *end
            {
                return Some(at);
            }
            at += self.stripe;
        }
        None
    }

    /// The longest of a group's first `most` free runs, and how many were measured.
    fn longest(&self, number: u64, most: u64) -> (u64, Option<Range<u64>>) {
        let runs = self.groups[number as usize].runs.iter().take(most as usize);
        let longest = runs.clone().max_by_key(|(start, end)| *end - *start);
        (runs.count() as u64, longest.map(|(start, end)| *start..*end))
    }

    /// Allocates a run of a group. Returns its position on the volume.
    fn take(&mut self, number: u64, run: Range<u64>) -> Range<u64> {
        let group = &mut self.groups[number as usize];
        let (start, end) =
            group.runs.range(..=run.start).next_back().map(|(s, e)| (*s, *e)).expect("it is free");
        group.runs.remove(&start);
        if start < run.start {
            group.runs.insert(start, run.start);
        }
        if run.end < end {
            group.runs.insert(run.end, end);
        }
        group.free -= run.end - run.start;
        self.list(number);
        let begin = self.geometry.first_block + number * self.geometry.group_blocks;
        begin + run.start..begin + run.end
    }
}

impl BlockAllocator for Mballoc {
    fn allocates_at(&self) -> AllocatesAt {
        AllocatesAt::WriteBack
    }

    /// Allocates blocks next to those of the last file.
    fn allocate(&mut self, request: Request) -> Result<(Range<u64>, Work), FullVolume> {
        let (mut work, blocks) = (Work::default(), request.blocks);
        if self.shared.end - self.shared.start < blocks {
            let goal =
                if self.stripe > 1 { SHARED_BLOCKS.next_multiple_of(self.stripe) } else { SHARED_BLOCKS };
            let near = self.shared.end.saturating_sub(self.geometry.first_block) / self.geometry.group_blocks;
            let near = near.min(self.geometry.groups - 1);
            self.give_back();
            self.shared = self.search(near, goal, blocks, &mut work)?;
        }
        let taken = self.shared.start..(self.shared.start + blocks).min(self.shared.end);
        self.shared.start = taken.end;
        Ok((taken, work))
    }

    /// Does nothing: small files have no preallocation of their own.
    fn close(&mut self, _: FileId) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: u64 = 32_768;

    /// A volume whose groups each have one free run of 700 blocks. It starts 61 blocks past a
    /// multiple of 640, except in group `aligned`, where it starts at the multiple.
    fn volume(rule: StripeRule, groups: u64, aligned: u64, stripe: u64) -> Mballoc {
        let geometry = Geometry { first_block: 0, group_blocks: GROUP, groups, flex_groups: 1 };
        let free = (0..groups).map(|group| {
            let start = (group * GROUP + 8000).next_multiple_of(640) + if group == aligned { 0 } else { 61 };
            start..start + 700
        });
        Mballoc::new(rule, &FreeSpace { geometry, free: free.collect(), stripe_blocks: stripe })
    }

    /// Allocates `blocks` blocks for a new file.
    fn allocate(allocator: &mut Mballoc, blocks: u64) -> Result<(Range<u64>, Work), FullVolume> {
        let file = Request::append(FileId(1), 0, 0);
        allocator.allocate(Request { blocks, file_blocks: blocks, ..file })
    }

    #[test]
    fn linux_6_5_looks_into_one_group_as_often_as_the_volume_has_groups_and_again_with_a_shorter_goal() {
        let mut allocator = volume(StripeRule::NextGroup, 1000, 999, 640);
        let (blocks, work) = allocate(&mut allocator, 5).unwrap();
        assert_eq!(blocks.end - blocks.start, 5);
        // Four groups in volume order and 996 times the first in the list. The second pass is the
        // same, the third finds the run.
        assert_eq!(work.searched, 2 * 1000 + 1);
        let multiples = |group: u64| ((group + 1) * GROUP).div_ceil(640) - (group * GROUP).div_ceil(640);
        let probed: u64 = (0..4).map(multiples).sum::<u64>() + 996 * multiples(0);
        assert_eq!(work.probed, 2 * probed, "{work:?}");
        // The rest of the preallocation needs no search.
        assert_eq!(allocate(&mut allocator, 5).unwrap().1, Work::default());
    }

    #[test]
    fn linux_6_8_takes_a_run_of_the_first_good_group() {
        let mut allocator = volume(StripeRule::AnyRun, 1000, 999, 640);
        let (_, work) = allocate(&mut allocator, 5).unwrap();
        assert_eq!((work.searched, work.probed, work.runs), (1, 52, 1));
    }

    #[test]
    fn without_a_stripe_neither_matters() {
        for rule in [StripeRule::NextGroup, StripeRule::AnyRun] {
            let (_, work) = allocate(&mut volume(rule, 1000, 999, 0), 5).unwrap();
            assert_eq!((work.searched, work.probed), (1, 0));
        }
    }

    #[test]
    fn an_aligned_run_is_taken_at_its_multiple() {
        let mut allocator = volume(StripeRule::NextGroup, 8, 0, 640);
        let (blocks, work) = allocate(&mut allocator, 16).unwrap();
        assert_eq!((blocks.start % 640, work.searched), (0, 1));
    }

    #[test]
    fn every_block_is_given_out_once_until_the_volume_is_full() {
        let mut allocator = volume(StripeRule::AnyRun, 4, 2, 640);
        let mut given = std::collections::BTreeSet::new();
        while let Ok((blocks, _)) = allocate(&mut allocator, 7) {
            assert!(!blocks.is_empty() && blocks.end - blocks.start <= 7);
            blocks.for_each(|block| assert!(given.insert(block), "{block} twice"));
        }
        assert!(given.len() > 4 * 680, "{}", given.len());
    }
}

use super::*;
use extant_format::UintExt;
use proptest::prelude::*;

/// A volume with one bit per block, and the groups under test.
struct Model {
    groups: Groups,
    used: Vec<bool>,
    per_group: u32,
}

impl Model {
    fn new(per_group: u32, used: Vec<bool>) -> Self {
        let free = used
            .chunks(per_group.to_usize())
            .map(|group| group.iter().filter(|used| !**used).count().fit_u32());
        let groups = free.map(|free| State::Unloaded { free, longest: free }).collect();
        let groups = Groups {
            groups,
            loaded: BTreeSet::new(),
            windows: BTreeMap::new(),
            first_block: 1,
            clusters_per_group: per_group,
            cluster: ClusterSize::BLOCK,
        };
        Self { groups, used, per_group }
    }

    fn bitmap(&self, group: Group) -> (Vec<u8>, u32) {
        let bits = self.used.chunks(self.per_group.to_usize()).nth(group.0.to_usize()).unwrap();
        let mut bitmap = vec![0u8; bits.len().div_ceil(8)];
        for (n, _) in bits.iter().enumerate().filter(|(_, used)| **used) {
            bitmap[n / 8] |= 1 << (n % 8);
        }
        (bitmap, bits.len().fit_u32())
    }

    fn allocate(&mut self, growing: Option<u32>, goal: u64, want: u32) -> Option<PhysicalRun> {
        let growing = growing.map(InodeNumber);
        let mut request = Request { growing, before: 0, goal: VolumeBlock(goal), want, loads: 0 };
        loop {
            match self.groups.step(request) {
                Step::Load(group) => {
                    request.loads += 1;
                    let (bitmap, bits) = self.bitmap(group);
                    self.groups.load(group, &bitmap, bits);
                }
                Step::Run(run) => {
                    for block in run.start.0..run.end().0 {
                        let used = &mut self.used[block.to_usize() - 1];
                        assert!(!*used, "block {block} has two owners");
                        *used = true;
                    }
                    assert!(run.blocks <= u64::from(want) && run.blocks > 0);
                    return Some(run);
                }
                Step::Full => return None,
            }
        }
    }

    fn log(&mut self, run: PhysicalRun) {
        self.groups.split(run).for_each(|(group, _)| self.groups.release(group));
    }

    fn give(&mut self, run: PhysicalRun) {
        self.used[run.start.0.to_usize() - 1..run.end().0.to_usize() - 1].fill(false);
        let parts: Vec<_> = self.groups.split(run).collect();
        parts.into_iter().for_each(|(group, span)| assert!(self.groups.give(group, span)));
    }
}

/// An empty volume of `count` groups of 32,768 blocks of 4 KiB. The first `metadata(n)` blocks of
/// group `n` hold metadata.
fn empty(count: usize, metadata: impl Fn(usize) -> usize) -> Model {
    let mut used = vec![false; count * 32768];
    for group in 0..count {
        used[group * 32768..][..metadata(group)].fill(true);
    }
    Model::new(32768, used)
}

/// Number of extents that a file's runs form, each at most 32,768 blocks long.
fn extents(runs: &[PhysicalRun]) -> usize {
    let mut merged: Vec<PhysicalRun> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if last.end() == run.start => last.blocks += run.blocks,
            _ => merged.push(*run),
        }
    }
    merged.iter().map(|run| run.blocks.div_ceil(32768).to_usize()).sum()
}

fn write_file(model: &mut Model, file: u32, goal: u64, blocks: u32, chunk: u32) -> Vec<PhysicalRun> {
    let (mut runs, mut left): (Vec<PhysicalRun>, u32) = (Vec::new(), blocks);
    while left > 0 {
        let goal = runs.last().map_or(goal, |run| run.end().0);
        let run = model.allocate(Some(file), goal, left.min(chunk)).unwrap();
        model.log(run);
        left -= run.blocks.fit_u32();
        runs.push(run);
    }
    runs
}

#[test]
fn a_file_of_1_gib_on_an_empty_volume_has_at_most_9_extents() {
    // Metadata at the start of each group, as without flex_bg; and only superblock copies, as with
    // it.
    let everywhere = |_| 600;
    let copies = |group| if group == 0 { 9000 } else { usize::from([1, 3, 5, 7, 9].contains(&group)) * 1025 };
    for chunk in [256, 2048, 32768] {
        let runs = write_file(&mut empty(16, everywhere), 12, 1, 1 << 18, chunk);
        assert!(extents(&runs) <= 9, "{} extents, chunks of {chunk}", extents(&runs));
        let runs = write_file(&mut empty(16, copies), 12, 32769, 1 << 18, chunk);
        assert!(extents(&runs) <= 9, "{} extents, chunks of {chunk}", extents(&runs));
    }
}

#[test]
fn files_that_grow_side_by_side_do_not_interleave_block_by_block() {
    let mut model = empty(2, |_| 100);
    let mut runs = [Vec::<PhysicalRun>::new(), Vec::new(), Vec::new()];
    for round in 0..3000 {
        let file = round % 3;
        let goal = runs[file].last().map_or(1, |run| run.end().0);
        let run = model.allocate(Some(file.fit_u32() + 12), goal, 1).unwrap();
        model.log(run);
        runs[file].push(run);
    }
    let extents = runs.each_ref().map(|runs| extents(runs));
    assert!(extents.iter().all(|&n| n <= 1000 / WINDOW_MIN.to_usize() + 1), "{extents:?}");
}

#[test]
fn windows_are_given_up_before_a_volume_is_full() {
    let mut model = Model::new(64, vec![false; 64]);
    model.allocate(Some(12), 1, 1).unwrap();
    let mut left = 0;
    while model.allocate(None, 1, 1).is_some() {
        left += 1;
    }
    assert_eq!(left, 63);
}

#[test]
fn a_group_in_use_stays_loaded() {
    let mut model = Model::new(64, vec![false; 128]);
    let run = model.allocate(None, 1, 4).unwrap();
    assert!(!model.groups.unload(Group(0)));
    model.log(run);
    assert!(model.groups.unload(Group(0)) && !model.groups.is_loaded(Group(0)));
    assert_eq!(model.groups.free(Group(0)), 60);
    assert_eq!(model.allocate(None, 1, 4).unwrap().start, VolumeBlock(5));
}

#[test]
fn nothing_comes_from_a_damaged_group() {
    let mut model = Model::new(64, vec![false; 128]);
    assert_eq!(model.groups.set_bad(Group(0)), 64);
    assert_eq!(model.allocate(None, 1, 64).unwrap().start, VolumeBlock(65));
    assert_eq!(model.allocate(None, 1, 1), None);
}

#[test]
fn a_group_that_contradicts_its_descriptor_is_lost_as_it_was_counted() {
    let mut groups = Model::new(64, vec![false; 128]).groups;
    let counted = groups.free(Group(1));
    groups.load(Group(1), &[0xff; 8], 64);
    assert_eq!(groups.free(Group(1)), 0);
    groups.reject(Group(1), counted);
    assert_eq!(groups.set_bad(Group(1)), counted);
}

proptest! {
    #[test]
    fn every_free_block_can_be_had_and_none_twice(
        per_group in 8u32..100,
        used in prop::collection::vec(any::<bool>(), 20..600),
        edits in prop::collection::vec((0u32..4, 0u64..620, 1u32..150, 0u8..4), 0..120),
    ) {
        let mut model = Model::new(per_group, used);
        let mut held = Vec::new();
        for (file, goal, want, what) in edits {
            match (what, held.pop()) {
                (0, Some(run)) => model.give(run),
                (1, Some(run)) => model.log(run),
                (_, run) => {
                    held.extend(run);
                    held.extend(model.allocate((file > 0).then_some(file), goal, want));
                }
            }
            if what == 3 {
                model.groups.close_window(InodeNumber(file));
            }
        }
        while model.allocate(None, 0, 7).is_some() {}
        prop_assert!(model.used.iter().all(|used| *used), "free blocks were not found");
    }
}

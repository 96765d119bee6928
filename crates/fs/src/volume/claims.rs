//! The blocks that files claim, and those that several claim.
//!
//! Memory is bounded. Adjacent claims become one range. If there are still too many ranges, only
//! those in the front part of the volume are kept, and the caller reads all files again for the
//! rest.

use extant_format::{BlockRange, ClusterSize, Corrupt, InodeNumber, Place, VolumeBlock};
use std::collections::BTreeMap;
use std::ops::Range;

/// How many ranges and attribute blocks one pass keeps at most. Each takes about 40 bytes.
const KEPT_MAX: usize = 1 << 20;

/// All files together may claim this many times the volume's blocks. On a sound volume they claim
/// each block once at most. On a hostile one, every inode may claim the same blocks.
const CLAIMED_MAX: u64 = 16;

/// Ranges of blocks, disjoint and not adjacent: their ends by their starts.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Those that overlap or touch `range`, in order.
    fn around(&self, range: BlockRange) -> impl Iterator<Item = BlockRange> {
        let first = self.0.range(..range.start).next_back().filter(|(_, end)| **end >= range.start);
        first
            .into_iter()
            .chain(self.0.range(range.start..=range.end))
            .map(|(&start, &end)| BlockRange::new(start, end))
    }

    /// The parts of `range` that are in these, in order.
    fn shared_with(&self, range: BlockRange) -> impl Iterator<Item = BlockRange> {
        let parts = self.around(range);
        parts
            .map(move |old| BlockRange::new(old.start.max(range.start), old.end.min(range.end)))
            .filter(|part| !part.is_empty())
    }

    fn add(&mut self, range: BlockRange) {
        let (mut start, mut end) = (range.start, range.end);
        let joined: Vec<BlockRange> = self.around(range).collect();
        for old in joined {
            (start, end) = (start.min(old.start), end.max(old.end));
            self.0.remove(&old.start);
        }
        self.0.insert(start, end);
    }

    /// Removes all from `end` on.
    fn cut(&mut self, end: u64) {
        drop(self.0.split_off(&end));
        if let Some(mut last) = self.0.last_entry() {
            *last.get_mut() = end.min(*last.get());
        }
    }
}

/// Structures that are written wherever the volume says they are, right or wrong; in order.
pub(super) type Structures = [(Range<VolumeBlock>, Place)];

/// Claims to blocks in one part of the volume.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    structures: &'a Structures,
    cluster: ClusterSize,
    /// Claims outside this part are ignored. The part shrinks if there are too many.
    part: BlockRange,
    kept_max: usize,
    /// Number of blocks that files may still claim in this pass.
    left: u64,
    claimed: Ranges,
    contested: Ranges,
    /// For each attribute block, one of its inodes and how many inodes share it.
    attributes: BTreeMap<u64, (InodeNumber, u32)>,
}

impl<'a> Claims<'a> {
    /// Creates an empty set of claims. It will hold claims to blocks from `start` on. The volume
    /// has `count` blocks.
    pub(super) fn new(structures: &'a Structures, count: u64, cluster: ClusterSize, start: u64) -> Self {
        let part = BlockRange::new(start, u64::MAX);
        let left = count.saturating_mul(CLAIMED_MAX);
        let (claimed, contested, attributes) = Default::default();
        Self { structures, cluster, part, kept_max: KEPT_MAX, left, claimed, contested, attributes }
    }

    /// Adds what a file claims.
    ///
    /// # Errors
    /// A block of it is also one of the volume's own structures, or the same blocks were claimed so
    /// often that looking at all claims would take too long.
    pub(super) fn add(&mut self, blocks: &[Range<VolumeBlock>]) -> Result<(), Corrupt> {
        let more: u64 = blocks.iter().map(|range| range.end.0.saturating_sub(range.start.0)).sum();
        let Some(left) = self.left.checked_sub(more) else {
            let rule = "at most once, for a volume's files share no blocks; run e2fsck";
            return Err(Corrupt::field(
                Place::Superblock,
                "times that its blocks are claimed",
                CLAIMED_MAX,
                rule,
            ));
        };
        self.left = left;
        for range in blocks {
            let next = self.structures.partition_point(|(own, _)| own.end <= range.start);
            if let Some((own, place)) = self.structures.get(next).filter(|(own, _)| own.start < range.end) {
                let rule = "one that no file has; run e2fsck";
                return Err(Corrupt::field(*place, "block", own.start.max(range.start).0, rule));
            }
        }
        self.add_own(blocks);
        Ok(())
    }

    /// Like [`Self::add`], for one of the volume's own files.
    pub(super) fn add_own(&mut self, blocks: &[Range<VolumeBlock>]) {
        let mut ranges: Vec<_> = blocks
            .iter()
            .map(|range| self.cluster.around(BlockRange::new(range.start.0, range.end.0)))
            .filter(|range| !range.is_empty())
            .collect();
        if !self.cluster.is_block() {
            // A file may have several parts of a cluster.
            let mut whole = Ranges::default();
            ranges.drain(..).for_each(|range| whole.add(range));
            ranges.extend(whole.0.into_iter().map(|(start, end)| BlockRange::new(start, end)));
        }
        ranges.into_iter().for_each(|range| self.claim(range));
    }

    fn claim(&mut self, range: BlockRange) {
        let range = BlockRange::new(range.start.max(self.part.start), range.end.min(self.part.end));
        if range.is_empty() {
            return;
        }
        let shared: Vec<BlockRange> = self.claimed.shared_with(range).collect();
        shared.into_iter().for_each(|shared| self.contested.add(shared));
        self.claimed.add(range);
        self.bound();
    }

    /// Adds an inode that has an attribute block.
    pub(super) fn add_attributes(&mut self, at: VolumeBlock, inode: InodeNumber) {
        if self.part.contains(at.0) {
            self.attributes.entry(at.0).or_insert((inode, 0)).1 += 1;
            self.bound();
        }
    }

    /// The attribute blocks: for each, one of its inodes and how many inodes share it.
    pub(super) fn take_attributes(&mut self) -> BTreeMap<u64, (InodeNumber, u32)> {
        std::mem::take(&mut self.attributes)
    }

    /// Leaves the rear part of the volume to a later pass if there is too much to keep.
    fn bound(&mut self) {
        let half = self.kept_max / 2;
        let middle = match () {
            () if self.claimed.0.len() > self.kept_max => self.claimed.0.keys().nth(half),
            () if self.contested.0.len() > self.kept_max => self.contested.0.keys().nth(half),
            () if self.attributes.len() > self.kept_max => self.attributes.keys().nth(half),
            () => None,
        };
        // Whole clusters, whose parts are claimed together.
        let Some(end) = middle.map(|&end| self.cluster.start(end)).filter(|end| *end > self.part.start)
        else {
            return;
        };
        self.part = BlockRange::new(self.part.start, end);
        self.claimed.cut(end);
        self.contested.cut(end);
        drop(self.attributes.split_off(&end));
    }

    /// The claimed blocks of a range, in order.
    pub(super) fn claimed_in(&self, range: BlockRange) -> impl Iterator<Item = BlockRange> {
        self.claimed.shared_with(range)
    }

    /// The blocks with several claims, in order.
    pub(super) fn contested(&self) -> impl Iterator<Item = BlockRange> {
        self.contested.0.iter().map(|(&start, &end)| BlockRange::new(start, end))
    }

    /// Where the next pass begins, if there must be one.
    pub(super) fn left_from(&self) -> Option<u64> {
        (self.part.end < u64::MAX).then_some(self.part.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_rt::Rng;

    const ALL: BlockRange = BlockRange { start: 0, end: u64::MAX };

    fn blocks(start: u64, end: u64) -> Range<VolumeBlock> {
        VolumeBlock(start)..VolumeBlock(end)
    }

    fn pairs(ranges: impl Iterator<Item = BlockRange>) -> Vec<(u64, u64)> {
        ranges.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn blocks_of_two_owners_are_found_wherever_they_overlap() {
        let mut claims = Claims::new(&[], 100, ClusterSize::BLOCK, 0);
        for (start, end) in [(1, 10), (3, 5), (4, 6), (9, 20), (20, 30)] {
            claims.add(&[blocks(start, end)]).unwrap();
        }
        assert_eq!(pairs(claims.contested()), [(3, 6), (9, 10)]);
        assert_eq!(pairs(claims.claimed_in(ALL)), [(1, 30)]);
        // One file that has a block twice.
        claims.add(&[blocks(40, 50), blocks(45, 46)]).unwrap();
        assert_eq!(pairs(claims.contested()), [(3, 6), (9, 10), (45, 46)]);
    }

    #[test]
    fn the_same_blocks_are_not_looked_at_for_ever() {
        let mut claims = Claims::new(&[], 100, ClusterSize::BLOCK, 0);
        let added = (0..100).take_while(|_| claims.add(&[blocks(20, 60)]).is_ok()).count();
        assert_eq!(added, 40, "16 times the volume's blocks");
    }

    #[test]
    fn passes_that_keep_little_find_the_same_as_one_that_keeps_all() {
        let seed = 0x00c1_a1e5;
        let mut rng = Rng::new(seed);
        for round in 0..50 {
            let files: Vec<Range<VolumeBlock>> = (0..300)
                .map(|_| {
                    let start = rng.below(5_000);
                    blocks(start, start + 1 + rng.below(4))
                })
                .collect();
            let run = |kept_max: usize| {
                let (mut contested, mut claimed, mut passes, mut start) = (vec![], vec![], 0, Some(0));
                while let Some(from) = start {
                    let mut claims = Claims::new(&[], 5_004, ClusterSize::BLOCK, from);
                    claims.kept_max = kept_max;
                    for file in &files {
                        claims.add(std::slice::from_ref(file)).unwrap();
                        assert!(claims.claimed.0.len() <= kept_max && claims.contested.0.len() <= kept_max);
                    }
                    contested.extend(claims.contested().flat_map(BlockRange::blocks));
                    claimed.extend(claims.claimed_in(ALL).flat_map(BlockRange::blocks));
                    (start, passes) = (claims.left_from(), passes + 1);
                }
                (contested, claimed, passes)
            };
            let (contested, claimed, passes) = run(KEPT_MAX);
            assert_eq!(passes, 1);
            let many = run(20);
            assert!(many.2 > 5, "round {round} of seed {seed:#x}: {} passes", many.2);
            assert_eq!((many.0, many.1), (contested, claimed), "round {round} of seed {seed:#x}");
        }
    }
}

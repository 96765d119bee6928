//! Block maps of growing files, as their file systems lay them out.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

/// A mapping of contiguous blocks, in the file and on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First block on the volume.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Whether the next mapping needs metadata first (`buffer_boundary`).
    pub boundary: bool,
    /// Whether blocks were allocated for it.
    pub allocated: bool,
}

/// The volume has no room for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the volume is full")]
pub struct FullVolume;

/// Maps file blocks to volume blocks (`get_block`).
pub trait BlockMap: Send + fmt::Debug {
    /// Maps at most `most` blocks from `file_block` on, and allocates those that are missing.
    ///
    /// # Errors
    /// [`FullVolume`] if no block is free.
    fn map(&mut self, file_block: u64, most: u64) -> Result<Mapped, FullVolume>;

    /// Block size of the file system in bytes.
    fn block_bytes(&self) -> u64;
}

/// The runs of a file, in order.
#[derive(Clone, Debug, Default)]
struct Runs(Vec<(u64, Range<u64>)>);

impl Runs {
    /// Position of a file block on the volume, and the number of contiguous blocks from there.
    fn find(&self, file_block: u64) -> Option<(u64, u64)> {
        let at = self.0.partition_point(|(first, _)| *first <= file_block).checked_sub(1)?;
        let (first, run) = &self.0[at];
        let block = run.start + (file_block - first);
        (block < run.end).then(|| (block, run.end - block))
    }

    fn push(&mut self, file_block: u64, run: Range<u64>) {
        match self.0.last_mut() {
            Some((first, last))
                if last.end == run.start && *first + (last.end - last.start) == file_block =>
            {
                last.end = run.end;
            }
            _ => self.0.push((file_block, run)),
        }
    }
}

/// Number of direct pointers in the inode (`EXT3_NDIR_BLOCKS`).
const DIRECT: u64 = 12;

/// A file on ext3. Its blocks are allocated in order from the volume's free space, as for a single
/// writer with an unobstructed reservation window. A pointer block precedes the first block it
/// points to.
#[derive(Clone, Debug)]
pub struct Ext3Map {
    free: VecDeque<Range<u64>>,
    block_bytes: u64,
    runs: Runs,
    end_block: u64,
}

impl Ext3Map {
    /// An empty file on a volume with this free space and a block size of `block_bytes`.
    pub fn new(free: impl IntoIterator<Item = Range<u64>>, block_bytes: u64) -> Self {
        let free = free.into_iter().filter(|run| !run.is_empty()).collect();
        Self { free, block_bytes, runs: Runs::default(), end_block: 0 }
    }

    fn pointers(&self) -> u64 {
        self.block_bytes / 4
    }

    /// Number of blocks after this one under the same pointer block (`blocks_to_boundary`).
    fn to_boundary(&self, file_block: u64) -> u64 {
        match file_block.checked_sub(DIRECT) {
            None => DIRECT - 1 - file_block,
            Some(behind) => self.pointers() - 1 - behind % self.pointers(),
        }
    }

    /// Number of pointer blocks created with this file block: one for each level that starts with
    /// it.
    fn new_pointer_blocks(&self, file_block: u64) -> u64 {
        let pointers = self.pointers();
        let Some(mut behind) = file_block.checked_sub(DIRECT) else { return 0 };
        for level in 1..=3 {
            let reach = u64::pow(pointers, level);
            if behind < reach {
                let begins = |depth: &u32| behind.is_multiple_of(u64::pow(pointers, *depth));
                return (1..=level).filter(begins).count() as u64;
            }
            behind -= reach;
        }
        0
    }

    /// Takes up to `most` contiguous blocks from the start of the free space.
    fn take(&mut self, most: u64) -> Result<Range<u64>, FullVolume> {
        let first = self.free.front_mut().ok_or(FullVolume)?;
        let taken = first.start..first.end.min(first.start + most);
        first.start = taken.end;
        if first.is_empty() {
            self.free.pop_front();
        }
        Ok(taken)
    }
}

impl BlockMap for Ext3Map {
    fn map(&mut self, file_block: u64, most: u64) -> Result<Mapped, FullVolume> {
        let to_boundary = self.to_boundary(file_block);
        let wanted = most.min(to_boundary + 1);
        if let Some((block, run)) = self.runs.find(file_block) {
            let blocks = run.min(wanted);
            return Ok(Mapped { block, blocks, boundary: blocks > to_boundary, allocated: false });
        }
        debug_assert_eq!(file_block, self.end_block, "files grow at their end");
        for _ in 0..self.new_pointer_blocks(file_block) {
            self.take(1)?;
        }
        let run = self.take(wanted)?;
        let blocks = run.end - run.start;
        self.runs.push(file_block, run.clone());
        self.end_block = file_block + blocks;
        Ok(Mapped { block: run.start, blocks, boundary: blocks > to_boundary, allocated: true })
    }

    fn block_bytes(&self) -> u64 {
        self.block_bytes
    }
}

/// A file on XFS: extents as long as the allocation group allows, aligned to the stripe unit, and
/// never a boundary.
#[derive(Clone, Debug)]
pub struct XfsMap {
    free: VecDeque<Range<u64>>,
    block_bytes: u64,
    runs: Runs,
    end_block: u64,
}

impl XfsMap {
    /// An empty file on a volume of `volume_blocks` blocks in `groups` allocation groups; extents
    /// start at multiples of `unit_blocks` (`sunit`).
    pub fn new(volume_blocks: u64, groups: u64, unit_blocks: u64, block_bytes: u64) -> Self {
        let unit = unit_blocks.max(1);
        let group_blocks = (volume_blocks / groups.max(1)).max(1);
        // A group starts with its superblock, its free-space trees and its first inodes.
        let group = |number: u64| {
            let start = number * group_blocks;
            (start + 1).next_multiple_of(unit)..start + group_blocks
        };
        let free = (0..groups).map(group).filter(|run| run.start < run.end).collect();
        Self { free, block_bytes, runs: Runs::default(), end_block: 0 }
    }
}

impl BlockMap for XfsMap {
    fn map(&mut self, file_block: u64, most: u64) -> Result<Mapped, FullVolume> {
        if let Some((block, run)) = self.runs.find(file_block) {
            return Ok(Mapped { block, blocks: run.min(most), boundary: false, allocated: false });
        }
        debug_assert_eq!(file_block, self.end_block, "files grow at their end");
        let first = self.free.front_mut().ok_or(FullVolume)?;
        let run = first.start..first.end.min(first.start + most);
        first.start = run.end;
        if first.is_empty() {
            self.free.pop_front();
        }
        self.runs.push(file_block, run.clone());
        self.end_block = file_block + (run.end - run.start);
        Ok(Mapped { block: run.start, blocks: run.end - run.start, boundary: false, allocated: true })
    }

    fn block_bytes(&self) -> u64 {
        self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All mappings of a file written in requests of `request` blocks: first file block, first
    /// volume block, length, boundary.
    fn mappings(map: &mut dyn BlockMap, blocks: u64, request: u64) -> Vec<(u64, u64, u64, bool)> {
        let (mut at, mut all) = (0, Vec::new());
        while at < blocks {
            let rest = request - at % request;
            let mapped = map.map(at, rest.min(blocks - at)).unwrap();
            all.push((at, mapped.block, mapped.blocks, mapped.boundary));
            at += mapped.blocks;
        }
        all
    }

    #[test]
    fn a_pointer_block_lies_before_what_it_points_to() {
        let mut map = Ext3Map::new(std::iter::once(1000..9000), 4096);
        assert_eq!(
            mappings(&mut map, 2100, 4096),
            [
                (0, 1000, 12, true),
                (12, 1013, 1024, true),
                // The double indirect block, and the first pointer block below it.
                (1036, 2039, 1024, true),
                (2060, 3064, 40, false),
            ]
        );
        // The same blocks again, now allocated.
        let again = map.map(1036, 9999).unwrap();
        assert_eq!((again.block, again.blocks, again.boundary, again.allocated), (2039, 1024, true, false));
    }

    #[test]
    fn a_mapping_that_stops_early_is_no_boundary() {
        let mut map = Ext3Map::new([0..520, 1000..3000], 4096);
        let all = mappings(&mut map, 1036, 4096);
        assert_eq!(all, [(0, 0, 12, true), (12, 13, 507, false), (519, 1000, 517, true)]);
        let mut map = Ext3Map::new(std::iter::once(0..520), 4096);
        assert_eq!(map.map(0, 12).map(|mapped| mapped.blocks), Ok(12));
        assert_eq!(map.map(12, 600).map(|mapped| mapped.blocks), Ok(507));
        assert_eq!(map.map(519, 1), Err(FullVolume));
    }

    #[test]
    fn requests_smaller_than_a_pointer_block_reach_its_end_once() {
        let mut map = Ext3Map::new(std::iter::once(0..9000), 4096);
        let all = mappings(&mut map, 12 + 2048, 128);
        let marked = all.iter().filter(|mapping| mapping.3).map(|mapping| (mapping.0, mapping.2));
        assert_eq!(marked.collect::<Vec<_>>(), [(0, 12), (1024, 12), (2048, 12)]);
    }

    #[test]
    fn extents_of_xfs_begin_at_stripe_units_and_end_with_their_group() {
        let mut map = XfsMap::new(4096, 2, 32, 4096);
        assert_eq!(
            mappings(&mut map, 2500, 1500),
            [(0, 32, 1500, false), (1500, 1532, 516, false), (2016, 2080, 484, false)]
        );
    }
}

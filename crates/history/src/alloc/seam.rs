//! The interface between a file system and its block allocator.

use super::search_cost::Cost;
use crate::direct::FullVolume;
use std::fmt;
use std::ops::Range;

/// A file, by a number that is unique on its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// A request for file blocks that have no position yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The file.
    pub file: FileId,
    /// The first block, counted from the beginning of the file.
    pub block: u64,
    /// Number of blocks, at least 1.
    pub blocks: u64,
    /// The first block of the group that holds the file's inode.
    pub goal: u64,
    /// The file's length in blocks, including dirty ones without a position.
    pub file_blocks: u64,
    /// The writing process (`current->pid`).
    pub process: u64,
}

impl Request {
    /// A request for one block at the end of a file.
    pub fn append(file: FileId, block: u64, goal: u64) -> Self {
        Self { file, block, blocks: 1, goal, file_blocks: block + 1, process: 0 }
    }
}

/// When a file system asks for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatesAt {
    /// As each page is written to the cache.
    Write,
    /// As dirty pages are written back (delayed allocation).
    WriteBack,
}

/// A block allocator of one of Linux's file systems.
pub trait BlockAllocator: fmt::Debug + Send {
    /// When the file system calls [`BlockAllocator::allocate`].
    fn allocates_at(&self) -> AllocatesAt;

    /// Allocates a run for the first of the requested blocks: at least one block, at most all of
    /// them. Also returns the work of the search.
    ///
    /// # Errors
    /// [`FullVolume`] if no block is free.
    fn allocate(&mut self, request: Request) -> Result<(Range<u64>, Work), FullVolume>;

    /// Called when the last process that had the file open for writing closes it.
    fn close(&mut self, file: FileId);
}

/// The shape of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// First block of the first group.
    pub first_block: u64,
    /// Blocks per group.
    pub group_blocks: u64,
    /// Number of groups.
    pub groups: u64,
    /// Groups per flexible group; 1 on volumes without them.
    pub flex_groups: u64,
}

impl Geometry {
    /// A block's group and its position there; (0, 0) for a block outside the volume's groups.
    pub(super) fn place(&self, block: u64) -> (u64, u64) {
        let at = block.wrapping_sub(self.first_block);
        if at >= self.groups * self.group_blocks {
            return (0, 0);
        }
        (at / self.group_blocks, at % self.group_blocks)
    }

    /// The block at a position of a group.
    pub(super) fn block(&self, group: u64, at: u64) -> u64 {
        self.first_block + group * self.group_blocks + at
    }

    /// Splits runs at group boundaries: each piece with its group and its range there.
    pub(super) fn cut(
        self,
        runs: impl IntoIterator<Item = Range<u64>>,
    ) -> impl Iterator<Item = (u64, Range<u64>)> {
        runs.into_iter().flat_map(move |run| {
            let (mut at, end) = (run.start - self.first_block, run.end - self.first_block);
            std::iter::from_fn(move || {
                let group = at / self.group_blocks;
                let begin = group * self.group_blocks;
                let until = end.min(begin + self.group_blocks);
                let piece = at - begin..until - begin;
                at = until;
                (!piece.is_empty()).then_some((group, piece))
            })
        })
    }
}

/// A volume's initial free space, for a new allocator.
#[derive(Clone, Debug)]
pub struct FreeSpace {
    /// The volume's shape.
    pub geometry: Geometry,
    /// Its free blocks.
    pub free: Vec<Range<u64>>,
    /// Blocks per stripe (`s_stripe`); 0 for none.
    pub stripe_blocks: u64,
}

/// The work of one search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Groups whose counters were checked (`ext4_mb_good_group`).
    pub considered: u64,
    /// Groups that were locked and searched.
    pub searched: u64,
    /// Multiples of the stripe that were checked.
    pub probed: u64,
    /// Free runs that were checked.
    pub runs: u64,
}

impl Work {
    /// Adds the work of another search, `times` times.
    pub fn add(&mut self, other: Self, times: u64) {
        self.considered += other.considered * times;
        self.searched += other.searched * times;
        self.probed += other.probed * times;
        self.runs += other.runs * times;
    }

    /// What to charge a processor for it.
    pub fn costs(self) -> [Cost; 4] {
        let Self { considered, searched, probed, runs } = self;
        [
            Cost::GroupConsidered(considered),
            Cost::GroupSearched(searched),
            Cost::AlignedProbe(probed),
            Cost::RunExamined(runs),
        ]
    }
}

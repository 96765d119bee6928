//! The seam of block allocators: the questions that a file system asks, and the answers.

use super::cost::Cost;
use crate::direct::FullVolume;
use std::fmt;
use std::ops::Range;

/// A file, by a number that no other file of its volume has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Blocks of a file that have no place yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The file.
    pub file: FileId,
    /// The first of them, counted from the file's beginning.
    pub block: u64,
    /// Their number, at least 1.
    pub blocks: u64,
    /// The first block of the group that the file's inode is in.
    pub goal: u64,
    /// The file's length in blocks, with those that are dirty and have no place yet.
    pub file_blocks: u64,
    /// The process that writes (`current->pid`).
    pub process: u64,
}

impl Request {
    /// One block behind the end of a file.
    pub fn append(file: FileId, block: u64, goal: u64) -> Self {
        Self { file, block, blocks: 1, goal, file_blocks: block + 1, process: 0 }
    }
}

/// When a file system asks for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatesAt {
    /// As each page is written to the cache.
    Write,
    /// As dirty pages leave it (delayed allocation).
    WriteBack,
}

/// An allocator of blocks, as the file systems of Linux had them.
pub trait BlockAllocator: fmt::Debug + Send {
    /// When it is asked.
    fn allocates_at(&self) -> AllocatesAt;

    /// A run of blocks for the first of those that are wanted, at least one and at most as many, and the work of finding them.
    /// They are the file's from then on.
    ///
    /// # Errors
    /// [`FullVolume`].
    fn allocate(&mut self, request: Request) -> Result<(Range<u64>, Work), FullVolume>;

    /// The last process that had the file open for writing has closed it.
    fn close(&mut self, file: FileId);
}

/// The shape of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Where the first group begins.
    pub first_block: u64,
    /// Blocks of a group.
    pub group_blocks: u64,
    /// Groups.
    pub groups: u64,
    /// Groups of a flexible group; 1 on volumes without these.
    pub flex_groups: u64,
}

impl Geometry {
    /// A block's group, and its place there; the first of the volume for one that lies elsewhere.
    pub(super) fn place(&self, block: u64) -> (u64, u64) {
        let at = block.wrapping_sub(self.first_block);
        if at >= self.groups * self.group_blocks {
            return (0, 0);
        }
        (at / self.group_blocks, at % self.group_blocks)
    }

    /// The block at a place of a group.
    pub(super) fn block(&self, group: u64, at: u64) -> u64 {
        self.first_block + group * self.group_blocks + at
    }

    /// Runs of a volume cut at the ends of groups: each with its group and its range there.
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

/// The free space of a volume, for an allocator to begin with.
#[derive(Clone, Debug)]
pub struct FreeSpace {
    /// The volume's shape.
    pub geometry: Geometry,
    /// Its free blocks.
    pub free: Vec<Range<u64>>,
    /// Blocks of a stripe (`s_stripe`); 0 for none.
    pub stripe_blocks: u64,
}

/// The work of one search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Groups whose counts were looked at (`ext4_mb_good_group`).
    pub considered: u64,
    /// Groups that were locked and searched.
    pub searched: u64,
    /// Blocks at multiples of the stripe that were looked at.
    pub probed: u64,
    /// Free runs that were looked at.
    pub runs: u64,
}

impl Work {
    /// Adds another search's, so many times.
    pub fn add(&mut self, other: Self, times: u64) {
        self.considered += other.considered * times;
        self.searched += other.searched * times;
        self.probed += other.probed * times;
        self.runs += other.runs * times;
    }

    /// The charge of a processor for it.
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

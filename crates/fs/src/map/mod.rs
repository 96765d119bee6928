//! Where a file's blocks lie: `read` follows the map on the volume; `live` is the map of a file that is being changed; `change`
//! applies what `extents` and `pointers` have planned.

pub(crate) mod change;
mod clusters;
pub(crate) mod cost;
pub(crate) mod edit;
pub(crate) mod extents;
pub(crate) mod live;
pub(crate) mod pointers;
mod read;
mod runs;
#[cfg(test)]
mod testing;

use extant_format::VolumeBlock;
pub use read::Runs;
pub(crate) use read::{MapSource, Mapper, RunWalker, Unmapped};

/// The state of a run of file blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Data at this block of the volume and those behind it.
    Written(VolumeBlock),
    /// Allocated there, reading as zeroes.
    Unwritten(VolumeBlock),
    /// Nothing allocated, reading as zeroes.
    Hole,
}

/// A run of file blocks of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block within the file.
    pub logical: u64,
    /// Length in blocks, at least 1.
    pub blocks: u64,
    /// Its state.
    pub state: RunState,
}

impl Run {
    /// The part from `logical` on; which lies in the run.
    pub(crate) fn from(self, logical: u64) -> Self {
        let skip = logical - self.logical;
        let state = match self.state {
            RunState::Written(at) => RunState::Written(VolumeBlock(at.0 + skip)),
            RunState::Unwritten(at) => RunState::Unwritten(VolumeBlock(at.0 + skip)),
            RunState::Hole => RunState::Hole,
        };
        Self { logical, blocks: self.blocks - skip, state }
    }

    pub(crate) fn end(&self) -> u64 {
        self.logical + self.blocks
    }
}

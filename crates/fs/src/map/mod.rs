//! Where a file's blocks are. `stored_map` follows the map on the volume. `file_map` is the
//! in-memory map of a file being changed: what is `pending` over what is known (`known_runs`), and
//! how far the recorded size may grow (`recorded_size`). `change` applies what `extent_tree` and
//! `pointers` have planned.

pub(crate) mod block_state;
pub(crate) mod change;
mod clusters;
pub(crate) mod extent_tree;
pub(crate) mod file_map;
pub(crate) mod growth;
mod known_runs;
pub(crate) mod node_edit;
mod pending;
pub(crate) mod pointers;
mod recorded_size;
mod run_map;
mod shared_clusters;
mod stored_map;
#[cfg(test)]
mod testing;

use extant_format::VolumeBlock;
pub use stored_map::Runs;
pub(crate) use stored_map::{MapSource, Mapper, RunWalker, Unmapped};

/// The state of a run of file blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Data, starting at this block of the volume.
    Written(VolumeBlock),
    /// Allocated at this block, but reads as zeroes.
    Unwritten(VolumeBlock),
    /// Not allocated; reads as zeroes.
    Hole,
}

/// A run of file blocks in the same state.
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
    /// The part from block `logical` on, which must be within the run.
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

//! States of a file's blocks, on disk and in memory.
//!
//! A block is *pending* if the volume does not yet have its data, its place, or a recorded size
//! that covers it.
//!
//! ```text
//! hole      -write-> delayed  -claim-> in flight (new), -place-> placed -end-> written, logged
//! unwritten -write-> converts -claim-> in flight (unwritten)            -end-> written, logged
//! written, not covered by the recorded size
//!           -write-> beyond   -claim-> in flight (written)              -end-> size logged
//! ```
//!
//! With `bigalloc`, a hole in a cluster that the file owns is *implied*, and is written like an
//! unwritten block. Only one write-back run at a time may have blocks of a delayed cluster in
//! flight; blocks of other runs wait until the cluster is allocated. If the run has several pieces
//! in the cluster, the first is *new* and the others *share* its place.
//!
//! The block that contained the end of the file when write-back took it stays *beyond* after the
//! write ends. Bytes past that end may have been copied to its page since, before or after the
//! write was taken. This keeps the recorded size from covering bytes that exist only in memory,
//! regardless of the order of marking, copying, taking and ending.

use super::RunState;
use super::run_map::RunValue;
use extant_format::{BlockRange, VolumeBlock};

/// A run's state in the map on disk, including changes logged but not yet checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDisk {
    Hole,
    Written(VolumeBlock),
    Unwritten(VolumeBlock),
    /// A hole in a cluster that the file owns because other blocks of it are mapped; this is the
    /// block's place.
    Implied(VolumeBlock),
}

/// A block's state before its write was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WasBefore {
    /// Delayed; its place was allocated for this write.
    New,
    /// Delayed, in a cluster being allocated for a `New` block of the same write-back run. If that
    /// block's write fails, the place is void.
    Shared,
    Unwritten,
    Written,
}

/// Why a block is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Dirty and unallocated; its space is reserved.
    Delayed,
    /// Dirty over an unwritten block.
    Converts(VolumeBlock),
    /// A written block that the recorded size did not cover; its page may be dirty. Its bytes on
    /// the device are valid up to this file offset.
    Beyond { at: VolumeBlock, valid_bytes: u64 },
    /// Claimed by write-back: being written to its place, or about to get one. Before this write,
    /// its bytes on the device were valid up to this file offset.
    InFlight { to: Option<VolumeBlock>, was: WasBefore, valid_bytes: u64 },
}

impl Pending {
    /// Whether its cluster is reserved for it, or allocated for it in memory only.
    pub(super) fn needs_cluster(self) -> bool {
        matches!(self, Self::Delayed | Self::InFlight { was: WasBefore::New, .. })
    }

    /// The block's place, if it has one.
    pub(super) fn place(self) -> Option<VolumeBlock> {
        match self {
            Self::Delayed => None,
            Self::Converts(at) | Self::Beyond { at, .. } => Some(at),
            Self::InFlight { to, .. } => to,
        }
    }

    /// Where a reader finds the block. Dirty blocks without data on the device are holes to a
    /// reader, since their pages are in the cache.
    pub(super) fn on_disk(self) -> OnDisk {
        match self {
            Self::Delayed | Self::InFlight { was: WasBefore::New | WasBefore::Shared, .. } => OnDisk::Hole,
            Self::Converts(at) => OnDisk::Unwritten(at),
            Self::Beyond { at, .. } => OnDisk::Written(at),
            Self::InFlight { to, was: WasBefore::Unwritten, .. } => {
                to.map_or(OnDisk::Hole, OnDisk::Unwritten)
            }
            Self::InFlight { to, was: WasBefore::Written, .. } => to.map_or(OnDisk::Hole, OnDisk::Written),
        }
    }
}

/// How a block's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Hole,
    /// In memory only, with space reserved, or being written to a place that no transaction
    /// contains yet.
    Delayed,
    /// Allocated; reads as zeroes unless `is_dirty`, in which case its bytes are in memory.
    Unwritten {
        at: VolumeBlock,
        is_dirty: bool,
    },
    Written(VolumeBlock),
}

impl Stored {
    pub(super) fn of(on_disk: OnDisk, is_dirty: bool) -> Self {
        match on_disk {
            OnDisk::Hole if is_dirty => Self::Delayed,
            OnDisk::Hole | OnDisk::Implied(_) => Self::Hole,
            OnDisk::Unwritten(at) => Self::Unwritten { at, is_dirty },
            OnDisk::Written(at) => Self::Written(at),
        }
    }
}

impl From<RunState> for Stored {
    fn from(state: RunState) -> Self {
        match state {
            RunState::Hole => Self::Hole,
            RunState::Unwritten(at) => Self::Unwritten { at, is_dirty: false },
            RunState::Written(at) => Self::Written(at),
        }
    }
}

impl RunValue for OnDisk {
    fn advance(self, skip: u64) -> Self {
        let on = |at: VolumeBlock| VolumeBlock(at.0 + skip);
        match self {
            Self::Hole => Self::Hole,
            Self::Written(at) => Self::Written(on(at)),
            Self::Unwritten(at) => Self::Unwritten(on(at)),
            Self::Implied(at) => Self::Implied(on(at)),
        }
    }
}

impl RunValue for Pending {
    fn advance(self, skip: u64) -> Self {
        let on = |at: VolumeBlock| VolumeBlock(at.0 + skip);
        match self {
            Self::Delayed => Self::Delayed,
            Self::Converts(at) => Self::Converts(on(at)),
            Self::Beyond { at, valid_bytes } => Self::Beyond { at: on(at), valid_bytes },
            Self::InFlight { to, was, valid_bytes } => Self::InFlight { to: to.map(on), was, valid_bytes },
        }
    }
}

/// How write-back handles a run of dirty blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStep {
    /// Overwrite in place; the map does not change.
    Overwrite(VolumeBlock),
    /// Write in place and log when it ends. In a *fresh* block, the bytes outside the dirty ones
    /// are undefined.
    InPlace { to: VolumeBlock, fresh: bool },
    /// Needs allocation; space is reserved.
    Allocate,
    /// Write nothing: the page cache zeroed what a truncation cut off, and the block reads as
    /// zeroes anyway.
    Zeroes,
    /// An earlier write to it has not ended.
    Wait,
    /// A write that allocates its cluster has not ended. A block of the same write-back run shares
    /// the place; others wait.
    Share,
}

/// What marking a range dirty adds to the file's reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Runs of holes that become delayed.
    pub(crate) delayed: Vec<BlockRange>,
    /// Total number of blocks in `delayed`.
    pub(crate) delayed_blocks: u64,
    /// Clusters to be allocated for `delayed`.
    pub(crate) clusters: u64,
    /// Unwritten and implied blocks that become dirty.
    pub(crate) converted_blocks: u64,
}

impl Need {
    pub(crate) fn is_empty(&self) -> bool {
        self.delayed_blocks + self.converted_blocks == 0
    }
}

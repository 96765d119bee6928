//! How far a file's recorded size may grow: over what is on the device, and nothing else.

use extant_format::{BlockRange, BlockSize};

/// How far a file has reached the device.
#[derive(Debug)]
pub(crate) struct SizeOnDisk {
    block: BlockSize,
    /// The largest size that a finished write-back vouches for.
    written_bytes: u64,
    /// No block from here on has been logged as written through this map.
    logged_end: u64,
}

impl SizeOnDisk {
    pub(super) fn new(block: BlockSize) -> Self {
        Self { block, written_bytes: 0, logged_end: 0 }
    }

    /// Records that a run has been written and logged. The file was `size_bytes` long when the run
    /// was taken.
    pub(super) fn landed(&mut self, run: BlockRange, size_bytes: u64) {
        self.logged_end = self.logged_end.max(run.end);
        // Only to the end of the run: beyond a hole there may be blocks that have not reached the
        // device.
        self.vouch(size_bytes.min(run.end << self.block.log2()));
    }

    /// Vouches for every byte below `size_bytes`: each is on the device, pending, or in a hole made
    /// on purpose. Nothing is being written to the file's pages.
    pub(crate) fn vouch(&mut self, size_bytes: u64) {
        self.written_bytes = self.written_bytes.max(size_bytes);
    }

    /// Records that no byte past `size_bytes` is on the device, even if vouched for before.
    pub(crate) fn distrust(&mut self, size_bytes: u64) {
        self.written_bytes = self.written_bytes.min(size_bytes);
    }

    /// Cuts the file off before block `from` and at byte `size_bytes`.
    pub(super) fn truncate(&mut self, from: u64, size_bytes: u64) {
        self.distrust(size_bytes);
        self.logged_end = self.logged_end.min(from);
    }

    /// The device has the file up to byte `size_bytes`, and nothing after it.
    pub(super) fn reset(&mut self, size_bytes: u64) {
        self.written_bytes = size_bytes;
        self.logged_end = self.logged_end.min(self.block.blocks_for(size_bytes));
    }

    /// The size to record now. Bytes between `recorded_bytes` and `valid_bytes` are not pending.
    pub(super) fn may_record(&self, recorded_bytes: u64, valid_bytes: u64) -> u64 {
        recorded_bytes.max(self.written_bytes.min(valid_bytes))
    }

    /// Whether a block logged as written starts past the recorded size, with earlier blocks still
    /// to be written.
    pub(crate) fn is_ahead(&self, recorded_bytes: u64) -> bool {
        self.logged_end.checked_sub(1).is_some_and(|last| last << self.block.log2() > recorded_bytes)
    }
}

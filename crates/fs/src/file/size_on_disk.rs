//! The size recorded on the volume: what a caller asked for, or how far the file has reached the
//! device.

use super::contents::{Contents, FileState};
use super::inline_contents;
use crate::Result;
use crate::inode::{Orphan, Orphans};
use crate::journal::{Credits, Handle};
use extant_format::{
    Compat, ExtentNode, Incompat, Inode, RoCompat, UintExt, indirect_capacity, pointers_per_block,
};
use std::sync::atomic::Ordering;

/// Size from which the volume must have the feature `RO_COMPAT_LARGE_FILE`.
const LARGE_FILE_BYTES: u64 = 1 << 31;
/// Credits of [`Contents::record`] and [`Contents::note_ahead`]: the inode, and the superblock,
/// which may need a feature flag.
pub(super) const RECORD_CREDITS: u32 = 2 + Orphans::CREDITS;

impl Contents {
    /// The size recorded on the volume; the cache's may be larger.
    pub(super) fn recorded_bytes(&self) -> u64 {
        if self.is_emptied() { 0 } else { self.cell.read(Inode::size) }
    }

    /// Whether the recorded size covers `bytes`.
    pub(super) fn has_recorded(&self, bytes: u64) -> bool {
        !self.is_emptied() && self.cell.read(Inode::size) >= bytes
    }

    /// Records a size requested by a caller, and the times of the change.
    pub(super) fn record_dated(&self, handle: &mut Handle, bytes: u64) {
        let now = self.writer.clock.now();
        self.record(handle, bytes);
        let mut inode = handle.inode(&self.cell);
        let stamp = inode.stamp(now);
        inode.set_modified(stamp);
        inode.set_changed(stamp);
    }

    /// Records a size requested by a caller. Inline contents have already moved to blocks. An inode
    /// still flagged as inline, but empty, loses the flag here, since inline contents cannot have
    /// such a size.
    pub(super) fn record(&self, handle: &mut Handle, bytes: u64) {
        inline_contents::leave(handle, &self.cell, self.sb());
        handle.inode(&self.cell).set_size(bytes);
        if bytes >= LARGE_FILE_BYTES {
            ensure_large_file(handle);
        }
    }

    /// Records the size that the file has reached on the device. Normally the end of write-back
    /// does so when blocks land; this covers the case that the blocks before them were given up.
    /// The caller holds the inode's lock.
    ///
    /// # Errors
    /// Why the journal gave up.
    pub(super) async fn record_reached(&self) -> Result<()> {
        let _edits = self.edits.write().await;
        let reached = |live: &FileState| {
            let recorded = self.recorded_bytes();
            let bytes = live.map.recordable_bytes(recorded);
            (bytes > recorded).then_some(bytes)
        };
        // The old contents of an emptied file say nothing about the new ones.
        if self.is_emptied() || reached(&self.live.lock()).is_none() {
            return Ok(());
        }
        let mut handle = self.writer.journal.start(Credits(RECORD_CREDITS)).await?;
        let mut live = self.live.lock();
        if let Some(bytes) = reached(&live) {
            self.set_reached(&mut handle, &mut live, bytes);
        }
        Ok(())
    }

    /// Records the size that the file has reached with a change of its map; the old contents of an
    /// emptied file are gone. Touches the inode even if only a node changed: a sync asks the inode
    /// which transaction to commit, and the times go with it.
    pub(super) fn record_landed(&self, handle: &mut Handle, live: &mut FileState) {
        let size = live.map.recordable_bytes(self.recorded_bytes());
        self.emptied.store(0, Ordering::Release);
        self.set_reached(handle, live, size);
        live.times_unlogged = false;
    }

    fn set_reached(&self, handle: &mut Handle, live: &mut FileState, bytes: u64) {
        handle.inode(&self.cell).set_size(bytes);
        self.note_ahead(handle, live, bytes);
        if bytes >= LARGE_FILE_BYTES {
            ensure_large_file(handle);
        }
    }

    /// Puts the inode on the orphan list while blocks are mapped beyond the size being recorded
    /// because write-back of earlier blocks has not ended. A crash then frees those blocks, as it
    /// does for appending direct I/O in Linux. If the inode were not an orphan, e2fsck would report
    /// a wrong size.
    pub(super) fn note_ahead(&self, handle: &mut Handle, live: &mut FileState, recorded_bytes: u64) {
        let is_ahead = live.map.size.is_ahead(recorded_bytes);
        if is_ahead == live.is_ahead {
            return;
        }
        live.is_ahead = is_ahead;
        let orphans = &self.writer.orphans;
        match is_ahead {
            true => orphans.add(handle, &self.cell, Orphan::Ahead),
            false => orphans.remove(handle, &self.cell, Orphan::Ahead),
        }
    }

    /// The largest size, limited by what the map can address and what `i_blocks` can count. Files
    /// with a map of pointers are always limited as if without `huge_file`.
    pub(super) fn max_bytes(&self) -> u64 {
        let bits = self.block.log2();
        let addressed = (1 << 32) - 1;
        // The limit of `i_blocks` without `huge_file`, in units of 512 bytes; the map's own blocks
        // count too.
        let countable = u64::from(u32::MAX) >> (bits - 9);
        if self.uses_extents() {
            if self.sb().ro_compat().contains(RoCompat::HUGE_FILE) {
                return addressed << bits;
            }
            // Assumes nodes at least half full; each node except the root has one entry in its
            // parent.
            let half = (ExtentNode::capacity(self.block.byte_len(), false) / 2).to_u64();
            return addressed.min(countable - countable / (half - 1) - 1) << bits;
        }
        let per_block = u64::from(pointers_per_block(self.block));
        let pointers = countable / per_block + countable / per_block / per_block + 4;
        indirect_capacity(self.block).min(countable - pointers).min(addressed) << bits
    }

    /// The largest size of any file on the volume, regardless of the form of its map and not
    /// counting the map's own blocks (`s_maxbytes`).
    pub(super) fn addressable_bytes(&self) -> u64 {
        let bits = self.block.log2();
        let countable = match self.sb().ro_compat().contains(RoCompat::HUGE_FILE) {
            true => u64::MAX,
            // `i_blocks` counts units of 512 bytes in 32 bits.
            false => u64::from(u32::MAX) >> (bits - 9),
        };
        countable.min((1 << 32) - 1) << bits
    }
}

/// Sets the feature flag that large files need.
fn ensure_large_file(handle: &mut Handle) {
    let mut sb = handle.superblock();
    if !sb.ro_compat().contains(RoCompat::LARGE_FILE) {
        sb.add_features(Compat::empty(), Incompat::empty(), RoCompat::LARGE_FILE);
    }
}

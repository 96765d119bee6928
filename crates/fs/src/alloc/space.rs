//! Exact accounting of a volume's free blocks: what may be promised, and to whom.
//!
//! A write reserves its data and the worst case of its map before it is acknowledged, so write-back
//! never gets `ENOSPC`. Promises cover only *allocatable* blocks. Blocks freed by a running
//! transaction become allocatable when it is durable. All numbers are in clusters, which are blocks
//! without `bigalloc`.

use parking_lot::Mutex;
use std::sync::Arc;

/// How much of the free space a caller may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// All except the blocks reserved for the superuser (`s_r_blocks_count`).
    Ordinary,
    /// Every block: for the superuser, `s_def_resuid`, `s_def_resgid`, and the file system's own
    /// metadata.
    Reserved,
}

/// A promise that failed because too few blocks are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    /// Blocks missing.
    pub(crate) missing: u64,
    /// Blocks that become allocatable at the next commit.
    pub(crate) pending: u64,
    /// Free blocks of damaged groups.
    pub(crate) lost: u64,
}

impl Short {
    /// Whether only damaged groups prevent the promise.
    pub(crate) const fn is_for_damage(self) -> bool {
        self.lost > 0 && !self.is_for_now() && self.missing <= self.pending + self.lost
    }

    /// Whether the next commit makes enough room.
    pub(crate) const fn is_for_now(self) -> bool {
        self.missing <= self.pending
    }
}

/// A snapshot of block counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Allocatable: neither in use nor freed by a transaction that is not durable. Includes
    /// promised blocks.
    pub(crate) free: u64,
    /// Freed by transactions that are not yet durable.
    pub(crate) pending: u64,
    /// Promised but not yet allocated.
    pub(crate) promised: u64,
    /// Kept for [`Privilege::Reserved`].
    pub(crate) kept: u64,
    /// Free in damaged groups, which are not used for allocation.
    pub(crate) lost: u64,
}

impl Counts {
    /// Free blocks as reported by statfs: those not promised to any write.
    pub(crate) const fn unpromised(self) -> u64 {
        (self.free + self.pending).saturating_sub(self.promised)
    }
}

/// The counts of a volume. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Space(Arc<Mutex<Counts>>);

impl Space {
    /// Creates the counts of a volume with `free` free blocks, of which `kept` are reserved for the
    /// superuser.
    pub(crate) fn new(free: u64, kept: u64) -> Self {
        Self(Arc::new(Mutex::new(Counts { free, kept, ..Counts::default() })))
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.0.lock()
    }

    /// Promises blocks.
    ///
    /// # Errors
    /// Promises nothing if fewer blocks are free.
    pub(crate) fn promise(&self, blocks: u64, privilege: Privilege) -> Result<Reservation, Short> {
        let mut counts = self.0.lock();
        let kept = if privilege == Privilege::Reserved { 0 } else { counts.kept };
        let needed = counts.promised + kept + blocks;
        if blocks > 0 && needed > counts.free {
            let missing = needed - counts.free;
            return Err(Short { missing, pending: counts.pending, lost: counts.lost });
        }
        counts.promised += blocks;
        Ok(Reservation { space: self.clone(), clusters: blocks })
    }

    /// Moves promised blocks out of the free ones after they have been allocated in memory.
    pub(crate) fn allocated(&self, from: &mut Reservation, blocks: u64) {
        assert!(blocks <= from.clusters, "{blocks} blocks allocated from a promise of {}", from.clusters);
        debug_assert!(Arc::ptr_eq(&self.0, &from.space.0), "a promise of another volume");
        let mut counts = self.0.lock();
        from.clusters -= blocks;
        counts.promised -= blocks;
        // A group found to be damaged may have taken promised blocks away.
        counts.free = counts.free.saturating_sub(blocks);
    }

    /// Frees blocks that were allocated in memory but never logged.
    pub(crate) fn abandoned(&self, blocks: u64) {
        self.0.lock().free += blocks;
    }

    /// Like [`Self::abandoned`], but the blocks stay promised, now to the returned reservation.
    pub(crate) fn taken_back(&self, blocks: u64) -> Reservation {
        let mut counts = self.0.lock();
        counts.free += blocks;
        counts.promised += blocks;
        Reservation { space: self.clone(), clusters: blocks }
    }

    /// Counts blocks freed by a running transaction.
    pub(crate) fn freed(&self, blocks: u64) {
        self.0.lock().pending += blocks;
    }

    /// Makes freed blocks allocatable once their transaction is durable; `lost` of them are in
    /// damaged groups.
    pub(crate) fn settled(&self, blocks: u64, lost: u64) {
        debug_assert!(lost <= blocks, "{lost} of {blocks} blocks are in damaged groups");
        let mut counts = self.0.lock();
        counts.pending -= blocks;
        counts.free += blocks - lost;
        counts.lost += lost;
    }

    /// Takes away the blocks of a damaged group.
    pub(crate) fn lost(&self, blocks: u64) {
        let mut counts = self.0.lock();
        counts.free = counts.free.saturating_sub(blocks);
        counts.lost += blocks;
    }
}

/// Clusters promised to one operation or file. Dropping it returns what was not allocated.
#[derive(Debug)]
pub(crate) struct Reservation {
    space: Space,
    clusters: u64,
}

impl Reservation {
    /// Clusters left.
    pub(crate) const fn clusters(&self) -> u64 {
        self.clusters
    }

    /// Splits off up to `clusters` clusters.
    pub(crate) fn split(&mut self, clusters: u64) -> Self {
        let clusters = clusters.min(self.clusters);
        self.clusters -= clusters;
        Self { space: self.space.clone(), clusters }
    }

    /// Adds the clusters of another reservation.
    pub(crate) fn merge(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.space.0, &other.space.0), "a promise of another volume");
        self.clusters += std::mem::take(&mut other.clusters);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.clusters > 0 {
            self.space.0.lock().promised -= self.clusters;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_blocks_are_promised_to_the_superuser_only_and_never_twice() {
        let space = Space::new(100, 10);
        let mut ordinary = space.promise(90, Privilege::Ordinary).unwrap();
        let refused = space.promise(1, Privilege::Ordinary).unwrap_err();
        assert_eq!(refused, Short { missing: 1, pending: 0, lost: 0 });
        let root = space.promise(10, Privilege::Reserved).unwrap();
        assert!(space.promise(1, Privilege::Reserved).is_err());
        assert_eq!(space.counts().unpromised(), 0);
        space.allocated(&mut ordinary, 50);
        drop((ordinary, root));
        assert_eq!(space.counts(), Counts { free: 50, kept: 10, ..Counts::default() });
    }

    #[test]
    fn freed_blocks_count_as_free_at_once_and_are_promised_after_the_commit() {
        let space = Space::new(0, 0);
        space.freed(8);
        assert_eq!(space.counts().unpromised(), 8);
        let refused = space.promise(1, Privilege::Ordinary).unwrap_err();
        assert_eq!(refused, Short { missing: 1, pending: 8, lost: 0 });
        space.settled(8, 0);
        assert_eq!(space.promise(8, Privilege::Ordinary).unwrap().clusters(), 8);
    }

    #[test]
    fn a_volume_is_not_full_where_damaged_groups_have_room() {
        let space = Space::new(10, 2);
        space.lost(6);
        let refusal = |blocks| space.promise(blocks, Privilege::Ordinary).unwrap_err().is_for_damage();
        assert!(refusal(3) && refusal(8), "the whole volume has as many");
        assert!(!refusal(9));
        space.freed(5);
        assert!(!refusal(3), "freed blocks are enough");
        assert!(refusal(13) && !refusal(14));
        let full = Space::new(10, 2);
        full.freed(5);
        assert!(!full.promise(9, Privilege::Ordinary).unwrap_err().is_for_damage(), "no group is damaged");
        assert_eq!(space.promise(2, Privilege::Ordinary).unwrap().clusters(), 2);
    }

    #[test]
    fn blocks_that_are_taken_back_are_never_another_s() {
        let space = Space::new(10, 0);
        let mut all = space.promise(10, Privilege::Reserved).unwrap();
        space.allocated(&mut all, 6);
        all.merge(space.taken_back(6));
        assert!(space.promise(1, Privilege::Reserved).is_err());
        assert_eq!((all.clusters(), space.counts().promised, space.counts().free), (10, 10, 10));
        drop(all);
        assert_eq!(space.counts().unpromised(), 10);
    }

    #[test]
    fn parts_of_a_reservation_add_up() {
        let space = Space::new(10, 0);
        let mut all = space.promise(10, Privilege::Ordinary).unwrap();
        let mut part = all.split(4);
        space.allocated(&mut part, 3);
        space.abandoned(3);
        all.merge(part);
        assert_eq!((all.clusters(), space.counts().promised, space.counts().free), (7, 7, 10));
    }
}

//! The lock order described at the head of `names`, asserted in debug builds.
//!
//! Each operation creates one [`Order`] and takes inode locks through it. Directories are locked by
//! number, so no two operations wait for each other, whatever the names on a damaged volume lead
//! to. If a name leads against that order, the operation only tries the lock; if it does not get
//! it, it releases all its locks before it waits.

use crate::Error;
use crate::inode::InodeCell;
use extant_rt::{ReadGuard, WriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lock ranks, in the order of locking. Within a rank, inodes are locked by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The volume's rename lock.
    Renames = 1,
    /// A directory whose names are looked up or changed, or that is moved, replaced or removed.
    Directory,
    /// Any other inode.
    File,
}

impl Rank {
    /// The rank of an inode.
    pub(super) const fn of(is_dir: bool) -> Self {
        if is_dir { Self::Directory } else { Self::File }
    }
}

/// Why an operation stopped before its first change.
#[derive(Debug)]
pub(super) enum Stopped {
    Failed(Error),
    /// Another operation holds the lock of this inode. The caller must release its locks before
    /// waiting for it.
    Contended(Arc<InodeCell>),
    /// This inode would lose its last name, but it is not known yet whether its large map can be
    /// freed. The caller must release its locks before reading the map.
    Unchecked(Arc<InodeCell>),
}

impl<E: Into<Error>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The locks held by one operation.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last lock taken: its rank in the upper half, the inode's number in the lower.
    last: AtomicU64,
}

impl Order {
    /// Locks an inode for reading.
    pub(super) async fn read<'c>(&self, rank: Rank, cell: &'c InodeCell) -> ReadGuard<'c> {
        self.check(rank, cell.number().0);
        cell.read_lock().await
    }

    /// Locks an inode for writing.
    pub(super) async fn write<'c>(&self, rank: Rank, cell: &'c InodeCell) -> WriteGuard<'c> {
        self.check(rank, cell.number().0);
        cell.write_lock().await
    }

    /// Locks the inode that a name in a locked directory leads to. The caller must not hold its
    /// lock yet.
    ///
    /// # Errors
    /// [`Stopped::Contended`] if the lock comes before one already held, and another operation
    /// holds it.
    pub(super) async fn follow<'c>(
        &self,
        rank: Rank,
        cell: &'c Arc<InodeCell>,
    ) -> Result<WriteGuard<'c>, Stopped> {
        if self.last.load(Ordering::Relaxed) < place(rank, cell.number().0) {
            return Ok(self.write(rank, cell).await);
        }
        cell.lock().try_write().ok_or_else(|| Stopped::Contended(cell.clone()))
    }

    /// Records a lock that is about to be taken.
    ///
    /// # Panics
    /// In debug builds, if a later lock in the order is already held.
    pub(super) fn check(&self, rank: Rank, number: u32) {
        let next = place(rank, number);
        let last = self.last.swap(next, Ordering::Relaxed);
        debug_assert!(last < next, "the lock {rank:?} of inode {number} is taken after {last:#x}");
    }
}

fn place(rank: Rank, number: u32) -> u64 {
    (rank as u64) << 32 | u64::from(number)
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_by_rank_and_then_by_number() {
        let order = Order::default();
        for (rank, number) in
            [(Rank::Renames, 0), (Rank::Directory, 5), (Rank::Directory, 9), (Rank::File, 3), (Rank::File, 4)]
        {
            order.check(rank, number);
        }
    }

    #[test]
    #[should_panic(expected = "the lock Directory of inode 12 is taken after")]
    fn a_directory_is_not_taken_while_a_file_is_held() {
        let order = Order::default();
        order.check(Rank::File, 11);
        order.check(Rank::Directory, 12);
    }

    #[test]
    #[should_panic(expected = "the lock File of inode 11 is taken after")]
    fn inodes_of_one_rank_are_taken_by_number() {
        let order = Order::default();
        order.check(Rank::File, 12);
        order.check(Rank::File, 11);
    }
}

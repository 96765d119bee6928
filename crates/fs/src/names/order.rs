//! The order of locks at the head of `names`, asserted in debug builds.
//!
//! An operation makes one [`Order`] and takes the locks of inodes through it. From the handle on nothing waits, and a handle
//! is not `Send`: the compiler keeps it from living across a wait.

use crate::inode::InodeCell;
use async_lock::{RwLockReadGuard, RwLockWriteGuard};
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering};

/// Ranks of locks, the one to be taken first first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The volume's rename lock.
    Renames = 1,
    /// A directory whose names are looked up or changed.
    Directory,
    /// Another one, below the first or beside it.
    Second,
    /// A directory that is moved, replaced or removed, or whose attributes change.
    Subject,
    /// Anything else of which that is true.
    File,
}

impl Rank {
    /// The rank of an inode that is changed itself.
    pub(super) const fn of_subject(is_dir: bool) -> Self {
        if is_dir { Self::Subject } else { Self::File }
    }
}

/// The locks that one operation holds; only the last one matters. Empty in release builds.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The rank in the upper half, the inode's number in the lower.
    #[cfg(debug_assertions)]
    last: AtomicU64,
}

impl Order {
    /// Takes the lock of an inode for reading.
    pub(super) async fn read<'c>(&self, rank: Rank, cell: &'c InodeCell) -> RwLockReadGuard<'c, ()> {
        self.check(rank, cell.number().0);
        cell.lock().read().await
    }

    /// Takes the lock of an inode for writing.
    pub(super) async fn write<'c>(&self, rank: Rank, cell: &'c InodeCell) -> RwLockWriteGuard<'c, ()> {
        self.check(rank, cell.number().0);
        cell.lock().write().await
    }

    /// Asserts that a lock may be taken now.
    ///
    /// # Panics
    /// In debug builds, if a lock that comes later in the order is held.
    pub(super) fn check(&self, rank: Rank, number: u32) {
        #[cfg(debug_assertions)]
        {
            let next = (rank as u64) << 32 | u64::from(number);
            let last = self.last.swap(next, Ordering::Relaxed);
            assert!(last < next, "the lock {rank:?} of inode {number} is taken after {last:#x}");
        }
        #[cfg(not(debug_assertions))]
        let _ = (rank, number);
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_by_rank_and_then_by_number() {
        let order = Order::default();
        for (rank, number) in
            [(Rank::Renames, 0), (Rank::Directory, 9), (Rank::Second, 5), (Rank::File, 3), (Rank::File, 4)]
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

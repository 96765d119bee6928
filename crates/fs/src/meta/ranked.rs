//! Mutexes with a rank in the lock order, which debug builds assert.
//!
//! They rank below the inode locks (`names`), which are held across awaits. Their guards are not
//! `Send`, so the compiler rejects holding one across an await. The locks a thread holds are
//! therefore those of its current operation.

use parking_lot::{Mutex, MutexGuard};
#[cfg(debug_assertions)]
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// Lock ranks, in the order of locking. At most one lock of each rank may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockRank {
    /// A file's map in memory.
    Map,
    /// The allocator's groups of inodes.
    InodeGroups,
    /// The allocator's groups of blocks.
    BlockGroups,
    /// The bitmaps of groups in use.
    Bitmaps,
    /// The journal's state.
    Journal,
}

#[cfg(debug_assertions)]
thread_local! {
    /// The ranks held by this thread, one bit each.
    static HELD: Cell<u8> = const { Cell::new(0) };
}

/// A mutex with a rank.
#[derive(Debug)]
pub(crate) struct Ranked<T> {
    #[cfg(debug_assertions)]
    rank: LockRank,
    mutex: Mutex<T>,
}

impl<T> Ranked<T> {
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "only debug builds look at it"))]
    pub(crate) const fn new(rank: LockRank, value: T) -> Self {
        Self {
            #[cfg(debug_assertions)]
            rank,
            mutex: Mutex::new(value),
        }
    }

    /// Takes the lock.
    ///
    /// # Panics
    /// In debug builds, if a lock of this or a later rank is held.
    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        #[cfg(debug_assertions)]
        HELD.with(|held| {
            let later = held.get() >> self.rank as u8;
            assert!(later == 0, "the lock {:?} is taken while a later one is held ({later:#b})", self.rank);
            held.set(held.get() | 1 << self.rank as u8);
        });
        RankedGuard {
            #[cfg(debug_assertions)]
            rank: self.rank,
            guard: self.mutex.lock(),
        }
    }
}

/// A ranked lock that is held.
#[derive(Debug)]
pub(crate) struct RankedGuard<'a, T> {
    #[cfg(debug_assertions)]
    rank: LockRank,
    guard: MutexGuard<'a, T>,
}

#[cfg(debug_assertions)]
impl<T> Drop for RankedGuard<'_, T> {
    fn drop(&mut self) {
        HELD.with(|held| held.set(held.get() & !(1 << self.rank as u8)));
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (map, groups) = (Ranked::new(LockRank::Map, 1), Ranked::new(LockRank::BlockGroups, 2));
        for _ in 0..2 {
            let map = map.lock();
            let groups = groups.lock();
            // They may be released in either order.
            drop(map);
            assert_eq!(*groups, 2);
        }
        assert_eq!(*map.lock(), 1);
    }

    #[test]
    #[should_panic(expected = "the lock Map is taken while a later one is held")]
    fn a_map_is_not_locked_under_the_allocator() {
        let (map, groups) = (Ranked::new(LockRank::Map, ()), Ranked::new(LockRank::BlockGroups, ()));
        let _groups = groups.lock();
        let _map = map.lock();
    }

    #[test]
    #[should_panic(expected = "the lock Journal is taken while a later one is held")]
    fn no_two_locks_of_one_rank_are_held() {
        let locks = [0, 1].map(|n| Ranked::new(LockRank::Journal, n));
        let _first = locks[0].lock();
        let _second = locks[1].lock();
    }
}

//! Free inode numbers: one bitmap in memory for each group in use.
//!
//! This code is pure, like [`super::block_selection`]. Numbers taken in memory but not yet logged
//! are set here and not on the volume.

use extant_format::{Group, UintExt, bit, set_bits};
use std::collections::BTreeMap;

#[derive(Debug)]
struct Loaded {
    /// Taken numbers, including those not logged yet.
    taken: Vec<u8>,
    /// No number below this is free.
    from: u32,
    /// Numbers taken but not logged, or pinned to be freed.
    users: u32,
}

/// Result of [`InodeGroups::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// The number, as an index into the group's table.
    Index(u32),
    /// The group's bitmap is not in memory, or no longer in memory.
    NotLoaded,
    /// None is free; another task may have taken the last one.
    Full,
    /// The bitmap has none, although the count says some are free.
    Damaged,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    free: u32,
    dirs: u32,
    bad: bool,
}

/// Inode numbers of all groups.
#[derive(Debug)]
pub(crate) struct InodeGroups {
    counts: Vec<Counts>,
    loaded: BTreeMap<u32, Loaded>,
    free: u64,
    dirs: u64,
    /// Free inodes of damaged groups, and others that turned out to be in use although their
    /// bitmaps say free.
    lost: u64,
    per_group: u32,
    /// Numbers of the volume below this index are reserved.
    first: u32,
}

impl InodeGroups {
    /// Creates groups with these numbers of free inodes and of directories. `first` is the index of
    /// the first inode that is not reserved.
    pub(crate) fn new(per_group: u32, first: u32, counts: impl Iterator<Item = (u32, u32)>) -> Self {
        let counts: Vec<_> = counts.map(|(free, dirs)| Counts { free, dirs, bad: false }).collect();
        Self {
            free: counts.iter().map(|group| u64::from(group.free)).sum(),
            dirs: counts.iter().map(|group| u64::from(group.dirs)).sum(),
            counts,
            loaded: BTreeMap::new(),
            lost: 0,
            per_group,
            first,
        }
    }

    /// Free inodes of a group.
    pub(crate) fn free(&self, group: Group) -> u32 {
        self.counts[group.0.to_usize()].free
    }

    /// Directories of a group.
    pub(crate) fn dirs(&self, group: Group) -> u32 {
        self.counts[group.0.to_usize()].dirs
    }

    /// Free inodes and directories of all groups.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.free, self.dirs)
    }

    /// Inodes that are counted as free but cannot be allocated.
    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) fn is_loaded(&self, group: Group) -> bool {
        self.loaded.contains_key(&group.0)
    }

    pub(crate) fn is_bad(&self, group: Group) -> bool {
        self.counts[group.0.to_usize()].bad
    }

    /// Loads a group's bitmap, unless it is already loaded.
    pub(crate) fn load(&mut self, group: Group, bitmap: &[u8]) {
        let first = self.first.saturating_sub(group.0.saturating_mul(self.per_group)).min(self.per_group);
        self.loaded.entry(group.0).or_insert_with(|| {
            let mut taken = bitmap[..self.per_group.to_usize().div_ceil(8)].to_vec();
            set_bits(&mut taken, 0, first);
            Loaded { taken, from: first, users: 0 }
        });
    }

    /// Stops allocating inodes from a group.
    pub(crate) fn set_bad(&mut self, group: Group) {
        let counts = &mut self.counts[group.0.to_usize()];
        let lost = u64::from(std::mem::take(&mut counts.free));
        (self.free, self.lost) = (self.free - lost, self.lost + lost);
        counts.bad = true;
    }

    /// Takes the first free inode of a group.
    pub(crate) fn take(&mut self, group: Group) -> Take {
        let Some(loaded) = self.loaded.get_mut(&group.0) else { return Take::NotLoaded };
        let counts = &mut self.counts[group.0.to_usize()];
        if counts.free == 0 {
            return Take::Full;
        }
        let byte =
            loaded.taken.iter().enumerate().skip(loaded.from.to_usize() / 8).find(|(_, byte)| **byte != 0xff);
        let Some((at, byte)) = byte.map(|(at, byte)| (at.fit_u32(), *byte)) else { return Take::Damaged };
        let index = at * 8 + byte.trailing_ones();
        if index >= self.per_group {
            return Take::Damaged;
        }
        debug_assert!(index >= loaded.from, "inode {index} of group {group} is free and below the first one");
        loaded.taken[at.to_usize()] |= 1 << (index % 8);
        loaded.from = index + 1;
        loaded.users += 1;
        counts.free -= 1;
        self.free -= 1;
        Take::Index(index)
    }

    /// Records that a taken inode has been logged.
    pub(crate) fn logged(&mut self, group: Group, is_dir: bool) {
        self.unpin(group);
        self.counts[group.0.to_usize()].dirs += u32::from(is_dir);
        self.dirs += u64::from(is_dir);
    }

    /// Records that an inode was freed in the bitmap. [`Self::give`] makes its number available.
    pub(crate) fn freed(&mut self, group: Group, was_dir: bool) {
        self.pin(group);
        let counts = &mut self.counts[group.0.to_usize()];
        let was_dir = was_dir && counts.dirs > 0;
        counts.dirs -= u32::from(was_dir);
        self.dirs -= u64::from(was_dir);
    }

    /// Makes a taken or freed inode available.
    pub(crate) fn give(&mut self, group: Group, index: u32) {
        self.unpin(group);
        let Some(loaded) = self.loaded.get_mut(&group.0) else { return };
        debug_assert!(index < self.per_group, "group {group} has no inode {index}");
        debug_assert!(bit(&loaded.taken, index), "inode {index} of group {group} is free");
        loaded.taken[index.to_usize() / 8] &= !(1 << (index % 8));
        loaded.from = loaded.from.min(index);
        if !self.counts[group.0.to_usize()].bad {
            self.counts[group.0.to_usize()].free += 1;
            self.free += 1;
        }
    }

    /// Records that a taken inode number cannot be used.
    pub(crate) fn lose(&mut self) {
        self.lost += 1;
    }

    /// Keeps a group loaded.
    pub(crate) fn pin(&mut self, group: Group) {
        if let Some(loaded) = self.loaded.get_mut(&group.0) {
            loaded.users += 1;
        }
    }

    /// Ends a [`Self::pin`].
    pub(crate) fn unpin(&mut self, group: Group) {
        if let Some(loaded) = self.loaded.get_mut(&group.0) {
            loaded.users -= 1;
        }
    }

    /// Forgets the bitmaps of unused groups, except that of `but`, until at most `keep` are loaded.
    /// Returns the groups forgotten.
    pub(crate) fn shrink(&mut self, keep: usize, but: Group) -> Vec<Group> {
        let excess = self.loaded.len().saturating_sub(keep);
        let idle =
            self.loaded.iter().filter(|&(&n, loaded)| loaded.users == 0 && n != but.0).map(|(&n, _)| n);
        let idle: Vec<u32> = idle.take(excess).collect();
        idle.iter().for_each(|n| drop(self.loaded.remove(n)));
        idle.into_iter().map(Group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(groups: &mut InodeGroups, group: u32) -> Option<u32> {
        match groups.take(Group(group)) {
            Take::Index(index) => Some(index),
            Take::Full => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_group_that_another_task_emptied_or_unloaded_is_not_damaged() {
        let mut groups = InodeGroups::new(64, 0, [(1, 0), (2, 0)].into_iter());
        assert_eq!(groups.take(Group(0)), Take::NotLoaded);
        let mut bitmap = [0xff; 8];
        bitmap[3] = 0b1101_1111;
        groups.load(Group(0), &bitmap);
        assert_eq!(groups.take(Group(0)), Take::Index(29));
        assert_eq!(groups.take(Group(0)), Take::Full);
        groups.give(Group(0), 29);
        assert_eq!(groups.shrink(0, Group(1)), [Group(0)]);
        assert_eq!(groups.take(Group(0)), Take::NotLoaded);
        groups.load(Group(1), &bitmap);
        assert_eq!(groups.take(Group(1)), Take::Index(29));
        assert_eq!(groups.take(Group(1)), Take::Damaged, "two are counted as free");
    }

    #[test]
    fn reserved_numbers_and_padding_are_never_given() {
        let mut groups = InodeGroups::new(20, 10, [(10, 0), (20, 0)].into_iter());
        groups.load(Group(0), &[0; 8]);
        groups.load(Group(1), &[0; 8]);
        let all: Vec<_> = std::iter::from_fn(|| take(&mut groups, 0)).collect();
        assert_eq!(all, (10..20).collect::<Vec<_>>());
        assert_eq!(std::iter::from_fn(|| take(&mut groups, 1)).count(), 20);
        assert_eq!(groups.totals(), (0, 0));
    }

    #[test]
    fn a_volume_may_call_all_its_inodes_reserved() {
        let mut groups = InodeGroups::new(64, 100, [(64, 0), (64, 0), (64, 0)].into_iter());
        (0..3).for_each(|n| groups.load(Group(n), &[0; 8]));
        assert_eq!(groups.take(Group(0)), Take::Damaged);
        assert_eq!(groups.take(Group(1)), Take::Index(36));
        assert_eq!(groups.take(Group(2)), Take::Index(0));
    }

    #[test]
    fn a_number_given_back_is_the_next_one_taken() {
        let mut groups = InodeGroups::new(64, 0, [(64, 0)].into_iter());
        groups.load(Group(0), &[0; 8]);
        let taken: Vec<_> = (0..20).filter_map(|_| take(&mut groups, 0)).collect();
        taken.iter().for_each(|_| groups.logged(Group(0), true));
        groups.freed(Group(0), true);
        assert_eq!(take(&mut groups, 0), Some(20), "not before it is given back");
        groups.give(Group(0), 7);
        assert_eq!(take(&mut groups, 0), Some(7));
        assert_eq!(groups.totals(), (64 - 21, 19));
        assert_eq!(groups.shrink(0, Group(9)), [], "two are not logged");
    }
}

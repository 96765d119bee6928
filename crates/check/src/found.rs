//! What one task of a sweep finds; the results of all tasks are merged in the end.

use crate::context::Context;
use crate::finding::Report;
use crate::limits::Purse;
use crate::owners::Owners;
use crate::state::Claiming;
use crate::usage::Usage;
use extant_format::{ChecksumSeed, Inode, InodeFlags, RoCompat, UintExt};

/// A directory. There may be many of them, so this is small: what depends on the tree is kept
/// elsewhere, and whether there are checksums is known from the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dir {
    pub(crate) number: u32,
    /// Checksum seed of its blocks, on a volume with checksums.
    seed: u32,
    /// Length in blocks; 0 if its entries are in the inode.
    pub(crate) blocks: u32,
    pub(crate) inline: bool,
    pub(crate) indexed: bool,
    pub(crate) casefold: bool,
    pub(crate) encrypted: bool,
    /// Set if the map is damaged: missing blocks are then expected, and not reported as holes.
    pub(crate) damaged: bool,
}

impl Dir {
    /// A directory whose map has not been read yet.
    pub(crate) fn new(inode: &Inode, seed: Option<ChecksumSeed>) -> Self {
        let flags = inode.flags();
        Self {
            number: inode.number.0,
            seed: seed.map_or(0, |seed| seed.0),
            blocks: 0,
            inline: flags.contains(InodeFlags::INLINE_DATA),
            indexed: flags.contains(InodeFlags::INDEX),
            casefold: flags.contains(InodeFlags::CASEFOLD),
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            damaged: false,
        }
    }

    /// The checksum seed of its blocks, if they have checksums.
    pub(crate) fn seed(&self, ctx: &Context) -> Option<ChecksumSeed> {
        ctx.seed.map(|_| ChecksumSeed(self.seed))
    }
}

/// A run of blocks of a directory, or of a value inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) number: u32,
    pub(crate) logical: u32,
    pub(crate) block: u64,
    pub(crate) blocks: u32,
}

/// An inode's use of an attribute block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct XattrUse {
    pub(crate) block: u64,
    pub(crate) number: u32,
    pub(crate) generation: u32,
    /// Hashes of the names of attributes in the inode.
    pub(crate) names: Box<[u64]>,
}

/// An attribute whose value is in another inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueUse {
    pub(crate) value: u32,
    pub(crate) number: u32,
    pub(crate) size: u32,
    pub(crate) generation: u32,
    /// The two hashes of the value that would match the attribute's hash.
    pub(crate) wanted: [u32; 2],
}

/// A file whose block count is right if its values in other inodes are in Lustre's form, because
/// such values are not charged to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Uncharged {
    pub(crate) number: u32,
    pub(crate) stored_512: u64,
    pub(crate) counted_512: u64,
    pub(crate) values: u64,
    pub(crate) owners: Option<[u32; 3]>,
}

/// An inode that holds an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueHolder {
    pub(crate) number: u32,
    pub(crate) references: u64,
    pub(crate) hash: u32,
    pub(crate) size: u64,
    /// In Lustre's form, the only user of the value: inode number and generation. Such values store
    /// no hash and no reference count, and all of their times are equal.
    pub(crate) user: (u32, u32),
    pub(crate) has_times: bool,
}

impl ValueHolder {
    /// Whether a use of the value is right only in the form that Lustre wrote before Linux
    /// supported values in inodes (`EXT4_XATTR_INODE_GET_PARENT`).
    pub(crate) fn is_lustre_for(&self, one: &ValueUse) -> bool {
        self.user == (one.number, one.generation) && !one.wanted.contains(&self.hash)
    }
}

/// A symbolic link whose target is in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) block: u64,
    pub(crate) number: u32,
    pub(crate) size: u64,
    pub(crate) encrypted: bool,
}

/// Inodes of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupTotals {
    pub(crate) group: u32,
    pub(crate) used: u32,
    pub(crate) directories: u32,
}

impl GroupTotals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.used += other.used;
        self.directories += other.directories;
    }
}

/// What one task finds.
pub(crate) struct Found {
    pub(crate) report: Report,
    purse: Purse,
    pub(crate) dirs: Vec<Dir>,
    pub(crate) dir_runs: Vec<Run>,
    pub(crate) xattr_uses: Vec<XattrUse>,
    pub(crate) value_uses: Vec<ValueUse>,
    pub(crate) value_holders: Vec<ValueHolder>,
    pub(crate) value_runs: Vec<Run>,
    pub(crate) uncharged: Vec<Uncharged>,
    pub(crate) targets: Vec<Target>,
    /// Totals of parts of groups, and in the end one of each group.
    pub(crate) totals: Vec<GroupTotals>,
    pub(crate) usage: Usage,
    /// Clusters that are still to be claimed.
    pub(crate) claiming: Claiming,
    /// Set in the second pass, which names the owners of blocks that have several.
    pub(crate) owners: Option<Owners>,
}

/// A list that is part of [`Found`].
pub(crate) trait Listed: Sized {
    fn list(found: &mut Found) -> &mut Vec<Self>;

    /// Memory that an item needs outside the list.
    fn more_bytes(&self) -> u64 {
        0
    }
}

impl Listed for Dir {
    fn list(found: &mut Found) -> &mut Vec<Self> {
        &mut found.dirs
    }
}

impl Listed for XattrUse {
    fn list(found: &mut Found) -> &mut Vec<Self> {
        &mut found.xattr_uses
    }

    fn more_bytes(&self) -> u64 {
        // The names, and a copy of the block's number while it is read.
        16 + self.names.len().to_u64() * 8
    }
}

impl Listed for ValueUse {
    fn list(found: &mut Found) -> &mut Vec<Self> {
        &mut found.value_uses
    }

    fn more_bytes(&self) -> u64 {
        // The item's place in a map.
        32
    }
}

impl Listed for ValueHolder {
    fn list(found: &mut Found) -> &mut Vec<Self> {
        &mut found.value_holders
    }

    fn more_bytes(&self) -> u64 {
        // The item's place in a map.
        64
    }
}

impl Listed for Uncharged {
    fn list(found: &mut Found) -> &mut Vec<Self> {
        &mut found.uncharged
    }
}

impl Listed for Target {
    fn list(found: &mut Found) -> &mut Vec<Self> {
        &mut found.targets
    }

    fn more_bytes(&self) -> u64 {
        // A copy of the block's number while it is read.
        8
    }
}

impl Found {
    pub(crate) fn new(ctx: &Context) -> Self {
        Self {
            report: ctx.report.clone(),
            purse: ctx.limits.purse(),
            dirs: Vec::new(),
            dir_runs: Vec::new(),
            xattr_uses: Vec::new(),
            value_uses: Vec::new(),
            value_holders: Vec::new(),
            value_runs: Vec::new(),
            uncharged: Vec::new(),
            targets: Vec::new(),
            totals: Vec::new(),
            usage: Usage::new(ctx.sb.ro_compat().contains(RoCompat::QUOTA), ctx.limits.clone()),
            claiming: Claiming::default(),
            owners: None,
        }
    }

    /// Keeps an item, if there is memory for it.
    pub(crate) fn keep<T: Listed>(&mut self, item: T) {
        let more = item.more_bytes();
        if self.purse.take(2 * size_of::<T>().to_u64() + more) {
            T::list(self).push(item);
        }
    }

    pub(crate) fn keep_dir_run(&mut self, run: Run) {
        self.purse.push(&mut self.dir_runs, run);
    }

    pub(crate) fn keep_value_run(&mut self, run: Run) {
        self.purse.push(&mut self.value_runs, run);
    }

    /// Sorts the longest lists, for [`Self::merge`].
    pub(crate) fn sort_dirs(&mut self) {
        // Most of each list is sorted already, which the stable sort makes use of.
        self.dirs.sort();
        self.dir_runs.sort();
    }

    /// Adds what another task has found. Both have sorted their directories.
    pub(crate) fn merge(&mut self, other: Self) {
        merge_sorted(&mut self.dirs, other.dirs);
        merge_sorted(&mut self.dir_runs, other.dir_runs);
        join(&mut self.xattr_uses, other.xattr_uses);
        join(&mut self.value_uses, other.value_uses);
        join(&mut self.value_holders, other.value_holders);
        join(&mut self.value_runs, other.value_runs);
        join(&mut self.uncharged, other.uncharged);
        join(&mut self.targets, other.targets);
        join(&mut self.totals, other.totals);
        self.usage.merge(other.usage);
    }

    /// Sorts everything, so that the order does not depend on how work was split into tasks. The
    /// volume has so many groups.
    pub(crate) fn sort(&mut self, groups: usize) {
        let mut totals = vec![GroupTotals::default(); groups];
        for (totals, group) in totals.iter_mut().zip(0..) {
            totals.group = group;
        }
        for part in std::mem::take(&mut self.totals) {
            totals[part.group.to_usize()].add(&part);
        }
        self.totals = totals;
        self.xattr_uses.sort_unstable();
        self.value_uses.sort_unstable();
        self.value_holders.sort_unstable();
        self.value_runs.sort_unstable();
        self.uncharged.sort_unstable();
        self.targets.sort_unstable();
    }
}

/// Appends to a list; if the list is empty, moves `from` instead of copying it.
pub(crate) fn join<T>(to: &mut Vec<T>, mut from: Vec<T>) {
    match to.is_empty() {
        true => *to = from,
        false => to.append(&mut from),
    }
}

/// Merges two sorted lists. The new one has no room to spare, because it will not grow.
fn merge_sorted<T: Copy + Ord>(to: &mut Vec<T>, from: Vec<T>) {
    if from.is_empty() {
        return;
    }
    let (first, second) = (std::mem::take(to), from);
    to.reserve_exact(first.len() + second.len());
    let (mut first, mut second) = (&first[..], &second[..]);
    while let (Some((&a, after_a)), Some((&b, after_b))) = (first.split_first(), second.split_first()) {
        match a <= b {
            true => {
                to.push(a);
                first = after_a;
            }
            false => {
                to.push(b);
                second = after_b;
            }
        }
    }
    to.extend_from_slice(first);
    to.extend_from_slice(second);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_lists_are_merged() {
        for (first, second) in [(vec![], vec![1, 4]), (vec![2, 3, 3], vec![]), (vec![1, 3, 9], vec![2, 3, 4])]
        {
            let mut merged = first.clone();
            merge_sorted(&mut merged, second.clone());
            let mut expected = [first, second].concat();
            expected.sort_unstable();
            assert_eq!(merged, expected);
        }
    }
}

//! What one task of a sweep finds; the results of all tasks are merged in the end.

use crate::context::Context;
use crate::finding::Report;
use crate::limits::Purse;
use crate::owners::Owners;
use crate::state::Claiming;
use crate::usage::Usage;
use extant_format::{ChecksumSeed, RoCompat, UintExt};

/// A directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dir {
    pub(crate) number: u32,
    /// Checksum seed of its blocks, if they have checksums.
    pub(crate) seed: Option<ChecksumSeedOrd>,
    /// Length in blocks; 0 if its entries are in the inode.
    pub(crate) blocks: u32,
    pub(crate) inline: bool,
    pub(crate) indexed: bool,
    pub(crate) casefold: bool,
    pub(crate) encrypted: bool,
    /// Set if the map is damaged: missing blocks are then expected, and not reported as holes.
    pub(crate) damaged: bool,
    /// The directory in `..`; 0 if unknown.
    pub(crate) dotdot: u32,
    /// The first directory with an entry for this one; 0 if there is none.
    pub(crate) parent: u32,
}

/// A seed that can be compared, so that directories can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChecksumSeedOrd(pub(crate) u32);

impl From<ChecksumSeed> for ChecksumSeedOrd {
    fn from(seed: ChecksumSeed) -> Self {
        Self(seed.0)
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

    pub(crate) fn merge(&mut self, other: Self) {
        join(&mut self.dirs, other.dirs);
        join(&mut self.dir_runs, other.dir_runs);
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
        // Each task's part is sorted already, which the stable sort makes use of.
        self.dirs.sort();
        self.dir_runs.sort();
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

//! What one task of a sweep finds, merged in the end.

use crate::finding::Report;
use crate::usage::Usage;
use extant_format::ChecksumSeed;

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
    /// The map is damaged, so holes are no surprise.
    pub(crate) damaged: bool,
    /// The directory in `..`; 0 if unknown.
    pub(crate) dotdot: u32,
    /// The first directory that has an entry for it; 0 if none has.
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
    /// Hashes of the names of attributes in the inode.
    pub(crate) names: Box<[u64]>,
}

/// An attribute whose value is in another inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueUse {
    pub(crate) value: u32,
    pub(crate) number: u32,
    pub(crate) size: u32,
}

/// An inode that holds an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueHolder {
    pub(crate) number: u32,
    pub(crate) references: u64,
    pub(crate) hash: u32,
    pub(crate) size: u64,
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

/// What one task has found.
pub(crate) struct Found {
    pub(crate) report: Report,
    /// Runs of clusters that were claimed before.
    pub(crate) contested: Vec<(u64, u64)>,
    pub(crate) dirs: Vec<Dir>,
    pub(crate) dir_runs: Vec<Run>,
    pub(crate) xattr_uses: Vec<XattrUse>,
    pub(crate) value_uses: Vec<ValueUse>,
    pub(crate) value_holders: Vec<ValueHolder>,
    pub(crate) value_runs: Vec<Run>,
    pub(crate) targets: Vec<Target>,
    pub(crate) totals: Vec<GroupTotals>,
    pub(crate) usage: Usage,
}

impl Found {
    pub(crate) fn new(most: usize, quota: bool) -> Self {
        Self {
            report: Report::new(most),
            contested: Vec::new(),
            dirs: Vec::new(),
            dir_runs: Vec::new(),
            xattr_uses: Vec::new(),
            value_uses: Vec::new(),
            value_holders: Vec::new(),
            value_runs: Vec::new(),
            targets: Vec::new(),
            totals: Vec::new(),
            usage: Usage::new(quota),
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.report.merge(other.report);
        self.contested.extend(other.contested);
        self.dirs.extend(other.dirs);
        self.dir_runs.extend(other.dir_runs);
        self.xattr_uses.extend(other.xattr_uses);
        self.value_uses.extend(other.value_uses);
        self.value_holders.extend(other.value_holders);
        self.value_runs.extend(other.value_runs);
        self.targets.extend(other.targets);
        self.totals.extend(other.totals);
        self.usage.merge(other.usage);
    }

    /// Puts everything in an order that does not depend on the tasks.
    pub(crate) fn sort(&mut self) {
        self.contested.sort_unstable();
        self.dirs.sort_unstable();
        self.dir_runs.sort_unstable();
        self.xattr_uses.sort_unstable();
        self.value_uses.sort_unstable();
        self.value_holders.sort_unstable();
        self.value_runs.sort_unstable();
        self.targets.sort_unstable();
        self.totals.sort_unstable_by_key(|totals| totals.group);
    }
}

//! Space and inodes by owner, for comparison with quota files.

use extant_format::QuotaKind;
use std::collections::BTreeMap;

/// Usage of users, groups and projects, if the volume has quota files.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    enabled: bool,
    by_kind: [BTreeMap<u32, (u64, u64)>; 3],
}

impl Usage {
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, ..Self::default() }
    }

    /// Adds inodes of these owners (user, group, project) with their space in bytes.
    pub(crate) fn add(&mut self, owners: [u32; 3], bytes: u64, count: u64) {
        if !self.enabled {
            return;
        }
        for (of_kind, id) in self.by_kind.iter_mut().zip(owners) {
            let (space, inodes) = of_kind.entry(id).or_default();
            *space = space.wrapping_add(bytes);
            *inodes += count;
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (ours, theirs) in self.by_kind.iter_mut().zip(other.by_kind) {
            for (id, (space, inodes)) in theirs {
                let sum = ours.entry(id).or_default();
                *sum = (sum.0.wrapping_add(space), sum.1 + inodes);
            }
        }
    }

    /// Space in bytes and inodes of each id.
    pub(crate) fn of(&self, kind: QuotaKind) -> &BTreeMap<u32, (u64, u64)> {
        &self.by_kind[kind as usize]
    }
}

//! Space and inodes by owner, for comparison with quota files.

use crate::limits::Limits;
use extant_format::QuotaKind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Usage of users, groups and projects, if the volume has quota files.
#[derive(Debug)]
pub(crate) struct Usage {
    enabled: bool,
    limits: Arc<Limits>,
    by_kind: [BTreeMap<u32, (u64, u64)>; 3],
}

/// Memory for one owner: an entry in the map of a task, and one in the merged map.
const OWNER_BYTES: u64 = 96;

impl Usage {
    pub(crate) fn new(enabled: bool, limits: Arc<Limits>) -> Self {
        Self { enabled, limits, by_kind: Default::default() }
    }

    /// Adds `count` inodes of these owners (user, group, project) that take `bytes`.
    pub(crate) fn add(&mut self, owners: [u32; 3], bytes: u64, count: u64) {
        if !self.enabled {
            return;
        }
        for (of_kind, id) in self.by_kind.iter_mut().zip(owners) {
            if !of_kind.contains_key(&id) && !self.limits.take(OWNER_BYTES) {
                return;
            }
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

    /// Space in bytes, and number of inodes, by id.
    pub(crate) fn of(&self, kind: QuotaKind) -> &BTreeMap<u32, (u64, u64)> {
        &self.by_kind[kind as usize]
    }
}

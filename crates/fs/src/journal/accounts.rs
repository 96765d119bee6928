//! The interface to quotas. Handles report the changes to owners' usage; a commit writes the
//! resulting quota blocks in the same transaction.
//!
//! Charges come only from inode records. Whatever an operation does to an inode, its blocks or its
//! owners, the owners are charged the difference between the record before and after.

use crate::meta::{MetaBlock, Usage};
use extant_format::QuotaKind;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Maximum number of quota blocks that one operation dirties. For each of users, groups and
/// projects: the paths to the entries of two owners that are new in the transaction, including
/// updates of the free block and free entry lists, and the entries of two more owners.
pub(super) const OPERATION_QUOTA_BLOCKS: u32 = 3 * (2 * NEW_OWNER_BLOCKS + 2);
/// Quota file blocks that a new entry dirties: the header, the root, three nodes, the leaf, and the
/// next leaf with a free entry.
pub(crate) const NEW_OWNER_BLOCKS: u32 = 7;

/// An owner with an entry in a quota file.
pub(crate) type Owner = (QuotaKind, u32);

/// A change in an owner's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) space_bytes: i64,
    pub(crate) inodes: i64,
}

impl Charge {
    fn add(&mut self, other: Self) {
        // Only damaged records overflow.
        self.space_bytes = self.space_bytes.saturating_add(other.space_bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// Changes in owners' usage by a transaction or part of one.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// With the most quota blocks that each one dirties.
    owners: BTreeMap<Owner, (Charge, u32)>,
    blocks: u32,
}

impl Charges {
    /// Adds the change of one inode.
    pub(super) fn change(&mut self, [before, after]: [Option<Usage>; 2], accounts: &dyn Accounts) {
        if before == after {
            return;
        }
        for (usage, sign) in [(before, -1), (after, 1)] {
            let Some(usage) = usage else { continue };
            let space = i64::try_from(usage.space_bytes).unwrap_or(i64::MAX);
            self.charge(usage, Charge { space_bytes: sign * space, inodes: sign }, accounts);
        }
    }

    /// Charges the owners in `of`.
    pub(super) fn charge(&mut self, of: Usage, charge: Charge, accounts: &dyn Accounts) {
        for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
            let owner = (kind, of.owner(kind));
            let blocks = accounts.blocks_of(owner);
            self.add(owner, charge, blocks);
        }
    }

    fn add(&mut self, owner: Owner, charge: Charge, blocks: u32) {
        let (sum, known) = self.owners.entry(owner).or_default();
        sum.add(charge);
        self.blocks += blocks.saturating_sub(*known);
        *known = blocks.max(*known);
    }

    /// Adds the charges of another part.
    pub(super) fn merge(&mut self, other: Self) {
        for (owner, (charge, blocks)) in other.owners {
            self.add(owner, charge, blocks);
        }
    }

    /// Maximum number of quota blocks that these changes dirty.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The owners and their total changes, which may be zero.
    pub(super) fn into_owners(self) -> impl Iterator<Item = (Owner, Charge)> {
        self.owners.into_iter().map(|(owner, (charge, _))| (owner, charge))
    }
}

/// Keeps quotas.
pub(crate) trait Accounts: Debug + Send + Sync {
    /// Total blocks of quotas. No transaction changes more of them.
    fn blocks(&self) -> u32;

    /// Maximum number of quota blocks that charging `owner` dirties. The charge will follow.
    fn blocks_of(&self, owner: Owner) -> u32;

    /// Charges the changes of one transaction and returns the new contents of quota blocks, to be
    /// written with it. Called for one transaction at a time, in order.
    fn settle(&self, charges: &mut dyn Iterator<Item = (Owner, Charge)>) -> Vec<(MetaBlock, Box<[u8]>)>;
}

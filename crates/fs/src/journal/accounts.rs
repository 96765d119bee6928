//! The seam to quotas: handles tell what they make owners use, and a commit writes what that changes in the same transaction.
//!
//! Charges follow the records of inodes, and nothing else: whatever an operation does to an inode, its blocks and its owners,
//! the difference between the record before and after is what the owners are charged.

use crate::meta::{MetaBlock, Usage};
use extant_format::QuotaKind;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Blocks of quotas that one operation dirties at most: for users, groups and projects, the paths to the entries of two owners
/// that are new in the transaction, with what these take of the lists of free blocks and entries; and the entries of two more.
pub(super) const OPERATION_QUOTA_BLOCKS: u32 = 3 * (2 * NEW_OWNER_BLOCKS + 2);
/// Blocks of a quota file that a new entry dirties: the header, the root, three nodes, the leaf, and the next of the leaves with
/// a free entry.
pub(crate) const NEW_OWNER_BLOCKS: u32 = 7;

/// The owner that a quota file counts for.
pub(crate) type Owner = (QuotaKind, u32);

/// A change of what an owner uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) space_bytes: i64,
    pub(crate) inodes: i64,
}

impl Charge {
    fn add(&mut self, other: Self) {
        // Beyond this, records are damaged.
        self.space_bytes = self.space_bytes.saturating_add(other.space_bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// The changes of owners' use that a transaction, or a part of one, makes.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// With the blocks of quotas that each dirties at most.
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

    /// Charges the owners of an inode.
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

    /// Adds those of another part.
    pub(super) fn merge(&mut self, other: Self) {
        for (owner, (charge, blocks)) in other.owners {
            self.add(owner, charge, blocks);
        }
    }

    /// Blocks of quotas that they dirty at most.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The owners with the sums of their changes, which may be nothing.
    pub(super) fn into_owners(self) -> impl Iterator<Item = (Owner, Charge)> {
        self.owners.into_iter().map(|(owner, (charge, _))| (owner, charge))
    }
}

/// Keeps quotas.
pub(crate) trait Accounts: Debug + Send + Sync {
    /// Blocks that quotas lie in: no transaction changes more of them.
    fn blocks(&self) -> u32;

    /// Blocks of quotas that a charge of `owner` dirties at most. It is going to be charged.
    fn blocks_of(&self, owner: Owner) -> u32;

    /// Charges what one transaction changed; returns the new contents of blocks, which are written with it. Called for one
    /// transaction after the other.
    fn settle(&self, charges: &mut dyn Iterator<Item = (Owner, Charge)>) -> Vec<(MetaBlock, Box<[u8]>)>;
}

//! The seam to quotas: a commit tells the keeper of accounts what became of each inode's record, and writes what that changes in
//! the same transaction.
//!
//! Accounts follow the records that are encoded, and nothing else: whatever an operation does to an inode, its blocks and its
//! owners, the difference between the record before and after is what the owners are charged.

use crate::meta::MetaBlock;
use extant_format::{Inode, InodeFlags, InodeNumber, QuotaKind, Superblock};
use std::fmt::Debug;

/// Use of a volume by one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    uid: u32,
    gid: u32,
    project: u32,
    /// Blocks with those of the map and of attributes, in bytes (`i_blocks`).
    pub(crate) space_bytes: u64,
}

impl Usage {
    /// That of the inode whose record begins `record`; `None` for one that is free or is charged to nobody: the volume's own,
    /// and those that hold values of attributes, which count as their owners'.
    pub(super) fn of(record: &[u8], number: InodeNumber, sb: &Superblock) -> Option<Self> {
        let inode = Inode::parse_unchecked(record, sb, number).ok()?;
        if sb.is_own_inode(number) || inode.kind().is_none() || inode.flags().contains(InodeFlags::EA_INODE) {
            return None;
        }
        // Orphans stay charged until they are deleted. Their time of deletion is a link of the orphan list, or 0.
        let is_deleted = inode.links() == 0 && inode.raw.i_dtime.get() > sb.inodes_count();
        (!is_deleted).then(|| Self {
            uid: inode.uid(),
            gid: inode.gid(),
            project: inode.project().unwrap_or(0),
            space_bytes: inode.blocks_512(sb).saturating_mul(512),
        })
    }

    /// The owner that quota of this kind charges.
    pub(crate) fn owner(&self, kind: QuotaKind) -> u32 {
        match kind {
            QuotaKind::User => self.uid,
            QuotaKind::Group => self.gid,
            QuotaKind::Project => self.project,
        }
    }
}

/// Use by an inode before and after a transaction.
pub(crate) type UsageChange = [Option<Usage>; 2];

/// Keeps quotas.
pub(crate) trait Accounts: Debug + Send + Sync {
    /// Blocks that quotas lie in: no transaction changes more of them.
    fn blocks(&self) -> u32;

    /// Charges what one transaction changed; returns the new contents of blocks, which are written with it. Called for one
    /// transaction after the other.
    fn settle(&self, changes: &[UsageChange]) -> Vec<(MetaBlock, Box<[u8]>)>;
}

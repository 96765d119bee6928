//! An inode's usage, as counted by quotas.

use extant_format::{Inode, InodeFlags, QuotaKind, Superblock};

/// An inode's usage of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    uid: u32,
    gid: u32,
    project: u32,
    /// All its blocks, including those of the map and of attributes, in bytes (`i_blocks`).
    pub(crate) space_bytes: u64,
}

impl Usage {
    /// Returns an inode's usage. `None` if it is free or charged to nobody: inodes of the volume
    /// itself, and those that hold attribute values, which are charged to the owners of the
    /// attributes' inodes.
    pub(crate) fn of(inode: &Inode, sb: &Superblock) -> Option<Self> {
        let is_value = inode.flags().contains(InodeFlags::EA_INODE);
        if sb.is_own_inode(inode.number) || inode.kind().is_none() || is_value {
            return None;
        }
        // Orphans stay charged until they are deleted. Until then their `i_dtime` is a link of the
        // orphan list, or 0.
        let is_deleted = inode.links() == 0 && inode.raw.i_dtime.get() > sb.inodes_count();
        (!is_deleted).then(|| Self {
            uid: inode.uid(),
            gid: inode.gid(),
            project: inode.project().unwrap_or(0),
            space_bytes: inode.blocks_512(sb).saturating_mul(512),
        })
    }

    /// The owner that a quota of this kind charges.
    pub(crate) fn owner(&self, kind: QuotaKind) -> u32 {
        match kind {
            QuotaKind::User => self.uid,
            QuotaKind::Group => self.gid,
            QuotaKind::Project => self.project,
        }
    }
}

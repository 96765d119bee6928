//! Use of a volume by one inode, as quotas count it.

use extant_format::{Inode, InodeFlags, QuotaKind, Superblock};

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
    /// That of an inode; `None` for one that is free or is charged to nobody: the volume's own, and those that hold values of
    /// attributes, which count as their owners'.
    pub(crate) fn of(inode: &Inode, sb: &Superblock) -> Option<Self> {
        let is_value = inode.flags().contains(InodeFlags::EA_INODE);
        if sb.is_own_inode(inode.number) || inode.kind().is_none() || is_value {
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

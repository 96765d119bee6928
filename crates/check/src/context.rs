//! State that all sweeps share.

use crate::finding::Report;
use crate::layout::{GroupInfo, OwnBlocks};
use crate::limits::Limits;
use crate::source::Source;
use crate::state::{Claims, Inodes};
use crate::stored_sums::StoredSums;
use extant_format::{
    ChecksumSeed, Compat, DIRECT_POINTERS, Incompat, Inode, InodeNumber, Superblock, UintExt, VolumeBlock,
    XattrBlock, XattrValue, Xattrs, inode_offset, pointers_per_block,
};
use extant_rt::Rt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A volume that is being checked.
pub(crate) struct Context {
    /// Work is charged here.
    pub(crate) rt: Rt,
    pub(crate) sb: Superblock,
    pub(crate) seed: Option<ChecksumSeed>,
    pub(crate) stored_sums: StoredSums,
    pub(crate) source: Source,
    pub(crate) groups: Vec<GroupInfo>,
    pub(crate) own: OwnBlocks,
    pub(crate) claims: Claims,
    pub(crate) inodes: Inodes,
    /// Inodes that were deleted while open, or were being truncated.
    pub(crate) orphans: BTreeSet<u32>,
    pub(crate) report: Report,
    pub(crate) limits: Arc<Limits>,
    /// Deletion times below the number of inodes are links of a broken orphan list.
    pub(crate) low_dtimes: bool,
    /// Blocks of the journal.
    pub(crate) journal_blocks: AtomicU64,
}

impl Context {
    /// Whether attributes may have values in other inodes.
    pub(crate) fn has_values(&self) -> bool {
        self.sb.incompat().contains(Incompat::EA_INODE)
    }

    /// Whether attributes may be in blocks of their own.
    pub(crate) fn has_xattr_blocks(&self) -> bool {
        self.sb.compat().contains(Compat::EXT_ATTR)
    }

    /// Whether an inode is the volume's own and has no name. On ext3 the journal may have one, if
    /// it was added while the volume was mounted (`/.journal`).
    pub(crate) fn is_nameless(&self, number: InodeNumber) -> bool {
        let is_journal = self.sb.journal_inode() == Some(number);
        self.sb.is_own_inode(number) && !(is_journal && number >= self.sb.first_inode())
    }

    /// The block that contains an inode, and its byte offset there.
    pub(crate) fn inode_place(&self, number: InodeNumber) -> Option<(u64, usize)> {
        let (group, offset) = inode_offset(&self.sb, number)?;
        let info = self.groups.get(group.0.to_usize()).filter(|info| info.table)?;
        let block = info.gd.inode_table.0 + (offset >> self.sb.block_size().log2());
        Some((block, (offset & u64::from(self.sb.block_size().bytes() - 1)).to_usize()))
    }

    /// Returns what an inode is charged for values in other inodes.
    pub(crate) fn values(&self, xattrs: &Xattrs<'_>) -> Values {
        let cluster = u64::from(self.sb.blocks_per_cluster()) << self.sb.block_size().log2();
        let sizes = xattrs.iter().filter_map(|xattr| match xattr.value {
            XattrValue::Inode { size, .. } => Some(u64::from(size).div_ceil(cluster)),
            XattrValue::Bytes(_) => None,
        });
        sizes.fold(Values::default(), |sum, clusters| Values {
            clusters: sum.clusters + clusters,
            inodes: sum.inodes + 1,
        })
    }

    /// Like [`Self::values`], but for an attribute block.
    pub(crate) fn values_of_block(&self, block: &[u8], inode: InodeNumber, at: VolumeBlock) -> Values {
        let block = XattrBlock::parse(block, inode, at);
        block.map_or(Values::default(), |block| self.values(&block.xattrs))
    }
}

/// Values of attributes that lie in inodes of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) clusters: u64,
    /// Number of value inodes. Each also counts as an inode of the owner.
    pub(crate) inodes: u64,
}

/// A pointer in an inode (`i_block`).
pub(crate) struct RootPointer {
    /// The first file block that it leads to.
    pub(crate) logical: u64,
    pub(crate) at: VolumeBlock,
    /// Levels of indirect blocks below it; 0 for a block of data.
    pub(crate) levels: u32,
}

/// The pointers of an inode that is mapped by pointers.
pub(crate) fn root_pointers(sb: &Superblock, inode: &Inode) -> impl Iterator<Item = RootPointer> {
    let per_block = u64::from(pointers_per_block(sb.block_size()));
    let roots = (0..15).map(|n| (inode.block_pointer(n), n.fit_u32().saturating_sub(DIRECT_POINTERS - 1)));
    roots.scan(0, move |next, (at, levels)| {
        let logical = *next;
        *next += per_block.pow(levels);
        Some(RootPointer { logical, at, levels })
    })
}

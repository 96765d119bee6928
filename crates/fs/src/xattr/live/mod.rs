//! Attributes of inodes in memory: reading them, changing them under a handle, and releasing the
//! attribute block.
//!
//! Inodes with the same attributes share a block. Counting its references, joining it and leaving
//! it are serialised by one lock per volume. Otherwise, two inodes leaving a block at once might
//! each think that the other keeps it. The lock is held until the handle closes, because a handle
//! passes on its blocks when it closes. A block that another handle freed and passed on earlier
//! would be logged, and written home over its next owner.

mod look;
mod prepared_change;
mod xattr_block;

pub(crate) use super::change_plan::Change;
pub(crate) use look::{acl_of, get, names, value_count};
pub(crate) use prepared_change::{
    Prepared, drop_capabilities, no_room, prepare, release_values, without_capabilities,
};
pub(crate) use xattr_block::{Attach, Release};

use crate::Result;
use crate::inode::InodeCell;
use crate::journal::Handle;
use crate::meta::{MetaBlock, MetaKind, PhysicalRun};
use crate::writer::{SharedBlocks, Writer};
use extant_format::{Compat, Incompat, Inode, InodeNumber, Place, RoCompat, VolumeBlock, XattrBlock};
use extant_rt::TaskMutexGuard;

type Guard<'w> = TaskMutexGuard<'w, SharedBlocks>;

/// Reads the attribute block of an inode.
async fn block_of(writer: &Writer, cell: &InodeCell) -> Result<Option<MetaBlock>> {
    let Some(at) = cell.read(Inode::xattr_block) else { return Ok(None) };
    writer.alloc.check_claim(PhysicalRun::new(at, 1), Place::Inode(cell.number()))?;
    Ok(Some(writer.store.read(at, MetaKind::Xattr { inode: cell.number() }).await?))
}

fn hash_of(bytes: &[u8], inode: InodeNumber, at: VolumeBlock) -> u32 {
    XattrBlock::parse(bytes, inode, at).map_or(0, |block| block.hash)
}

/// Whether an inode may have attributes, judging by its record.
pub(crate) fn may_have_any(inode: &Inode) -> bool {
    inode.xattr_block().is_some() || inode.tail.iter().take(4).any(|&byte| byte != 0)
}

/// Records in the superblock that inodes have attributes.
pub(crate) fn ensure_feature(handle: &mut Handle) {
    let mut sb = handle.superblock();
    if !sb.compat().contains(Compat::EXT_ATTR) {
        sb.add_features(Compat::EXT_ATTR, Incompat::empty(), RoCompat::empty());
    }
}

/// The space of an attribute block, which is a cluster, in `i_blocks` units.
fn cluster_512(writer: &Writer) -> i64 {
    let sb = writer.store.shape();
    i64::from(sb.block_size().bytes() / 512 * sb.blocks_per_cluster())
}

fn set_block(inode: &mut Inode, at: Option<VolumeBlock>, more_512: i64, writer: &Writer) {
    let sb = writer.store.shape();
    inode.set_xattr_block(at.unwrap_or(VolumeBlock(0)));
    if more_512 != 0 {
        let blocks = inode.blocks_512(sb).saturating_add_signed(more_512);
        inode.set_blocks_512(blocks, sb);
    }
}

//! Contents kept in the inode (kernel document: *Inline Data*).
//!
//! Reads take the contents from the inode. The first write copies them into the cache as dirty
//! data. They leave the inode in the transaction that logs their block, so readers and crashes find
//! them in exactly one place.

use super::cache_errors::cache_error;
use super::contents::Contents;
use crate::Result;
use crate::alloc::Privilege;
use crate::journal::Handle;
use crate::meta::InodeCell;
use crate::xattr::{in_inode, inline_data};
use extant_cache::{ByteRange, CachedOpenFile, Mapping};
use extant_format::{
    ExtentNode, Incompat, Inode, InodeFlags, Superblock, UintExt, Xattr, XattrName, write_inode_xattrs,
};
use std::sync::Arc;

impl Contents {
    /// The contents, if they are in the inode.
    pub(super) fn inline_bytes(&self) -> Option<Vec<u8>> {
        // Opening the file has verified that they are readable.
        self.cell.read(|inode| {
            let is_inline = inode.flags().contains(InodeFlags::INLINE_DATA);
            is_inline.then(|| inline_data(inode).map(|data| data.to_vec()).ok()).flatten()
        })
    }

    /// Moves the contents from the inode to blocks, before they are modified. The caller holds the
    /// inode's lock.
    ///
    /// # Errors
    /// No space for the block, or it cannot be written.
    pub(super) async fn leave_inode(
        &self,
        mapping: &Mapping,
        pages: &CachedOpenFile,
        privilege: Privilege,
    ) -> Result<()> {
        let Some(bytes) = self.inline_bytes().filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
        let leave = async {
            let range = ByteRange::new(0, bytes.len().to_u64());
            {
                let reserved = self.reserve_for_copy(self.blocks_of(range), 0, privilege).await?;
                pages.write_counted(0, &bytes, &reserved.copied_bytes).await.map_err(cache_error)?;
            }
            // The first run to land removes the contents from the inode, so it must be the one with
            // these bytes. Write them back now, before another run can land.
            mapping.write_back(range).await.map_err(cache_error)
        };
        Box::pin(leave).await
    }
}

/// Converts an inode with inline contents to one with block-mapped contents; no block is mapped
/// yet.
pub(super) fn leave(handle: &mut Handle, cell: &Arc<InodeCell>, sb: &Superblock) {
    if !cell.read(|inode| inode.flags().contains(InodeFlags::INLINE_DATA)) {
        return;
    }
    let mut inode = handle.inode(cell);
    let mut flags = inode.flags() - InodeFlags::INLINE_DATA;
    inode.raw.i_block = [0; 60];
    if sb.incompat().contains(Incompat::EXTENTS) {
        flags |= InodeFlags::EXTENTS;
        ExtentNode::Leaf(Vec::new()).write_to(&mut inode.raw.i_block);
    }
    inode.raw.i_flags = flags.bits().into();
    remove_attribute(&mut inode);
}

/// Removes `system.data`, which exists only for inline contents.
fn remove_attribute(inode: &mut Inode) {
    let mut tail = vec![0; inode.tail.len()];
    {
        let Ok(xattrs) = in_inode(inode) else { return };
        let others: Vec<Xattr<'_>> =
            xattrs.iter().filter(|xattr| xattr.name != XattrName::INLINE_DATA).collect();
        if !others.is_empty() && write_inode_xattrs(&mut tail, &others).is_err() {
            return;
        }
    }
    inode.tail.copy_from_slice(&tail);
}

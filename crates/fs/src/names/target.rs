//! Targets of symbolic links.

use crate::inode::InodeCell;
use crate::map::block_state::OnDisk;
use crate::map::change::look_up;
use crate::meta::MetaKind;
use crate::writer::Writer;
use crate::{Error, Result};
use extant_format::{FileKind, Inode, InodeFlags, Place};
use std::sync::Arc;

/// Returns the target of a symbolic link.
pub(super) async fn read_link(writer: &Writer, cell: &Arc<InodeCell>) -> Result<Vec<u8>> {
    let sb = writer.store.shape();
    let inode = cell.read(Inode::clone);
    if inode.kind() != Some(FileKind::Symlink) {
        return Err(Error::Invalid(format!("inode {} is no symbolic link", cell.number())));
    }
    if inode.flags().contains(InodeFlags::ENCRYPT) {
        return Err(Error::Encrypted(cell.number()));
    }
    let place = Place::Inode(cell.number());
    let bad = || {
        let rule = "the length of a target that its place can hold";
        extant_format::Corrupt::field(place, "i_size", inode.size(), rule)
    };
    let len = usize::try_from(inode.size()).map_err(|_| bad())?;
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return Ok(crate::xattr::inline_data(&inode)?.to_vec());
    }
    if inode.is_fast_symlink(sb) {
        return Ok(inode.map().get(..len).ok_or_else(bad)?.to_vec());
    }
    let found = look_up(&writer.store, &writer.alloc, cell, 0).await?;
    let at = found.into_iter().find_map(|(range, known)| match known {
        OnDisk::Written(at) if range.start == 0 => Some(at),
        _ => None,
    });
    let at = at.ok_or_else(|| extant_format::Corrupt::field(place, "i_block", 0, "a map of one block"))?;
    let block = writer.store.read(at, MetaKind::Raw).await?;
    Ok(block.bytes().get(..len).ok_or_else(bad)?.to_vec())
}

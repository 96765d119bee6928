//! Reading the attributes of an inode.

use super::block_of;
use crate::Result;
use crate::inode::InodeCell;
use crate::writer::Writer;
use crate::xattr::in_inode;
use crate::xattr::values::{self, Held};
use extant_format::{Acl, Inode, UintExt, Xattr, XattrBlock, XattrIndex, XattrName, XattrValue};

/// Returns the stored value of an attribute. The caller must not hold the lock of shared attribute
/// blocks.
///
/// # Errors
/// A damaged inode, block, or value inode.
pub(crate) async fn get(writer: &Writer, cell: &InodeCell, name: XattrName<'_>) -> Result<Option<Vec<u8>>> {
    let found = loop {
        let before = cell.read(Inode::xattr_block);
        let found = look(writer, cell, name).await;
        // Without the inode's lock, the block may have been released and reused meanwhile.
        if cell.read(Inode::xattr_block) == before {
            break found?;
        }
    };
    match found {
        Some(Found::Bytes(bytes)) => Ok(Some(bytes)),
        None => Ok(None),
        Some(Found::Held(_)) => Box::pin(read_held(writer, cell, name)).await,
    }
}

/// Reads a value from its own inode, which only the lock protects from being reused.
async fn read_held(writer: &Writer, cell: &InodeCell, name: XattrName<'_>) -> Result<Option<Vec<u8>>> {
    let _shared = writer.shared_xattrs.lock().await;
    match look(writer, cell, name).await? {
        Some(Found::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Found::Held(held)) => values::read(writer, cell, &held).await.map(Some),
        None => Ok(None),
    }
}

/// A value, or the entry that says where it is.
enum Found {
    Bytes(Vec<u8>),
    Held(Held),
}

impl Found {
    fn of(xattr: &Xattr<'_>) -> Self {
        match (xattr.value, Held::of(xattr)) {
            (_, Some(held)) => Self::Held(held),
            (XattrValue::Bytes(bytes), None) => Self::Bytes(bytes.to_vec()),
            (XattrValue::Inode { .. }, None) => unreachable!("an entry of such a value is held"),
        }
    }
}

async fn look(writer: &Writer, cell: &InodeCell, name: XattrName<'_>) -> Result<Option<Found>> {
    let found =
        cell.read(|inode| -> Result<_> { Ok(in_inode(inode)?.get(name).map(|xattr| Found::of(&xattr))) })?;
    if found.is_some() {
        return Ok(found);
    }
    let Some(block) = block_of(writer, cell).await? else { return Ok(None) };
    let bytes = block.bytes();
    let parsed = XattrBlock::parse(&bytes, cell.number(), block.number())?;
    Ok(parsed.xattrs.get(name).map(|xattr| Found::of(&xattr)))
}

/// Entries of an inode whose values are in inodes of their own: those in the inode, those in its
/// attribute block, and how many inodes share that block.
pub(super) async fn held_values(writer: &Writer, cell: &InodeCell) -> Result<(Vec<Held>, Vec<Held>, u32)> {
    let body = cell.read(|inode| -> Result<Vec<_>> {
        Ok(in_inode(inode)?.iter().filter_map(|xattr| Held::of(&xattr)).collect())
    })?;
    let Some(block) = block_of(writer, cell).await? else { return Ok((body, Vec::new(), 0)) };
    let bytes = block.bytes();
    let parsed = XattrBlock::parse(&bytes, cell.number(), block.number())?;
    Ok((body, parsed.xattrs.iter().filter_map(|xattr| Held::of(&xattr)).collect(), parsed.references))
}

/// Counts an inode's values in inodes of their own. The caller holds the inode's lock.
///
/// # Errors
/// A damaged inode or block.
pub(crate) async fn value_count(writer: &Writer, cell: &InodeCell) -> Result<i64> {
    if !values::are_allowed(writer.store.shape()) {
        return Ok(0);
    }
    let (body, block, _) = held_values(writer, cell).await?;
    Ok((body.len() + block.len()).to_u64().cast_signed())
}

/// The full names of the attributes that `shown` accepts, except those that the file system keeps
/// to itself.
///
/// # Errors
/// A damaged inode or block.
pub(crate) async fn names(
    writer: &Writer,
    cell: &InodeCell,
    shown: impl Fn(&XattrName<'_>) -> bool,
) -> Result<Vec<Vec<u8>>> {
    let full = |name: XattrName<'_>| {
        if name.index.is_visible() && shown(&name) { name.to_full() } else { None }
    };
    let mut all: Vec<_> = cell.read(|inode| -> Result<Vec<_>> {
        Ok(in_inode(inode)?.iter().filter_map(|xattr| full(xattr.name)).collect())
    })?;
    if let Some(block) = block_of(writer, cell).await? {
        let bytes = block.bytes();
        let parsed = XattrBlock::parse(&bytes, cell.number(), block.number())?;
        all.extend(parsed.xattrs.iter().filter_map(|xattr| full(xattr.name)));
    }
    Ok(all)
}

/// Reads an access control list of an inode, unless the volume ignores lists.
///
/// # Errors
/// A damaged list, inode or block.
pub(crate) async fn acl_of(writer: &Writer, cell: &InodeCell, index: XattrIndex) -> Result<Option<Acl>> {
    if writer.mount.ignores_acls {
        return Ok(None);
    }
    let stored = get(writer, cell, XattrName { index, suffix: b"" }).await?;
    stored.map(|stored| Ok(Acl::parse_stored(&stored, cell.number())?)).transpose()
}

//! Builds an area from a list of attributes.

use super::block::{HEADER_LEN, RawXattrBlockHeader, checksum, hash_entries};
use super::entries::{ENTRY_LEN, RawXattrEntry};
use super::{XATTR_MAGIC, Xattr, XattrValue, padded};
use crate::{CharSign, ChecksumSeed, UintExt, VolumeBlock};
use thiserror::Error;
use zerocopy::IntoBytes;

/// Why attributes cannot be written; the area is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum XattrWriteError {
    /// They do not fit.
    #[error("attributes need {needed} bytes, there is room for {room}")]
    NoSpace {
        /// Bytes needed.
        needed: usize,
        /// Bytes available.
        room: usize,
    },
    /// An invalid name; its length without the prefix.
    #[error(
        "attribute name of {0} bytes must be at most 255 bytes, without NUL, and not start with an empty prefix"
    )]
    BadName(usize),
    /// A block needs unique names in ascending order.
    #[error("attributes of a block are not in order")]
    Unsorted,
}

/// Bytes needed for the entries of `xattrs`, the end mark and the values stored with them,
/// excluding the magic number of an inode (4 bytes) or the header of a block (32 bytes).
pub fn xattr_space<'a>(xattrs: impl IntoIterator<Item = &'a Xattr<'a>>) -> usize {
    xattrs.into_iter().fold(4, |sum, xattr| {
        let value = if let XattrValue::Bytes(value) = xattr.value { padded(value.len()) } else { 0 };
        sum + ENTRY_LEN + padded(xattr.name.suffix.len()) + value
    })
}

/// Fills the bytes after an inode's fixed part, from 128 + `i_extra_isize` to the inode's end, in
/// the given order. Without attributes the area is zeroed.
///
/// # Errors
/// An invalid name, or too little space; the area is unchanged.
pub fn write_inode_xattrs(area: &mut [u8], xattrs: &[Xattr<'_>]) -> Result<(), XattrWriteError> {
    if xattrs.is_empty() {
        area.fill(0);
        return Ok(());
    }
    check(xattrs, area.len().saturating_sub(4))?;
    let (magic, base) = area.split_at_mut(4);
    magic.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
    // Values stored in the inode have no hash, because nothing shares the area.
    let hashes =
        xattrs.iter().map(|xattr| if let XattrValue::Bytes(_) = xattr.value { 0 } else { xattr.hash });
    fill(base, 0, xattrs, hashes);
    Ok(())
}

/// Fills a block, shared by `references` inodes, with attributes in ascending order of names.
/// `seed` is given on a volume with `metadata_csum`.
///
/// # Errors
/// An invalid name, names out of order, or too little space; the block is unchanged.
pub fn write_xattr_block(
    block: &mut [u8],
    xattrs: &[Xattr<'_>],
    references: u32,
    number: VolumeBlock,
    seed: Option<ChecksumSeed>,
) -> Result<(), XattrWriteError> {
    if !xattrs.is_sorted_by(|a, b| a.name < b.name) {
        return Err(XattrWriteError::Unsorted);
    }
    check(xattrs, block.len().saturating_sub(HEADER_LEN))?;
    let hashes = || xattrs.iter().map(|xattr| xattr.computed_hash(CharSign::Unsigned).unwrap_or(xattr.hash));
    fill(block, HEADER_LEN, xattrs, hashes());
    let mut header = RawXattrBlockHeader {
        h_magic: XATTR_MAGIC.into(),
        h_refcount: references.into(),
        h_blocks: 1.into(),
        h_hash: hash_entries(hashes()).into(),
        ..Default::default()
    };
    block[..HEADER_LEN].copy_from_slice(header.as_bytes());
    if let Some(seed) = seed {
        header.h_checksum = checksum(block, number, seed).unwrap_or_default().into();
        block[..HEADER_LEN].copy_from_slice(header.as_bytes());
    }
    Ok(())
}

/// `room`: bytes available for entries, end mark and values.
fn check(xattrs: &[Xattr<'_>], room: usize) -> Result<(), XattrWriteError> {
    for Xattr { name, .. } in xattrs {
        let len = name.suffix.len();
        // The list ends with four zero bytes, so no entry may start with them.
        if len > 255 || name.suffix.contains(&0) || (len == 0 && name.index.0 == 0) {
            return Err(XattrWriteError::BadName(len));
        }
    }
    let (needed, room) = (xattr_space(xattrs), room & !3);
    if needed > room { Err(XattrWriteError::NoSpace { needed, room }) } else { Ok(()) }
}

/// Writes entries upward from `first`, and values downward from the end of `base`; they are known
/// to fit.
fn fill(base: &mut [u8], first: usize, xattrs: &[Xattr<'_>], hashes: impl Iterator<Item = u32>) {
    let (mut at, mut values) = (first, base.len() & !3);
    base[first..].fill(0);
    for (Xattr { name, value, .. }, hash) in xattrs.iter().zip(hashes) {
        let mut raw = RawXattrEntry {
            e_name_len: name.suffix.len().fit_u8(),
            e_name_index: name.index.0,
            e_hash: hash.into(),
            ..Default::default()
        };
        match *value {
            XattrValue::Bytes(value) => {
                values -= padded(value.len());
                base[values..values + value.len()].copy_from_slice(value);
                if !value.is_empty() {
                    raw.e_value_offs = values.fit_u16().into();
                }
                raw.e_value_size = value.len().fit_u32().into();
            }
            XattrValue::Inode { inode, size } => {
                raw.e_value_inum = inode.0.into();
                raw.e_value_size = size.into();
            }
        }
        base[at..at + ENTRY_LEN].copy_from_slice(raw.as_bytes());
        at += ENTRY_LEN;
        base[at..at + name.suffix.len()].copy_from_slice(name.suffix);
        at += padded(name.suffix.len());
    }
}

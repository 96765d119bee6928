//! Changes to an inline directory.
//!
//! Its names are in two areas, each laid out like a small block: in `i_block` after the parent's
//! number, and in the attribute `system.data`. There are no entries for `.` and `..`. A directory
//! that outgrows the areas moves to a block.

use super::leaf::{Damaged, Entry, LeafFormat};
use crate::xattr::in_inode;
use extant_format::{
    Corrupt, FileBlock, FileKind, INLINE_HEAD_BYTES, INLINE_PARENT_BYTES, Inode, InodeNumber, Place, UintExt,
    XattrName, dirent_bytes,
};
use std::ops::Range;

/// One of the areas of an inline directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    /// In `i_block`.
    Map,
    /// In `system.data`.
    Attribute,
}

/// The result of [`look`] for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlineLooked {
    Found(Area, Entry),
    /// There is no such name. This record has room for it; `None` if the directory must first move
    /// to a block.
    Absent(Option<(Area, u32)>),
}

/// The range of `system.data`'s value in the inode's tail, up to the directory's size.
fn attribute(inode: &Inode) -> Result<Range<usize>, Corrupt> {
    let range = in_inode(inode)?.value_range_in_inode(XattrName::INLINE_DATA).unwrap_or(0..0);
    let used = (inode.size().saturating_sub(INLINE_HEAD_BYTES.to_u64()).to_usize()).min(range.len());
    Ok(range.start..range.start + used)
}

fn area(inode: &Inode, area: Area) -> Result<&[u8], Corrupt> {
    Ok(match area {
        Area::Map => &inode.raw.i_block[INLINE_PARENT_BYTES..],
        Area::Attribute => &inode.tail[attribute(inode)?],
    })
}

fn area_mut(inode: &mut Inode, area: Area) -> &mut [u8] {
    match area {
        Area::Map => &mut inode.raw.i_block[INLINE_PARENT_BYTES..],
        Area::Attribute => {
            let range = attribute(inode).expect("an area that was looked at");
            &mut inode.tail[range]
        }
    }
}

fn checked<T>(inode: &Inode, result: Result<T, Damaged>) -> Result<T, Corrupt> {
    result.map_err(|Damaged| {
        let rule = "the length of a record that fits its area";
        Corrupt::field(Place::DirectoryBlock(inode.number, FileBlock(0)), "rec_len", 0, rule)
    })
}

/// Looks up `name`.
pub(crate) fn look(format: LeafFormat, inode: &Inode, name: &[u8]) -> Result<InlineLooked, Corrupt> {
    let format = format.inline();
    let mut room = None;
    for place in [Area::Map, Area::Attribute] {
        let scan = checked(inode, format.scan(area(inode, place)?, name, dirent_bytes(name.len())))?;
        if let Some(entry) = scan.entry {
            return Ok(InlineLooked::Found(place, entry));
        }
        room = room.or(scan.room.map(|at| (place, at)));
    }
    Ok(InlineLooked::Absent(room))
}

/// Adds a name where [`look`] found room.
pub(crate) fn insert(
    format: LeafFormat,
    dir: &mut Inode,
    (place, at): (Area, u32),
    inode: InodeNumber,
    name: &[u8],
    kind: FileKind,
) {
    format.inline().insert(area_mut(dir, place), at, inode, name, kind);
}

/// Removes an entry that [`look`] found.
pub(crate) fn remove(format: LeafFormat, dir: &mut Inode, place: Area, entry: &Entry) {
    format.inline().remove(area_mut(dir, place), entry);
}

/// Makes an entry that [`look`] found refer to another inode.
pub(crate) fn set(
    format: LeafFormat,
    dir: &mut Inode,
    place: Area,
    entry: &Entry,
    inode: InodeNumber,
    kind: FileKind,
) {
    format.inline().set(area_mut(dir, place), entry.offset, inode, kind);
}

/// The parent directory's inode.
pub(crate) fn parent(dir: &Inode) -> InodeNumber {
    let [a, b, c, d, ..] = dir.raw.i_block;
    InodeNumber(u32::from_le_bytes([a, b, c, d]))
}

/// Sets the parent directory.
pub(crate) fn set_parent(dir: &mut Inode, parent: InodeNumber) {
    dir.raw.i_block[..INLINE_PARENT_BYTES].copy_from_slice(&parent.0.to_le_bytes());
}

/// Whether a directory has no names.
pub(crate) fn is_empty(format: LeafFormat, dir: &Inode) -> Result<bool, Corrupt> {
    let format = format.inline();
    Ok(checked(dir, format.is_empty(area(dir, Area::Map)?))?
        && checked(dir, format.is_empty(area(dir, Area::Attribute)?))?)
}

/// An inode, its name, and its kind if the entry records it.
pub(crate) type InlineName<'a> = (InodeNumber, &'a [u8], Option<FileKind>);

/// The names, in storage order.
pub(crate) fn names(format: LeafFormat, dir: &Inode) -> Result<Vec<InlineName<'_>>, Corrupt> {
    let inline = format.inline();
    let mut names = Vec::new();
    for place in [Area::Map, Area::Attribute] {
        for entry in inline.entries(area(dir, place)?) {
            let entry = checked(dir, entry)?;
            if !entry.is_free() {
                names.push((InodeNumber(entry.inode), entry.name, inline.kind(&entry)));
            }
        }
    }
    Ok(names)
}

/// Fills the block that a directory moves to with everything the inode holds.
pub(crate) fn write_block(format: LeafFormat, dir: &Inode, block: &mut [u8]) -> Result<(), Corrupt> {
    format.init_first(block, dir.number, parent(dir));
    for (inode, name, kind) in names(format, dir)? {
        let scan = checked(dir, format.scan(block, name, dirent_bytes(name.len())))?;
        let room = checked(dir, scan.room.ok_or(Damaged))?;
        // An unknown kind is stored as 0, which any reader accepts.
        format.insert_kind(block, room, inode, name, kind);
    }
    Ok(())
}

//! The list of entries, the same in both areas.

use super::{XATTR_MAGIC, XATTR_VALUE_MAX, XattrIndex, XattrName, padded};
use crate::{CharSign, Corrupt, InodeNumber, Place, Problem, UintExt};
use std::fmt;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `struct ext4_xattr_entry`; the name follows, padded to 4 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawXattrEntry {
    /// 0x0: length of the name.
    pub e_name_len: u8,
    /// 0x1: index of the name's prefix.
    pub e_name_index: u8,
    /// 0x2: offset of the value.
    pub e_value_offs: U16,
    /// 0x4: the inode that holds the value, or 0.
    pub e_value_inum: U32,
    /// 0x8: length of the value.
    pub e_value_size: U32,
    /// 0xc: hash of name and value.
    pub e_hash: U32,
}

/// Size of an entry without its name.
pub(super) const ENTRY_LEN: usize = size_of::<RawXattrEntry>();

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// Its name.
    pub name: XattrName<'a>,
    /// Its value.
    pub value: XattrValue<'a>,
    /// `e_hash`. 0 for attributes in an inode, unless their value is in a separate inode.
    pub hash: u32,
}

/// An attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrValue<'a> {
    /// In the same area as the entry.
    Bytes(&'a [u8]),
    /// In a separate inode (`ea_inode`).
    Inode {
        /// The inode.
        inode: InodeNumber,
        /// Length of the value in bytes.
        size: u32,
    },
}

impl<'a> Xattr<'a> {
    /// An attribute with its value in the same area as the entry.
    pub fn new(name: XattrName<'a>, value: &'a [u8]) -> Self {
        Self { name, value: XattrValue::Bytes(value), hash: 0 }
    }

    /// An attribute with its value in `inode`; `value_hash` is
    /// [`ValueInode::hash`](super::ValueInode).
    pub fn in_inode(name: XattrName<'a>, inode: InodeNumber, size: u32, value_hash: u32) -> Self {
        let hash = hash_words(name.suffix, [value_hash], CharSign::Unsigned);
        Self { name, value: XattrValue::Inode { inode, size }, hash }
    }

    /// Hash of an entry in a block, for a value in the same area. `None` for a value in a separate
    /// inode.
    pub fn computed_hash(&self, sign: CharSign) -> Option<u32> {
        match self.value {
            XattrValue::Bytes(value) => {
                let words = value.chunks(4).map(|chunk| {
                    chunk.iter().rev().fold(0, |word, &byte| (word << 8) | u32::from(byte)) // zero padded
                });
                Some(hash_words(self.name.suffix, words, sign))
            }
            XattrValue::Inode { .. } => None,
        }
    }

    /// Whether `hash` is right; for a value in a separate inode, `value_hash` is the hash stored
    /// there.
    ///
    /// Like Linux, accepts either sign, whatever the volume's directories use, and 0 for a value in
    /// the same area.
    pub fn hash_is_valid(&self, value_hash: Option<u32>) -> bool {
        [CharSign::Unsigned, CharSign::Signed].into_iter().any(|sign| match (self.value, value_hash) {
            (XattrValue::Bytes(_), _) => self.hash == 0 || self.computed_hash(sign) == Some(self.hash),
            (XattrValue::Inode { .. }, Some(word)) => self.hash == hash_words(self.name.suffix, [word], sign),
            (XattrValue::Inode { .. }, None) => false,
        })
    }

    /// For a value in a separate inode: the value hashes that make the attribute's hash right, one
    /// for each sign of characters.
    pub fn wanted_value_hashes(&self) -> [u32; 2] {
        let of = |sign| self.hash ^ hash_words(self.name.suffix, [0], sign);
        [of(CharSign::Unsigned), of(CharSign::Signed)]
    }
}

/// Hashes a name (rotating by 5 bits per byte) and the words of a value (rotating by 16 bits each).
fn hash_words(name: &[u8], words: impl IntoIterator<Item = u32>, sign: CharSign) -> u32 {
    let hash = name.iter().fold(0u32, |hash, &byte| hash.rotate_left(5) ^ sign.extend(byte));
    words.into_iter().fold(hash, |hash, word| hash.rotate_left(16) ^ word)
}

impl fmt::Display for Xattr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            XattrValue::Bytes(value) => {
                write!(f, "{} ({} bytes) = \"{}\"", self.name, value.len(), value.escape_ascii())
            }
            XattrValue::Inode { inode, size } => write!(f, "{} ({size} bytes) in inode {inode}", self.name),
        }
    }
}

/// The attributes of an area, already checked: iteration cannot fail.
///
/// Names are within the area and free of NUL. Values come after the entries, and their total length
/// does not exceed the room there, so a small area cannot expand into a large one. As in Linux, any
/// order is accepted.
#[derive(Clone, Copy, Debug)]
pub struct Xattrs<'a> {
    /// The bytes that value offsets are relative to.
    base: &'a [u8],
    /// Offset of the first entry.
    first: usize,
}

impl<'a> Xattrs<'a> {
    /// No attributes.
    pub const EMPTY: Self = Self { base: &[], first: 0 };

    /// Parses the bytes after an inode's fixed part, from 128 + `i_extra_isize` to the inode's end.
    /// All zeros, or too little space, mean no attributes.
    ///
    /// # Errors
    /// Another magic number, a NUL in a name, or an entry or value that leaves the area.
    pub fn parse_inode(area: &'a [u8], inode: InodeNumber) -> Result<Self, Corrupt> {
        let place = Place::InodeXattrs(inode);
        let Some((magic, base)) = area.split_first_chunk::<4>() else { return Ok(Self::EMPTY) };
        match u32::from_le_bytes(*magic) {
            0 => Ok(Self::EMPTY),
            XATTR_MAGIC => Self::check(base, 0, place),
            found => Err(Corrupt { place, problem: Problem::Magic { found, expected: XATTR_MAGIC } }),
        }
    }

    /// Checks the entries at `first`; value offsets are relative to the start of `base`.
    pub(super) fn check(base: &'a [u8], first: usize, place: Place) -> Result<Self, Corrupt> {
        let truncated = |needed| Corrupt::truncated(place, needed, base.len());
        let mut at = first;
        loop {
            let rest = base.get(at..).unwrap_or_default();
            let Some(word) = rest.first_chunk::<4>() else { return Err(truncated(at + 4)) };
            if *word == [0; 4] {
                break;
            }
            let Ok((raw, rest)) = RawXattrEntry::ref_from_prefix(rest) else {
                return Err(truncated(at + ENTRY_LEN));
            };
            let Some(name) = rest.get(..raw.e_name_len.into()) else {
                return Err(truncated(at + ENTRY_LEN + usize::from(raw.e_name_len)));
            };
            if name.contains(&0) {
                let rule = "the length of a name without NUL bytes";
                return Err(Corrupt::field(place, "e_name_len", raw.e_name_len.into(), rule));
            }
            at += ENTRY_LEN + padded(name.len());
        }
        let entries_end = at + 4;
        let list = Self { base, first };
        let mut room = base.len().saturating_sub(entries_end);
        for (raw, _) in list.raw() {
            let (offset, size) = (usize::from(raw.e_value_offs.get()), raw.e_value_size.get());
            if size > XATTR_VALUE_MAX {
                return Err(Corrupt::field(place, "e_value_size", size.into(), "at most 16 MiB"));
            }
            if size == 0 || raw.e_value_inum.get() != 0 {
                continue;
            }
            if offset < entries_end || offset > base.len() {
                let rule = "after the entries and within the area";
                return Err(Corrupt::field(place, "e_value_offs", offset.to_u64(), rule));
            }
            if padded(size.to_usize()) > base.len() - offset {
                let rule = "no more than is left of the area after e_value_offs";
                return Err(Corrupt::field(place, "e_value_size", size.into(), rule));
            }
            let Some(left) = room.checked_sub(padded(size.to_usize())) else {
                let rule = "no more than the values before it leave of the area";
                return Err(Corrupt::field(place, "e_value_size", size.into(), rule));
            };
            room = left;
        }
        Ok(list)
    }

    fn raw(&self) -> RawIter<'a> {
        RawIter { list: self.base, at: self.first }
    }

    /// The attributes in stored order.
    pub fn iter(&self) -> XattrIter<'a> {
        XattrIter { entries: self.raw() }
    }

    /// The attribute with this name.
    pub fn get(&self, name: XattrName<'_>) -> Option<Xattr<'a>> {
        self.iter().find(|xattr| xattr.name == name)
    }

    /// Range of this attribute's value within the bytes given to [`Self::parse_inode`], if it is
    /// stored there.
    pub fn value_range_in_inode(&self, name: XattrName<'_>) -> Option<Range<usize>> {
        let (raw, _) =
            self.raw().find(|(raw, suffix)| raw.e_name_index == name.index.0 && *suffix == name.suffix)?;
        let (start, len) = (usize::from(raw.e_value_offs.get()), raw.e_value_size.get().to_usize());
        let magic = size_of_val(&XATTR_MAGIC);
        // An empty value may have any offset.
        (raw.e_value_inum.get() == 0 && len > 0).then(|| magic + start..magic + start + len)
    }

    /// Whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Whether names ascend, as Linux requires in a block (but not in an inode) to find them.
    pub fn is_sorted(&self) -> bool {
        self.iter().is_sorted_by(|a, b| a.name < b.name)
    }
}

/// Replaces the inodes that hold values of an area, whose entries begin at byte `first`, with those
/// chosen by `number`. Hashes stay: they depend on the values, not on the inode numbers.
///
/// # Errors
/// The first error of `number`; the entries before it are changed.
pub fn set_value_inodes<E>(
    area: &mut [u8],
    first: usize,
    mut number: impl FnMut(InodeNumber) -> Result<InodeNumber, E>,
) -> Result<(), E> {
    let mut at = first;
    while let Some(head) = area.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<ENTRY_LEN>()) {
        if head[..4] == [0; 4] {
            break;
        }
        let old = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if old != 0 {
            head[4..8].copy_from_slice(&number(InodeNumber(old))?.0.to_le_bytes());
        }
        at += ENTRY_LEN + padded(head[0].into());
    }
    Ok(())
}

impl<'a> IntoIterator for Xattrs<'a> {
    type Item = Xattr<'a>;
    type IntoIter = XattrIter<'a>;

    fn into_iter(self) -> XattrIter<'a> {
        self.iter()
    }
}

impl fmt::Display for Xattrs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|xattr| writeln!(f, "{xattr}"))
    }
}

#[derive(Clone, Debug)]
struct RawIter<'a> {
    list: &'a [u8],
    at: usize,
}

impl<'a> Iterator for RawIter<'a> {
    type Item = (&'a RawXattrEntry, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.list.get(self.at..)?;
        if *rest.first_chunk::<4>()? == [0; 4] {
            return None;
        }
        let (raw, rest) = RawXattrEntry::ref_from_prefix(rest).ok()?;
        let name = rest.get(..raw.e_name_len.into())?;
        self.at += ENTRY_LEN + padded(name.len());
        Some((raw, name))
    }
}

/// Iterator over the attributes of an area.
#[derive(Clone, Debug)]
pub struct XattrIter<'a> {
    entries: RawIter<'a>,
}

impl<'a> Iterator for XattrIter<'a> {
    type Item = Xattr<'a>;

    fn next(&mut self) -> Option<Xattr<'a>> {
        let (raw, suffix) = self.entries.next()?;
        let size = raw.e_value_size.get();
        let value = match raw.e_value_inum.get() {
            0 => {
                let start = usize::from(raw.e_value_offs.get());
                // an empty value may have any offset
                let rest = self.entries.list.get(start..).unwrap_or_default();
                XattrValue::Bytes(rest.get(..size.to_usize()).unwrap_or_default())
            }
            inode => XattrValue::Inode { inode: InodeNumber(inode), size },
        };
        let name = XattrName { index: XattrIndex(raw.e_name_index), suffix };
        Some(Xattr { name, value, hash: raw.e_hash.get() })
    }
}

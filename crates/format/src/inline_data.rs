//! Inline data: the first 60 bytes are stored in the inode instead of the block map, the rest as
//! the attribute `system.data`.
//!
//! Kernel documentation: *Inline Data* and *Inline Directories*
//! (Documentation/filesystems/ext4/inlinedata.rst).
//!
//! ```text
//! file:       i_block: 60 bytes                              │ system.data: the rest
//! directory:  i_block: parent (4 bytes), entries (56 bytes)  │ system.data: entries
//! ```
//!
//! A directory's two lists of entries are like small linear blocks, without `.`, `..` and checksum.

use crate::{
    Corrupt, DirEntries, DirEntry, FileBlock, FileKind, InodeNumber, Place, UintExt, XattrName, XattrValue,
    Xattrs, write_dirent,
};
use std::fmt;

/// Bytes of data in `i_block` (`EXT4_MIN_INLINE_DATA_SIZE`).
pub const INLINE_HEAD_BYTES: usize = 60;
/// Bytes before a directory's first entry: the parent's number (`EXT4_INLINE_DOTDOT_SIZE`).
pub const INLINE_PARENT_BYTES: usize = 4;

/// The data of an inode with `EXT4_INLINE_DATA_FL`.
#[derive(Clone, Copy, Debug)]
pub struct InlineData<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    inode: InodeNumber,
}

impl<'a> InlineData<'a> {
    /// From an inode's block map, its in-inode attributes, and its size in bytes, which must not
    /// exceed the stored data.
    ///
    /// # Errors
    /// A larger size, or an attribute whose value is in an inode of its own.
    pub fn parse(
        i_block: &'a [u8; INLINE_HEAD_BYTES],
        xattrs: &Xattrs<'a>,
        size_bytes: u64,
        inode: InodeNumber,
    ) -> Result<Self, Corrupt> {
        let place = Place::InlineData(inode);
        let tail = match xattrs.get(XattrName::INLINE_DATA).map(|xattr| xattr.value) {
            Some(XattrValue::Bytes(value)) => value,
            Some(XattrValue::Inode { inode, .. }) => {
                return Err(Corrupt::field(place, "e_value_inum", inode.0.into(), "0 for system.data"));
            }
            None => &[],
        };
        if size_bytes > (INLINE_HEAD_BYTES + tail.len()).to_u64() {
            let rule = "at most 60 and the length of system.data";
            return Err(Corrupt::field(place, "i_size", size_bytes, rule));
        }
        let size = size_bytes.to_usize();
        let (head, tail) = (&i_block[..size.min(60)], &tail[..size.saturating_sub(60)]);
        Ok(Self { head, tail, inode })
    }

    /// The data, in two parts.
    pub const fn parts(&self) -> (&'a [u8], &'a [u8]) {
        (self.head, self.tail)
    }

    /// The data in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        [self.head, self.tail].concat()
    }

    /// Interprets the data as a directory.
    ///
    /// # Errors
    /// Fewer than the 4 bytes that name the parent.
    pub fn as_directory(&self) -> Result<InlineDirectory<'a>, Corrupt> {
        match self.head.split_first_chunk::<INLINE_PARENT_BYTES>() {
            Some((parent, entries)) => {
                let parent = InodeNumber(u32::from_le_bytes(*parent));
                Ok(InlineDirectory { parent, areas: [entries, self.tail], inode: self.inode })
            }
            None => {
                let place = Place::InlineData(self.inode);
                Err(Corrupt::field(place, "i_size", self.head.len().to_u64(), "at least 4 for a directory"))
            }
        }
    }
}

/// An inline directory.
#[derive(Clone, Copy, Debug)]
pub struct InlineDirectory<'a> {
    /// The parent. There is no entry for it, nor for the directory itself.
    pub parent: InodeNumber,
    /// The areas with entries: in `i_block`, and in the attribute. Either may be empty.
    pub areas: [&'a [u8]; 2],
    inode: InodeNumber,
}

impl<'a> InlineDirectory<'a> {
    /// The entries, deleted ones as inode 0. `max_inode` is the volume's last inode.
    pub fn entries(
        &self,
        filetype: bool,
        max_inode: u32,
    ) -> impl Iterator<Item = Result<DirEntry<'a>, Corrupt>> + use<'a> {
        let inode = self.inode;
        self.areas
            .into_iter()
            .flat_map(move |area| DirEntries::new(area, filetype, max_inode, inode, FileBlock(0)))
    }
}

impl fmt::Display for InlineData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.head.len() + self.tail.len();
        write!(f, "inline data ({size} bytes): \"{}{}\"", self.head.escape_ascii(), self.tail.escape_ascii())
    }
}

/// Splits data into `i_block` and the value of `system.data`. Every inode with inline data has this
/// attribute, even if it is empty.
pub fn split_inline_data(contents: &[u8]) -> ([u8; INLINE_HEAD_BYTES], &[u8]) {
    let (head, tail) = contents.split_at(contents.len().min(INLINE_HEAD_BYTES));
    let mut i_block = [0; INLINE_HEAD_BYTES];
    i_block[..head.len()].copy_from_slice(head);
    (i_block, tail)
}

/// Fills one area of an inline directory (the 56 bytes after the parent's number in `i_block`, or
/// the attribute) with entries; the last one gets the remaining room. Returns how many entries fit.
///
/// # Panics
/// If the area is not empty but too small for a deleted entry, or a name is longer than 255 bytes.
pub fn write_inline_entries<'n>(
    area: &mut [u8],
    entries: impl IntoIterator<Item = (InodeNumber, &'n [u8], Option<FileKind>)>,
) -> usize {
    let (mut at, mut last, mut count) = (0, None, 0);
    area.fill(0);
    for (inode, name, kind) in entries {
        let needed = crate::dirent_bytes(name.len());
        if needed > area.len() - at {
            break;
        }
        write_dirent(&mut area[at..at + needed], inode, name, kind);
        last = Some((at, inode, name, kind));
        at += needed;
        count += 1;
    }
    match last {
        Some((at, inode, name, kind)) => write_dirent(&mut area[at..], inode, name, kind),
        None if area.is_empty() => {}
        None => write_dirent(area, InodeNumber(0), b"", None),
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Xattr, write_inode_xattrs};
    use proptest::prelude::*;

    const INODE: InodeNumber = InodeNumber(15);
    const PLACE: Place = Place::InlineData(INODE);
    /// An inode with an inline directory, written by Linux; see tests/data/README.md.
    const DIRECTORY: &[u8; 256] = include_bytes!("../tests/data/inode_inline_dir_kernel.bin");

    fn i_block() -> &'static [u8; 60] {
        DIRECTORY[0x28..].first_chunk().unwrap()
    }

    #[test]
    fn a_directory_that_linux_wrote_is_read_and_written() {
        let xattrs = Xattrs::parse_inode(&DIRECTORY[128 + 32..], INODE).unwrap();
        let directory = InlineData::parse(i_block(), &xattrs, 60, INODE).unwrap().as_directory().unwrap();
        assert_eq!(directory.parent, InodeNumber::ROOT);
        let entries: Vec<_> = directory.entries(true, 64).map(Result::unwrap).collect();
        let list: Vec<_> = entries.iter().map(|entry| (entry.inode, entry.name, entry.kind)).collect();
        let file = Some(FileKind::Regular);
        let want = [(16, &b"aa"[..]), (17, b"bbb"), (18, b"cccccccccccccccccccc")];
        assert_eq!(list, want.map(|(inode, name)| (InodeNumber(inode), name, file)));

        let mut ours = [0xaa; 60];
        ours[..4].copy_from_slice(&2u32.to_le_bytes());
        assert_eq!(write_inline_entries(&mut ours[4..], list.iter().copied()), 3);
        assert_eq!(ours, *i_block());
        assert_eq!(write_inline_entries(&mut ours[4..32], list), 2, "the third does not fit");
        assert_eq!(write_inline_entries(&mut ours[4..], []), 0);
        assert_eq!(ours[4..12], [0, 0, 0, 0, 56, 0, 0, 0], "as Linux makes an empty directory");
    }

    #[test]
    fn contents_are_split_and_joined() {
        for size in [0, 1, 59, 60, 61, 100] {
            let contents: Vec<u8> = (0..size).collect();
            let (head, tail) = split_inline_data(&contents);
            let mut area = [0; 96];
            write_inode_xattrs(&mut area, &[Xattr::new(XattrName::INLINE_DATA, tail)]).unwrap();
            let xattrs = Xattrs::parse_inode(&area, INODE).unwrap();
            let data = InlineData::parse(&head, &xattrs, size.into(), INODE).unwrap();
            assert_eq!(data.to_vec(), contents);
        }
    }

    #[test]
    fn one_wrong_field_is_named() {
        let none = Xattrs::EMPTY;
        let parse = |size| InlineData::parse(i_block(), &none, size, INODE);
        assert_eq!(
            parse(61).unwrap_err(),
            Corrupt::field(PLACE, "i_size", 61, "at most 60 and the length of system.data")
        );
        assert_eq!(
            parse(3).unwrap().as_directory().unwrap_err(),
            Corrupt::field(PLACE, "i_size", 3, "at least 4 for a directory")
        );
        let mut area = [0; 96];
        let far = Xattr::in_inode(XattrName::INLINE_DATA, InodeNumber(20), 7, 0);
        write_inode_xattrs(&mut area, &[far]).unwrap();
        let xattrs = Xattrs::parse_inode(&area, INODE).unwrap();
        assert_eq!(
            InlineData::parse(i_block(), &xattrs, 60, INODE).unwrap_err(),
            Corrupt::field(PLACE, "e_value_inum", 20, "0 for system.data")
        );
    }

    proptest! {
        #[test]
        fn random_bytes_are_parsed_or_refused(
            head in prop::collection::vec(any::<u8>(), 60),
            tail in prop::collection::vec(any::<u8>(), 0..60),
            size in 0u64..140,
        ) {
            let head: [u8; 60] = head.try_into().unwrap();
            let mut area = [0; 96];
            write_inode_xattrs(&mut area, &[Xattr::new(XattrName::INLINE_DATA, &tail)]).unwrap();
            let xattrs = Xattrs::parse_inode(&area, INODE).unwrap();
            if let Ok(data) = InlineData::parse(&head, &xattrs, size, INODE) {
                let _ = data.to_string();
                let _ = data.as_directory().map(|directory| directory.entries(true, 100).count());
            }
        }
    }
}

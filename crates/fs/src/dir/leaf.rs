//! One linear block of a directory: finding, adding and removing entries in its bytes.
//!
//! The areas of an inline directory have the same format, except for the checksum's pseudo-entry.

use extant_format::{
    Corrupt, DIRENT_HEADER_BYTES, DIRENT_TAIL_BYTES, DirEntries, FileBlock, FileKind, Incompat, InodeNumber,
    NameHash, Place, Superblock, UintExt, decode_record_bytes, dirent_bytes, encode_record_bytes,
    init_dirent_tail, write_dirent,
};

/// The format of directory entries on this volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafFormat {
    /// Entries record the file type (`filetype`).
    pub(crate) filetype: bool,
    /// Blocks end in a checksum (`metadata_csum`).
    pub(crate) checksums: bool,
    /// The volume's last inode.
    pub(crate) max_inode: u32,
}

/// Where an entry is, and what it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) inode: InodeNumber,
    pub(crate) kind: Option<FileKind>,
    /// Byte offset in the block.
    pub(crate) offset: u32,
    /// Offset of the previous entry, which takes over this one's room when it is removed.
    pub(crate) previous: Option<u32>,
}

/// The result of one pass over a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// The name's entry, if found; the scan then ended there.
    pub(crate) entry: Option<Entry>,
    /// The first record with enough room for the new entry.
    pub(crate) room: Option<u32>,
    /// The largest room of any record, in bytes.
    pub(crate) most_room: u32,
}

impl Scan {
    /// The result for a block with neither the name nor room.
    pub(crate) const NOTHING: Self = Self { entry: None, room: None, most_room: 0 };
}

/// A block violates the rules for entries; [`LeafFormat::diagnose`] says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// An entry as stored in its block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEntry<'a> {
    pub(crate) inode: u32,
    pub(crate) name: &'a [u8],
    kind_code: u8,
    pub(crate) offset: usize,
    record: usize,
}

impl RawEntry<'_> {
    pub(crate) const fn is_free(&self) -> bool {
        self.inode == 0
    }

    /// Bytes of the record that the entry uses.
    const fn used(&self) -> usize {
        if self.inode == 0 { 0 } else { dirent_bytes(self.name.len()) }
    }

    const fn end(&self) -> usize {
        self.offset + self.record
    }
}

impl LeafFormat {
    pub(crate) fn of(sb: &Superblock) -> Self {
        Self {
            filetype: sb.incompat().contains(Incompat::FILETYPE),
            checksums: sb.has_metadata_csum(),
            max_inode: sb.inodes_count(),
        }
    }

    /// The same format for the areas of an inline directory.
    pub(crate) const fn inline(self) -> Self {
        Self { checksums: false, ..self }
    }

    /// Where entries end.
    const fn end(&self, block: &[u8]) -> usize {
        if self.checksums { block.len() - DIRENT_TAIL_BYTES } else { block.len() }
    }

    /// Parses the entry at `at`, which must be before `end`.
    #[inline]
    fn entry<'a>(&self, block: &'a [u8], at: usize, end: usize) -> Result<RawEntry<'a>, Damaged> {
        let rest = &block[at..end];
        let Some(&[i0, i1, i2, i3, r0, r1, name_len, kind_code]) = rest.first_chunk::<DIRENT_HEADER_BYTES>()
        else {
            return Err(Damaged);
        };
        let inode = u32::from_le_bytes([i0, i1, i2, i3]);
        let record = decode_record_bytes(u16::from_le_bytes([r0, r1]), block.len());
        let name_len = usize::from(name_len);
        let sound = record >= dirent_bytes(1)
            && record.is_multiple_of(4)
            && record <= rest.len()
            && dirent_bytes(name_len) <= record
            && inode <= self.max_inode
            && (inode == 0 || name_len > 0);
        if !sound {
            return Err(Damaged);
        }
        let name = &rest[DIRENT_HEADER_BYTES..DIRENT_HEADER_BYTES + name_len];
        Ok(RawEntry { inode, name, kind_code, offset: at, record })
    }

    /// All records of a block, including free ones; stops after a damaged one.
    pub(crate) fn entries<'a>(
        self,
        block: &'a [u8],
    ) -> impl Iterator<Item = Result<RawEntry<'a>, Damaged>> + use<'a> {
        let end = self.end(block);
        let mut at = 0;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let entry = self.entry(block, at, end);
            at = entry.map_or(end, |entry| entry.end());
            Some(entry)
        })
    }

    pub(crate) fn kind(&self, entry: &RawEntry<'_>) -> Option<FileKind> {
        if self.filetype { FileKind::from_dirent(entry.kind_code & 0x7f) } else { None }
    }

    /// Looks for `name`, and for room for an entry of `need` bytes.
    pub(crate) fn scan(&self, block: &[u8], name: &[u8], need: usize) -> Result<Scan, Damaged> {
        let (mut at, end) = (0, self.end(block));
        let mut found = Scan::NOTHING;
        let mut previous = None;
        while at < end {
            if let Some((last, next)) = self.pass_others(&block[at..end], name) {
                previous = Some((at + last).fit_u32());
                at += next;
                if at == end {
                    break;
                }
            }
            let entry = self.entry(block, at, end)?;
            if entry.name == name && !entry.is_free() {
                let (inode, kind) = (InodeNumber(entry.inode), self.kind(&entry));
                found.entry = Some(Entry { inode, kind, offset: at.fit_u32(), previous });
                return Ok(found);
            }
            let room = (entry.record - entry.used()).fit_u32();
            found.most_room = found.most_room.max(room);
            if room >= need.fit_u32() && found.room.is_none() {
                found.room = Some(at.fit_u32());
            }
            previous = Some(at.fit_u32());
            at = entry.end();
        }
        Ok(found)
    }

    /// Passes over entries that are sound, leave no room and have another name. Nearly all do, so
    /// this takes most of the time of a lookup. Returns the offsets of the last of them and of what
    /// follows it.
    #[inline]
    fn pass_others(&self, entries: &[u8], name: &[u8]) -> Option<(usize, usize)> {
        let last_at = DIRENT_HEADER_BYTES - 1 + name.len();
        let mut rest = entries;
        let mut last = None;
        while let Some(header) = rest.first_chunk::<DIRENT_HEADER_BYTES>() {
            let header = u64::from_le_bytes(*header);
            let record = (header >> 32 & 0xffff).to_usize();
            let name_len = (header >> 48 & 0xff).to_usize();
            if record != dirent_bytes(name_len)
                || name_len == 0
                || header.low_u32().wrapping_sub(1) >= self.max_inode
            {
                break;
            }
            // Names in one directory usually differ at their ends.
            if name_len == name.len()
                && rest.get(last_at) == name.last()
                && rest.get(DIRENT_HEADER_BYTES..=last_at) == Some(name)
            {
                break;
            }
            let Some(after) = rest.get(record..) else { break };
            last = Some(entries.len() - rest.len());
            rest = after;
        }
        Some((last?, entries.len() - rest.len()))
    }

    /// The largest room of any record, in bytes.
    pub(crate) fn most_room(&self, block: &[u8]) -> Result<u32, Damaged> {
        self.entries(block).try_fold(0, |most, entry| {
            let entry = entry?;
            Ok(most.max((entry.record - entry.used()).fit_u32()))
        })
    }

    /// Whether a block has no names except `.` and `..`.
    pub(crate) fn is_empty(&self, block: &[u8]) -> Result<bool, Damaged> {
        for entry in self.entries(block) {
            let entry = entry?;
            if !entry.is_free() && entry.name != b"." && entry.name != b".." {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds an entry to the record at `room`, which a scan for its size found. Returns the entry's
    /// offset.
    pub(crate) fn insert(
        &self,
        block: &mut [u8],
        room: u32,
        inode: InodeNumber,
        name: &[u8],
        kind: FileKind,
    ) -> u32 {
        self.insert_kind(block, room, inode, name, Some(kind))
    }

    /// Like [`Self::insert`], if the inode's kind may be unknown.
    pub(crate) fn insert_kind(
        &self,
        block: &mut [u8],
        room: u32,
        inode: InodeNumber,
        name: &[u8],
        kind: Option<FileKind>,
    ) -> u32 {
        let at = room.to_usize();
        let host = self.entry(block, at, self.end(block)).expect("a record that a scan has passed");
        let (used, end) = (host.used(), host.end());
        if used > 0 {
            set_record(block, at, used);
        }
        let at = at + used;
        let padded = at + dirent_bytes(name.len());
        block[at..padded].fill(0);
        write_dirent(&mut block[at..end], inode, name, kind.filter(|_| self.filetype));
        at.fit_u32()
    }

    /// Removes an entry that a scan found, and zeroes it.
    pub(crate) fn remove(&self, block: &mut [u8], entry: &Entry) {
        let at = entry.offset.to_usize();
        let gone = self.entry(block, at, self.end(block)).expect("an entry that a scan has found");
        let (record, used) = (gone.record, gone.used());
        match entry.previous {
            Some(previous) => {
                let before = self
                    .entry(block, previous.to_usize(), self.end(block))
                    .expect("a record that a scan has passed")
                    .record;
                set_record(block, previous.to_usize(), before + record);
                block[at..at + used].fill(0);
            }
            None => {
                block[at..at + 4].fill(0);
                block[at + 6..at + used].fill(0);
            }
        }
    }

    /// Makes an entry refer to another inode.
    pub(crate) fn set(&self, block: &mut [u8], offset: u32, inode: InodeNumber, kind: FileKind) {
        let at = offset.to_usize();
        block[at..at + 4].copy_from_slice(&inode.0.to_le_bytes());
        if self.filetype {
            block[at + 7] = kind.dirent_code();
        }
    }

    /// Fills a block without entries.
    pub(crate) fn init_empty(&self, block: &mut [u8]) {
        self.fill(block, std::iter::empty());
    }

    /// Fills the first block of a linear directory.
    pub(crate) fn init_first(&self, block: &mut [u8], dir: InodeNumber, parent: InodeNumber) {
        self.init_empty(block);
        let end = self.end(block);
        let kind = self.filetype.then_some(FileKind::Directory);
        write_dirent(&mut block[..12], dir, b".", kind);
        write_dirent(&mut block[12..end], parent, b"..", kind);
    }

    /// Fills a block with entries, which must fit. The last one's record takes the remaining space.
    fn fill<'a>(&self, block: &mut [u8], entries: impl Iterator<Item = RawEntry<'a>>) {
        block.fill(0);
        let end = self.end(block);
        let (mut at, mut last) = (0, 0);
        for entry in entries {
            let used = dirent_bytes(entry.name.len());
            write_dirent(&mut block[at..at + used], InodeNumber(entry.inode), entry.name, None);
            block[at + 7] = entry.kind_code;
            last = at;
            at += used;
        }
        set_record(block, last, end - last);
        if self.checksums {
            init_dirent_tail(block);
        }
    }

    /// Splits the names of `block`, except `.` and `..`, into two blocks of about equal size. The
    /// second gets those with the higher hashes.
    pub(crate) fn split(&self, block: &[u8], hash: impl Fn(&[u8]) -> NameHash) -> Result<SplitLeaf, Damaged> {
        let mut entries = Vec::new();
        for entry in self.entries(block) {
            let entry = entry?;
            if !entry.is_free() && entry.name != b"." && entry.name != b".." {
                entries.push((hash(entry.name).major, entry));
            }
        }
        if entries.len() < 2 {
            return Err(Damaged);
        }
        entries.sort_by_key(|(hash, entry)| (*hash, entry.offset));
        // Move the upper half, counted in bytes. An entry across the middle moves if its own
        // midpoint is past it.
        let (mut moved, mut bytes) = (0, 0);
        for (_, entry) in entries.iter().rev() {
            if bytes + entry.used() / 2 > block.len() / 2 {
                break;
            }
            bytes += entry.used();
            moved += 1;
        }
        // If the block is so empty that all names would move, split by count.
        let kept = if moved < entries.len() { entries.len() - moved } else { entries.len() / 2 };
        let (low, high) = entries.split_at(kept);
        let continues = low[low.len() - 1].0 == high[0].0;
        let filled = |entries: &[(u32, RawEntry<'_>)]| {
            let mut block = vec![0; block.len()];
            self.fill(&mut block, entries.iter().map(|(_, entry)| *entry));
            block
        };
        Ok(SplitLeaf { low: filled(low), high: filled(high), hash: high[0].0 | u32::from(continues) })
    }

    /// The first error in a damaged block.
    pub(crate) fn diagnose(&self, block: &[u8], dir: InodeNumber, at: FileBlock) -> Corrupt {
        DirEntries::new(block, self.filetype, self.max_inode, dir, at).find_map(Result::err).unwrap_or_else(
            || {
                let rule = "entries that end where the checksum begins, and at least two in a full block";
                Corrupt::field(Place::DirectoryBlock(dir, at), "rec_len", 0, rule)
            },
        )
    }
}

/// The two halves of a split block.
#[derive(Debug)]
pub(crate) struct SplitLeaf {
    pub(crate) low: Vec<u8>,
    pub(crate) high: Vec<u8>,
    /// The lowest hash of `high`. Its lowest bit is set if names with that hash begin in `low`.
    pub(crate) hash: u32,
}

/// Whether a block of a tree, other than the root, is an inner node: one deleted entry as long as
/// the block.
pub(super) fn is_node(bytes: &[u8]) -> bool {
    let record = u16::from_le_bytes([bytes[4], bytes[5]]);
    bytes[..4] == [0; 4] && decode_record_bytes(record, bytes.len()) == bytes.len()
}

fn set_record(block: &mut [u8], at: usize, bytes: usize) {
    block[at + 4..at + 6].copy_from_slice(&encode_record_bytes(bytes).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same as [`LeafFormat::scan`], entry by entry.
    fn plain_scan(leaf: LeafFormat, block: &[u8], name: &[u8], need: usize) -> Result<Scan, Damaged> {
        let (mut found, mut previous) = (Scan::NOTHING, None);
        for entry in leaf.entries(block) {
            let entry = entry?;
            let offset = entry.offset.fit_u32();
            if !entry.is_free() && entry.name == name {
                let (inode, kind) = (InodeNumber(entry.inode), leaf.kind(&entry));
                found.entry = Some(Entry { inode, kind, offset, previous });
                break;
            }
            let room = entry.record - entry.used();
            found.most_room = found.most_room.max(room.fit_u32());
            if room >= need {
                found.room = found.room.or(Some(offset));
            }
            previous = Some(offset);
        }
        Ok(found)
    }

    proptest! {
        #[test]
        fn a_scan_finds_in_any_block_what_its_entries_say(
            checksums: bool,
            names in prop::collection::vec((0u32..300, 1usize..20), 1..40),
            removed in 0usize..40,
            damage in prop::collection::vec((0usize..1024, any::<u8>()), 0..3),
        ) {
            let leaf = LeafFormat { filetype: true, checksums, max_inode: 250 };
            let mut block = vec![0; 1024];
            leaf.init_empty(&mut block);
            let named = |number: u32, len: usize| format!("{number:0len$}").into_bytes();
            for &(number, len) in &names {
                let name = named(number, len);
                let scan = leaf.scan(&block, &name, dirent_bytes(name.len()));
                if let Ok(Scan { entry: None, room: Some(room), .. }) = scan {
                    leaf.insert(&mut block, room, InodeNumber(number + 1), &name, FileKind::Regular);
                }
            }
            let (number, len) = names[removed % names.len()];
            if let Ok(Scan { entry: Some(entry), .. }) = leaf.scan(&block, &named(number, len), 12) {
                leaf.remove(&mut block, &entry);
            }
            for (at, byte) in damage {
                block[at] = byte;
            }
            for &(number, len) in &names {
                let name = named(number, len);
                for need in [12, dirent_bytes(name.len())] {
                    let expected = plain_scan(leaf, &block, &name, need);
                    prop_assert_eq!(leaf.scan(&block, &name, need), expected);
                }
            }
        }
    }
}

//! Linear directory blocks (kernel document: *Directory Entries*).

use crate::{ChecksumSeed, Corrupt, FileBlock, FileKind, InodeNumber, Place, UintExt};

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes of an entry before its name.
pub const DIRENT_HEADER_BYTES: usize = 8;
/// Size of the pseudo-entry at the end of a block that holds the checksum.
pub const DIRENT_TAIL_BYTES: usize = 12;

const TAIL_FILE_TYPE: u8 = 0xde;

/// One entry of a directory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode; 0 for a deleted entry.
    pub inode: InodeNumber,
    /// The name, without terminator: any bytes except, by rule, NUL and `/`.
    pub name: &'a [u8],
    /// The inode's kind, if the volume has `filetype` and the code is known.
    pub kind: Option<FileKind>,
    /// Byte offset within the block.
    pub offset: usize,
    /// Bytes to the next entry.
    pub record_bytes: usize,
}

/// Minimum size of an entry with a name of this length, in bytes.
pub const fn dirent_bytes(name_len: usize) -> usize {
    (DIRENT_HEADER_BYTES + name_len + 3) & !3
}

/// Decodes `rec_len`: in 64 KiB blocks, 0 and 65535 mean the whole block.
pub const fn decode_record_bytes(rec_len: u16, block_bytes: usize) -> usize {
    if block_bytes >= 65536 && (rec_len == 65535 || rec_len == 0) { block_bytes } else { rec_len as usize }
}

/// Encodes a record length for `rec_len`.
pub const fn encode_record_bytes(bytes: usize) -> u16 {
    if bytes >= 65536 { 65535 } else { bytes as u16 }
}

/// Entries of a linear directory block. Deleted ones, and the checksum's pseudo-entry, are included
/// as inode 0.
///
/// The iterator goes on after an entry that only lacks a name or leads to no inode. It ends after
/// other errors: without a reliable record length there is no next entry.
#[derive(Clone, Debug)]
pub struct DirEntries<'a> {
    block: &'a [u8],
    at: usize,
    filetype: bool,
    max_inode: u32,
    place: Place,
}

impl<'a> DirEntries<'a> {
    /// Iterates over a whole block of directory `dir`. `max_inode` is the volume's last inode.
    pub fn new(block: &'a [u8], filetype: bool, max_inode: u32, dir: InodeNumber, index: FileBlock) -> Self {
        Self { block, at: 0, filetype, max_inode, place: Place::DirectoryBlock(dir, index) }
    }

    /// The entry at the current position, together with an error, if any, that need not end the
    /// iteration.
    fn entry(&self) -> Result<(DirEntry<'a>, Result<(), Corrupt>), Corrupt> {
        let (at, end) = (self.at, self.block.len());
        let rest = &self.block[at..];
        if rest.len() < DIRENT_HEADER_BYTES {
            return Err(Corrupt::truncated(self.place, at + DIRENT_HEADER_BYTES, end));
        }
        let inode = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        let record_bytes = decode_record_bytes(u16::from_le_bytes([rest[4], rest[5]]), end);
        // Without `filetype` the length has 16 bits, but the high 8 were always zero.
        let name_len = usize::from(rest[6]);
        let bad = |field, value: usize, rule| Err(Corrupt::field(self.place, field, value.to_u64(), rule));
        if record_bytes < dirent_bytes(1) || !record_bytes.is_multiple_of(4) {
            return bad("rec_len", record_bytes, "a multiple of 4 and at least 12");
        }
        if record_bytes > end - at {
            return bad("rec_len", record_bytes, "at most what is left of the block");
        }
        if dirent_bytes(name_len) > record_bytes {
            return bad("name_len", name_len, "short enough for rec_len");
        }
        let judged = if inode > self.max_inode {
            Err(Corrupt::field(self.place, "inode", inode.into(), "an inode of the volume"))
        } else if inode != 0 && name_len == 0 {
            Err(Corrupt::field(self.place, "name_len", 0, "at least 1"))
        } else {
            Ok(())
        };
        let entry = DirEntry {
            inode: InodeNumber(inode),
            name: &rest[DIRENT_HEADER_BYTES..DIRENT_HEADER_BYTES + name_len],
            kind: if self.filetype { FileKind::from_dirent(rest[7] & 0x7f) } else { None },
            offset: at,
            record_bytes,
        };
        Ok((entry, judged))
    }
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirEntry<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.block.len() {
            return None;
        }
        match self.entry() {
            Ok((entry, judged)) => {
                self.at += entry.record_bytes;
                Some(judged.map(|()| entry))
            }
            Err(corrupt) => {
                self.at = self.block.len();
                Some(Err(corrupt))
            }
        }
    }
}

/// Writes an entry to `to`; `to.len()` becomes its record length. Panics if the name does not fit.
pub fn write_dirent(to: &mut [u8], inode: InodeNumber, name: &[u8], kind: Option<FileKind>) {
    let record = to.len();
    assert!(name.len() <= NAME_MAX && dirent_bytes(name.len()) <= record, "the entry fits its record");
    to[..4].copy_from_slice(&inode.0.to_le_bytes());
    to[4..6].copy_from_slice(&encode_record_bytes(record).to_le_bytes());
    to[6] = name.len().fit_u8();
    to[7] = kind.map_or(0, FileKind::dirent_code);
    to[DIRENT_HEADER_BYTES..DIRENT_HEADER_BYTES + name.len()].copy_from_slice(name);
}

/// Whether a block ends with a checksum pseudo-entry.
pub fn has_dirent_tail(block: &[u8]) -> bool {
    let Some(at) = block.len().checked_sub(DIRENT_TAIL_BYTES) else { return false };
    let tail = &block[at..];
    tail[..4] == [0; 4] && tail[4..6] == 12u16.to_le_bytes() && tail[6] == 0 && tail[7] == TAIL_FILE_TYPE
}

/// Checks the checksum at the end of a linear directory block; `seed` is the directory's.
///
/// # Errors
/// Another checksum, or no entry that holds it.
pub fn verify_dirent_checksum(block: &[u8], seed: ChecksumSeed, place: Place) -> Result<(), Corrupt> {
    if !has_dirent_tail(block) {
        let found = block.last_chunk::<5>().map_or(0, |tail| tail[0]);
        return Err(Corrupt::field(
            place,
            "det_reserved_ft",
            found.into(),
            "0xde (222), the checksum's entry",
        ));
    }
    let at = block.len() - DIRENT_TAIL_BYTES;
    let stored = u32::from_le_bytes([block[at + 8], block[at + 9], block[at + 10], block[at + 11]]);
    let computed = seed.over(&block[..at]).0;
    if stored == computed { Ok(()) } else { Err(Corrupt::checksum(place, stored, computed)) }
}

/// The seed that makes a block's checksum right. It tells which directory the block belongs to.
/// `None` if the block has no checksum.
pub fn dirent_checksum_seed(block: &[u8]) -> Option<ChecksumSeed> {
    if !has_dirent_tail(block) {
        return None;
    }
    let stored = block.last_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
    Some(ChecksumSeed::of(stored, &block[..block.len() - DIRENT_TAIL_BYTES]))
}

/// Writes a checksum pseudo-entry, with a checksum of 0, to the last 12 bytes of a block; the
/// block's entries must end before it.
pub fn init_dirent_tail(block: &mut [u8]) {
    let at = block.len() - DIRENT_TAIL_BYTES;
    let tail = &mut block[at..];
    tail.fill(0);
    tail[4..6].copy_from_slice(&12u16.to_le_bytes());
    tail[7] = TAIL_FILE_TYPE;
}

/// Writes the checksum pseudo-entry to the last 12 bytes of a block; the block's entries must end
/// before it.
pub fn write_dirent_tail(block: &mut [u8], seed: ChecksumSeed) {
    init_dirent_tail(block);
    let at = block.len() - DIRENT_TAIL_BYTES;
    let sum = seed.over(&block[..at]).0;
    block[at + 8..].copy_from_slice(&sum.to_le_bytes());
}

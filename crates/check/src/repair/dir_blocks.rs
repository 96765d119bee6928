//! Blocks of directories as lists of entries.

use super::editor::Editor;
use extant_format::{
    ChecksumSeed, DIRENT_HEADER_BYTES, DIRENT_TAIL_BYTES, FileKind, Incompat, InodeNumber,
    decode_record_bytes, dirent_bytes, encode_record_bytes, has_dirent_tail, write_dirent, write_dirent_tail,
};

/// An entry that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) inode: u32,
    pub(super) name: Vec<u8>,
    /// The file kind, as stored.
    pub(super) kind: u8,
    /// Where it was found.
    pub(super) offset: usize,
}

impl Entry {
    pub(super) fn new(inode: InodeNumber, name: &[u8], kind: FileKind) -> Self {
        Self { inode: inode.0, name: name.to_vec(), kind: kind.dirent_code(), offset: 0 }
    }
}

/// The entries of a block, and whether all of it could be parsed.
#[derive(Debug)]
pub(super) struct Salvaged {
    pub(super) entries: Vec<Entry>,
    pub(super) is_whole: bool,
}

fn short(block: &[u8], at: usize) -> u16 {
    block[at..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn entry_at(block: &[u8], at: usize) -> Option<Entry> {
    let len = usize::from(*block.get(at + 6)?);
    let name = block.get(at + DIRENT_HEADER_BYTES..at + DIRENT_HEADER_BYTES + len)?;
    let inode = block[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    Some(Entry { inode, name: name.to_vec(), kind: block[at + 7], offset: at })
}

/// Reads the entries of a block. After an entry that makes no sense, continues at the next place
/// where an entry names an inode of the kind that the entry says.
pub(super) fn salvage(editor: &Editor<'_>, block: &[u8]) -> Salvaged {
    let end = if has_dirent_tail(block) { block.len() - DIRENT_TAIL_BYTES } else { block.len() };
    let is_likely = |entry: &Entry| {
        let kind = editor.ctx.inodes.kind(InodeNumber(entry.inode));
        let has_kinds = editor.sb.incompat().contains(Incompat::FILETYPE);
        let is_kind = match kind {
            crate::state::Kind::File(code) => !has_kinds || code == entry.kind,
            _ => false,
        };
        let is_name = !entry.name.is_empty() && !entry.name.contains(&0) && !entry.name.contains(&b'/');
        is_kind && is_name
    };
    let mut salvaged = Salvaged { entries: Vec::new(), is_whole: true };
    // Whether an entry begins at `at`, provided that the length of the previous entry is right.
    let (mut at, mut begins) = (0, true);
    while at + DIRENT_HEADER_BYTES < end {
        let record = decode_record_bytes(short(block, at + 4), block.len());
        let entry = entry_at(block, at);
        let fits = |entry: &Entry| {
            record >= dirent_bytes(1)
                && record.is_multiple_of(4)
                && at + record <= block.len()
                && dirent_bytes(entry.name.len()) <= record
        };
        match entry {
            Some(entry) if fits(&entry) && begins && entry.inode == 0 => at += record,
            Some(entry)
                if fits(&entry) && (salvaged.is_whole && !entry.name.is_empty() || is_likely(&entry)) =>
            {
                begins = true;
                at += record;
                salvaged.entries.push(entry);
            }
            Some(entry) if is_likely(&entry) && at + dirent_bytes(entry.name.len()) <= end => {
                (salvaged.is_whole, begins) = (false, true);
                at += dirent_bytes(entry.name.len());
                salvaged.entries.push(entry);
            }
            // The length of an entry that makes no sense is unreliable, too.
            _ => {
                (salvaged.is_whole, begins) = (false, false);
                at += 4;
            }
        }
    }
    // The last entry must end where the entry with the checksum begins, or at the end of the block.
    salvaged.is_whole &= at == end;
    salvaged
}

fn kind_of(editor: &Editor<'_>, code: u8) -> u8 {
    if editor.sb.incompat().contains(Incompat::FILETYPE) { code } else { 0 }
}

/// Packs entries into a block. Also returns the entries that do not fit.
pub(super) fn pack<'e>(
    editor: &Editor<'_>,
    entries: &'e [Entry],
    seed: Option<ChecksumSeed>,
) -> (Vec<u8>, &'e [Entry]) {
    let mut block = vec![0; editor.block_bytes()];
    let room = block.len() - if seed.is_some() { DIRENT_TAIL_BYTES } else { 0 };
    let (mut at, mut last, mut count) = (0, None, 0);
    for entry in entries {
        let need = dirent_bytes(entry.name.len());
        if at + need > room {
            break;
        }
        write_dirent(&mut block[at..at + need], InodeNumber(entry.inode), &entry.name, None);
        block[at + 7] = kind_of(editor, entry.kind);
        last = Some(at);
        at += need;
        count += 1;
    }
    // The last entry gets the remaining space.
    let last = last.unwrap_or(0);
    block[last + 4..last + 6].copy_from_slice(&encode_record_bytes(room - last).to_le_bytes());
    if let Some(seed) = seed {
        write_dirent_tail(&mut block, seed);
    }
    (block, &entries[count..])
}

/// Returns a block without names, or with `.` and `..` only.
pub(super) fn empty(
    editor: &Editor<'_>,
    dots: Option<(InodeNumber, InodeNumber)>,
    seed: Option<ChecksumSeed>,
) -> Vec<u8> {
    let entries: Vec<Entry> = dots.map_or_else(Vec::new, |(own, parent)| {
        vec![Entry::new(own, b".", FileKind::Directory), Entry::new(parent, b"..", FileKind::Directory)]
    });
    pack(editor, &entries, seed).0
}

/// Puts an entry into a block, if there is room between the existing entries.
pub(super) fn insert(editor: &Editor<'_>, block: &mut [u8], entry: &Entry) -> bool {
    let end = if has_dirent_tail(block) { block.len() - DIRENT_TAIL_BYTES } else { block.len() };
    let need = dirent_bytes(entry.name.len());
    let mut at = 0;
    while at + DIRENT_HEADER_BYTES < end {
        let record = decode_record_bytes(short(block, at + 4), block.len());
        if record < dirent_bytes(1) || !record.is_multiple_of(4) || at + record > end {
            return false;
        }
        let Some(there) = entry_at(block, at) else { return false };
        let used = if there.inode == 0 { 0 } else { dirent_bytes(there.name.len()) };
        if record >= used + need {
            if used > 0 {
                block[at + 4..at + 6].copy_from_slice(&encode_record_bytes(used).to_le_bytes());
            }
            let to = &mut block[at + used..at + record];
            to.fill(0);
            write_dirent(to, InodeNumber(entry.inode), &entry.name, None);
            block[at + used + 7] = kind_of(editor, entry.kind);
            return true;
        }
        at += record;
    }
    false
}

/// Removes the entry at an offset, in place.
pub(super) fn remove(block: &mut [u8], offset: usize) {
    if let Some(inode) = block.get_mut(offset..offset + 4) {
        inode.fill(0);
    }
}

/// Seals a linear block that has room for its checksum.
pub(super) fn seal(block: &mut [u8], seed: Option<ChecksumSeed>) {
    if let Some(seed) = seed.filter(|_| has_dirent_tail(block)) {
        write_dirent_tail(block, seed);
    }
}

/// The directory that a directory belongs to, as far as it is known.
pub(super) fn parent_of(editor: &Editor<'_>, number: InodeNumber) -> InodeNumber {
    if number == InodeNumber::ROOT {
        return number;
    }
    let all = &editor.survey.all;
    let Some(n) = all.find(number.0) else { return InodeNumber::ROOT };
    let is_directory = |number: u32| editor.ctx.inodes.kind(InodeNumber(number)).is_directory();
    let known =
        [all.parent(n), all.dotdot(n)].into_iter().find(|&parent| parent != 0 && is_directory(parent));
    known.map_or(InodeNumber::ROOT, InodeNumber)
}

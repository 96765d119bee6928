//! Names that a transaction moved between directory blocks. The old entry stays until the new one
//! is durable.

use extant_block::Buf;
use extant_format::{
    DIRENT_HEADER_BYTES, DIRENT_TAIL_BYTES, DirEntries, DirEntry, FileBlock, InodeNumber, dirent_bytes,
    encode_record_bytes, has_dirent_tail,
};
use std::collections::{BTreeMap, BTreeSet};

/// A directory block before and after the transaction.
pub(super) struct Change<'a> {
    pub(super) block: u64,
    pub(super) before: &'a [u8],
    pub(super) after: &'a [u8],
}

/// When a directory block is written.
#[derive(Debug)]
pub(super) enum Step {
    /// With the added names: nothing in it waits for another block.
    Added,
    /// First this version, which keeps the names that move to other blocks; the final one when
    /// those are durable.
    AddedThenRemoved(Buf),
    /// After the added names: the block has no room for both the new names and those that leave it,
    /// or a new inode takes one of the latter names. (An inode that moves here from another block
    /// under such a name may lose its old name meanwhile.)
    BetweenThem,
}

/// Returns the step of each block, in the order of `changes`. `may_stay(inode)` says whether a name
/// that disappears from all of the blocks may have moved elsewhere.
///
/// Two full blocks that exchange names are both [`Step::BetweenThem`]. A crash between their writes
/// may leave an inode with links but no name, which e2fsck puts into `lost+found`.
pub(super) fn steps(changes: &[Change<'_>], may_stay: impl Fn(InodeNumber) -> bool) -> Vec<Step> {
    let mut added: BTreeMap<InodeNumber, Vec<u64>> = BTreeMap::new();
    for change in changes {
        let old: BTreeSet<_> = names(change.before).map(|name| name.key()).collect();
        for name in names(change.after).filter(|name| !old.contains(&name.key())) {
            added.entry(name.inode).or_default().push(change.block);
        }
    }
    let old: BTreeSet<_> =
        changes.iter().flat_map(|change| names(change.before)).map(|name| name.inode).collect();
    changes.iter().map(|change| step(change, &added, &old, &may_stay)).collect()
}

fn step(
    change: &Change<'_>,
    added: &BTreeMap<InodeNumber, Vec<u64>>,
    old: &BTreeSet<InodeNumber>,
    may_stay: &impl Fn(InodeNumber) -> bool,
) -> Step {
    let new: BTreeSet<_> = names(change.after).map(|name| name.key()).collect();
    let moves = |name: &Name<'_>| {
        let to = added.get(&name.inode);
        // A move within one block is a single write.
        !new.contains(&name.key())
            && to.map_or_else(|| may_stay(name.inode), |to| !to.contains(&change.block))
    };
    let fresh = names(change.after).filter(|name| !old.contains(&name.inode));
    let taken: BTreeSet<_> = fresh.map(|name| name.bytes).collect();
    let mut both: Option<Buf> = None;
    for name in names(change.before).filter(moves) {
        if taken.contains(name.bytes)
            || !insert(both.get_or_insert_with(|| Buf::from_slice(change.after)), &name)
        {
            return Step::BetweenThem;
        }
    }
    both.map_or(Step::Added, Step::AddedThenRemoved)
}

/// A name in a directory block, other than `.` and `..`.
struct Name<'a> {
    inode: InodeNumber,
    /// Length and type bytes, as in the directory entry.
    length_and_type: [u8; 2],
    bytes: &'a [u8],
}

impl<'a> Name<'a> {
    fn key(&self) -> (InodeNumber, &'a [u8]) {
        (self.inode, self.bytes)
    }
}

fn entries(block: &[u8]) -> impl Iterator<Item = DirEntry<'_>> {
    // Nodes of a hash tree look like a block with one free entry. The checksum's entry does not
    // count.
    let end = if has_dirent_tail(block) { block.len() - DIRENT_TAIL_BYTES } else { block.len() };
    let all = DirEntries::new(block, false, u32::MAX, InodeNumber(0), FileBlock(0));
    all.map_while(Result::ok).take_while(move |entry| entry.offset < end)
}

fn names(block: &[u8]) -> impl Iterator<Item = Name<'_>> {
    let used = entries(block).filter(|entry| entry.inode.0 != 0 && !matches!(entry.name, b"." | b".."));
    used.map(|entry| {
        let length_and_type = [block[entry.offset + 6], block[entry.offset + 7]];
        Name { inode: entry.inode, length_and_type, bytes: entry.name }
    })
}

/// Adds a name to a block if an entry has room; returns false otherwise.
fn insert(block: &mut [u8], name: &Name<'_>) -> bool {
    let need = dirent_bytes(name.bytes.len());
    let used = |entry: &DirEntry<'_>| if entry.inode.0 == 0 { 0 } else { dirent_bytes(entry.name.len()) };
    let room = entries(block)
        .find(|entry| entry.record_bytes - used(entry) >= need)
        .map(|entry| (entry.offset, used(&entry), entry.record_bytes));
    let Some((at, used, record)) = room else { return false };
    if used > 0 {
        block[at + 4..at + 6].copy_from_slice(&encode_record_bytes(used).to_le_bytes());
    }
    let entry = &mut block[at + used..at + record];
    entry[..4].copy_from_slice(&name.inode.0.to_le_bytes());
    entry[4..6].copy_from_slice(&encode_record_bytes(record - used).to_le_bytes());
    entry[6..8].copy_from_slice(&name.length_and_type);
    entry[DIRENT_HEADER_BYTES..DIRENT_HEADER_BYTES + name.bytes.len()].copy_from_slice(name.bytes);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::write_dirent;

    /// Builds a block of entries; the last one takes the remaining space.
    fn block(entries: &[(u32, &str)]) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        let mut at = 0;
        for (n, &(inode, name)) in entries.iter().enumerate() {
            let last = n + 1 == entries.len();
            let end = if last { bytes.len() } else { at + dirent_bytes(name.len()) };
            write_dirent(&mut bytes[at..end], InodeNumber(inode), name.as_bytes(), None);
            at = end;
        }
        bytes
    }

    fn list(bytes: &[u8]) -> Vec<(u32, String)> {
        names(bytes).map(|name| (name.inode.0, String::from_utf8_lossy(name.bytes).into_owned())).collect()
    }

    fn of<'a>(block: u64, before: &'a [u8], after: &'a [u8]) -> Change<'a> {
        Change { block, before, after }
    }

    #[test]
    fn a_name_that_moves_stays_where_it_was_until_it_is_where_it_goes() {
        let (a, b) = (block(&[(12, "moved"), (13, "stays")]), block(&[(14, "other")]));
        let (c, d) = (block(&[(13, "stays")]), block(&[(14, "other"), (12, "moved")]));
        let steps = steps(&[of(1, &a, &c), of(2, &b, &d)], |_| false);
        let Step::AddedThenRemoved(both) = &steps[0] else { panic!("{:?}", steps[0]) };
        assert_eq!(list(both), [(13, "stays".into()), (12, "moved".into())]);
        assert!(matches!(steps[1], Step::Added));
    }

    #[test]
    fn names_that_are_deleted_or_stay_in_their_block_are_written_once() {
        let (a, b) = (block(&[(12, "old"), (13, "gone")]), block(&[(12, "new")]));
        assert!(matches!(steps(&[of(1, &a, &b)], |_| false)[..], [Step::Added]));
    }

    #[test]
    fn a_name_that_moves_and_is_made_anew_is_in_no_block_twice() {
        let (a, b) = (block(&[(12, "log"), (13, "stays")]), block(&[(14, "other")]));
        let (c, d) = (block(&[(15, "log"), (13, "stays")]), block(&[(14, "other"), (12, "log")]));
        let steps = steps(&[of(1, &a, &c), of(2, &b, &d)], |_| false);
        assert!(matches!(steps[..], [Step::BetweenThem, Step::Added]), "{steps:?}");
    }

    #[test]
    fn a_full_block_is_written_between_the_others() {
        let long = "x".repeat(250);
        let full: Vec<(u32, String)> = (12..15).map(|n| (n, format!("{n}{long}"))).collect();
        let full: Vec<(u32, &str)> = full.iter().map(|(n, name)| (*n, name.as_str())).collect();
        let other = format!("30{long}");
        let (before, target) = (block(&full), block(&[(14, "short")]));
        let (mut after, mut with) = (full.clone(), vec![(14, "short")]);
        with.push(full[0]);
        after[0] = (30, &other);
        let steps = steps(&[of(1, &before, &block(&after)), of(2, &target, &block(&with))], |_| false);
        assert!(matches!(steps[..], [Step::BetweenThem, Step::Added]), "{steps:?}");
    }
}

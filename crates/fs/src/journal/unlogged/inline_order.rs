//! Write order of inline directories. The inode record that holds the names is written once: after
//! the names that leave it have reached their new places, and before those that enter it have left
//! their old ones.

use crate::journal::commit::Before;
use extant_format::{Incompat, InlineData, Inode, InodeFlags, InodeNumber, Superblock, Xattrs};
use std::collections::BTreeSet;

/// The phase in which the record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// With the names that are added: no name leaves it.
    Added,
    /// Between the two: names both enter and leave it.
    Between,
    /// Once the names that leave it are elsewhere: no name enters it.
    Removed,
}

/// Returns the turn of a record. `before` is its old contents; the new ones are in `table`, its
/// inode table block.
pub(super) fn turn(before: &Before, table: &[u8], deleted: &[Before], sb: &Superblock) -> Turn {
    let after = &table[before.at..before.at + before.record.len()];
    match (names(&before.record, before.number, sb), names(after, before.number, sb)) {
        (Some(old), Some(new)) => order(&old, &new, |inode| deleted.iter().any(|gone| gone.number == inode)),
        // The directory leaves its inode, or is damaged.
        _ => Turn::Between,
    }
}

type Names = BTreeSet<(InodeNumber, Vec<u8>)>;

fn order(old: &Names, new: &Names, is_deleted: impl Fn(InodeNumber) -> bool) -> Turn {
    let inodes = |of: &Names, but: &Names| -> BTreeSet<InodeNumber> {
        of.difference(but).map(|(inode, _)| *inode).collect()
    };
    let (gone, come) = (inodes(old, new), inodes(new, old));
    // Renaming within the directory is a single write.
    let leaves = gone.iter().any(|inode| !come.contains(inode) && !is_deleted(*inode));
    let comes = come.iter().any(|inode| !gone.contains(inode));
    match (comes, leaves) {
        (_, false) => Turn::Added,
        (true, true) => Turn::Between,
        (false, true) => Turn::Removed,
    }
}

/// The names in an inode; `None` if it holds no readable inline directory.
fn names(record: &[u8], number: InodeNumber, sb: &Superblock) -> Option<Names> {
    let inode = Inode::parse_unchecked(record, sb, number).ok()?;
    if !inode.flags().contains(InodeFlags::INLINE_DATA) {
        return None;
    }
    let xattrs = Xattrs::parse_inode(&inode.tail, number).ok()?;
    let directory =
        InlineData::parse(inode.map(), &xattrs, inode.size(), number).ok()?.as_directory().ok()?;
    let entries = directory.entries(sb.incompat().contains(Incompat::FILETYPE), sb.inodes_count());
    let names: Result<Names, _> =
        entries.map(|entry| entry.map(|entry| (entry.inode, entry.name.to_vec()))).collect();
    names.ok().map(|names| names.into_iter().filter(|(inode, _)| inode.0 != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[(u32, &str)]) -> Names {
        list.iter().map(|&(inode, name)| (InodeNumber(inode), name.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_record_waits_for_the_names_that_leave_it() {
        let none = |_| false;
        let (old, other) = (names(&[(12, "a"), (13, "b")]), names(&[(13, "b"), (14, "c")]));
        assert_eq!(order(&names(&[(13, "b")]), &old, none), Turn::Added);
        assert_eq!(order(&old, &names(&[(13, "b")]), none), Turn::Removed);
        assert_eq!(order(&old, &other, none), Turn::Between);
        assert_eq!(order(&old, &other, |inode| inode.0 == 12), Turn::Added, "12 is deleted, not moved");
        assert_eq!(order(&old, &names(&[(12, "new"), (13, "b")]), none), Turn::Added, "12 stays here");
    }
}

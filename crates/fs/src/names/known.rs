//! Names that were looked up or created, with their inodes (kernel: dcache).
//!
//! A lookup that hits this cache reads no directory block. Entries are added, removed and looked up
//! under their directory's lock, so a hit is always current. The table has a fixed size: names in
//! the same set replace each other in turn, and long names are not cached.

use extant_cache::accounts::{Account, Charge, Shrink};
use extant_format::{InodeNumber, UintExt};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::OnceLock;

const SHARDS: usize = 32;
/// Names per set.
const WAYS: usize = 4;
/// Names per shard, a power of two.
const ENTRIES: usize = 2048;
/// Maximum length of a cached name in bytes.
const NAME_MAX: usize = 47;

#[derive(Clone, Copy)]
struct Entry {
    /// 0 in a free entry.
    dir: u32,
    inode: u32,
    len: u8,
    name: [u8; NAME_MAX],
}

impl Entry {
    const FREE: Self = Self { dir: 0, inode: 0, len: 0, name: [0; NAME_MAX] };

    fn is(&self, dir: InodeNumber, name: &[u8]) -> bool {
        self.dir == dir.0 && self.name.get(..self.len.into()) == Some(name)
    }
}

/// Memory is allocated with the first name, and freed when the page cache asks for it.
#[derive(Default)]
struct Shard {
    entries: Vec<Entry>,
    /// The entry of a set to replace next.
    turn: usize,
    charge: Option<Charge>,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct KnownNames {
    shards: [Mutex<Shard>; SHARDS],
    account: OnceLock<Account>,
}

impl KnownNames {
    /// Memory of all shards, in bytes.
    pub(crate) const BYTES: u64 = (SHARDS as u64) * Self::SHARD_BYTES;
    const SHARD_BYTES: u64 = (ENTRIES * size_of::<Entry>()) as u64;

    /// Charges the memory to `account`, whose shrinker the caller sets. Called once.
    pub(crate) fn charge_to(&self, account: Account) {
        let set = self.account.set(account);
        assert!(set.is_ok(), "one account");
    }

    /// The shard of a name, and the start of its set there.
    fn place(&self, dir: InodeNumber, name: &[u8]) -> (&Mutex<Shard>, usize) {
        // Only the low bits depend on the whole name: `rustc_hash` ends with a rotation that moves
        // them there.
        let hash = FxBuildHasher.hash_one((dir.0, name)).to_usize();
        (&self.shards[hash % SHARDS], hash / SHARDS % (ENTRIES / WAYS) * WAYS)
    }

    /// The inode of a name, if cached.
    pub(crate) fn get(&self, dir: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        let (shard, at) = self.place(dir, name);
        let shard = shard.lock();
        let entry = shard.entries.get(at..at + WAYS)?.iter().find(|entry| entry.is(dir, name))?;
        Some(InodeNumber(entry.inode))
    }

    /// Records that a name leads to an inode.
    pub(crate) fn put(&self, dir: InodeNumber, name: &[u8], inode: InodeNumber) {
        if name.len() > NAME_MAX || matches!(name, b"." | b"..") {
            return;
        }
        let (shard, at) = self.place(dir, name);
        let mut shard = shard.lock();
        let Shard { entries, turn, charge } = &mut *shard;
        if entries.is_empty() {
            *charge = self.account.get().map(|account| account.charge(Self::SHARD_BYTES));
            *entries = vec![Entry::FREE; ENTRIES];
        }
        let set = &mut entries[at..at + WAYS];
        let way = set.iter().position(|entry| entry.is(dir, name));
        let way = way.or_else(|| set.iter().position(|entry| entry.dir == 0)).unwrap_or_else(|| {
            *turn = (*turn + 1) % WAYS;
            *turn
        });
        let entry = &mut set[way];
        (entry.dir, entry.inode, entry.len) = (dir.0, inode.0, name.len().fit_u8());
        entry.name[..name.len()].copy_from_slice(name);
    }

    /// Removes a name that is gone or about to lead to another inode.
    pub(crate) fn forget(&self, dir: InodeNumber, name: &[u8]) {
        let (shard, at) = self.place(dir, name);
        let mut shard = shard.lock();
        if let Some(set) = shard.entries.get_mut(at..at + WAYS)
            && let Some(entry) = set.iter_mut().find(|entry| entry.is(dir, name))
        {
            *entry = Entry::FREE;
        }
    }
}

impl Shrink for KnownNames {
    fn shrink(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        for shard in &self.shards {
            if freed >= bytes {
                break;
            }
            let old = std::mem::take(&mut *shard.lock());
            freed += u64::from(old.charge.is_some()) * Self::SHARD_BYTES;
        }
        freed
    }
}

impl fmt::Debug for KnownNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KnownNames")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_until_it_is_forgotten_or_replaced() {
        let names = KnownNames::default();
        let (dir, other) = (InodeNumber(12), InodeNumber(13));
        assert_eq!(names.get(dir, b"a"), None);
        names.put(dir, b"a", InodeNumber(20));
        names.put(other, b"a", InodeNumber(21));
        assert_eq!(names.get(dir, b"a"), Some(InodeNumber(20)));
        names.put(dir, b"a", InodeNumber(22));
        assert_eq!(names.get(dir, b"a"), Some(InodeNumber(22)));
        names.forget(dir, b"a");
        assert_eq!(names.get(dir, b"a"), None);
        assert_eq!(names.get(other, b"a"), Some(InodeNumber(21)), "of another directory");
        names.put(dir, &[b'x'; 60], InodeNumber(23));
        assert_eq!(names.get(dir, &[b'x'; 60]), None, "too long to be kept");
        names.put(dir, b"..", InodeNumber(2));
        assert_eq!(names.get(dir, b".."), None, "it moves with the directory");
    }

    #[test]
    fn most_of_so_many_names_stay() {
        let names = KnownNames::default();
        let name = |n: u32| format!("file-{n}");
        for n in 0..30_000 {
            names.put(InodeNumber(2), name(n).as_bytes(), InodeNumber(n + 1));
        }
        let kept = (0..30_000)
            .filter(|&n| match names.get(InodeNumber(2), name(n).as_bytes()) {
                Some(found) => {
                    assert_eq!(found, InodeNumber(n + 1));
                    true
                }
                None => false,
            })
            .count();
        assert!(kept > 29_000, "{kept} of 30,000");
        names.shrink(u64::MAX);
        assert_eq!(names.get(InodeNumber(2), name(29_999).as_bytes()), None);
    }
}

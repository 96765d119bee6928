//! Caches names looked up on a volume open for reading, where they cannot change.

use extant_cache::Disk;
use extant_cache::accounts::{AccountConfig, Charge};
use extant_format::{InodeNumber, UintExt};
use parking_lot::RwLock;
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Names may take one part in this many of the cache's budget. When they would exceed it, all are
/// dropped.
const SHARE: u64 = 64;
/// Memory of a name in addition to its bytes.
const NAME_BYTES: u64 = size_of::<(u64, Known)>() as u64 + 32;

/// The inodes that names lead to.
#[derive(Debug)]
pub(crate) struct StoredNames {
    most_bytes: u64,
    table: RwLock<Table>,
}

#[derive(Debug)]
struct Table {
    /// By hash of directory and name; if hashes collide, the last name is kept.
    names: HashMap<u64, Known, FxBuildHasher>,
    charge: Charge,
}

#[derive(Debug)]
struct Known {
    dir: InodeNumber,
    name: Box<[u8]>,
    inode: InodeNumber,
}

fn hash(dir: InodeNumber, name: &[u8]) -> u64 {
    FxBuildHasher.hash_one((dir.0, name))
}

impl StoredNames {
    pub(crate) fn new(disk: &Disk) -> Self {
        let most_bytes = disk.budget_bytes() / SHARE;
        let account = disk.account(AccountConfig { name: "names", limit_bytes: most_bytes, pinned_bytes: 0 });
        let table = Table { names: HashMap::default(), charge: account.charge(0) };
        Self { most_bytes, table: RwLock::new(table) }
    }

    /// The inode that a name is known to lead to.
    pub(crate) fn get(&self, dir: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        let table = self.table.read();
        let known = table.names.get(&hash(dir, name))?;
        (known.dir == dir && *known.name == *name).then_some(known.inode)
    }

    pub(crate) fn add(&self, dir: InodeNumber, name: &[u8], inode: InodeNumber) {
        let bytes = NAME_BYTES + name.len().to_u64();
        let mut table = self.table.write();
        if table.charge.bytes() + bytes > self.most_bytes {
            table.names = HashMap::default();
            table.charge.resize(0);
        }
        if bytes > self.most_bytes {
            return;
        }
        let known = Known { dir, name: name.into(), inode };
        let before = table.names.insert(hash(dir, name), known);
        let before = before.map_or(0, |before| NAME_BYTES + before.name.len().to_u64());
        let charged = table.charge.bytes() + bytes - before;
        table.charge.resize(charged);
    }
}

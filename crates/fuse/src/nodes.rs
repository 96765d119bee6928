//! The inodes that the kernel refers to, each with its lookup count.

use crate::errno::{Errno, Result};
use crate::object::{Object, ROOT, nodeid};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// See the module documentation. An inode in the table is not deleted, and its number not used
/// again, until the kernel forgets it.
#[derive(Debug)]
pub(crate) struct Nodes {
    table: Mutex<FxHashMap<u64, Entry>>,
}

#[derive(Debug)]
struct Entry {
    object: Object,
    lookups: u64,
}

impl Nodes {
    pub(crate) fn new(root: Object) -> Self {
        let mut table = FxHashMap::default();
        // The kernel never forgets it.
        table.insert(ROOT, Entry { object: root, lookups: 1 });
        Self { table: Mutex::new(table) }
    }

    /// # Errors
    /// The kernel has never looked it up.
    pub(crate) fn get(&self, nodeid: u64) -> Result<Object> {
        let table = self.table.lock();
        Ok(table.get(&nodeid).ok_or(Errno::STALE)?.object.clone())
    }

    /// Adds one to an inode's lookup count. Returns its number.
    pub(crate) fn tell(&self, object: &Object) -> u64 {
        let nodeid = nodeid(object.inode());
        let mut table = self.table.lock();
        let entry = table.entry(nodeid).or_insert_with(|| Entry { object: object.clone(), lookups: 0 });
        entry.lookups += 1;
        nodeid
    }

    /// Takes back so many of those counts. Returns the inode if none is left.
    pub(crate) fn forget(&self, nodeid: u64, lookups: u64) -> Option<Object> {
        let mut table = self.table.lock();
        let entry = table.get_mut(&nodeid).filter(|_| nodeid != ROOT)?;
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups > 0 {
            return None;
        }
        table.remove(&nodeid).map(|entry| entry.object)
    }

    /// How many inodes the kernel knows, the root included.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().len()
    }

    pub(crate) fn clear(&self) {
        let table = std::mem::take(&mut *self.table.lock());
        drop(table);
    }
}

//! The inodes that the kernel knows, each with its generation and lookup count.
//!
//! Each request looks its inode up by number, so no more is kept. Only an inode that has lost its
//! last name is kept in use until the kernel forgets it, because it would be deleted otherwise.

use crate::errno::{Errno, Result};
use crate::object::{Object, nodeid, number_of};
use extant_format::{InodeNumber, UintExt};
use extant_fs::{Node, Volume, Way};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use std::hash::Hash;

const SHARDS: usize = 8;

/// The table. An inode takes at most 24 bytes, a directory twice that.
#[derive(Debug)]
pub(crate) struct Nodes {
    volume: Volume,
    is_writable: bool,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    known: FxHashMap<InodeNumber, Entry>,
    /// How directories were looked up.
    ways: FxHashMap<InodeNumber, Way>,
    /// Inodes without names, and the root.
    held: FxHashMap<InodeNumber, Object>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    /// The count saturates; the inode is then never forgotten.
    lookups: u32,
}

impl Shard {
    fn bytes(&self) -> u64 {
        table_bytes(&self.known) + table_bytes(&self.ways) + table_bytes(&self.held)
    }
}

/// Squaring makes the shares uneven, so that not all tables double at the same time.
fn shard_of(number: InodeNumber) -> usize {
    let spread = u64::from(number.0.wrapping_mul(0x9e37_79b9));
    ((spread * spread) >> 61).to_usize()
}

/// Memory of a table: an eighth of its slots stay free, and each slot takes one additional byte
/// (`hashbrown`).
fn table_bytes<K, V>(table: &FxHashMap<K, V>) -> u64 {
    (table.capacity() * 8 / 7 * (size_of::<(K, V)>() + 1)).to_u64()
}

/// Removes an entry, and shrinks the table when few entries are left.
fn remove<K: Eq + Hash, V>(table: &mut FxHashMap<K, V>, key: &K) -> Option<V> {
    let value = table.remove(key);
    if table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2);
    }
    value
}

impl Nodes {
    pub(crate) fn new(volume: Volume, root: Object) -> Self {
        let is_writable = matches!(root, Object::Live(_));
        let nodes = Self { volume, is_writable, shards: Default::default() };
        {
            let mut shard = nodes.shard(InodeNumber::ROOT);
            // The kernel never forgets the root.
            shard.known.insert(InodeNumber::ROOT, Entry { generation: root.generation(), lookups: u32::MAX });
            shard.held.insert(InodeNumber::ROOT, root);
        }
        nodes
    }

    fn shard(&self, number: InodeNumber) -> MutexGuard<'_, Shard> {
        self.shards[shard_of(number)].lock()
    }

    /// Returns an inode. Waits only if it is not in memory.
    ///
    /// # Errors
    /// The kernel does not know the inode, or has forgotten it; the inode cannot be read.
    pub(crate) async fn get(&self, nodeid: u64) -> Result<Object> {
        let number = number_of(nodeid)?;
        let (generation, way) = {
            let shard = self.shard(number);
            if let Some(object) = shard.held.get(&number) {
                return Ok(object.clone());
            }
            let entry = shard.known.get(&number).ok_or(Errno::STALE)?;
            (entry.generation, shard.ways.get(&number).copied())
        };
        if self.is_writable {
            return Ok(Object::Live(self.volume.known_node(number, generation, way).await?));
        }
        let object = Object::Stored(self.volume.inode(number).await?.into());
        if object.generation() == generation { Ok(object) } else { Err(Errno::STALE.into()) }
    }

    /// Adds one to an inode's lookup count. Returns the protocol's number for the inode.
    pub(crate) fn tell(&self, object: &Object) -> u64 {
        let number = object.inode();
        let mut shard = self.shard(number);
        let entry = shard.known.entry(number).or_insert(Entry { generation: 0, lookups: 0 });
        *entry = Entry { generation: object.generation(), lookups: entry.lookups.saturating_add(1) };
        if let Object::Live(node) = object {
            if let Some(way) = node.way() {
                shard.ways.insert(number, way);
            }
            // An operation that removes the last name after this point finds the entry and holds
            // the inode.
            if !node.has_name() {
                shard.held.entry(number).or_insert_with(|| object.clone());
            }
        }
        nodeid(number)
    }

    /// Keeps an inode in use that has lost its last name, if the kernel knows it.
    pub(crate) fn lost_name(&self, node: Node) {
        let number = node.inode();
        let mut shard = self.shard(number);
        let is_known = shard.known.get(&number).is_some_and(|entry| entry.generation == node.generation());
        if is_known && !node.has_name() {
            shard.held.entry(number).or_insert(Object::Live(node));
        }
    }

    /// Subtracts from an inode's lookup count.
    pub(crate) fn forget(&self, nodeid: u64, lookups: u64) {
        let Ok(number) = number_of(nodeid) else { return };
        let mut shard = self.shard(number);
        let Some(entry) = shard.known.get_mut(&number).filter(|entry| entry.lookups < u32::MAX) else {
            return;
        };
        entry.lookups = entry.lookups.saturating_sub(u32::try_from(lookups).unwrap_or(u32::MAX));
        if entry.lookups > 0 {
            return;
        }
        remove(&mut shard.known, &number);
        remove(&mut shard.ways, &number);
        let held = remove(&mut shard.held, &number);
        drop(shard);
        drop(held);
    }

    /// Number of inodes that the kernel knows, including the root.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().known.len()).sum()
    }

    /// Memory of the tables, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let shard = std::mem::take(&mut *shard.lock());
            drop(shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_takes_few_bytes() {
        let mut shards: [Shard; SHARDS] = Default::default();
        for number in (11..120_000).map(InodeNumber) {
            shards[shard_of(number)].known.insert(number, Entry { generation: 7, lookups: 1 });
            let bytes: u64 = shards.iter().map(Shard::bytes).sum();
            assert!(number.0 < 20_000 || bytes <= 24 * u64::from(number.0), "{bytes} bytes for {number}");
        }
        for number in (11..119_000).map(InodeNumber) {
            remove(&mut shards[shard_of(number)].known, &number);
        }
        let bytes: u64 = shards.iter().map(Shard::bytes).sum();
        assert!(bytes < 200 * 1000, "{bytes} bytes for the last thousand");
    }
}

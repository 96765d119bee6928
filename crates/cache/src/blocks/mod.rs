//! Metadata blocks of one volume in memory: a buffer cache with versions.
//!
//! A block is contiguous memory of one block's size, kept in reference-counted versions. A reader
//! takes the live version and keeps it. An edit changes the live version in place, or copies it
//! first if a reader, the log or a home write still holds it. Edits carry an epoch (the number of a
//! transaction). The first edit of a later epoch saves the version that an earlier epoch left
//! dirty, so that a commit gets each block as its transaction left it, without blocking later
//! changes.
//!
//! A block is pinned while a [`BlockRef`] to it lives; other blocks may be evicted at any time. The
//! owner of a dirty block therefore keeps a reference until the block has been written home. This
//! module knows nothing about ext or journals.

mod block;
mod io;
pub mod life;
#[cfg(test)]
mod tests;

pub use block::{BlockBytes, BlockEdit, BlockRef, EditToken};
pub use life::{Committed, Durable, Frozen, durable_write};

use crate::accounts::{Account, Charge, Shrink};
use block::Block;
use extant_block::{Buf, Device, IoError};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Neighbouring blocks are usually wanted together: a read covers this much of the neighbourhood,
/// in bytes.
const READ_AROUND_BYTES: u64 = 64 << 10;
const SHARDS: usize = 16;
/// Entries of the eviction queue examined per insertion.
const LOOKED_AT: usize = 8;
/// The account's charge follows the memory in steps of this many bytes.
const CHARGE_STEP_BYTES: u64 = 256 << 10;

/// The cached blocks of one volume. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Blocks {
    shared: Arc<BlockStore>,
}

#[derive(Debug)]
struct BlockStore {
    device: Arc<dyn Device>,
    block_bytes: usize,
    /// Number of blocks that lie entirely on the device.
    blocks: u64,
    around: u64,
    /// Number of blocks that may stay in memory unpinned.
    budget_blocks: AtomicUsize,
    resident: AtomicUsize,
    /// Bytes of all versions: those of resident blocks, and those held by readers, the log or home
    /// writes.
    version_bytes: Arc<AtomicUsize>,
    charge: OnceLock<Mutex<Charge>>,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    map: HashMap<u64, Arc<Block>, FxBuildHasher>,
    /// Eviction order, with a second chance.
    queue: VecDeque<u64>,
    /// Entries of `queue` whose block is gone, or that are duplicates.
    stale: usize,
}

impl Blocks {
    /// Caches blocks of `block_bytes` (a power of two from 1 to 64 KiB) of `device`; `budget_bytes`
    /// of them may stay in memory unpinned.
    pub fn new(device: Arc<dyn Device>, block_bytes: usize, budget_bytes: usize) -> Self {
        assert!(block_bytes.is_power_of_two() && (1 << 10..=64 << 10).contains(&block_bytes));
        let blocks = device.limits().capacity_bytes / block_bytes as u64;
        let shared = BlockStore {
            device,
            block_bytes,
            blocks,
            around: (READ_AROUND_BYTES / block_bytes as u64).max(1),
            budget_blocks: AtomicUsize::new((budget_bytes / block_bytes).max(SHARDS)),
            resident: AtomicUsize::new(0),
            version_bytes: Arc::default(),
            charge: OnceLock::new(),
            shards: Default::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The device the blocks are on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// Size of a block, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.shared.block_bytes
    }

    /// Memory of the resident blocks, pinned or not, without their older versions.
    pub fn resident_bytes(&self) -> usize {
        self.shared.resident.load(Ordering::Relaxed) * self.shared.block_bytes
    }

    /// Memory of all versions of blocks that anything holds at present.
    pub fn version_bytes(&self) -> usize {
        self.shared.version_bytes.load(Ordering::Relaxed)
    }

    /// Changes how much may stay in memory unpinned. Takes effect as blocks are added.
    pub fn set_budget(&self, bytes: usize) {
        self.shared.budget_blocks.store((bytes / self.shared.block_bytes).max(SHARDS), Ordering::Relaxed);
    }

    /// Charges the memory of all versions to an account, which may then ask this cache to shrink.
    ///
    /// Call it at most once. The charge is updated as blocks come and go, and by
    /// [`Blocks::settle_charge`].
    pub fn charge_to(&self, account: &Account) {
        let charge = account.charge(self.version_bytes() as u64);
        assert!(self.shared.charge.set(Mutex::new(charge)).is_ok(), "blocks are charged to one account");
        account.set_shrinker(Arc::downgrade(&self.shared) as Weak<dyn Shrink>);
    }

    /// Updates the account's charge for versions copied or dropped since blocks last came or went.
    /// Call it after a commit or a checkpoint, which hold many versions.
    pub fn settle_charge(&self) {
        self.shared.settle();
    }

    /// Block `n`, if it is in memory. Never waits for the device.
    pub fn get(&self, n: u64) -> Option<BlockRef> {
        let block = self.shared.shard(n).lock().map.get(&n).cloned()?;
        BlockRef::of(block)
    }

    /// Reads block `n`. Concurrent callers share one read.
    ///
    /// # Errors
    /// The device's error. A later call tries again.
    pub async fn read(&self, n: u64) -> Result<BlockRef, IoError> {
        let mut around = self.shared.around;
        loop {
            match self.shared.load(n, around).await {
                // The fault may be a neighbour's. The next read may again be shared with a caller
                // that also found the block missing.
                Err(failed) if failed.others => around = 1,
                other => return other.map_err(|failed| failed.error),
            }
        }
    }

    /// Creates block `n` as zeros without reading it, because it was just allocated. Its old
    /// contents are forgotten.
    pub fn create(&self, n: u64) -> BlockRef {
        let zeroes = Buf::zeroed(self.shared.block_bytes).counted_in(&self.shared.version_bytes);
        let block = Arc::new(Block::held(n, zeroes));
        self.shared.put(&mut self.shared.shard(n).lock(), block.clone());
        self.shared.settle();
        BlockRef::of(block).expect("it was made with its bytes")
    }

    /// Reads the blocks that are missing, adjacent ones together. An error is reported when the
    /// block is read.
    pub async fn prefetch(&self, ns: impl Iterator<Item = u64>) {
        let limit = self.shared.budget_blocks.load(Ordering::Relaxed) / 4;
        let mut wanted: Vec<u64> = ns.take(limit.max(1)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.shared.prefetch(&wanted).await;
    }

    /// Block `n` was freed: drops its contents. Existing references keep their bytes, but no longer
    /// refer to the cached block.
    pub fn forget(&self, n: u64) {
        let forgotten = {
            let mut shard = self.shared.shard(n).lock();
            let forgotten = shard.map.remove(&n);
            if forgotten.is_some() {
                shard.stale += 1;
                self.shared.resident.fetch_sub(1, Ordering::Relaxed);
            }
            forgotten
        };
        if forgotten.is_some() {
            drop(forgotten);
            self.shared.settle();
        }
    }
}

impl Shard {
    /// Drops at most `most` blocks. Looks at the next `places` entries of the eviction queue, for
    /// unpinned blocks not used since eviction last looked at them. Returns how many it dropped.
    fn evict(&mut self, most: usize, places: usize) -> usize {
        let mut dropped = 0;
        for _ in 0..places {
            if dropped == most {
                break;
            }
            let Some(oldest) = self.queue.pop_front() else { break };
            match self.map.get(&oldest) {
                None => self.stale = self.stale.saturating_sub(1),
                // Only the table refers to the block, and new references come from the table, which
                // is locked.
                Some(block) if Arc::strong_count(block) == 1 && !block.take_used() => {
                    self.map.remove(&oldest);
                    dropped += 1;
                }
                Some(_) => self.queue.push_back(oldest),
            }
        }
        dropped
    }
}

impl BlockStore {
    /// The shard of block `n`. Neighbours that are read together share one.
    fn shard(&self, n: u64) -> &Mutex<Shard> {
        &self.shards[(n / self.around) as usize % SHARDS]
    }

    /// Updates the account's charge to the current memory. Call it without locks.
    fn settle(&self) {
        loop {
            let Some(mut charge) = self.charge.get().and_then(Mutex::try_lock) else { return };
            let versions = self.version_bytes.load(Ordering::SeqCst);
            let bytes = versions as u64;
            if bytes.abs_diff(charge.bytes()) >= CHARGE_STEP_BYTES {
                charge.resize(bytes);
                continue;
            }
            drop(charge);
            if self.version_bytes.load(Ordering::SeqCst) == versions {
                return;
            }
            // Another task may have found the charge locked and left: check again on its behalf.
        }
    }

    /// Inserts `block` under its number, and makes room for it.
    fn put(&self, shard: &mut Shard, block: Arc<Block>) {
        let n = block.number;
        shard.queue.push_back(n);
        if shard.map.insert(n, block).is_some() {
            shard.stale += 1;
        } else {
            self.resident.fetch_add(1, Ordering::SeqCst);
        }
        let budget = self.budget_blocks.load(Ordering::Relaxed);
        let over = self.resident.load(Ordering::Relaxed).saturating_sub(budget);
        self.resident.fetch_sub(shard.evict(over, LOOKED_AT), Ordering::SeqCst);
        if shard.stale > shard.map.len() + 64 {
            let mut seen = BTreeSet::new();
            let Shard { map, queue, stale } = shard;
            queue.retain(|n| map.contains_key(n) && seen.insert(*n));
            *stale = 0;
        }
    }

    /// Forgets a block whose read failed, unless another block has replaced it.
    fn remove(&self, block: &Arc<Block>) {
        let mut shard = self.shard(block.number).lock();
        if shard.map.get(&block.number).is_some_and(|held| Arc::ptr_eq(held, block)) {
            shard.map.remove(&block.number);
            shard.stale += 1;
            self.resident.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Shrink for BlockStore {
    fn shrink(&self, bytes: u64) -> u64 {
        let wanted = (bytes as usize).div_ceil(self.block_bytes);
        let mut freed = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            // Examine at most half of a shard, so that the most-used blocks survive until the next
            // call.
            let places = shard.queue.len() / 2;
            freed += shard.evict(wanted - freed, places);
        }
        self.resident.fetch_sub(freed, Ordering::SeqCst);
        self.settle();
        (freed * self.block_bytes) as u64
    }
}

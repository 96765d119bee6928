//! Limits on what a check may use.

use extant_format::{Superblock, UintExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Memory that every check needs: reads in flight, maps that wait to be read, and findings.
pub(crate) const FIXED_BYTES: u64 = 24 << 20;
/// Memory for each group in addition to its bits: descriptor, places of its structures, totals.
const GROUP_BYTES: u64 = 400;
/// Inode slots are kept in pages of this many. A page that contains an inode in use takes three
/// bytes for each slot, and some for the page itself.
pub(crate) const PAGE_SLOTS: u32 = 1024;
pub(crate) const PAGE_BYTES: u64 = 3 * 1024 + 96;
/// Allowance for each inode in use: its share of an attribute block.
const INODE_BYTES: u64 = 96;
/// Allowance for each directory: the directory itself, the parents of its names, and some blocks.
const DIR_BYTES: u64 = 256;
/// Maximum that the number of inodes may add to the default memory limit: an untrusted volume may
/// claim any number.
const INODES_BYTES_MAX: u64 = 2 << 30;
/// How many blocks with several owners may be read again, once for each further owner, on any
/// volume.
const REPEATS: u64 = 20_000;
/// Maximum number of such blocks that are allowed in addition, one for each block of the volume.
const REPEATS_MORE_MAX: u64 = 1 << 20;

/// What each of several tasks counts in advance.
const ADVANCE_BYTES: u64 = 16 << 10;

/// Tells a running check to stop. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the check with [`crate::CheckError::Cancelled`] as soon as its current reads have
    /// completed.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Cancel::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a check ended before it had seen everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incomplete {
    /// The check would have kept more than [`crate::Options::memory_bytes`].
    Memory {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// Blocks with several owners would have had to be read too often.
    Repeats {
        /// The maximum number of such reads.
        limit: u64,
    },
}

/// What was used so far, shared by all tasks. The sums do not depend on the order of the tasks.
#[derive(Debug)]
pub(crate) struct Limits {
    memory_bytes: AtomicU64,
    used_bytes: AtomicU64,
    repeats_max: AtomicU64,
    repeats: AtomicU64,
    over: AtomicU8,
    cancel: Cancel,
    /// What a task counts in advance, in bytes.
    advance: u64,
}

const OVER_MEMORY: u8 = 1;
const OVER_REPEATS: u8 = 2;

impl Limits {
    /// Uses the limits of a small volume until the volume is known.
    pub(crate) fn new(memory_bytes: Option<u64>, cancel: Cancel) -> Self {
        Self {
            memory_bytes: AtomicU64::new(memory_bytes.unwrap_or(2 * FIXED_BYTES)),
            used_bytes: AtomicU64::new(0),
            repeats_max: AtomicU64::new(REPEATS),
            repeats: AtomicU64::new(0),
            over: AtomicU8::new(0),
            cancel,
            advance: 0,
        }
    }

    /// Lets tasks count memory in advance. A check that reaches its limit because of that must
    /// start anew, with a single task.
    pub(crate) fn with_advances(mut self) -> Self {
        self.advance = ADVANCE_BYTES;
        self
    }

    /// Sets the limits for a volume: the requested ones, or what a healthy volume of this size
    /// needs.
    pub(crate) fn set(
        &self,
        memory_bytes: Option<u64>,
        sb: &Superblock,
        groups: u32,
        inodes_in_use: u64,
        dirs: u64,
    ) {
        let clusters = u64::from(groups) * u64::from(sb.clusters_per_group());
        let clusters = clusters.min(sb.blocks_count() / u64::from(sb.blocks_per_cluster()) + 1);
        let pages = u64::from(groups) * u64::from(sb.inodes_per_group()).div_ceil(PAGE_SLOTS.into());
        let inodes = PAGE_BYTES * pages.min(inodes_in_use) + INODE_BYTES * inodes_in_use + DIR_BYTES * dirs;
        let memory = memory_bytes.unwrap_or_else(|| {
            // A second bit is kept for clusters with several owners.
            2 * FIXED_BYTES
                + clusters.div_ceil(4)
                + GROUP_BYTES * u64::from(groups)
                + inodes.min(INODES_BYTES_MAX)
        });
        self.memory_bytes.store(memory, Ordering::Relaxed);
        let blocks = u64::from(groups) * u64::from(sb.blocks_per_group());
        self.repeats_max.store(REPEATS + blocks.min(REPEATS_MORE_MAX), Ordering::Relaxed);
    }

    /// Counts memory that will be kept; returns false if the limit is reached.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let used = self.used_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used.saturating_add(FIXED_BYTES) <= self.memory_bytes.load(Ordering::Relaxed) {
            return true;
        }
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.over.fetch_or(OVER_MEMORY, Ordering::Relaxed);
        false
    }

    /// Releases memory that was counted. Must not be called while tasks run, because the result
    /// would then depend on their order.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts the memory for groups.
    pub(crate) fn take_groups(&self, groups: u32) -> bool {
        self.take(GROUP_BYTES * u64::from(groups))
    }

    /// Appends to a list, and counts twice the item's size: a growing list takes up to twice its
    /// contents.
    pub(crate) fn push<T>(&self, list: &mut Vec<T>, item: T) {
        if self.take(2 * size_of::<T>().to_u64()) {
            list.push(item);
        }
    }

    /// A purse for a task.
    pub(crate) fn purse(self: &Arc<Self>) -> Purse {
        Purse { limits: self.clone(), left: 0 }
    }

    /// Whether blocks that were already read for one owner may be read again for another.
    pub(crate) fn repeat(&self, blocks: u64) -> bool {
        let repeats = self.repeats.fetch_add(blocks, Ordering::Relaxed).saturating_add(blocks);
        if repeats <= self.repeats_max.load(Ordering::Relaxed) {
            return true;
        }
        self.over.fetch_or(OVER_REPEATS, Ordering::Relaxed);
        false
    }

    /// Allows for a further pass over all maps, in which the reads for the first owner count as
    /// well.
    pub(crate) fn next_pass(&self) {
        let most = self.repeats_max.load(Ordering::Relaxed);
        self.repeats_max.store(2 * most, Ordering::Relaxed);
        self.repeats.store(0, Ordering::Relaxed);
    }

    /// Whether the check is over its limits or was cancelled. Nothing found from then on is
    /// reported.
    pub(crate) fn stopped(&self) -> bool {
        self.over.load(Ordering::Relaxed) != 0 || self.is_cancelled()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    pub(crate) fn incomplete(&self) -> Option<Incomplete> {
        let over = self.over.load(Ordering::Relaxed);
        if over & OVER_MEMORY != 0 {
            return Some(Incomplete::Memory { limit_bytes: self.memory_bytes.load(Ordering::Relaxed) });
        }
        (over & OVER_REPEATS != 0)
            .then(|| Incomplete::Repeats { limit: self.repeats_max.load(Ordering::Relaxed) })
    }
}

/// Memory that one task has counted in advance. If several tasks wrote to the shared sum for each
/// small item, they would wait for each other's processor caches.
#[derive(Debug)]
pub(crate) struct Purse {
    limits: Arc<Limits>,
    left: u64,
}

impl Purse {
    /// Like [`Limits::take`].
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        if let Some(left) = self.left.checked_sub(bytes) {
            self.left = left;
            return true;
        }
        let is_taken = self.limits.take(bytes + self.limits.advance);
        if is_taken {
            self.left += self.limits.advance;
        }
        is_taken
    }

    /// Like [`Limits::push`].
    pub(crate) fn push<T>(&mut self, list: &mut Vec<T>, item: T) {
        if self.take(2 * size_of::<T>().to_u64()) {
            list.push(item);
        }
    }
}

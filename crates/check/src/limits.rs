//! How much a check may use, and whether it has to stop.

use extant_format::{Superblock, UintExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Memory that every check needs: reads in flight, maps that wait to be read, and findings.
pub(crate) const FIXED_BYTES: u64 = 24 << 20;
/// What is kept of a group besides its bits: descriptor, places of its structures, totals.
const GROUP_BYTES: u64 = 400;
/// Slots of inodes that are kept together, and what they take if one of them is in use: three bytes
/// each, and where they are.
pub(crate) const PAGE_SLOTS: u32 = 1024;
pub(crate) const PAGE_BYTES: u64 = 3 * 1024 + 96;
/// Allowance for what is kept of an inode in use: its share of an attribute block.
const INODE_BYTES: u64 = 96;
/// Allowance for what is kept of a directory: itself, its names' parents and some blocks.
const DIR_BYTES: u64 = 256;
/// The most that inodes add without being asked: volumes of strangers may claim any number.
const INODES_BYTES_MAX: u64 = 2 << 30;
/// Blocks with several owners that are read once for each of them, on any volume.
const REPEATS: u64 = 20_000;
/// More of them on volumes that are larger than this many blocks do not help.
const REPEATS_MORE_MAX: u64 = 1 << 20;

/// Tells a running check to stop. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Lets the check end with [`crate::CheckError::Cancelled`] as soon as its current reads have.
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
    /// It would have kept more than [`crate::Options::memory_bytes`].
    Memory {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// Blocks with several owners had to be read too often.
    Repeats {
        /// How often that is done.
        limit: u64,
    },
}

/// Use so far, shared by all tasks. What is counted adds up to the same in any order.
#[derive(Debug)]
pub(crate) struct Limits {
    memory_bytes: AtomicU64,
    used_bytes: AtomicU64,
    repeats_max: AtomicU64,
    repeats: AtomicU64,
    over: AtomicU8,
    cancel: Cancel,
}

const OVER_MEMORY: u8 = 1;
const OVER_REPEATS: u8 = 2;

impl Limits {
    /// Until the volume is known, as for a small one.
    pub(crate) fn new(memory_bytes: Option<u64>, cancel: Cancel) -> Self {
        Self {
            memory_bytes: AtomicU64::new(memory_bytes.unwrap_or(2 * FIXED_BYTES)),
            used_bytes: AtomicU64::new(0),
            repeats_max: AtomicU64::new(REPEATS),
            repeats: AtomicU64::new(0),
            over: AtomicU8::new(0),
            cancel,
        }
    }

    /// Sets the limits for a volume: those asked for, or what a healthy one of its size needs.
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

    /// Counts memory that will be kept; false if there is none left.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let used = self.used_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used.saturating_add(FIXED_BYTES) <= self.memory_bytes.load(Ordering::Relaxed) {
            return true;
        }
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.over.fetch_or(OVER_MEMORY, Ordering::Relaxed);
        false
    }

    /// Gives back memory that was counted. Not while tasks run: then the order would matter.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts what is kept of groups.
    pub(crate) fn take_groups(&self, groups: u32) -> bool {
        self.take(GROUP_BYTES * u64::from(groups))
    }

    /// Appends to a list; a list takes up to twice its contents while it grows.
    pub(crate) fn push<T>(&self, list: &mut Vec<T>, item: T) {
        if self.take(2 * size_of::<T>().to_u64()) {
            list.push(item);
        }
    }

    /// Whether blocks may be read once more, though they were read for another owner.
    pub(crate) fn repeat(&self, blocks: u64) -> bool {
        let repeats = self.repeats.fetch_add(blocks, Ordering::Relaxed).saturating_add(blocks);
        if repeats <= self.repeats_max.load(Ordering::Relaxed) {
            return true;
        }
        self.over.fetch_or(OVER_REPEATS, Ordering::Relaxed);
        false
    }

    /// Allows for a further pass over all maps, in which the first owner counts as well.
    pub(crate) fn next_pass(&self) {
        let most = self.repeats_max.load(Ordering::Relaxed);
        self.repeats_max.store(2 * most, Ordering::Relaxed);
        self.repeats.store(0, Ordering::Relaxed);
    }

    /// Whether the check is over its limits or was cancelled. Nothing found from then on counts.
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

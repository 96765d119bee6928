//! Block and inode allocation: what is free, what an operation gets, what the bitmaps record.
//!
//! With `bigalloc`, bitmaps, counts and promises are in clusters, and runs are allocated and freed
//! in whole clusters. Without it a cluster is one block.
//!
//! A group keeps three sets: *allocated* in memory, *logged*, and *freed but not committed*. Only
//! the logged set is in the bitmap's bytes and the descriptor's counts, so that a crash neither
//! leaks a block nor exposes another file's data.
//!
//! The pure core makes the decisions: `runs` and `groups` choose blocks, `inodes` and `spread`
//! choose inodes, `space` accounts for promises, and `layout` knows the volume's own metadata. The
//! flows load bitmaps and log changes: `blocks`, `numbers`, and `nospace`, which runs before
//! `ENOSPC` is returned. A truncation waits for write-back of what it frees, so no freed block has
//! a write in flight.
//!
//! An operation reserves ([`Allocator::reserve`]), allocates in memory ([`Allocator::blocks`],
//! which may wait for a bitmap), opens its handle and logs ([`Allocator::log`], which never waits
//! or fails). Blocks to be freed must be pinned first ([`Allocator::pin`]).

mod block_selection;
mod blocks;
mod inodes;
mod layout;
mod nospace;
mod numbers;
mod runs;
mod space;
mod spread;
mod take_for_discard;

pub(crate) use blocks::{Allocated, Pins};
pub(crate) use nospace::{GivesBack, WantsSpace};
pub(crate) use numbers::{InodePin, LoggedInode, NewInode};
pub(crate) use space::{Privilege, Reservation};
pub(crate) use spread::{Parent, Wanted};
pub(crate) use take_for_discard::Free;

use crate::journal::{Listener, Tid};
use crate::meta::{LockRank, MetaBlock, MetaKind, MetaStore, PhysicalRun, Ranked};
use crate::{Error, Result};
use block_selection::{Groups, RUN_BYTES};
use extant_cache::Disk;
use extant_cache::accounts::{AccountConfig, Charge, Shrink};
use extant_format::{
    Corrupt, FileKind, Group, GroupDescriptor, GroupFlags, InodeNumber, Place, Superblock, UintExt,
    VolumeBlock,
};
use inodes::InodeGroups;
pub(crate) use layout::{Layout, Owned, overhead_blocks};
use parking_lot::Mutex;
use space::Space;
use spread::Shape;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Maximum number of unused groups whose bitmaps and indexes stay in memory.
const GROUPS_KEPT: usize = 256;
/// Maximum number of free runs in the indexes of all groups; beyond that, unused indexes are
/// forgotten.
const RUNS_KEPT: usize = 1 << 18;

/// The allocator of a volume open for writing. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Allocator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<MetaStore>,
    layout: Layout,
    /// Blocks claimed by several files, none of which may change or free them; in order, disjoint.
    contested: OnceLock<Vec<Range<VolumeBlock>>>,
    shape: Shape,
    space: Space,
    /// Lock order: `inodes`, `groups`, then the bitmaps' tables.
    inodes: Ranked<InodeGroups>,
    groups: Ranked<Groups>,
    block_bitmaps: Ranked<BTreeMap<u32, Bitmap>>,
    inode_bitmaps: Ranked<BTreeMap<u32, Bitmap>>,
    fresh_tables: Mutex<BTreeMap<u64, numbers::FreshTable>>,
    /// On a volume without a journal: inodes freed by transactions that are not yet durable.
    freed_inodes: Mutex<Vec<(Tid, Group, u32)>>,
    givers: Mutex<Vec<Arc<dyn GivesBack>>>,
    seekers: Mutex<Vec<Arc<dyn WantsSpace>>>,
    unusable: Mutex<Unusable>,
    /// Why some groups are not used for allocation.
    problems: Mutex<Vec<Error>>,
    problem_count: AtomicUsize,
    /// Charge for the memory of the free-extent indexes, if it is charged.
    indexes_charge: Mutex<Option<Charge>>,
    reuses_inodes_at_once: bool,
}

/// Why the first damaged group is not used. Returned by operations that find room only in such
/// groups.
#[derive(Debug, Default)]
struct Unusable {
    blocks: Option<Error>,
    inodes: Option<Error>,
}

/// The bitmap of a group in use.
#[derive(Clone, Debug)]
enum Bitmap {
    Logged(MetaBlock),
    /// Never written (`BLOCK_UNINIT`, `INODE_UNINIT`). The first change writes all of it.
    Unwritten,
}

/// Numbers for statfs, in blocks and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statfs {
    /// Blocks available to files in total.
    pub(crate) blocks: u64,
    /// Free blocks that are not promised, including those freed by the running transaction.
    pub(crate) free: u64,
    /// The part of `free` that ordinary callers can use.
    pub(crate) available: u64,
    pub(crate) inodes: u64,
    pub(crate) free_inodes: u64,
}

impl Allocator {
    /// Creates the allocator of a volume whose descriptors `store` has loaded. Reads no bitmap.
    /// `private` lists the blocks of the volume's own files and of its root directory, which no
    /// other file may claim.
    ///
    /// # Errors
    /// Descriptors that contradict each other.
    pub(crate) fn new(store: Arc<MetaStore>, private: Vec<Owned>) -> Result<Self> {
        let sb = store.shape();
        let descriptors: Vec<GroupDescriptor> =
            (0..store.groups().count()).map(|n| store.groups().get(Group(n))).collect();
        let free: u64 = descriptors.iter().map(|descriptor| u64::from(descriptor.free_blocks)).sum();
        // Without group checksums nothing is initialised lazily, and the flags mean nothing.
        let counts = descriptors.iter().map(|group| (group.free_inodes, group.used_dirs));
        let shared = Shared {
            layout: Layout::new(sb, &descriptors, private)?,
            contested: OnceLock::new(),
            shape: Shape::new(sb),
            space: Space::new(free, sb.reserved_blocks().min(sb.blocks_count()) >> sb.cluster_size().log2()),
            inodes: Ranked::new(
                LockRank::InodeGroups,
                InodeGroups::new(sb.inodes_per_group(), sb.first_inode().0 - 1, counts),
            ),
            groups: Ranked::new(
                LockRank::BlockGroups,
                Groups::new(sb, descriptors.iter().map(|group| group.free_blocks)),
            ),
            block_bitmaps: Ranked::new(LockRank::Bitmaps, BTreeMap::new()),
            inode_bitmaps: Ranked::new(LockRank::Bitmaps, BTreeMap::new()),
            fresh_tables: Mutex::default(),
            freed_inodes: Mutex::default(),
            givers: Mutex::default(),
            seekers: Mutex::default(),
            unusable: Mutex::default(),
            problems: Mutex::default(),
            problem_count: AtomicUsize::new(0),
            indexes_charge: Mutex::default(),
            reuses_inodes_at_once: sb.journal_inode().is_some(),
            store,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Charges the memory of the free-extent indexes to an account of the cache of `disk`. The
    /// cache may have unused indexes forgotten.
    pub(crate) fn charge_to(&self, disk: &Disk) {
        let limit_bytes = RUNS_KEPT.to_u64() * RUN_BYTES;
        let config = AccountConfig { name: "free extents", limit_bytes, pinned_bytes: limit_bytes };
        let account = disk.account(config);
        account.set_shrinker(Arc::downgrade(&self.shared) as Weak<dyn Shrink>);
        *self.shared.indexes_charge.lock() = Some(account.charge(0));
    }

    /// Bytes charged for free-extent indexes.
    #[cfg(test)]
    pub(crate) fn indexes_bytes(&self) -> u64 {
        self.shared.indexes_charge.lock().as_ref().map_or(0, Charge::bytes)
    }

    /// Forgets about `bytes` bytes of unused free-extent indexes.
    #[cfg(test)]
    pub(crate) fn shrink(&self, bytes: u64) -> u64 {
        Shrink::shrink(&*self.shared, bytes)
    }

    /// Files that have a window of blocks reserved behind them.
    #[cfg(test)]
    pub(crate) fn windows(&self) -> Vec<InodeNumber> {
        self.shared.groups.lock().windows().collect()
    }

    /// Promises clusters for data and, in the worst case, for their maps. Dropping the reservation
    /// returns what was not allocated.
    ///
    /// # Errors
    /// [`Error::NoSpace`], without waiting; see [`Allocator::reserve_waiting`].
    pub(crate) fn reserve(&self, data: u64, meta: u64, privilege: Privilege) -> Result<Reservation> {
        self.shared.space.promise(data.saturating_add(meta), privilege).map_err(|_| Error::NoSpace)
    }

    /// Clusters that were freed and become allocatable at the next commit.
    pub(crate) fn pending(&self) -> u64 {
        self.shared.space.counts().pending
    }

    /// Numbers for statfs.
    pub(crate) fn statfs(&self) -> Statfs {
        let sb = self.shared.store.shape();
        let counts = self.shared.space.counts();
        let free = counts.unpromised() << sb.cluster_size().log2();
        let pending_inodes = self.shared.freed_inodes.lock().len().to_u64();
        Statfs {
            blocks: sb.blocks_count() - overhead_blocks(sb),
            free,
            available: free.saturating_sub(sb.reserved_blocks().min(sb.blocks_count())),
            inodes: sb.inodes_count().into(),
            free_inodes: self.shared.inodes.lock().totals().0 + pending_inodes,
        }
    }

    /// Why groups are not used for allocation: their bitmaps are damaged or unreadable.
    pub(crate) fn problems(&self) -> Vec<Error> {
        self.shared.problems.lock().clone()
    }

    /// Length of [`Self::problems`].
    pub(crate) fn problem_count(&self) -> usize {
        self.shared.problem_count.load(Ordering::Relaxed)
    }

    /// Preferred place for the first data of an inode.
    pub(crate) fn data_goal(&self, inode: InodeNumber, kind: Option<FileKind>) -> VolumeBlock {
        self.shared.shape.data_goal(self.shared.store.shape(), inode, kind)
    }

    /// Refuses claims of the `contested` blocks, which are in order and disjoint, stops using the
    /// bitmaps of `groups` for the given reasons, and records the damage of inodes in use that are
    /// marked as free. Call once, before the first allocation.
    pub(crate) fn distrust(
        &self,
        contested: Vec<Range<VolumeBlock>>,
        groups: Vec<(Group, Corrupt)>,
        unmarked: Vec<Corrupt>,
    ) {
        let set = self.shared.contested.set(contested);
        assert!(set.is_ok(), "owners are looked at once");
        groups.into_iter().for_each(|(group, why)| self.shared.set_bad(group, why.into()));
        unmarked.into_iter().for_each(|why| self.shared.keep_problem(why.into()));
    }

    /// Checks that a run claimed by a file is in the volume, contains none of the volume's own
    /// metadata, and is not known to be claimed by another file.
    ///
    /// # Errors
    /// Names the place that makes the claim.
    pub(crate) fn check_claim(&self, run: PhysicalRun, place: Place) -> Result<()> {
        let sb = self.shared.store.shape();
        let inside = sb.is_valid_block(run.start)
            && run.blocks > 0
            && run.start.0.checked_add(run.blocks).is_some_and(|end| end <= sb.blocks_count());
        // The whole clusters, since these are freed with the run.
        let clusters = run.clusters(sb.cluster_size());
        let contested = self.shared.contested.get().map_or(&[][..], Vec::as_slice);
        let next = contested.partition_point(|range| range.end <= clusters.start);
        if contested
            .get(next)
            .is_some_and(|range| inside && range.start.0 < clusters.start.0 + clusters.blocks)
        {
            let rule = "the blocks of one file; run e2fsck";
            return Err(Corrupt::field(place, "block", run.start.0, rule).into());
        }
        if inside && !self.shared.layout.overlaps(clusters.start, clusters.blocks, claimant(place)) {
            return Ok(());
        }
        let rule =
            "blocks of the volume that hold neither its own metadata nor its root directory or own files";
        Err(Corrupt::field(place, "block", run.start.0, rule).into())
    }
}

/// The inode that claims blocks at a place.
fn claimant(place: Place) -> Option<InodeNumber> {
    match place {
        Place::Inode(inode)
        | Place::DirectoryBlock(inode, _)
        | Place::ExtentNode(inode, _)
        | Place::IndirectBlock(inode, _)
        | Place::Quota(inode, _) => Some(inode),
        _ => None,
    }
}

impl Shared {
    /// Records why a group is not used for allocation.
    fn keep_problem(&self, why: Error) {
        let mut problems = self.problems.lock();
        problems.push(why);
        self.problem_count.store(problems.len(), Ordering::Relaxed);
    }

    fn sb(&self) -> &Superblock {
        self.store.shape()
    }

    /// A group's descriptor. Its flags count only if group checksums make them trustworthy.
    fn descriptor(&self, group: Group) -> GroupDescriptor {
        let mut descriptor = self.store.groups().get(group);
        if !self.sb().has_group_csum() {
            descriptor.flags = GroupFlags::empty();
            descriptor.unused_inodes = 0;
        }
        descriptor
    }

    /// Reads a bitmap from the volume, unless it was never written.
    async fn read_bitmap(&self, is_unwritten: bool, at: VolumeBlock, kind: MetaKind) -> Result<Bitmap> {
        if is_unwritten {
            return Ok(Bitmap::Unwritten);
        }
        Ok(Bitmap::Logged(self.store.read(at, kind).await?))
    }
}

impl Listener for Allocator {
    fn released(&self, tid: Tid, freed: &[PhysicalRun]) {
        self.settle_inodes(tid);
        for &run in freed {
            self.shared.settle(run);
        }
        let seekers = self.shared.seekers.lock().clone();
        seekers.iter().for_each(|seeker| seeker.space_returned());
    }
}

#[cfg(test)]
mod tests;

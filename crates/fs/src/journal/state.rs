//! State and decisions of the journal. No I/O, no clock, no waiting.

use super::Tid;
use super::accounts::{Charges, OPERATION_QUOTA_BLOCKS};
use super::flushes::Flushes;
use super::ring::{Ring, log_cost};
use crate::meta::{InodeCell, MetaBlock, PhysicalRun};
use crate::{Error, Result};
use extant_block::Buf;
use extant_cache::blocks::{BlockBytes, Committed};
use extant_format::jbd2::JournalLayout;
use extant_format::{Group, UintExt};
use extant_rt::Nanos;
use rustc_hash::FxHashSet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Blocks that admission keeps in reserve for what handles do not count: revoke blocks, and
/// descriptors that end early.
const SLACK_BLOCKS: u32 = 32;
/// The largest operation, in blocks. A transaction always has room for one, however small the
/// budget is. Some operations come close:
///
/// - An attribute value of 64 blocks in 64 extents: a bitmap and a descriptor for each, the inode,
///   and freeing the value it replaces (`xattr::values`): 234.
/// - 64 blocks of data with data=journal, in 12 runs, each with a bitmap and a descriptor, plus the
///   nodes of a tree of three levels. Each run splits one node on every level, and each new node
///   needs a bitmap and a descriptor: 208. On a tree of four levels, which takes at least 2.4
///   million extents: 256. Replacing old contents needs no nodes: 160.
/// - One step of a removal: a bitmap and a descriptor for each of its groups, its nodes, and revoke
///   records: 120.
const OPERATION_BLOCKS_MAX: u32 = 256;
/// The smallest log we write to, in blocks. A journal has 1024; the first is its superblock.
pub(crate) const LOG_BLOCKS_MIN: u32 = 1023;
const _: () = assert!(LOG_BLOCKS_MIN / 3 >= OPERATION_BLOCKS_MAX + SLACK_BLOCKS);

/// A transaction of fewer blocks is never committed early because of its size.
const LARGE_BLOCKS_MIN: u32 = 256;

/// Geometry of a log.
#[derive(Clone, Debug)]
pub(super) struct LogLimits {
    pub(super) log: Range<u32>,
    pub(super) head: Option<u32>,
    pub(super) layout: JournalLayout,
    pub(super) block_bytes: usize,
}

/// The transaction that operations join.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) tid: Tid,
    /// Closed to new operations. A commit is waiting for the open ones to finish.
    pub(super) locked: bool,
    /// Open handles.
    pub(super) handles: u32,
    /// Sum of the open handles' credits.
    pub(super) outstanding: u32,
    /// When an operation first changed something.
    pub(super) began: Option<Nanos>,
    pub(super) blocks: BTreeMap<u64, MetaBlock>,
    /// In the order in which the operations ended.
    pub(super) inodes: Vec<Arc<InodeCell>>,
    /// Inode table blocks that the commit will dirty.
    pub(super) tables: FxHashSet<u64>,
    pub(super) groups: BTreeSet<Group>,
    /// Descriptor table blocks that the commit will dirty.
    pub(super) descriptors: FxHashSet<u64>,
    pub(super) superblock: bool,
    /// Freed blocks to revoke: their copies in the log are void.
    pub(super) revokes: BTreeSet<u64>,
    pub(super) freed: Vec<PhysicalRun>,
    /// Changes to owners' usage, from operations that have ended.
    pub(super) charges: Charges,
    /// Total blocks of quotas; the transaction cannot dirty more of them.
    quota_blocks: u32,
    /// Blocks allocated for metadata; only on a volume without a journal.
    pub(super) fresh: FxHashSet<u64>,
    /// Directory blocks as the previous transaction left them; only on a volume without a journal.
    pub(super) names_before: BTreeMap<u64, BlockBytes>,
}

impl Running {
    fn new(tid: Tid, quota_blocks: u32) -> Self {
        Self {
            tid,
            quota_blocks,
            locked: false,
            handles: 0,
            outstanding: 0,
            began: None,
            blocks: BTreeMap::new(),
            inodes: Vec::new(),
            tables: FxHashSet::default(),
            groups: BTreeSet::new(),
            descriptors: FxHashSet::default(),
            superblock: false,
            revokes: BTreeSet::new(),
            freed: Vec::new(),
            charges: Charges::default(),
            fresh: FxHashSet::default(),
            names_before: BTreeMap::new(),
        }
    }

    /// Whether the operations that have ended changed nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
            && self.inodes.is_empty()
            && self.groups.is_empty()
            && !self.superblock
            && self.revokes.is_empty()
            && self.freed.is_empty()
    }

    /// Whether a commit would have nothing to do.
    fn is_idle(&self) -> bool {
        self.is_empty() && self.handles == 0 && !self.locked
    }

    /// Blocks dirtied by operations that have ended.
    fn dirty(&self) -> u32 {
        let blocks = self.blocks.len() + self.tables.len() + self.descriptors.len();
        blocks.fit_u32() + u32::from(self.superblock) + self.quotas(0)
    }

    /// Quota blocks that the transaction and `open` further operations may dirty.
    fn quotas(&self, open: u32) -> u32 {
        let more = open.saturating_mul(OPERATION_QUOTA_BLOCKS);
        self.quota_blocks.min(self.charges.blocks().saturating_add(more))
    }
}

/// A transaction that is being committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Committing {
    pub(super) tid: Tid,
    /// Maximum number of log blocks it may still take; 0 once it has taken them.
    pub(super) cost: u32,
    /// Its first block in the log, once it has one.
    pub(super) start: Option<u32>,
}

/// A committed version not yet written home.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) tid: Tid,
    pub(super) version: Committed,
}

/// A transaction in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logged {
    pub(super) tid: Tid,
    pub(super) start: u32,
    /// Blocks whose newest committed version is in this transaction and not yet home.
    pub(super) pending: u32,
}

/// The log's state.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) ring: Ring,
    layout: JournalLayout,
    block_bytes: usize,
    /// Oldest first. Leading entries with nothing pending only wait for the tail to move.
    pub(super) logged: VecDeque<Logged>,
}

/// Result of [`State::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The operation may join.
    Enter,
    /// The running transaction is about to be committed: wait for the next one.
    Drain,
    /// The running transaction is full.
    Commit(Tid),
    /// The log is full, or too many versions wait to be written home.
    Checkpoint,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) running: Running,
    pub(super) committing: Option<Committing>,
    /// The newest durable transaction.
    pub(super) committed: Tid,
    pub(super) failure: Option<Error>,
    pub(super) flushes: Flushes,
    pub(super) log: Option<Log>,
    /// Versions not yet home, by block number.
    pub(super) homes: BTreeMap<u64, Home>,
    /// Home writes are in flight. Blocks freed meanwhile are released when these end.
    pub(super) writing_home: bool,
    pub(super) unreleased: Vec<(Tid, Vec<PhysicalRun>)>,
    /// Releases of freed blocks to the allocator that are in progress.
    releasing: u32,
    /// Discards of free blocks that are in progress.
    pub(super) kept_open: u32,
    /// The volume is closing: no operation may join.
    pub(super) closing: bool,
    /// The background task was told that the running transaction is large.
    pub(super) told_large: bool,
    /// Size limit of a transaction, in blocks.
    pub(super) transaction_max: u32,
    /// Versions waiting to be written home; with more, a background checkpoint begins.
    pub(super) homes_soft: usize,
    /// Versions waiting to be written home; with more, operations wait for a checkpoint.
    homes_hard: usize,
}

impl State {
    pub(super) fn new(next: Tid, log: Option<LogLimits>, budget_blocks: u32) -> Self {
        let log = log.map(|limits| Log {
            ring: Ring::new(limits.log, limits.head),
            layout: limits.layout,
            block_bytes: limits.block_bytes,
            logged: VecDeque::new(),
        });
        let by_log = log.as_ref().map_or(u32::MAX, |log| log.ring.len() / 3);
        Self {
            running: Running::new(next, 0),
            committing: None,
            committed: next.previous(),
            failure: None,
            flushes: Flushes::default(),
            log,
            homes: BTreeMap::new(),
            writing_home: false,
            unreleased: Vec::new(),
            releasing: 0,
            kept_open: 0,
            closing: false,
            told_large: false,
            transaction_max: by_log.min((budget_blocks / 8).max(OPERATION_BLOCKS_MAX + SLACK_BLOCKS)),
            homes_soft: budget_blocks.to_usize() / 4,
            homes_hard: budget_blocks.to_usize() / 2,
        }
    }

    /// Sets the number of blocks that quotas occupy.
    pub(super) fn set_quota_blocks(&mut self, blocks: u32) {
        self.running.quota_blocks = blocks;
    }

    pub(super) fn check_alive(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Whether operations may join.
    pub(super) fn is_open(&self) -> bool {
        self.failure.is_none() && !self.closing
    }

    pub(super) fn latch(&mut self, cause: Error) {
        self.failure.get_or_insert(cause);
    }

    /// Decides whether an operation of `credits` may join the running transaction, or what must
    /// happen first.
    pub(super) fn admit(&self, credits: u32) -> Result<Admission> {
        if !self.is_open() {
            return Err(Error::ReadOnly);
        }
        if credits > self.transaction_max - SLACK_BLOCKS.min(self.transaction_max / 2) {
            return Err(Error::NoSpace);
        }
        if self.running.locked {
            return Ok(Admission::Drain);
        }
        let quotas = self.running.quotas(self.running.handles + 1) - self.running.quotas(0);
        let all = self.running.dirty() + self.running.outstanding + credits + quotas;
        let idle = self.running.is_idle();
        if all > self.transaction_max && !idle {
            return Ok(Admission::Commit(self.running.tid));
        }
        if self.has_room(all) {
            return Ok(Admission::Enter);
        }
        Ok(match self.committing {
            _ if !self.homes.is_empty() || !self.nothing_logged() => Admission::Checkpoint,
            Some(committing) => Admission::Commit(committing.tid),
            None if !idle => Admission::Commit(self.running.tid),
            // Even an empty log is too small for this operation.
            None => return Err(Error::NoSpace),
        })
    }

    /// Whether to commit the running transaction now, before operations have to wait for it.
    pub(super) fn is_large(&self) -> bool {
        let large = (self.transaction_max / 2).max(LARGE_BLOCKS_MIN);
        self.committing.is_none() && !self.running.locked && self.running.dirty() > large
    }

    fn nothing_logged(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.logged.is_empty())
    }

    /// Whether the log and memory have room for a running transaction of `blocks`.
    fn has_room(&self, blocks: u32) -> bool {
        if self.homes.len() > self.homes_hard {
            return false;
        }
        let Some(log) = &self.log else { return true };
        let revokes = self.running.revokes.len().fit_u32();
        let cost = log_cost(&log.layout, log.block_bytes, blocks, revokes) + SLACK_BLOCKS;
        let committing = self.committing.map_or(0, |committing| committing.cost);
        log.ring.free() >= cost + committing
    }

    /// Whether all operations of transactions up to `upto` are durable or changed nothing.
    pub(super) fn is_durable(&self, upto: Tid) -> bool {
        self.committed >= upto || (self.committing.is_none() && self.running.is_idle())
    }

    /// Closes the running transaction to new operations. Returns false if a commit is already under
    /// way.
    pub(super) fn close_running(&mut self) -> bool {
        if self.committing.is_some() || self.running.locked {
            return false;
        }
        self.running.locked = true;
        true
    }

    /// Takes the closed transaction out for its commit and begins the next one.
    ///
    /// `None` while handles are open; `Some(None)` if the transaction changed nothing.
    pub(super) fn drained(&mut self) -> Option<Option<Running>> {
        assert!(self.running.locked, "a transaction is closed before it is drained");
        if self.running.handles > 0 {
            return None;
        }
        debug_assert!(self.committing.is_none(), "one commit at a time");
        debug_assert_eq!(self.running.outstanding, 0, "every handle gave back its credits");
        if self.running.is_empty() {
            self.running.locked = false;
            return Some(None);
        }
        let tid = self.running.tid;
        let transaction = {
            let next = Running::new(tid.next(), self.running.quota_blocks);
            std::mem::replace(&mut self.running, next)
        };
        let cost = self.log.as_ref().map_or(0, |log| {
            let revokes = transaction.revokes.len().fit_u32();
            // A bitmap's checksum may dirty a descriptor that the operations did not count.
            log_cost(&log.layout, log.block_bytes, transaction.dirty(), revokes) + SLACK_BLOCKS / 2
        });
        self.committing = Some(Committing { tid, cost, start: None });
        Some(Some(transaction))
    }

    /// Takes `blocks` of the log for the committing transaction and returns the first.
    ///
    /// # Errors
    /// Why the journal was aborted; [`Error::Defect`] if the log has no room for what was admitted.
    pub(super) fn take_log(&mut self, blocks: u32) -> Result<u32> {
        self.check_alive()?;
        let log = self.log.as_mut().expect("a volume with a journal");
        if blocks > log.ring.free() {
            return Err(Error::Defect);
        }
        let start = log.ring.take(blocks);
        let committing = self.committing.as_mut().expect("a commit is under way");
        debug_assert!(blocks <= committing.cost, "{blocks} blocks, admitted with {}", committing.cost);
        (committing.cost, committing.start) = (0, Some(start));
        Ok(start)
    }

    /// Marks the committing transaction durable. Its versions now wait to be written home,
    /// replacing older ones.
    ///
    /// Returns the blocks that may be reused at once. Unless there are none, the caller must report
    /// their release with [`Self::release_ended`].
    pub(super) fn finish(&mut self, versions: Vec<Committed>, freed: Vec<PhysicalRun>) -> Vec<PhysicalRun> {
        let committing = self.committing.take().expect("a commit is under way");
        let tid = committing.tid;
        debug_assert_eq!(tid, self.committed.next(), "transactions become durable in order");
        debug_assert_eq!(self.log.is_some(), committing.start.is_some(), "what is durable is in the log");
        self.committed = tid;
        if let (Some(log), Some(start)) = (&mut self.log, committing.start) {
            debug_assert!(log.logged.back().is_none_or(|last| last.tid < tid), "the log is in order");
            log.logged.push_back(Logged { tid, start, pending: versions.len().fit_u32() });
        }
        for run in &freed {
            let gone: Vec<u64> = self.homes.range(run.start.0..run.end().0).map(|(&n, _)| n).collect();
            for n in gone {
                let home = self.homes.remove(&n).expect("it was just seen");
                home.version.checkpointed();
                self.is_home(home.tid);
            }
        }
        for version in versions {
            if let Some(older) = self.homes.insert(version.number(), Home { tid, version }) {
                self.is_home(older.tid);
            }
        }
        if freed.is_empty() {
            return freed;
        }
        if self.writing_home {
            self.unreleased.push((tid, freed));
            return Vec::new();
        }
        self.releasing += 1;
        freed
    }

    /// One block fewer keeps transaction `tid` in the log.
    fn is_home(&mut self, tid: Tid) {
        let Some(log) = &mut self.log else { return };
        let logged = log.logged.iter_mut().find(|logged| logged.tid == tid);
        logged.expect("a transaction stays in the log while blocks of it are not home").pending -= 1;
    }

    /// Whether a background checkpoint should begin.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.homes.len() > self.homes_soft
            || self.log.as_ref().is_some_and(|log| log.ring.used() > log.ring.len() / 2)
    }

    /// Returns the versions to write home, in block order, with their transactions and bytes. Freed
    /// blocks are held back until [`Self::home_writes_ended`].
    pub(super) fn begin_home_writes(&mut self) -> Vec<(u64, Tid, Arc<Buf>)> {
        debug_assert!(!self.writing_home, "one checkpoint at a time");
        self.writing_home = true;
        let is_durable = |home: &Home| home.tid <= self.committed;
        debug_assert!(self.homes.values().all(is_durable), "only what is durable is written home");
        self.homes.iter().map(|(&n, home)| (n, home.tid, home.version.bytes().clone())).collect()
    }

    /// Ends the home writes and returns the freed blocks that may be reused. The caller reports
    /// each entry's release with [`Self::release_ended`].
    pub(super) fn home_writes_ended(&mut self) -> Vec<(Tid, Vec<PhysicalRun>)> {
        debug_assert!(self.writing_home, "home writes end once");
        self.writing_home = false;
        self.releasing += self.unreleased.len().fit_u32();
        std::mem::take(&mut self.unreleased)
    }

    /// The allocator has received what one transaction freed.
    pub(super) fn release_ended(&mut self) {
        self.releasing -= 1;
    }

    /// Whether no release is in progress.
    pub(super) fn has_released(&self) -> bool {
        self.releasing == 0
    }

    /// Marks these versions as home and flushed.
    pub(super) fn homes_durable(&mut self, written: &[(u64, Tid)]) {
        for &(n, tid) in written {
            if self.homes.get(&n).is_some_and(|home| home.tid == tid) {
                if let Some(home) = self.homes.remove(&n) {
                    home.version.checkpointed();
                }
                self.is_home(tid);
            }
        }
    }

    /// Whether the on-disk tail is already as far along as it can be, so a checkpoint would gain
    /// nothing.
    pub(super) fn tail_is_known(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.logged.front().is_none_or(|logged| logged.pending > 0))
    }

    /// Where the log's tail may be: at the oldest transaction with blocks not yet home, or else at
    /// the next transaction to be logged.
    pub(super) fn tail(&self) -> (u32, Tid) {
        let log = self.log.as_ref().expect("a volume with a journal");
        let oldest = log.logged.iter().find(|logged| logged.pending > 0);
        match (oldest, self.committing) {
            (Some(logged), _) => (logged.start, logged.tid),
            (None, Some(committing)) => (committing.start.unwrap_or(log.ring.head()), committing.tid),
            (None, None) => (log.ring.head(), self.running.tid),
        }
    }

    /// Records that the on-disk tail is at transaction `tid`, block `start`.
    pub(super) fn tail_moved(&mut self, start: u32, tid: Tid) {
        let log = self.log.as_mut().expect("a volume with a journal");
        while log.logged.front().is_some_and(|logged| logged.tid < tid) {
            let home = log.logged.pop_front();
            let pending = home.map_or(0, |logged| logged.pending);
            debug_assert_eq!(pending, 0, "a transaction leaves the log once its blocks are home");
        }
        log.ring.release_to(start);
    }
}

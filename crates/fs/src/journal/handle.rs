//! Handles: how operations change metadata.

use super::accounts::{Charge, Charges, OPERATION_QUOTA_BLOCKS};
use super::state::State;
use super::{Credits, Inner, Tid};
use crate::meta::{GroupEdit, InodeCell, InodeEdit, MetaBlock, MetaKind, PhysicalRun, SuperblockEdit, Usage};
use crate::{Cost, Error};
use extant_cache::blocks::{BlockBytes, BlockEdit, BlockRef, EditToken};
use extant_format::{Group, VolumeBlock};
use std::marker::PhantomData;
use std::sync::Arc;

/// An operation's part in the running transaction. All mutable access to metadata goes through one.
///
/// A handle never waits and never fails, and must not live across an `await`, because a commit
/// waits for it. The operation loads, pins and reserves everything it needs beforehand. Dropping
/// the handle adds its changes to the transaction; operations are ordered by when their handles are
/// dropped.
#[must_use = "an operation without changes needs no handle"]
pub(crate) struct Handle {
    inner: Arc<Inner>,
    tid: Tid,
    credits: u32,
    /// Structures that this handle was the first in its transaction to dirty.
    used: u32,
    /// The handle was opened by a thread that was already unwinding: that panic is not this
    /// operation's.
    unwinding: bool,
    /// In order. An edit's kind may differ from that of an earlier edit of the same block.
    changes: Vec<Change>,
    /// Inodes it changed; only on a volume with quotas.
    charged: Vec<Arc<InodeCell>>,
    /// Extra charges to owners: the inodes that hold attribute values.
    values: Vec<(Usage, i64)>,
    /// Not `Send`: a task that may resume on another thread cannot hold a handle across an `await`.
    _stays: PhantomData<*const ()>,
}

/// Compiles only while a handle is not `Send`. Otherwise both implementations below would apply and
/// `_` would be ambiguous.
const _: () = {
    trait NotSend<T> {
        const IS_KEPT: () = ();
    }
    impl<H> NotSend<()> for H {}
    impl<H: Send> NotSend<u8> for H {}
    <Handle as NotSend<_>>::IS_KEPT
};

enum Change {
    Block(MetaBlock),
    Inode(Arc<InodeCell>),
    Group(Group),
    Superblock,
    Revoked(PhysicalRun),
    Freed(PhysicalRun),
    /// A block allocated for metadata.
    Fresh(VolumeBlock),
    /// A directory block as it was before.
    Names(VolumeBlock, BlockBytes),
}

/// Notes first touches on behalf of a handle.
struct Token<'h> {
    tid: Tid,
    first: &'h mut bool,
}

impl EditToken for Token<'_> {
    fn epoch(&self) -> u64 {
        self.tid.0
    }
    fn first_touch(&mut self, _: &BlockRef) {
        *self.first = true;
    }
}

impl Handle {
    /// Opens a handle; the operation was admitted.
    pub(super) fn open(inner: &Arc<Inner>, state: &mut State, credits: Credits) -> Self {
        debug_assert!(!state.running.locked, "a closed transaction takes no operation");
        state.running.handles += 1;
        state.running.outstanding += credits.0;
        Self {
            inner: inner.clone(),
            tid: state.running.tid,
            credits: credits.0,
            used: 0,
            unwinding: std::thread::panicking(),
            changes: Vec::new(),
            charged: Vec::new(),
            values: Vec::new(),
            _stays: PhantomData,
        }
    }

    /// The transaction. Once it is durable, so are the operation's changes.
    pub(crate) fn tid(&self) -> Tid {
        self.tid
    }

    /// Begins an edit of a block's bytes, which ends when the result is dropped. Edits may overlap
    /// only in ascending order of block numbers.
    pub(crate) fn edit<'b>(&mut self, block: &'b MetaBlock) -> BlockEdit<'b> {
        let mut first = false;
        // If this edit turns out to be the first, these bytes are the previous transaction's
        // version.
        let is_name = self.inner.log.is_none() && matches!(block.kind(), MetaKind::Directory { .. });
        let before = (is_name && block.block().epoch() != self.tid.0).then(|| block.bytes());
        let edit = block.block().edit(&mut Token { tid: self.tid, first: &mut first });
        if first {
            self.enlist(Change::Block(block.clone()));
            self.changes.extend(before.map(|before| Change::Names(block.number(), before)));
        }
        edit
    }

    /// Adds a zeroed block, newly allocated for metadata, to the transaction. If the transaction
    /// had revoked the block, that is cancelled.
    pub(crate) fn create(&mut self, n: VolumeBlock, kind: MetaKind) -> MetaBlock {
        let block = self.inner.store.create(n, kind);
        drop(self.edit(&block));
        if self.inner.log.is_none() {
            self.changes.push(Change::Fresh(n));
        }
        block
    }

    /// Frees a run of whole clusters.
    ///
    /// The blocks may be reused once this transaction is durable; no older version of them is
    /// written home after that. Blocks that the log may hold copies of (metadata, and file data
    /// under data=journal) must also be revoked ([`Self::revoke`]), by this transaction or by the
    /// one that unmapped them: the blocks of a cluster are unmapped one by one.
    pub(crate) fn release(&mut self, run: PhysicalRun) {
        // Cached copies of data that never went through the log stay in memory. They are harmless:
        // new metadata, and new data that does go through the log, enter through [`Self::create`].
        self.changes.push(Change::Freed(run));
    }

    /// Voids the copies of these blocks in the log.
    pub(crate) fn revoke(&mut self, run: PhysicalRun) {
        self.inner.store.forget(run);
        self.changes.push(Change::Revoked(run));
    }

    /// Begins an edit of an inode's record.
    pub(crate) fn inode<'c>(&mut self, inode: &'c Arc<InodeCell>) -> InodeEdit<'c> {
        if self.inner.accounts.get().is_some() && !self.charged.iter().any(|one| Arc::ptr_eq(one, inode)) {
            inode.begin_usage(self.inner.store.shape());
            self.charged.push(inode.clone());
        }
        let (edit, first) = inode.edit(self.tid);
        if first {
            self.enlist(Change::Inode(inode.clone()));
        }
        edit
    }

    /// Charges the owners of an inode for `count` inodes that hold values of its attributes. The
    /// inode's own record counts only their space. The caller must not be editing an inode.
    pub(crate) fn charge_values(&mut self, owner: &InodeCell, count: i64) {
        if count != 0
            && self.inner.accounts.get().is_some()
            && let Some(usage) = owner.read(|inode| Usage::of(inode, self.inner.store.shape()))
        {
            self.values.push((usage, count));
        }
    }

    /// Begins an edit of a group's descriptor.
    pub(crate) fn group(&mut self, group: Group) -> GroupEdit<'_> {
        let inner = &*self.inner;
        let (edit, first) = inner.store.groups().edit(group, self.tid);
        if first {
            self.used += 1;
            self.changes.push(Change::Group(group));
        }
        edit
    }

    /// Begins an edit of the superblock.
    pub(crate) fn superblock(&mut self) -> SuperblockEdit<'_> {
        let (edit, first) = self.inner.store.edit_superblock(self.tid);
        if first {
            self.used += 1;
            self.changes.push(Change::Superblock);
        }
        edit
    }

    fn enlist(&mut self, change: Change) {
        self.used += 1;
        self.changes.push(change);
    }

    /// Usage changes of owners that this handle's edits caused. Concurrent handles that change the
    /// same inodes belong to the same transaction, so either may report the difference.
    fn charges(&mut self) -> Charges {
        let mut charges = Charges::default();
        if let Some(accounts) = self.inner.accounts.get() {
            for inode in self.charged.drain(..) {
                charges.change(inode.usage_change(self.inner.store.shape()), &**accounts);
            }
            for (usage, count) in self.values.drain(..) {
                charges.charge(usage, Charge { space_bytes: 0, inodes: count }, &**accounts);
            }
        }
        debug_assert!(charges.blocks() <= OPERATION_QUOTA_BLOCKS, "{charges:?}");
        charges
    }
}

impl Drop for Handle {
    /// Adds the changes to the transaction. An operation that panicked, or dirtied more than its
    /// credits, aborts the journal: the transaction may hold half of the operation, so it must not
    /// become durable.
    fn drop(&mut self) {
        let panicked = !self.unwinding && std::thread::panicking();
        let is_broken = panicked || self.used > self.credits;
        self.inner.rt.charge(Cost::JournalHandle(1));
        let now = if self.changes.is_empty() { None } else { Some(self.inner.rt.now()) };
        let mut began = false;
        let charges = self.charges();
        let (drained, large) = {
            let mut state = self.inner.lock();
            let running = &mut state.running;
            debug_assert!(running.tid == self.tid, "a transaction waits for its operations");
            running.charges.merge(charges);
            for change in self.changes.drain(..) {
                match change {
                    Change::Block(block) => {
                        let was_revoked = running.revokes.remove(&block.number().0);
                        debug_assert!(
                            !was_revoked
                                || running
                                    .freed
                                    .iter()
                                    .all(|run| !(run.start..run.end()).contains(&block.number())),
                            "block {} was freed while another operation changed it",
                            block.number()
                        );
                        running.blocks.insert(block.number().0, block);
                    }
                    Change::Inode(inode) => {
                        running.tables.insert(inode.home().0.number().0);
                        running.inodes.push(inode);
                    }
                    Change::Group(group) => {
                        let home = self.inner.store.groups().home(group).0.number();
                        running.descriptors.insert(home.0);
                        running.groups.insert(group);
                    }
                    Change::Superblock => running.superblock = true,
                    Change::Revoked(run) => {
                        for n in run.start.0..run.end().0 {
                            running.blocks.remove(&n);
                            running.fresh.remove(&n);
                            running.names_before.remove(&n);
                            running.revokes.insert(n);
                        }
                    }
                    Change::Freed(run) => running.freed.push(run),
                    Change::Fresh(n) => {
                        running.fresh.insert(n.0);
                    }
                    Change::Names(n, before) => {
                        running.names_before.insert(n.0, before);
                    }
                }
            }
            if now.is_some() && running.began.is_none() {
                running.began = now;
                began = true;
            }
            running.handles -= 1;
            running.outstanding -= self.credits;
            debug_assert!(running.handles > 0 || running.outstanding == 0, "credits are given back");
            let drained = running.locked && running.handles == 0;
            // Signalled once, by the operation that crosses the threshold.
            let was_large = state.told_large;
            state.told_large = state.is_large();
            if is_broken {
                // Under the same lock as the handle's end: a commit waiting for this handle must
                // not run first.
                state.latch(Error::Defect);
            }
            (drained, state.told_large && !was_large)
        };
        if large {
            self.inner.background.large();
        }
        if drained {
            self.inner.notify();
        }
        if is_broken {
            self.inner.latch(Error::Defect);
        }
        if began {
            self.inner.background.dirty();
        }
        debug_assert!(is_broken == panicked, "{} credits, {} used", self.credits, self.used);
    }
}

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

/// An operation's part in the running transaction; the mutable form of every metadata structure comes from here.
///
/// A handle never waits and never fails, and must not live across an `await`: a commit waits for it. Everything that the
/// operation needs is loaded, pinned and reserved before. Its changes belong to the transaction when it is dropped;
/// operations are ordered as their handles are dropped.
#[must_use = "an operation without changes needs no handle"]
pub(crate) struct Handle {
    inner: Arc<Inner>,
    tid: Tid,
    credits: u32,
    /// Structures that it was the first of its transaction to dirty.
    used: u32,
    /// It was opened by a thread that unwinds already, whose panic is not the operation's.
    unwinding: bool,
    /// In order; the kind of an edit may differ from that of an earlier one of the same block.
    changes: Vec<Change>,
    /// On a volume with quotas: inodes that it changed.
    charged: Vec<Arc<InodeCell>>,
    /// Inodes of attributes' values that owners are charged besides.
    values: Vec<(Usage, i64)>,
    /// Not `Send`, so that no task that another thread may go on with holds one while it waits.
    _stays: PhantomData<*const ()>,
}

/// Compiles as long as a handle is not `Send`: both implementations below would apply, and `_` be ambiguous.
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
    /// A block that was allocated for metadata.
    Fresh(VolumeBlock),
    /// A directory block as it was.
    Names(VolumeBlock, BlockBytes),
}

/// Hears of first touches on behalf of a handle.
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
    /// Opens a handle that was admitted.
    pub(super) fn open(inner: &Arc<Inner>, state: &mut State, credits: Credits) -> Self {
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

    /// The transaction: what the operation changes is durable when this is.
    pub(crate) fn tid(&self) -> Tid {
        self.tid
    }

    /// Begins a change of a block's bytes, which ends when the result is dropped; no two at a time unless in ascending
    /// order of their numbers.
    pub(crate) fn edit<'b>(&mut self, block: &'b MetaBlock) -> BlockEdit<'b> {
        let mut first = false;
        // The version is that of the transaction before if this edit turns out to be the first.
        let is_name = self.inner.log.is_none() && matches!(block.kind(), MetaKind::Directory { .. });
        let before = (is_name && block.block().epoch() != self.tid.0).then(|| block.bytes());
        let edit = block.block().edit(&mut Token { tid: self.tid, first: &mut first });
        if first {
            self.enlist(Change::Block(block.clone()));
            self.changes.extend(before.map(|before| Change::Names(block.number(), before)));
        }
        edit
    }

    /// A block that was allocated for metadata, as zeroes. It need not be journalled anew if it was freed before.
    pub(crate) fn create(&mut self, n: VolumeBlock, kind: MetaKind) -> MetaBlock {
        let block = self.inner.store.create(n, kind);
        drop(self.edit(&block));
        if self.inner.log.is_none() {
            self.changes.push(Change::Fresh(n));
        }
        block
    }

    /// Blocks, whole clusters of them, are free: they may be allocated again after this transaction is durable, and no older
    /// version of them is written home from then on. Those of which the log may hold copies, metadata and data of files with
    /// data=journal, must be revoked besides ([`Self::revoke`]), by this transaction or by the one that unmapped them: of a cluster,
    /// the blocks go one by one.
    pub(crate) fn release(&mut self, run: PhysicalRun) {
        // Copies of data that never went through the log stay in memory. They are harmless: blocks of new metadata, and of new data
        // that do go through it, come there by [`Self::create`].
        self.changes.push(Change::Freed(run));
    }

    /// Copies of these blocks in the log become void.
    pub(crate) fn revoke(&mut self, run: PhysicalRun) {
        self.inner.store.forget(run);
        self.changes.push(Change::Revoked(run));
    }

    /// An inode's record, to be changed.
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

    /// Charges the owners of an inode `count` inodes that hold values of its attributes: of them, its record says only the
    /// space. The caller is editing no inode.
    pub(crate) fn charge_values(&mut self, owner: &InodeCell, count: i64) {
        if count != 0
            && self.inner.accounts.get().is_some()
            && let Some(usage) = owner.read(|inode| Usage::of(inode, self.inner.store.shape()))
        {
            self.values.push((usage, count));
        }
    }

    /// A group's descriptor, to be changed.
    pub(crate) fn group(&mut self, group: Group) -> GroupEdit<'_> {
        let inner = &*self.inner;
        let (edit, first) = inner.store.groups().edit(group, self.tid);
        if first {
            self.used += 1;
            self.changes.push(Change::Group(group));
        }
        edit
    }

    /// The superblock, to be changed.
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

    /// The use by owners that its changes make. Operations beside it that change the same inodes belong to the same transaction,
    /// so that each difference may be told by either.
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
    /// An operation that panicked, or dirtied more than it promised, ends writing: a transaction may hold half of it, and none is
    /// made durable any more.
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
            let drained = running.locked && running.handles == 0;
            // Told once, by the operation that makes it so.
            let was_large = state.told_large;
            state.told_large = state.is_large();
            if is_broken {
                // In one with the handle's end: a commit that waits for it must not be the first to go on.
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

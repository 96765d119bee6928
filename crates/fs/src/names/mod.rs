//! Names: paths, tree walks, and the operations that look names up and change them.
//!
//! # Locks
//! An operation takes locks in this order. While holding one, it must not wait for one listed
//! earlier:
//!
//! 1. The volume's rename lock ([`Namespace::renames`]), for a rename between two directories.
//! 2. Directories, by number. If a name leads to a directory against this order, the operation only
//!    tries that lock.
//! 3. Other inodes, by number.
//! 4. The lock of shared attribute blocks ([`Writer::shared_xattrs`]).
//! 5. A range of a file; pages.
//! 6. The handle, a file's map in memory, the allocator's locks and the journal's, a block being
//!    edited.
//!
//! Debug builds assert the order of the first three in each operation (`order`), and that of a
//! file's map, the allocator and the journal ([`LockRank`](crate::meta::LockRank)). Nothing waits
//! once the handle is open.
//!
//! Every operation has the same steps: take the locks; look the names up, reading what is not in
//! memory; check; prepare what it needs (blocks, inodes, bitmaps); open the handle; change memory;
//! close the handle. Anything that can fail does so before the first change.

mod attributes;
mod caller;
mod create;
mod delete;
mod dir_state;
mod extended;
mod indexes;
mod known;
mod link;
mod node;
mod open_dir;
mod order;
mod path_walk;
mod remove;
mod rename;
mod soundness;
mod stored_names;
mod target;
mod tree_walk;

#[cfg(test)]
mod tests;

pub use attributes::{SetAttributes, SetTime};
pub use caller::{Caller, Capabilities};
pub(crate) use caller::{Want, check_stored};
pub use node::{Attributes, Node};
pub use path_walk::{Follow, PathNodes, SYMLINKS_MAX, walk_path};
pub use rename::RenameMode;
pub use soundness::Way;
pub(crate) use stored_names::StoredNames;
pub use tree_walk::{DEPTH_MAX, PATH_MAX, Walk, WalkEntry, WalkError, WalkOptions};

use crate::alloc::{GivesBack, Privilege};
use crate::file::FilesInMemory;
use crate::meta::{InodeCell, InodeEdit};
use crate::quota::{Owners, Quotas, Room};
use crate::writer::Writer;
use crate::{Error, Result};
use extant_cache::Disk;
use extant_cache::accounts::{AccountConfig, Shrink};
use extant_format::{InodeFlags, InodeNumber};
use extant_rt::{Class, Nanos, RwLock};
use futures_util::future::BoxFuture;
use indexes::Indexes;
use known::KnownNames;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};

/// State shared by all name operations on a volume.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) writer: Arc<Writer>,
    pub(crate) files: Arc<FilesInMemory>,
    /// Held while a name moves between directories, so that the hierarchy cannot change.
    renames: RwLock,
    /// Files created without a name, which may still get one.
    unnamed: Mutex<BTreeSet<InodeNumber>>,
    known: Arc<KnownNames>,
    indexes: Arc<Indexes>,
    /// Directories whose hash trees were checked, even if their inodes have left memory since. If
    /// the number is reused, we created the new directory, so its tree is sound too.
    sound_trees: Mutex<BTreeSet<InodeNumber>>,
    /// How often each directory has moved to another one, whether or not its inode is in memory.
    moves: Mutex<BTreeMap<InodeNumber, u32>>,
    /// The quotas; set only on a volume that has them.
    quotas: OnceLock<Arc<Quotas>>,
}

/// Callers help the deleting task if more inodes than this wait for it. Each takes up to a kilobyte
/// of memory.
const LAG_MAX: usize = 1024;

/// How long the deleting task waits for more inodes before it deletes them. Waking its thread for
/// each inode costs more than the deletion.
const GATHER: Nanos = Nanos::from_millis(1);

/// Directories with one of these flags get durable name changes.
pub(crate) const SYNC_NAMES: InodeFlags = InodeFlags::SYNC.union(InodeFlags::DIRSYNC);

impl Writer {
    /// The allocation privilege of `caller`.
    pub(crate) fn privilege(&self, caller: &Caller) -> Privilege {
        let sb = self.store.shape().raw();
        let reserved_for = caller.uid == u32::from(sb.s_def_resuid.get())
            || (sb.s_def_resgid.get() != 0 && caller.in_group(sb.s_def_resgid.get().into()));
        if reserved_for || caller.can(Capabilities::SYS_RESOURCE) {
            Privilege::Reserved
        } else {
            Privilege::Ordinary
        }
    }

    /// Ends an operation on names or attributes of these inodes. Commits if one of them has one of
    /// `flags`, as `chattr +S` and `+D` request. The caller holds no lock.
    ///
    /// # Errors
    /// Why the journal was aborted; the operation has been done in memory then.
    pub(crate) async fn settle(&self, cells: &[&Arc<InodeCell>], flags: InodeFlags) -> Result<()> {
        if cells.iter().any(|cell| cell.read(|inode| inode.flags().intersects(flags))) {
            Box::pin(self.journal.commit(self.journal.running())).await?;
        }
        Ok(())
    }
}

impl Namespace {
    /// Creates the namespace of a volume whose open files are in `files`. Memory for known names
    /// and indexes is charged to the cache of `disk`. When the volume is full, unused inodes are
    /// deleted to free their space.
    pub(crate) fn new(writer: &Arc<Writer>, files: Arc<FilesInMemory>, disk: &Disk) -> Arc<Self> {
        let (unnamed, known, sound_trees, moves) = Default::default();
        let renames = RwLock::new(writer.store.locks());
        let (writer, indexes, quotas) = (writer.clone(), Indexes::new(disk), OnceLock::new());
        let namespace =
            Arc::new(Self { writer, files, renames, unnamed, known, indexes, sound_trees, moves, quotas });
        let account = disk.account(AccountConfig {
            name: "names",
            limit_bytes: KnownNames::BYTES,
            pinned_bytes: KnownNames::BYTES,
        });
        account.set_shrinker(Arc::downgrade(&namespace.known) as Weak<dyn Shrink>);
        namespace.known.charge_to(account);
        namespace.writer.alloc.add_giver(Arc::new(DeletionGiver(Arc::downgrade(&namespace))));
        namespace
    }

    /// Turns on the volume's quotas. Called once, before the first operation.
    pub(crate) fn keep_quotas(&self, quotas: &Arc<Quotas>) {
        self.writer.journal.set_accounts(quotas.clone());
        let set = self.quotas.set(quotas.clone());
        assert!(set.is_ok(), "quotas are read once");
    }

    /// Makes room in the quotas for owners that an inode is about to get, until the result is
    /// dropped; see [`Quotas::make_room`].
    async fn expect_owners(&self, owners: Owners) -> Result<Option<Room<'_>>> {
        match self.quotas.get() {
            Some(quotas) => Ok(Some(quotas.make_room(&self.writer, owners).await?)),
            None => Ok(None),
        }
    }

    /// Deletes an inode that lost its last name, unless something holds it.
    ///
    /// If that fails, the inode stays an orphan, to be deleted when the volume is next opened: the
    /// operation that removed the last name has succeeded. Damage is recorded as a problem of the
    /// volume.
    pub(crate) fn delete_unused<'a>(&'a self, cell: &'a Arc<InodeCell>) -> BoxFuture<'a, ()> {
        Box::pin(async { Doomed::of(self).delete(cell.clone()).await })
    }

    /// Starts the task that deletes unnamed inodes once their last node is dropped. It ends when
    /// the volume is closed.
    pub(crate) fn start_reaper(self: &Arc<Self>) {
        let (signals, weak) = (self.writer.reaper.begin(), Arc::downgrade(self));
        let rt = self.writer.rt.clone();
        let task = async move {
            while signals.next().await {
                rt.sleep(GATHER).await;
                let Some(namespace) = weak.upgrade() else { break };
                let works = namespace.writer.reaper.works.write().await;
                // The volume may have been closed while this task waited for the lock.
                if !namespace.writer.reaper.is_on() {
                    break;
                }
                namespace.delete_doomed().await;
                drop(works);
            }
        };
        drop(self.writer.rt.spawn("reaper", Class::Normal, task));
    }

    /// Deletes unnamed inodes here if there is no task for it, or if it is far behind.
    async fn tidy(&self) {
        if !self.writer.reaper.is_on() || self.writer.unused.lock().len() > LAG_MAX {
            self.delete_doomed().await;
        }
    }

    /// See [`Volume::finish_deletions`](crate::Volume::finish_deletions).
    pub(crate) async fn finish_deletions(&self) {
        drop(self.writer.reaper.works.write().await);
        self.delete_doomed().await;
    }

    /// How often a directory has moved to another one.
    fn moves_of(&self, number: InodeNumber) -> u32 {
        self.moves.lock().get(&number).copied().unwrap_or(0)
    }

    /// Deletes unnamed inodes whose last node was dropped since the last call.
    pub(crate) async fn delete_doomed(&self) {
        if !self.writer.unused.lock().is_empty() {
            Doomed::of(self).delete_all().await;
        }
    }

    /// Like [`Self::delete_doomed`], before the volume is closed: failing to delete an inode is
    /// recorded as a problem.
    pub(crate) async fn delete_doomed_at_last(&self) {
        self.writer.reaper.end().await;
        let mut doomed = Doomed::of(self);
        doomed.is_last = true;
        doomed.delete_all().await;
    }
}

/// Inodes still to be deleted. Dropping this queues them for the next attempt.
struct Doomed<'n> {
    namespace: &'n Namespace,
    cells: Vec<Arc<InodeCell>>,
    /// An inode is being deleted.
    is_at_work: bool,
    /// There will be no next attempt.
    is_last: bool,
}

impl<'n> Doomed<'n> {
    fn of(namespace: &'n Namespace) -> Self {
        Self { namespace, cells: Vec::new(), is_at_work: false, is_last: false }
    }

    fn delete_all(mut self) -> BoxFuture<'n, ()> {
        Box::pin(async move {
            loop {
                let Some(cell) = self.namespace.writer.unused.lock().pop() else { return };
                self.delete(cell).await;
            }
        })
    }

    /// Deletes an inode unless something holds it.
    async fn delete(&mut self, cell: Arc<InodeCell>) {
        if cell.openers() > 0 || cell.is_live() {
            return;
        }
        // Kept here in case the caller is dropped meanwhile.
        self.cells.push(cell.clone());
        self.is_at_work = true;
        let failed = delete::delete(self.namespace, &cell).await.err();
        self.is_at_work = false;
        if let Some(error @ Error::Corrupt(_)) = &failed {
            self.namespace.writer.errors.note(error);
        }
        // These errors may be temporary: try again later.
        let is_tried_again = matches!(failed, Some(Error::Io(_) | Error::NoSpace));
        if !is_tried_again {
            self.cells.pop();
        }
        if let Some(failed) = failed.filter(|_| self.is_last || !is_tried_again) {
            self.namespace.writer.keep_problem(failed);
        }
    }
}

impl Drop for Doomed<'_> {
    fn drop(&mut self) {
        self.namespace.writer.unused.lock().append(&mut self.cells);
        // The deletion was dropped in the middle. Have the task finish it.
        if self.is_at_work {
            self.namespace.writer.reaper.call();
        }
    }
}

/// Frees blocks by deleting inodes that nothing holds any more.
#[derive(Debug)]
struct DeletionGiver(Weak<Namespace>);

impl GivesBack for DeletionGiver {
    fn give_back(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            if let Some(namespace) = self.0.upgrade() {
                namespace.delete_doomed().await;
            }
        })
    }
}

/// Updates `ctime` after a change of an inode other than to its contents.
pub(crate) fn touch_inode(inode: &mut InodeEdit<'_>, writer: &Writer) {
    let now = inode.stamp(writer.clock.now());
    inode.set_changed(now);
}

/// Updates `mtime`, `ctime` and version after a change of a directory's names.
pub(crate) fn touch(dir: &mut InodeEdit<'_>, writer: &Writer) {
    let now = dir.stamp(writer.clock.now());
    dir.set_changed(now);
    dir.set_modified(now);
    dir.bump_version();
}

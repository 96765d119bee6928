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

mod access_time;
mod attributes;
mod caller;
mod create;
mod delete_inode;
mod dir_state;
mod extended;
mod indexes;
mod known;
mod link;
mod node;
mod open_dir;
mod order;
mod path_walk;
mod reaper;
mod remove;
mod rename;
mod small_files;
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
pub use small_files::{NotMade, SmallFile, SmallFiles};
pub use soundness::Way;
pub(crate) use stored_names::StoredNames;
pub use tree_walk::{DEPTH_MAX, PATH_MAX, Walk, WalkEntry, WalkError, WalkOptions};

use crate::Result;
use crate::alloc::Privilege;
use crate::file::FilesInMemory;
use crate::meta::{InodeCell, InodeEdit};
use crate::quota::{Owners, Quotas, Room};
use crate::writer::Writer;
use extant_cache::Disk;
use extant_cache::accounts::{AccountConfig, Shrink};
use extant_format::{InodeFlags, InodeNumber};
use extant_rt::RwLock;
use indexes::Indexes;
use known::KnownNames;
use parking_lot::Mutex;
use reaper::DeletionGiver;
use std::collections::{BTreeMap, BTreeSet};
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
    /// `flags`, as `chattr +S` and `+D` request, or counts as having it. The caller holds no lock.
    ///
    /// # Errors
    /// Why the journal was aborted; the operation has been done in memory then.
    pub(crate) async fn settle(&self, cells: &[&Arc<InodeCell>], flags: InodeFlags) -> Result<()> {
        if cells.iter().any(|cell| cell.read(|inode| self.mount.syncs(inode, flags))) {
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

    /// How often a directory has moved to another one.
    fn moves_of(&self, number: InodeNumber) -> u32 {
        self.moves.lock().get(&number).copied().unwrap_or(0)
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

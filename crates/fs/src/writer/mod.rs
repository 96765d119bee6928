//! State shared by all changes of a volume: its metadata and journal, free space, and in-memory
//! inodes.

mod errors;
mod guard;
mod mount_flags;
mod reaper_signals;
mod shared_xattrs;

use crate::alloc::{Allocator, Owned};
use crate::inode::{Clock, Inodes, Orphans};
use crate::journal::Journal;
use crate::meta::{InodeCell, MetaStore};
use crate::view::Problems;
use crate::{Error, Result};
pub use errors::ErrorPolicy;
pub(crate) use errors::Errors;
use extant_cache::Disk;
use extant_cache::accounts::AccountConfig;
use extant_format::VolumeBlock;
use extant_rt::{Rt, TaskMutex};
pub(crate) use mount_flags::MountFlags;
pub use mount_flags::Synchronous;
use parking_lot::Mutex;
use reaper_signals::Reaper;
pub(crate) use shared_xattrs::SharedBlocks;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of unused inodes kept in memory, as far as their memory limit allows.
const INODES_KEPT: usize = 128 << 10;
/// Memory of inodes above which unused ones are dropped, even if memory is plentiful.
const INODES_BYTES: u64 = 64 << 20;

/// The parts of a volume that change it. Operations share it by reference.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) rt: Rt,
    /// The device in the page cache.
    pub(crate) disk: Disk,
    pub(crate) store: Arc<MetaStore>,
    pub(crate) journal: Journal,
    pub(crate) alloc: Allocator,
    pub(crate) inodes: Inodes,
    pub(crate) orphans: Orphans,
    pub(crate) clock: Clock,
    pub(crate) errors: Errors,
    pub(crate) mount: MountFlags,
    /// Held while an inode acquires, changes or drops an attribute block.
    pub(crate) shared_xattrs: TaskMutex<SharedBlocks>,
    /// Inodes without links whose last opener is gone; to be deleted.
    pub(crate) unused: Mutex<Vec<Arc<InodeCell>>>,
    /// The task that deletes them.
    pub(crate) reaper: Reaper,
    pub(crate) problems: Mutex<Problems>,
    /// The volume is being closed: file contents must not change.
    is_closing: AtomicBool,
}

impl Writer {
    /// Assembles the parts on top of a store, its journal and the cache of its device. Also returns
    /// the orphans that the volume was left with, which the caller must finish before it hands out
    /// the volume. `own` lists the blocks of the volume's own files and of its root directory.
    /// `orphan_file` lists the blocks of the orphan file, in order. `fixed_time`, if given, is used
    /// for every timestamp, in seconds since 1970.
    ///
    /// # Errors
    /// The orphan list or file is damaged or unreadable; group descriptors contradict each other.
    #[allow(clippy::too_many_arguments)] // what a volume was opened with
    pub(crate) async fn new(
        rt: &Rt,
        store: Arc<MetaStore>,
        journal: Journal,
        disk: &Disk,
        own: Vec<Owned>,
        orphan_file: &[VolumeBlock],
        fixed_time: Option<i64>,
        errors: Errors,
        mount: MountFlags,
    ) -> Result<(Arc<Self>, Vec<Arc<InodeCell>>)> {
        let alloc = Allocator::new(store.clone(), own)?;
        alloc.charge_to(disk);
        journal.set_listener(Arc::new(alloc.clone()));
        let inodes = Inodes::new(store.clone(), INODES_KEPT);
        inodes.charge_to(disk.account(AccountConfig {
            name: "inodes",
            limit_bytes: INODES_BYTES,
            pinned_bytes: INODES_BYTES,
        }));
        let (orphans, left) = Orphans::load(&store, &inodes, orphan_file).await?;
        let (rt, clock, disk) = (rt.clone(), Clock::new(rt, fixed_time), disk.clone());
        let reaper = Reaper::new(store.locks());
        let shared_xattrs = TaskMutex::new(store.locks(), SharedBlocks::default());
        let (unused, problems, is_closing) = Default::default();
        let writer = Self {
            rt,
            disk,
            store,
            journal,
            alloc,
            inodes,
            orphans,
            clock,
            errors,
            mount,
            shared_xattrs,
            unused,
            reaper,
            problems,
            is_closing,
        };
        Ok((Arc::new(writer), left))
    }

    /// Records a problem that did not fail the operation, for
    /// [`Volume::problems`](crate::Volume::problems).
    pub(crate) fn keep_problem(&self, problem: Error) {
        self.problems.lock().add(problem);
    }

    /// Makes [`Self::check_may_change_data`] refuse from now on, because the volume is being
    /// closed.
    pub(crate) fn end_data_changes(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
    }

    /// Checks that file contents may change. Call with the lock of the file's inode held.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if writing has ended, or is about to because the volume is being closed.
    pub(crate) fn check_may_change_data(&self) -> Result<()> {
        match self.is_closing.load(Ordering::SeqCst) || self.journal.failure().is_some() {
            true => Err(Error::ReadOnly),
            false => Ok(()),
        }
    }

    /// Queues an inode without links or openers, to be deleted by the reaper, or by the next
    /// operation that may wait.
    pub(crate) fn delete_later(&self, cell: &Arc<InodeCell>) {
        self.unused.lock().push(cell.clone());
        self.reaper.call();
    }
}

//! The state that all changes of a volume share: its metadata and journal, its free space and the inodes in memory.

mod errors;
mod guard;
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
use parking_lot::Mutex;
pub(crate) use shared_xattrs::SharedBlocks;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Inodes that stay in memory though nothing uses them, as far as the memory for them goes.
const INODES_KEPT: usize = 128 << 10;
/// Memory of inodes above which unused ones are dropped, however much memory there is.
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
    /// Held while an inode takes, changes or leaves an attribute block.
    pub(crate) shared_xattrs: TaskMutex<SharedBlocks>,
    /// Inodes without links whose last opener is gone: to be deleted.
    pub(crate) unused: Mutex<Vec<Arc<InodeCell>>>,
    pub(crate) problems: Mutex<Problems>,
    /// The volume is being closed: contents of files stay as they are.
    is_closing: AtomicBool,
}

impl Writer {
    /// The parts over a store, its journal and the cache of its device, and the orphans that the volume was left with: the
    /// caller finishes them before it hands the volume out. `own` are the blocks of the volume's own files and of its root
    /// directory; `orphan_file` gives the blocks of the orphan file, in order;
    /// `fixed_time` is every time stamp, in seconds since 1970.
    ///
    /// # Errors
    /// The orphan list or file is damaged or cannot be read; group descriptors contradict each other.
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
            shared_xattrs,
            unused,
            problems,
            is_closing,
        };
        Ok((Arc::new(writer), left))
    }

    /// Keeps what went wrong beside an operation that succeeds, for [`Volume::problems`](crate::Volume::problems).
    pub(crate) fn keep_problem(&self, problem: Error) {
        self.problems.lock().add(problem);
    }

    /// Has [`Self::check_may_change_data`] refuse: the volume is being closed.
    pub(crate) fn end_data_changes(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
    }

    /// Whether contents of files may change, asked under the lock of the file's inode.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]: writing has ended, or is about to because the volume is being closed.
    pub(crate) fn check_may_change_data(&self) -> Result<()> {
        match self.is_closing.load(Ordering::SeqCst) || self.journal.failure().is_some() {
            true => Err(Error::ReadOnly),
            false => Ok(()),
        }
    }

    /// Notes an inode without links or openers, to be deleted by the next operation that may wait.
    pub(crate) fn delete_later(&self, cell: &Arc<InodeCell>) {
        self.unused.lock().push(cell.clone());
    }
}

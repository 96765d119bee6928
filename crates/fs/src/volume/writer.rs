//! The state of a volume while it is open for writing.

use super::errors::Errors;
use super::problems::Problems;
use crate::alloc::Allocator;
use crate::file::{Files, WriteBackGiver};
use crate::inode::{Clock, Inodes, Orphans};
use crate::journal::Journal;
use crate::meta::{InodeCell, MetaStore};
use crate::names::{DeletionGiver, KnownNames};
use crate::{Error, Result};
use extant_cache::Disk;
use extant_cache::accounts::{AccountConfig, Shrink};
use extant_format::VolumeBlock;
use extant_rt::Rt;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Inodes that stay in memory though nothing uses them, as far as the memory for them goes.
const INODES_KEPT: usize = 128 << 10;
/// Memory of inodes above which unused ones are dropped, however much memory there is.
const INODES_BYTES: u64 = 64 << 20;

/// The parts of a volume that change it. Operations share it by reference.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) rt: Rt,
    pub(crate) store: Arc<MetaStore>,
    pub(crate) journal: Journal,
    pub(crate) alloc: Allocator,
    pub(crate) inodes: Inodes,
    pub(crate) orphans: Orphans,
    pub(crate) clock: Clock,
    pub(crate) files: Files,
    pub(crate) errors: Errors,
    /// State shared by the operations on names.
    pub(crate) names: crate::names::State,
    /// Inodes without links whose last opener is gone: to be deleted.
    pub(crate) unused: Mutex<Vec<Arc<InodeCell>>>,
    pub(super) problems: Mutex<Problems>,
}

impl Writer {
    /// The parts over a store, its journal and the cache of its device, and the orphans that the volume was left with: the
    /// caller finishes them before it hands the volume out. `orphan_file` gives the blocks of the orphan file, in order; `fixed_time` is every
    /// time stamp, in seconds since 1970.
    ///
    /// # Errors
    /// The orphan list or file is damaged or cannot be read.
    pub(crate) async fn new(
        rt: &Rt,
        store: Arc<MetaStore>,
        journal: Journal,
        disk: &Disk,
        orphan_file: &[VolumeBlock],
        fixed_time: Option<i64>,
        errors: Errors,
    ) -> Result<(Arc<Self>, Vec<Arc<InodeCell>>)> {
        let alloc = Allocator::new(store.clone());
        journal.set_listener(Arc::new(alloc.clone()));
        let inodes = Inodes::new(store.clone(), INODES_KEPT);
        inodes.charge_to(disk.account(AccountConfig {
            name: "inodes",
            limit_bytes: INODES_BYTES,
            pinned_bytes: INODES_BYTES,
        }));
        let (orphans, left) = Orphans::load(&store, &inodes, orphan_file).await?;
        let clock = Clock::new(rt, fixed_time);
        let files = Files::new(disk.clone());
        let (unused, names, problems): (_, crate::names::State, _) = Default::default();
        let account = disk.account(AccountConfig {
            name: "names",
            limit_bytes: KnownNames::BYTES,
            pinned_bytes: KnownNames::BYTES,
        });
        account.set_shrinker(Arc::downgrade(&names.known) as Weak<dyn Shrink>);
        names.known.charge_to(account);
        let writer = Arc::new_cyclic(|weak| {
            alloc.add_giver(Arc::new(WriteBackGiver(weak.clone())));
            alloc.add_giver(Arc::new(DeletionGiver(weak.clone())));
            let rt = rt.clone();
            Self { rt, store, journal, alloc, inodes, orphans, clock, files, errors, unused, names, problems }
        });
        Ok((writer, left))
    }

    /// Keeps what went wrong beside an operation that succeeds, for [`Volume::problems`](super::Volume::problems).
    pub(crate) fn keep_problem(&self, problem: Error) {
        self.problems.lock().add(problem);
    }

    /// Notes an inode without links or openers, to be deleted by the next operation that may wait.
    pub(crate) fn delete_later(&self, cell: &Arc<InodeCell>) {
        self.unused.lock().push(cell.clone());
    }
}

//! What a volume has while it is open for writing.

use crate::Result;
use crate::alloc::Allocator;
use crate::inode::{Clock, Inodes, Orphans};
use crate::journal::Journal;
use crate::meta::{InodeCell, MetaStore};
use extant_format::VolumeBlock;
use extant_rt::Rt;
use std::sync::Arc;

/// Inodes that stay in memory though nothing uses them.
const INODES_KEPT: usize = 16 << 10;

/// The parts of a volume that change it. Operations share it by reference.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) store: Arc<MetaStore>,
    pub(crate) journal: Journal,
    pub(crate) alloc: Allocator,
    pub(crate) inodes: Inodes,
    pub(crate) orphans: Orphans,
    pub(crate) clock: Clock,
}

impl Writer {
    /// The parts over a store and its journal, and the orphans that the volume was left with: the caller finishes them
    /// before it hands the volume out. `orphan_file` gives the blocks of the orphan file, in order; `fixed_time` is every
    /// time stamp, in seconds since 1970.
    ///
    /// # Errors
    /// The orphan list or file is damaged or cannot be read.
    pub(crate) async fn new(
        rt: &Rt,
        store: Arc<MetaStore>,
        journal: Journal,
        orphan_file: &[VolumeBlock],
        fixed_time: Option<i64>,
    ) -> Result<(Self, Vec<Arc<InodeCell>>)> {
        let alloc = Allocator::new(store.clone());
        journal.set_listener(Arc::new(alloc.clone()));
        let inodes = Inodes::new(store.clone(), INODES_KEPT);
        let (orphans, left) = Orphans::load(&store, &inodes, orphan_file).await?;
        let clock = Clock::new(rt, fixed_time);
        Ok((Self { store, journal, alloc, inodes, orphans, clock }, left))
    }
}

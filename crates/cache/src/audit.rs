//! Cross-checks all of the cache's records while it is at rest.

use crate::dirty::control_interface::Amounts;
use crate::file::page_table::LockedPages;
use crate::file::{CacheCore, CachedDevice, CachedFile};
use crate::page::FrameNo;
use crate::pool::FrameCounts;
use std::sync::Arc;

/// See [`crate::PageCache::audit`].
///
/// Even when everything else is at rest, a task may still be freeing the frames of a large file
/// that was dropped. Files and lists are counted one after the other, so a count that ran
/// concurrently with such a removal is repeated.
pub(crate) fn check(core: &CacheCore) {
    loop {
        if let Some(before) = core.removals.at_rest()
            && let Some(files) = core.files_at_rest()
        {
            let disks = core.disks.read().clone();
            let census = Census::of(core, &files, &disks);
            if core.removals.at_rest() == Some(before) {
                return census.check(&disks);
            }
        }
        // A removal ends soon, because it never waits.
        std::thread::yield_now();
    }
}

/// The pages that the files hold, to compare with the lists and the ledger.
struct Census {
    found: Found,
    counts: FrameCounts,
    /// Frames that are not blank.
    used: u64,
    amounts: Amounts,
    charged: u64,
    unplaceable: u64,
    /// Per device: dirty and write-back pages, charged pages, and pages in flight.
    of_devices: Vec<(Amounts, u64, u64)>,
    /// Number of waiters.
    waiting: usize,
}

/// Pages found in the files.
struct Found {
    attached: u64,
    clean: u64,
    dirty: u64,
    unplaceable: u64,
    dirty_on: Vec<u64>,
}

impl Census {
    fn of(core: &CacheCore, files: &[Arc<CachedFile>], disks: &[Arc<CachedDevice>]) -> Self {
        let (attached, clean, dirty, unplaceable) = Default::default();
        let mut found = Found { attached, clean, dirty, unplaceable, dirty_on: vec![0; disks.len()] };
        for file in files {
            found.add(core, file, disks);
        }
        #[cfg(test)]
        tests::after_files();
        let frames = &core.pool.frames;
        let ledger = &core.ledger;
        let of_device = |disk: &Arc<CachedDevice>| {
            let ledger = &disk.ledger;
            (ledger.amounts(), ledger.charged(), ledger.in_flight())
        };
        Self {
            found,
            counts: core.pool.frame_counts(),
            used: frames.all().filter(|&f| frames.state(f).snapshot() != Default::default()).count() as u64,
            amounts: ledger.amounts(),
            charged: ledger.charged(),
            unplaceable: ledger.unplaceable(),
            of_devices: disks.iter().map(of_device).collect(),
            waiting: core.waits.len(),
        }
    }

    fn check(&self, disks: &[Arc<CachedDevice>]) {
        let Self { found, counts, .. } = self;
        let rests = |dirty_pages| Amounts { dirty_pages, writeback_pages: 0 };
        assert_eq!(
            rests(found.dirty),
            self.amounts,
            "dirty pages are counted, and nothing is under write-back"
        );
        assert_eq!(
            (found.dirty, found.unplaceable),
            (self.charged, self.unplaceable),
            "charged pages are dirty"
        );
        for ((disk, &dirty), counted) in disks.iter().zip(&found.dirty_on).zip(&self.of_devices) {
            let index = disk.index.0;
            assert_eq!((rests(dirty), dirty, 0), *counted, "dirty pages of device {index} are counted");
        }
        assert_eq!(found.clean, u64::from(counts.evictable), "every clean page can be evicted");
        assert_eq!(
            found.attached + u64::from(counts.free) + u64::from(counts.parked),
            u64::from(counts.total + counts.overdrawn),
            "every frame is in a file, free or parked: {counts:?}"
        );
        assert_eq!(self.used, found.attached, "free frames are blank");
        let flushers = disks.len();
        assert!(self.waiting <= flushers, "nobody but flushers waits: {}", self.waiting);
    }
}

impl Found {
    /// Counts a file's pages and checks each one, under the file's lock.
    fn add(&mut self, core: &CacheCore, file: &CachedFile, disks: &[Arc<CachedDevice>]) {
        let pages = file.lock_pages();
        assert!(pages.writeback().is_empty(), "pages of file {} are under write-back", file.inode);
        let frames = pages.frames();
        assert_eq!(frames.len() as u64, pages.cached(), "the list of file {} is whole", file.inode);
        let device = disks.iter().position(|disk| Arc::ptr_eq(disk, &file.disk));
        for frame in frames {
            let is_dirty = is_dirty_at_rest(core, file, &pages, frame);
            self.attached += 1;
            match (is_dirty, pages.dirty().is_unplaceable()) {
                (false, _) => self.clean += 1,
                (true, true) => self.unplaceable += 1,
                (true, false) => {
                    self.dirty += 1;
                    self.dirty_on[device.expect("a device is there as long as its files")] += 1;
                }
            }
        }
        assert_eq!(
            pages.dirty_since().is_some(),
            !pages.dirty().is_empty(),
            "file {} is listed if dirty",
            file.inode
        );
    }
}

/// Checks a page that is not in use; returns whether it is dirty.
fn is_dirty_at_rest(core: &CacheCore, file: &CachedFile, pages: &LockedPages<'_>, frame: FrameNo) -> bool {
    let key = core.pool.frames.key(frame);
    let state = core.pool.frames.state(frame).snapshot();
    assert_eq!(key.file(), file.number, "frame {} is in its own file's list", frame.get());
    assert_eq!(core.pool.index.find(&core.pool.frames, key), Some(frame), "the index knows {key:?}");
    assert_eq!(state.pins(), 0, "nobody holds {key:?}: {state:?}");
    assert!(
        state.is_uptodate()
            && !state.is_exclusive()
            && !state.is_loading()
            && !state.is_writeback()
            && !state.is_detached(),
        "{key:?} is at rest: {state:?}"
    );
    let tagged = pages.dirty().contains(key.index());
    assert_eq!(tagged, state.dirty() != 0, "tag and state of {key:?} agree: {state:?}");
    tagged
}

#[cfg(test)]
mod tests {
    use crate::{CacheConfig, FlatFile, PAGE_BYTES, PageCache};
    use extant_block::{MemDevice, Sector};
    use std::cell::RefCell;
    use std::sync::Arc;

    thread_local! {
        /// Run once, by the next audit on this thread, after it has counted the files' pages.
        static AFTER_FILES: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn after_files() {
        if let Some(hook) = AFTER_FILES.take() {
            hook();
        }
    }

    #[test]
    fn an_audit_passes_though_a_large_file_goes_meanwhile() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(16 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(16 << 20)));
        let file = disk.mapping(Arc::new(FlatFile::new(Sector(0), 8 << 20)), 1, 0);
        rt.block_on(file.open().write(0, &vec![1; 1255 * PAGE_BYTES])).expect("no panic").expect("room");
        rt.block_on(file.write_back(..)).expect("no panic").expect("nothing fails");
        let (sweeps, world) = (cache.clone(), rt.clone());
        AFTER_FILES.set(Some(Box::new(move || {
            // Too many pages for the caller to remove itself, so a task removes them.
            file.discard();
            let swept = async {
                while sweeps.usage().evictable > 0 {
                    world.yield_now().await;
                }
            };
            world.block_on(swept).expect("the task ends");
        })));
        cache.audit();
        assert!(AFTER_FILES.take().is_none(), "the hook was run");
        assert_eq!(cache.usage().free, cache.usage().frames);
    }
}

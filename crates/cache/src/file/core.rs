//! State shared by all files: their numbers, how the pool finds the file of a frame, limits, and
//! the end of the cache.

use crate::config::Settings;
use crate::dirty::control_interface::{DirtyControl, DirtyLimits, WriterId};
use crate::dirty::ledger::Ledger;
use crate::file::removals::Removals;
use crate::file::{CacheCore, CachedDevice, CachedFile};
use crate::page::{FileId, FrameNo};
use crate::pass_policy::WriteBackPass;
use crate::pool::evict::Eviction;
use crate::pool::frames::Claimed;
use crate::pool::{Pool, Purpose};
use crate::registry::Accounts;
use crate::waits::{Condition, Waits};
use extant_rt::{Overseer, Rt, WaitTable};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(super) struct FilesByNumber {
    /// Indexed by file number; 0 is not used.
    slots: Vec<Weak<CachedFile>>,
    free: Vec<u32>,
}

impl CacheCore {
    pub(crate) fn new(
        rt: &Rt,
        frames: u32,
        policy: Box<dyn Eviction>,
        control: Box<dyn DirtyControl>,
        limits: DirtyLimits,
        pass: Box<dyn WriteBackPass>,
        settings: Settings,
    ) -> std::io::Result<Self> {
        let waits = Waits::new(rt);
        Ok(Self {
            rt: rt.clone(),
            pool: Pool::new(rt, frames, settings.phantom, policy, waits.clone())?,
            pages: Arc::new(WaitTable::new(rt, settings.page_waits)),
            writers: AtomicU64::new(0),
            ledger: Ledger::new(waits.clone(), limits, settings.most_dirty_pages),
            waits,
            overseer: Overseer::new(rt),
            files: RwLock::new(FilesByNumber { slots: vec![Weak::new()], free: Vec::new() }),
            disks: RwLock::default(),
            control: Mutex::new(control),
            removals: Removals::default(),
            accounts: Accounts::default(),
            settings,
            pass,
            is_closed: AtomicBool::new(false),
            is_forsaken: AtomicBool::new(false),
        })
    }

    // Files by number.

    pub(crate) fn register(&self, make: impl FnOnce(FileId) -> Arc<CachedFile>) -> Arc<CachedFile> {
        let mut files = self.files.write();
        let number = files.free.pop().unwrap_or_else(|| {
            files.slots.push(Weak::new());
            files.slots.len() as u32 - 1
        });
        assert!(number <= FileId::MAX, "fewer than 16 million files at a time");
        let file = make(FileId(number));
        files.slots[number as usize] = Arc::downgrade(&file);
        file
    }

    /// Registers another file under the number of one that is being dropped.
    pub(crate) fn replace(&self, file: FileId, with: &Arc<CachedFile>) {
        self.files.write().slots[file.0 as usize] = Arc::downgrade(with);
    }

    pub(crate) fn unregister(&self, file: FileId) {
        let mut files = self.files.write();
        files.slots[file.0 as usize] = Weak::new();
        files.free.push(file.0);
    }

    fn file(&self, file: FileId) -> Option<Arc<CachedFile>> {
        self.files.read().slots.get(file.0 as usize)?.upgrade()
    }

    /// All live files.
    pub(crate) fn all_files(&self) -> Vec<Arc<CachedFile>> {
        self.files.read().slots.iter().filter_map(Weak::upgrade).collect()
    }

    /// Like [`Self::all_files`]; `None` while a file is being dropped, whose frames then belong to
    /// no file.
    pub(crate) fn files_at_rest(&self) -> Option<Vec<Arc<CachedFile>>> {
        let files = self.files.read();
        files.slots.iter().filter(|slot| !slot.ptr_eq(&Weak::new())).map(Weak::upgrade).collect()
    }

    /// The files of a device.
    pub(crate) fn files_of(&self, disk: &CachedDevice) -> Vec<Arc<CachedFile>> {
        let mut files = self.all_files();
        files.retain(|file| file.disk.index == disk.index);
        files
    }

    /// Like [`Pool::take_frames`], evicting pages of any file. Call it without a file's lock.
    pub(crate) fn take_frames(&self, n: usize, purpose: Purpose, taken: &mut Vec<FrameNo>) {
        self.pool.take_frames(n, purpose, taken, &|run| self.forget(run));
    }

    /// As [`Pool::set_budget`].
    pub(crate) fn set_budget(&self, frames: u32) -> u32 {
        self.pool.set_budget(frames, &|run| self.forget(run))
    }

    /// As [`Pool::fit_budget`].
    pub(crate) fn fit_budget(&self) -> u32 {
        self.pool.fit_budget(&|run| self.forget(run))
    }

    fn forget(&self, run: &[Claimed<'_>]) {
        // A file that is gone is being dropped, and its drop detaches the frames.
        if let Some(file) = self.file(run[0].key().file()) {
            file.forget_claimed(run);
        }
    }

    // Dirty memory.

    /// A number no writer has had before.
    pub(crate) fn next_writer(&self) -> WriterId {
        WriterId(self.writers.fetch_add(1, Ordering::Relaxed))
    }

    /// Releases a device without handles, files or unreported errors; returns whether it did.
    pub(crate) fn detach(&self, disk: &Arc<CachedDevice>) -> bool {
        {
            let mut disks = self.disks.write();
            if !disk.is_left() || !disk.health.has_returned_all() {
                return false;
            }
            disks.retain(|other| !Arc::ptr_eq(other, disk));
        }
        self.control.lock().detach(disk.index);
        true
    }

    pub(crate) fn set_limits(&self, limits: DirtyLimits) {
        self.ledger.set_limits(limits);
        self.disks.read().iter().for_each(|disk| disk.kick(self));
    }

    /// Whether the last handle of the cache is gone. Flushers then end, and room in use may never
    /// be freed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Tells the cache's tasks to end when their work is done.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.waits.wake_all(Condition::Closing);
        self.disks.read().iter().for_each(|disk| disk.kick(self));
    }

    /// Whether the cache lost its tasks along with its world. No page then becomes clean by itself,
    /// and no client gives memory back.
    pub(crate) fn is_forsaken(&self) -> bool {
        self.is_forsaken.load(Ordering::SeqCst)
    }

    /// The world ended before a task of the cache did. Wakes callers that wait for what only that
    /// task would have done.
    pub(crate) fn forsake(&self) {
        self.is_forsaken.store(true, Ordering::SeqCst);
        self.close();
        self.waits.wake_all(Condition::Frames);
        self.waits.wake_all(Condition::Room(None));
        for disk in self.disks.read().iter() {
            self.waits.wake_all(Condition::Room(Some(disk.index.0)));
        }
    }
}

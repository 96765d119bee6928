//! Counts a device's holders, and decides when its flusher must work.

use crate::CacheError;
use crate::device::flush::DeviceFlush;
use crate::device::health::DeviceHealth;
use crate::device::sync_priority::SyncPriority;
use crate::dirty::control_interface::{Asking, Orders};
use crate::file::{CacheCore, CachedDevice, CachedFile, flushed};
use crate::waits::Condition;
use extant_block::Device;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

impl CachedDevice {
    /// Marks the absence of a time.
    pub(crate) const NEVER: u64 = u64::MAX;

    /// Little is dirty if it is less than this part of the background threshold.
    const LITTLE: u64 = 8;

    pub(crate) fn new(core: &CacheCore, device: Arc<dyn Device>) -> Self {
        let ledger = core.ledger.attach();
        let index = ledger.index();
        let health = Arc::new(DeviceHealth::new(ledger.clone()));
        Self {
            index,
            holders: AtomicU64::new(0),
            flushes: DeviceFlush::new(device.clone(), health.clone(), core.pages.clone(), flushed(index)),
            device,
            ledger,
            health,
            sync_priority: SyncPriority::default(),
            turns: Default::default(),
            completions: Default::default(),
            wanted: AtomicBool::new(false),
            looks_at: AtomicU64::new(Self::NEVER),
            retries: AtomicU64::new(0),
            traced_at: AtomicU64::new(Self::NEVER),
        }
    }

    /// A handle or a file was created.
    pub(crate) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// A handle or a file was dropped. After the last one, the flusher checks whether to release
    /// the device.
    pub(crate) fn release(&self, core: &CacheCore) {
        if self.holders.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.kick(core);
        }
    }

    /// Whether no handle or file is left, so that only a caller that goes over all devices can
    /// still reach it.
    pub(crate) fn is_left(&self) -> bool {
        self.holders.load(Ordering::SeqCst) == 0
    }

    /// The next file in rotation: the first with `least` dirty pages, if one is near.
    pub(crate) fn next_in_turn(&self, least: u64) -> Option<Arc<CachedFile>> {
        self.turns.next_in_turn(|file| least <= 1 || file.has_dirty(least))
    }

    /// Gives up a file: its dirty pages are lost with its last handle.
    pub(crate) fn give_up(&self, file: &CachedFile) {
        let place = file.lock_pages().dirty_since();
        drop(place.and_then(|place| self.turns.remove(place)));
    }

    /// Makes the flusher retry files whose error `may_be_over`.
    pub(crate) fn retry(&self, may_be_over: impl Fn(&CacheError) -> bool) {
        // Count first: a run that ends after this does not leave its file unplaceable.
        self.retries.fetch_add(1, Ordering::SeqCst);
        for file in self.turns.skipped() {
            if file.why_unplaceable().is_some_and(|error| may_be_over(&error)) {
                file.lock_pages().set_placeable();
            }
        }
    }

    /// Makes the flusher look for work.
    pub(crate) fn kick(&self, core: &CacheCore) {
        core.waits.wake_all(Condition::Flusher(self.index.0));
    }

    /// Notes that a file has entered the order. The flusher sets its timer when there is something
    /// to expire, and looks whether too much is dirty. If its timer is set and little is dirty, it
    /// is left alone, because its wake takes longer than a small file's write. If
    /// tasks wait while nothing is in flight, only writing this file can end their wait.
    pub(crate) fn note_dirty(&self, core: &CacheCore) {
        let is_much = || {
            let dirty = core.ledger.amounts().dirty_pages;
            dirty >= core.ledger.limits().background_pages / Self::LITTLE
        };
        if self.looks_at.load(Ordering::SeqCst) == Self::NEVER || is_much() || self.is_waited_for(core) {
            self.kick(core);
        }
    }

    /// Makes the flusher work even below the background threshold, because a task waits. Not needed
    /// if something is in flight: its end wakes as many tasks as it frees frames or room for, and
    /// makes the flusher work for the others ([`Self::is_waited_for`]).
    pub(crate) fn want(&self, core: &CacheCore) {
        if self.ledger.in_flight() > 0 {
            return;
        }
        self.wanted.store(true, Ordering::SeqCst);
        self.kick(core);
    }

    /// Whether tasks wait for frames or room while nothing is in flight that could wake them when
    /// it ends.
    pub(crate) fn is_waited_for(&self, core: &CacheCore) -> bool {
        let conditions = [Condition::Frames, Condition::Room(None), Condition::Room(Some(self.index.0))];
        self.ledger.in_flight() == 0
            && conditions.into_iter().any(|condition| core.waits.has_waiters(condition))
    }

    /// Asks the controller, for a writer or for the flusher, and applies the new limits.
    pub(crate) fn orders(&self, core: &CacheCore, asking: Option<Asking>) -> Orders {
        let (now, numbers) = (core.rt.now(), self.ledger.numbers());
        let orders = core.control.lock().orders(now, &numbers, asking);
        self.ledger.set_limits(orders.device_limit_pages, orders.pool_limit_pages);
        core.trace_levels(self);
        orders
    }
}

//! The ledger of dirty memory: all counters of dirty and write-back pages. Only the values of
//! [`charges`](crate::dirty::charges) change them.
//!
//! Limits apply to what is charged. A failing device frees nothing, so its pages count only against
//! its own limit; the others may exceed the common limit by that amount, up to the bound on all
//! dirty pages.

use crate::dirty::control_interface::{Amounts, DeviceIndex, DirtyLimits, Numbers};
use crate::waits::{Condition, Waits};
use parking_lot::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

/// Dirty memory of all devices.
#[derive(Debug)]
pub(crate) struct Ledger {
    waits: Arc<Waits>,
    all: Counts,
    /// Dirty pages of unplaceable files, which no other counter includes.
    unplaceable: AtomicU64,
    limits: Mutex<DirtyLimits>,
    /// The limit in force, set by the controller.
    limit_pages: AtomicU64,
    /// Upper bound on dirty plus write-back pages, whatever the limits are.
    most_pages: u64,
    devices: AtomicU32,
    /// Numbers of released devices.
    vacant: Mutex<Vec<u32>>,
    /// Failing devices; `failing_count` can be read without the lock.
    failing: Mutex<Vec<Weak<DeviceLedger>>>,
    failing_count: AtomicU32,
}

/// Dirty memory of one device.
#[derive(Debug)]
pub(crate) struct DeviceLedger {
    pub(super) ledger: Arc<Ledger>,
    index: DeviceIndex,
    counts: Counts,
    /// Write-back pages in flight to the device. The other write-back pages have completed and wait
    /// for their backing.
    in_flight: AtomicU64,
    /// The controller's limit for this device.
    limit_pages: AtomicU64,
    dirtied_total: AtomicU64,
    written_total: AtomicU64,
    is_failing: AtomicBool,
}

#[derive(Debug, Default)]
struct Counts {
    dirty: AtomicU64,
    writeback: AtomicU64,
    /// Dirty, under write-back, or about to become dirty. Limits apply to this.
    charged: AtomicU64,
}

impl Counts {
    fn amounts(&self) -> Amounts {
        Amounts { dirty_pages: self.dirty.load(SeqCst), writeback_pages: self.writeback.load(SeqCst) }
    }
}

/// Why no page may become dirty now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    Everywhere,
    OnDevice(DeviceIndex),
    /// The file is unplaceable.
    Unplaceable,
}

impl NoRoom {
    /// The condition the writer waits for.
    pub(crate) fn condition(self) -> Condition {
        match self {
            Self::Everywhere | Self::Unplaceable => Condition::Room(None),
            Self::OnDevice(device) => Condition::Room(Some(device.0)),
        }
    }
}

impl Ledger {
    /// A ledger with the given limits; at most `most_pages` are ever in force.
    pub(crate) fn new(waits: Arc<Waits>, limits: DirtyLimits, most_pages: u64) -> Arc<Self> {
        Arc::new(Self {
            waits,
            all: Counts::default(),
            unplaceable: AtomicU64::new(0),
            limits: Mutex::new(limits),
            limit_pages: AtomicU64::new(limits.limit_pages),
            most_pages,
            devices: AtomicU32::new(0),
            vacant: Mutex::default(),
            failing: Mutex::default(),
            failing_count: AtomicU32::new(0),
        })
    }

    /// Adds a device.
    pub(crate) fn attach(self: &Arc<Self>) -> Arc<DeviceLedger> {
        let number = {
            let mut vacant = self.vacant.lock();
            let attached = self.devices.fetch_add(1, SeqCst);
            // If no number is vacant, all lower ones are in use.
            vacant.pop().unwrap_or(attached)
        };
        Arc::new(DeviceLedger {
            ledger: self.clone(),
            index: DeviceIndex(number),
            counts: Counts::default(),
            in_flight: AtomicU64::new(0),
            limit_pages: AtomicU64::new(u64::MAX),
            dirtied_total: AtomicU64::new(0),
            written_total: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        })
    }

    pub(crate) fn amounts(&self) -> Amounts {
        self.all.amounts()
    }

    pub(crate) fn charged(&self) -> u64 {
        self.all.charged.load(SeqCst)
    }

    pub(crate) fn unplaceable(&self) -> u64 {
        self.unplaceable.load(SeqCst)
    }

    /// Whether unplaceable files and failing devices leave no room for others, if the frames allow
    /// `frames_allow` dirty pages.
    pub(crate) fn is_held_up(&self, frames_allow: u64) -> bool {
        let (held, _) = self.held_by_failing();
        held >= frames_allow || self.unplaceable() + held >= self.most_pages
    }

    /// Dirty pages that do not become clean by themselves: the pages of unplaceable files and
    /// failing devices.
    pub(crate) fn held_up(&self) -> u64 {
        self.unplaceable() + self.held_by_failing().1.dirty_pages
    }

    /// The dirty memory of failing devices: charged pages, and amounts.
    fn held_by_failing(&self) -> (u64, Amounts) {
        let (mut charged, mut amounts) = (0, Amounts::default());
        if self.failing_count.load(SeqCst) > 0 {
            for device in self.failing.lock().iter().filter_map(Weak::upgrade) {
                let of_device = device.amounts();
                charged += device.charged();
                amounts.dirty_pages += of_device.dirty_pages;
                amounts.writeback_pages += of_device.writeback_pages;
            }
        }
        (charged, amounts)
    }

    pub(crate) fn limits(&self) -> DirtyLimits {
        *self.limits.lock()
    }

    /// Changes the configured limits.
    pub(crate) fn set_limits(&self, limits: DirtyLimits) {
        let limits = limits.within(self.most_pages);
        *self.limits.lock() = limits;
        self.set_limit(limits.limit_pages);
    }

    /// Sets how much may be dirty in all.
    pub(crate) fn set_limit(&self, pages: u64) {
        let pages = pages.clamp(1, self.most_pages);
        if pages > self.limit_pages.swap(pages, SeqCst) {
            self.waits.wake_all(Condition::Room(None));
        }
    }
}

impl Drop for DeviceLedger {
    fn drop(&mut self) {
        if self.is_failing() {
            let mut failing = self.ledger.failing.lock();
            failing.retain(|device| device.strong_count() > 0);
            self.ledger.failing_count.store(failing.len() as u32, SeqCst);
        }
        let mut vacant = self.ledger.vacant.lock();
        vacant.push(self.index.0);
        self.ledger.devices.fetch_sub(1, SeqCst);
        debug_assert_eq!(
            (self.amounts(), self.charged(), self.in_flight()),
            Default::default(),
            "nothing of a device that goes is dirty, under write-back or charged"
        );
    }
}

impl DeviceLedger {
    pub(crate) fn index(&self) -> DeviceIndex {
        self.index
    }

    /// Whether the device's last write-back failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(SeqCst)
    }

    /// Whether the device holds dirty memory that will not be freed.
    pub(crate) fn holds_up(&self) -> bool {
        self.is_failing() && self.charged() > 0
    }

    /// Records whether the device's last write-back failed.
    pub(crate) fn set_failing(self: &Arc<Self>, is_failing: bool) {
        let ledger = &*self.ledger;
        let mut failing = ledger.failing.lock();
        if self.is_failing.swap(is_failing, SeqCst) == is_failing {
            return;
        }
        failing.retain(|device| !std::ptr::eq(device.as_ptr(), Arc::as_ptr(self)));
        if is_failing {
            failing.push(Arc::downgrade(self));
        }
        ledger.failing_count.store(failing.len() as u32, SeqCst);
    }

    /// Charges up to `n` more dirty pages, while at most `frames_allow` are dirty in all. Returns
    /// how many (at least one), or why none.
    pub(super) fn charge_within_limits(&self, n: u64, frames_allow: u64) -> Result<u64, NoRoom> {
        let ledger = &*self.ledger;
        let mut limit = ledger.limit_pages.load(SeqCst);
        if !self.holds_up() {
            limit = limit.saturating_add(ledger.held_by_failing().0);
        }
        let limit = limit.min(frames_allow);
        let limit = limit.min(ledger.most_pages.saturating_sub(ledger.unplaceable()));
        let got = add_up_to(&ledger.all.charged, n, limit);
        if got == 0 {
            return Err(NoRoom::Everywhere);
        }
        let pages = add_up_to(&self.counts.charged, got, self.limit_pages.load(SeqCst));
        if pages < got {
            take_from(&ledger.all.charged, got - pages);
            ledger.waits.wake(Condition::Room(None), (got - pages) as usize);
        }
        if pages == 0 { Err(NoRoom::OnDevice(self.index)) } else { Ok(pages) }
    }

    /// Charges `n` pages, ignoring the limits.
    pub(super) fn charge(&self, n: u64) {
        self.ledger.all.charged.fetch_add(n, SeqCst);
        self.counts.charged.fetch_add(n, SeqCst);
    }

    /// Gives up the charge for `n` pages, so that others can use the room.
    pub(super) fn release(&self, n: u64) {
        if n == 0 {
            return;
        }
        take_from(&self.ledger.all.charged, n);
        take_from(&self.counts.charged, n);
        self.ledger.waits.wake(Condition::Room(Some(self.index.0)), n as usize);
        self.ledger.waits.wake(Condition::Room(None), n as usize);
    }

    /// Gives up `n` pages that had no charge but lowered the limit for all files, so that others
    /// can use the room.
    pub(super) fn release_uncharged(&self, n: u64) {
        if n > 0 {
            self.ledger.waits.wake(Condition::Room(None), n as usize);
        }
    }

    /// Counts pages that become dirty for the first time.
    pub(super) fn count_dirtied(&self, n: u64) {
        self.dirtied_total.fetch_add(n, SeqCst);
    }

    /// Counts pages that have been written.
    pub(super) fn count_written(&self, n: u64) {
        self.written_total.fetch_add(n, SeqCst);
    }

    pub(super) fn add_dirty(&self, n: u64) {
        self.ledger.all.dirty.fetch_add(n, SeqCst);
        self.counts.dirty.fetch_add(n, SeqCst);
    }

    pub(super) fn sub_dirty(&self, n: u64) {
        take_from(&self.ledger.all.dirty, n);
        take_from(&self.counts.dirty, n);
    }

    pub(super) fn add_unplaceable(&self, n: u64) {
        self.ledger.unplaceable.fetch_add(n, SeqCst);
    }

    pub(super) fn sub_unplaceable(&self, n: u64) {
        take_from(&self.ledger.unplaceable, n);
    }

    pub(super) fn add_writeback(&self, n: u64) {
        self.ledger.all.writeback.fetch_add(n, SeqCst);
        self.counts.writeback.fetch_add(n, SeqCst);
        self.in_flight.fetch_add(n, SeqCst);
    }

    /// Pages under write-back are no longer in flight.
    pub(super) fn sub_in_flight(&self, n: u64) {
        take_from(&self.in_flight, n);
    }

    /// Pages that are not in flight leave write-back.
    pub(super) fn sub_writeback(&self, n: u64) {
        take_from(&self.ledger.all.writeback, n);
        take_from(&self.counts.writeback, n);
    }

    pub(crate) fn amounts(&self) -> Amounts {
        self.counts.amounts()
    }

    pub(crate) fn charged(&self) -> u64 {
        self.counts.charged.load(SeqCst)
    }

    /// Pages in flight to the device now.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(SeqCst)
    }

    /// The controller's limit for this device.
    pub(crate) fn limit_pages(&self) -> u64 {
        self.limit_pages.load(SeqCst)
    }

    /// Sets how much the device may hold, and how much all devices together may hold.
    pub(crate) fn set_limits(&self, device_pages: u64, pool_pages: u64) {
        let device_pages = device_pages.max(1);
        if device_pages > self.limit_pages.swap(device_pages, SeqCst) {
            self.ledger.waits.wake_all(Condition::Room(Some(self.index.0)));
        }
        self.ledger.set_limit(pool_pages);
    }

    /// The numbers for the controller. For working devices, they leave out failing devices and what
    /// those hold.
    pub(crate) fn numbers(&self) -> Numbers {
        let ledger = &*self.ledger;
        let (mut limits, mut global) = (ledger.limits(), ledger.amounts());
        if ledger.failing_count.load(SeqCst) > 0 && !self.is_failing() {
            let (held, of_failing) = ledger.held_by_failing();
            limits = limits.within(ledger.most_pages.saturating_sub(held).clamp(1, limits.limit_pages));
            global.dirty_pages = global.dirty_pages.saturating_sub(of_failing.dirty_pages);
            global.writeback_pages = global.writeback_pages.saturating_sub(of_failing.writeback_pages);
        }
        Numbers {
            limits,
            global,
            device: self.index,
            on_device: self.amounts(),
            dirtied_total: self.dirtied_total.load(SeqCst),
            written_total: self.written_total.load(SeqCst),
            devices: self.ledger.devices.load(SeqCst),
        }
    }
}

/// Subtracts `n` pages, which were counted before.
fn take_from(counter: &AtomicU64, n: u64) {
    let before = counter.fetch_sub(n, SeqCst);
    debug_assert!(before >= n, "{n} pages leave a state that {before} are in");
}

/// Adds up to `n` without letting the sum exceed `limit`; returns how much it added.
fn add_up_to(counter: &AtomicU64, n: u64, limit: u64) -> u64 {
    let mut got = 0;
    let _ = counter.fetch_update(SeqCst, SeqCst, |now| {
        got = n.min(limit.saturating_sub(now));
        (got > 0).then_some(now + got)
    });
    got
}

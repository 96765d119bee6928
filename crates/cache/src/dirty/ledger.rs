//! The ledger of dirty memory: all counters of dirty and write-back pages, and the charges that
//! move pages between them.
//!
//! A charge is a value. [`DeviceLedger::room`] creates it, it moves as its pages change state, and
//! dropping it returns what it counts. So no page can become dirty without room, and none stays
//! counted after it is gone:
//!
//! - [`Room`]: its pages are counted as charged. It becomes part of [`DirtyPages`] when they become
//!   dirty.
//! - [`DirtyPages`] of one file: counted as charged and dirty, or as stuck. They become a
//!   [`WritebackCharge`] when they are taken, and [`Room`] when they are cut off.
//! - [`WritebackCharge`]: counted as charged, under write-back and in flight. It becomes [`Room`]
//!   when the pages are clean, and part of [`DirtyPages`] after an error.
//!
//! Limits apply to what is charged. A failing device frees nothing, so what it holds counts only
//! against its own limit; the others may exceed the common limit by that amount, up to the bound on
//! all dirty pages. Dropping room wakes writers that wait for it, so it is dropped outside a
//! mapping's lock where possible.

use crate::dirty::control::{Amounts, DeviceIndex, DirtyLimits, Numbers};
use crate::pageset::PageSet;
use crate::waits::{Condition, Waits};
use parking_lot::Mutex;
use std::ops::{Deref, Range};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

/// Dirty memory of all devices.
#[derive(Debug)]
pub(crate) struct Ledger {
    waits: Arc<Waits>,
    all: Counts,
    /// Dirty pages of stuck files, which no other counter includes.
    stuck: AtomicU64,
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
    ledger: Arc<Ledger>,
    index: DeviceIndex,
    counts: Counts,
    /// Write-back pages that are on the device. The others have completed and wait for their
    /// backing.
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
    /// The file is stuck.
    Stuck,
}

impl NoRoom {
    /// The condition the writer waits for.
    pub(crate) fn condition(self) -> Condition {
        match self {
            Self::Everywhere | Self::Stuck => Condition::Room(None),
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
            stuck: AtomicU64::new(0),
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

    pub(crate) fn stuck(&self) -> u64 {
        self.stuck.load(SeqCst)
    }

    /// Whether stuck files and failing devices leave no room for others, if the frames allow
    /// `frames_allow` dirty pages.
    pub(crate) fn is_held_up(&self, frames_allow: u64) -> bool {
        let (held, _) = self.held_by_failing();
        held >= frames_allow || self.stuck() + held >= self.most_pages
    }

    /// Dirty pages that do not become clean by themselves: those of stuck files and failing
    /// devices.
    pub(crate) fn held_up(&self) -> u64 {
        self.stuck() + self.held_by_failing().1.dirty_pages
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

    /// Room for up to `n` more dirty pages, at most `frames_allow` in all; or why there is none.
    pub(crate) fn room(self: &Arc<Self>, n: u64, frames_allow: u64) -> Result<Room, NoRoom> {
        let ledger = &*self.ledger;
        let mut limit = ledger.limit_pages.load(SeqCst);
        if !self.holds_up() {
            limit = limit.saturating_add(ledger.held_by_failing().0);
        }
        let limit = limit.min(frames_allow);
        let limit = limit.min(ledger.most_pages.saturating_sub(ledger.stuck()));
        let got = add_up_to(&ledger.all.charged, n, limit);
        if got == 0 {
            return Err(NoRoom::Everywhere);
        }
        let pages = add_up_to(&self.counts.charged, got, self.limit_pages.load(SeqCst));
        if pages < got {
            ledger.all.charged.fetch_sub(got - pages, SeqCst);
            ledger.waits.wake(Condition::Room(None), (got - pages) as usize);
        }
        if pages == 0 {
            Err(NoRoom::OnDevice(self.index))
        } else {
            Ok(Room { device: self.clone(), pages, unstuck: 0 })
        }
    }

    /// Room for `n` more dirty pages, ignoring the limits.
    pub(crate) fn room_exempt(self: &Arc<Self>, n: u64) -> Room {
        self.charge(n);
        Room { device: self.clone(), pages: n, unstuck: 0 }
    }

    fn charge(&self, n: u64) {
        self.ledger.all.charged.fetch_add(n, SeqCst);
        self.counts.charged.fetch_add(n, SeqCst);
    }

    fn release(&self, n: u64) {
        if n == 0 {
            return;
        }
        let before = self.ledger.all.charged.fetch_sub(n, SeqCst);
        let on_device = self.counts.charged.fetch_sub(n, SeqCst);
        debug_assert!(before >= n && on_device >= n);
        self.ledger.waits.wake(Condition::Room(Some(self.index.0)), n as usize);
        self.ledger.waits.wake(Condition::Room(None), n as usize);
    }

    fn add_dirty(&self, n: u64) {
        self.ledger.all.dirty.fetch_add(n, SeqCst);
        self.counts.dirty.fetch_add(n, SeqCst);
    }

    fn sub_dirty(&self, n: u64) {
        self.ledger.all.dirty.fetch_sub(n, SeqCst);
        self.counts.dirty.fetch_sub(n, SeqCst);
    }

    pub(crate) fn amounts(&self) -> Amounts {
        self.counts.amounts()
    }

    pub(crate) fn charged(&self) -> u64 {
        self.counts.charged.load(SeqCst)
    }

    /// Pages now on the device.
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

/// Adds up to `n` without letting the sum exceed `limit`; returns how much it added.
fn add_up_to(counter: &AtomicU64, n: u64, limit: u64) -> u64 {
    let mut got = 0;
    let _ = counter.fetch_update(SeqCst, SeqCst, |now| {
        got = n.min(limit.saturating_sub(now));
        (got > 0).then_some(now + got)
    });
    got
}

/// Room for pages about to become dirty, or that no longer are.
#[derive(Debug)]
#[must_use = "dropping it gives the room to others"]
pub(crate) struct Room {
    device: Arc<DeviceLedger>,
    pages: u64,
    /// Pages of a stuck file that are gone. They had no room, but lowered everyone's limit.
    unstuck: u64,
}

impl Room {
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Splits off the room for `n` pages.
    pub(crate) fn split(&mut self, n: u64) -> Self {
        assert!(n <= self.pages, "room for {} pages is not room for {n}", self.pages);
        self.pages -= n;
        Self { device: self.device.clone(), pages: n, unstuck: 0 }
    }

    /// Adds other room of the same device.
    pub(crate) fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.device, &other.device));
        self.pages += std::mem::take(&mut other.pages);
        self.unstuck += std::mem::take(&mut other.unstuck);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.device.release(self.pages);
        if self.unstuck > 0 {
            self.device.ledger.waits.wake(Condition::Room(None), self.unstuck as usize);
        }
    }
}

/// The dirty pages of one file that are not under write-back, with their charge: a [`PageSet`] that
/// changes only together with the ledger.
///
/// The pages of a [stuck](crate::state::stuck) file have no charge: they lower everyone's limit
/// instead.
#[derive(Debug)]
pub(crate) struct DirtyPages {
    device: Arc<DeviceLedger>,
    set: PageSet,
    is_stuck: bool,
}

impl DirtyPages {
    pub(crate) fn new(device: Arc<DeviceLedger>) -> Self {
        Self { device, set: PageSet::default(), is_stuck: false }
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    fn count(&self, n: u64) {
        if self.is_stuck {
            self.device.ledger.stuck.fetch_add(n, SeqCst);
        } else {
            self.device.add_dirty(n);
        }
    }

    fn uncount(&self, n: u64) {
        if self.is_stuck {
            self.device.ledger.stuck.fetch_sub(n, SeqCst);
        } else {
            self.device.sub_dirty(n);
        }
    }

    /// Marks clean pages dirty.
    ///
    /// # Panics
    /// `room` is not exactly one page for each.
    pub(crate) fn insert(&mut self, pages: Range<u64>, room: Room) {
        self.device.dirtied_total.fetch_add(room.pages, SeqCst);
        self.enter(pages, room);
    }

    fn enter(&mut self, pages: Range<u64>, mut room: Room) {
        let entered = pages.end - pages.start;
        assert_eq!(room.pages, entered, "each page that becomes dirty has room");
        let before = self.set.len();
        self.set.insert(pages);
        debug_assert_eq!(self.set.len(), before + entered, "a page becomes dirty once");
        self.count(entered);
        if !self.is_stuck {
            // The pages keep the room.
            room.pages = 0;
        }
    }

    /// Marks pages dirty again that could not be written.
    pub(crate) fn put_back(&mut self, pages: Range<u64>, mut charge: WritebackCharge) {
        let (device, n) = (charge.device.clone(), std::mem::take(&mut charge.room_pages));
        self.enter(pages, Room { device, pages: n, unstuck: 0 });
    }

    /// Gives up the dirty pages of `pages`.
    pub(crate) fn remove(&mut self, pages: Range<u64>) -> Room {
        let removed = self.set.remove(pages);
        self.uncount(removed);
        let (pages, unstuck) = if self.is_stuck { (0, removed) } else { (removed, 0) };
        Room { device: self.device.clone(), pages, unstuck }
    }

    /// Puts the dirty pages of `pages` under write-back.
    pub(crate) fn take(&mut self, pages: Range<u64>) -> WritebackCharge {
        let taken = self.set.remove(pages);
        let device = self.device.clone();
        device.ledger.all.writeback.fetch_add(taken, SeqCst);
        device.counts.writeback.fetch_add(taken, SeqCst);
        device.in_flight.fetch_add(taken, SeqCst);
        self.uncount(taken);
        if self.is_stuck {
            // Stuck pages are not charged, but write-back pages are.
            device.charge(taken);
        }
        WritebackCharge { device, pages: taken, room_pages: taken, is_in_flight: AtomicBool::new(true) }
    }

    /// Releases the pages' room to others; returns whether they had any.
    pub(crate) fn stick(&mut self) -> bool {
        if self.is_stuck {
            return false;
        }
        let pages = self.set.len();
        self.uncount(pages);
        self.is_stuck = true;
        self.count(pages);
        self.device.release(pages);
        true
    }

    /// Charges the pages again, ignoring the limits; returns whether they were uncharged.
    pub(crate) fn unstick(&mut self) -> bool {
        if !self.is_stuck {
            return false;
        }
        let pages = self.set.len();
        self.device.charge(pages);
        self.uncount(pages);
        self.is_stuck = false;
        self.count(pages);
        true
    }
}

impl Deref for DirtyPages {
    type Target = PageSet;
    fn deref(&self) -> &PageSet {
        &self.set
    }
}

impl Drop for DirtyPages {
    fn drop(&mut self) {
        drop(self.remove(0..u64::MAX));
    }
}

/// The pages of one run under write-back.
#[derive(Debug)]
#[must_use = "dropping it ends their write-back"]
pub(crate) struct WritebackCharge {
    device: Arc<DeviceLedger>,
    pages: u64,
    /// Room not passed on yet.
    room_pages: u64,
    is_in_flight: AtomicBool,
}

impl WritebackCharge {
    /// The device has completed the run.
    pub(crate) fn landed(&self) {
        if self.is_in_flight.swap(false, SeqCst) {
            self.device.in_flight.fetch_sub(self.pages, SeqCst);
        }
    }

    /// Splits off the part for `n` pages.
    pub(crate) fn split(&mut self, n: u64) -> Self {
        assert!(n <= self.pages.min(self.room_pages), "{} pages are not {n}", self.pages);
        self.pages -= n;
        self.room_pages -= n;
        let is_in_flight = AtomicBool::new(self.is_in_flight.load(SeqCst));
        Self { device: self.device.clone(), pages: n, room_pages: n, is_in_flight }
    }

    /// The pages have been written.
    pub(crate) fn written(&self) {
        self.device.written_total.fetch_add(self.pages, SeqCst);
    }

    /// The pages leave write-back; only their room remains.
    pub(crate) fn end(mut self) -> Room {
        let pages = std::mem::take(&mut self.room_pages);
        Room { device: self.device.clone(), pages, unstuck: 0 }
    }
}

impl Drop for WritebackCharge {
    fn drop(&mut self) {
        self.landed();
        self.device.ledger.all.writeback.fetch_sub(self.pages, SeqCst);
        self.device.counts.writeback.fetch_sub(self.pages, SeqCst);
        self.device.release(self.room_pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DirtyLimits = DirtyLimits { background_pages: 5, limit_pages: 10 };

    fn device() -> Arc<DeviceLedger> {
        let rt = extant_rt::Rt::real(Default::default());
        Ledger::new(Waits::new(&rt), LIMITS, 20).attach()
    }

    fn counts(device: &DeviceLedger) -> [u64; 5] {
        let Amounts { dirty_pages, writeback_pages } = device.amounts();
        assert_eq!(device.amounts(), device.ledger.amounts());
        assert_eq!(device.charged(), device.ledger.charged());
        [device.charged(), dirty_pages, writeback_pages, device.in_flight(), device.ledger.stuck()]
    }

    #[test]
    fn room_is_given_up_to_the_limits_and_comes_back() {
        let device = device();
        let room = device.room(8, 100).unwrap();
        assert_eq!(room.pages(), 8);
        let rest = device.room(8, 100).unwrap();
        assert_eq!(rest.pages(), 2);
        assert_eq!(device.room(1, 100).unwrap_err(), NoRoom::Everywhere);
        drop(room);
        device.set_limits(4, 10);
        assert_eq!(device.room(8, 100).unwrap().pages(), 2);
        drop(rest);
        assert_eq!(device.room(8, 3).unwrap().pages(), 3, "the frames allow no more");
        let exempt = device.room_exempt(30);
        assert_eq!(counts(&device), [30, 0, 0, 0, 0]);
        drop(exempt);
        assert_eq!(counts(&device), [0; 5]);
    }

    #[test]
    fn a_page_is_counted_in_one_state_at_a_time_and_then_in_none() {
        let device = device();
        let mut dirty = DirtyPages::new(device.clone());
        dirty.insert(0..6, device.room(6, 100).unwrap());
        assert_eq!(counts(&device), [6, 6, 0, 0, 0]);
        let mut run = dirty.take(1..5);
        assert_eq!(counts(&device), [6, 2, 4, 4, 0]);
        run.landed();
        run.landed();
        assert_eq!(counts(&device), [6, 2, 4, 0, 0]);
        dirty.put_back(1..2, run.split(1));
        assert_eq!(counts(&device), [6, 3, 3, 0, 0]);
        let room = run.end();
        assert_eq!(counts(&device), [6, 3, 0, 0, 0]);
        drop(room);
        assert_eq!(counts(&device), [3, 3, 0, 0, 0]);
        drop(dirty.remove(0..1));
        assert_eq!(counts(&device), [2, 2, 0, 0, 0]);
        drop(dirty.take(0..2));
        assert_eq!(counts(&device), [1, 1, 0, 0, 0], "a run that is dropped leaves write-back");
        drop(dirty);
        assert_eq!(counts(&device), [0; 5]);
    }

    #[test]
    fn stuck_pages_have_no_room_until_they_are_under_write_back() {
        let device = device();
        let mut dirty = DirtyPages::new(device.clone());
        dirty.insert(0..4, device.room(4, 100).unwrap());
        assert!(dirty.stick() && !dirty.stick());
        assert_eq!(counts(&device), [0, 0, 0, 0, 4]);
        dirty.insert(4..5, device.room_exempt(1));
        assert_eq!(counts(&device), [0, 0, 0, 0, 5]);
        let run = dirty.take(0..2);
        assert_eq!(counts(&device), [2, 0, 2, 2, 3]);
        dirty.put_back(0..2, run);
        assert_eq!(counts(&device), [0, 0, 0, 0, 5]);
        drop(dirty.remove(0..1));
        assert!(dirty.unstick());
        assert_eq!(counts(&device), [4, 4, 0, 0, 0]);
        assert!(dirty.stick());
        drop(dirty);
        assert_eq!(counts(&device), [0; 5]);
    }

    #[test]
    #[should_panic(expected = "each page that becomes dirty has room")]
    fn a_page_without_room_cannot_become_dirty() {
        let device = device();
        let mut dirty = DirtyPages::new(device.clone());
        dirty.insert(0..2, device.room(1, 100).unwrap());
    }
}

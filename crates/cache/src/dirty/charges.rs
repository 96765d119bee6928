//! Charges for dirty memory: values that move pages between the counters of the
//! [ledger](crate::dirty::ledger).
//!
//! [`Room::take`] creates a charge, it moves as its pages change state, and dropping it returns
//! what it counts. So no page can become dirty without room, and none stays counted after it is
//! gone:
//!
//! - [`Room`]: its pages are counted as charged. It becomes part of [`DirtyPages`] when they become
//!   dirty.
//! - [`DirtyPages`] of one file: counted as charged and dirty, or as unplaceable. They become a
//!   [`WritebackCharge`] when they are taken, and [`Room`] when they are cut off.
//! - [`WritebackCharge`]: counted as charged, under write-back and in flight. It becomes [`Room`]
//!   when the pages are clean, and part of [`DirtyPages`] after an error.
//!
//! Dropping room wakes writers that wait for it, so it is dropped outside a file's lock where
//! possible.

use crate::dirty::ledger::{DeviceLedger, NoRoom};
use crate::pageset::PageSet;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

/// Room for pages about to become dirty, or that no longer are.
#[derive(Debug)]
#[must_use = "dropping it gives the room to others"]
pub(crate) struct Room {
    device: Arc<DeviceLedger>,
    pages: u64,
    /// Pages of an unplaceable file that no longer exist. They had no room of their own, but
    /// lowered the limit for all files.
    uncharged: u64,
}

impl Room {
    /// Room for up to `n` more dirty pages, while at most `frames_allow` are dirty in all; or why
    /// there is none.
    pub(crate) fn take(device: &Arc<DeviceLedger>, n: u64, frames_allow: u64) -> Result<Self, NoRoom> {
        let pages = device.charge_within_limits(n, frames_allow)?;
        Ok(Self { device: device.clone(), pages, uncharged: 0 })
    }

    /// Room for `n` more dirty pages, ignoring the limits.
    pub(crate) fn take_exempt(device: &Arc<DeviceLedger>, n: u64) -> Self {
        device.charge(n);
        Self { device: device.clone(), pages: n, uncharged: 0 }
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Splits off the room for `n` pages.
    pub(crate) fn split(&mut self, n: u64) -> Self {
        assert!(n <= self.pages, "room for {} pages is not room for {n}", self.pages);
        self.pages -= n;
        Self { device: self.device.clone(), pages: n, uncharged: 0 }
    }

    /// Adds other room of the same device.
    pub(crate) fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.device, &other.device));
        self.pages += std::mem::take(&mut other.pages);
        self.uncharged += std::mem::take(&mut other.uncharged);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.device.release(self.pages);
        self.device.release_uncharged(self.uncharged);
    }
}

/// The dirty pages of one file that are not under write-back, with their charge: a [`PageSet`] that
/// changes only together with the ledger.
///
/// The pages of an [unplaceable](crate::file::unplaceable) file have no charge: they lower the
/// limit for all files instead.
#[derive(Debug)]
pub(crate) struct DirtyPages {
    device: Arc<DeviceLedger>,
    set: PageSet,
    is_unplaceable: bool,
}

impl DirtyPages {
    pub(crate) fn new(device: Arc<DeviceLedger>) -> Self {
        Self { device, set: PageSet::default(), is_unplaceable: false }
    }

    pub(crate) fn is_unplaceable(&self) -> bool {
        self.is_unplaceable
    }

    fn count(&self, n: u64) {
        if self.is_unplaceable {
            self.device.add_unplaceable(n);
        } else {
            self.device.add_dirty(n);
        }
    }

    fn uncount(&self, n: u64) {
        if self.is_unplaceable {
            self.device.sub_unplaceable(n);
        } else {
            self.device.sub_dirty(n);
        }
    }

    /// Marks clean pages dirty.
    ///
    /// # Panics
    /// `room` is not exactly one page for each.
    pub(crate) fn insert(&mut self, pages: Range<u64>, room: Room) {
        self.device.count_dirtied(room.pages);
        self.enter(pages, room);
    }

    fn enter(&mut self, pages: Range<u64>, mut room: Room) {
        let entered = pages.end - pages.start;
        assert_eq!(room.pages, entered, "each page that becomes dirty has room");
        debug_assert!(Arc::ptr_eq(&self.device, &room.device), "it has room on its own device");
        let before = self.set.len();
        self.set.insert(pages);
        debug_assert_eq!(self.set.len(), before + entered, "a page becomes dirty once");
        self.count(entered);
        if !self.is_unplaceable {
            // The pages keep the room.
            room.pages = 0;
        }
    }

    /// Marks pages dirty again that could not be written.
    pub(crate) fn put_back(&mut self, pages: Range<u64>, mut charge: WritebackCharge) {
        debug_assert!(Arc::ptr_eq(&self.device, &charge.device), "a file stays on its device");
        let (device, n) = (charge.device.clone(), std::mem::take(&mut charge.room_pages));
        self.enter(pages, Room { device, pages: n, uncharged: 0 });
    }

    /// Gives up the dirty pages of `pages`.
    pub(crate) fn remove(&mut self, pages: Range<u64>) -> Room {
        let before = self.set.len();
        let removed = self.set.remove(pages);
        debug_assert_eq!(self.set.len() + removed, before, "a page is given up once");
        self.uncount(removed);
        let (pages, uncharged) = if self.is_unplaceable { (0, removed) } else { (removed, 0) };
        Room { device: self.device.clone(), pages, uncharged }
    }

    /// Puts the dirty pages of `pages` under write-back.
    pub(crate) fn take(&mut self, pages: Range<u64>) -> WritebackCharge {
        let before = self.set.len();
        let taken = self.set.remove(pages);
        debug_assert_eq!(self.set.len() + taken, before, "a page is taken once");
        let device = self.device.clone();
        device.add_writeback(taken);
        self.uncount(taken);
        if self.is_unplaceable {
            // Unplaceable pages are not charged, but write-back pages are.
            device.charge(taken);
        }
        WritebackCharge { device, pages: taken, room_pages: taken, is_in_flight: AtomicBool::new(true) }
    }

    /// Releases the pages' room to others; returns whether they had any.
    pub(crate) fn set_unplaceable(&mut self) -> bool {
        if self.is_unplaceable {
            return false;
        }
        let pages = self.set.len();
        self.uncount(pages);
        self.is_unplaceable = true;
        self.count(pages);
        self.device.release(pages);
        true
    }

    /// Charges the pages again, ignoring the limits; returns whether they were uncharged.
    pub(crate) fn set_placeable(&mut self) -> bool {
        if !self.is_unplaceable {
            return false;
        }
        let pages = self.set.len();
        self.device.charge(pages);
        self.uncount(pages);
        self.is_unplaceable = false;
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
            self.device.sub_in_flight(self.pages);
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
        self.device.count_written(self.pages);
    }

    /// The pages leave write-back; only their room remains.
    pub(crate) fn end(mut self) -> Room {
        debug_assert!(self.room_pages <= self.pages, "each page under write-back has one page of room");
        let pages = std::mem::take(&mut self.room_pages);
        Room { device: self.device.clone(), pages, uncharged: 0 }
    }
}

impl Drop for WritebackCharge {
    fn drop(&mut self) {
        self.landed();
        self.device.sub_writeback(self.pages);
        self.device.release(self.room_pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::control_interface::{Amounts, DirtyLimits};
    use crate::dirty::ledger::Ledger;
    use crate::waits::Waits;

    const LIMITS: DirtyLimits = DirtyLimits { background_pages: 5, limit_pages: 10 };

    fn device() -> Arc<DeviceLedger> {
        let rt = extant_rt::Rt::real(Default::default());
        Ledger::new(Waits::new(&rt), LIMITS, 20).attach()
    }

    fn take(device: &Arc<DeviceLedger>, n: u64, frames_allow: u64) -> Result<Room, NoRoom> {
        Room::take(device, n, frames_allow)
    }

    fn counts(device: &DeviceLedger) -> [u64; 5] {
        let Amounts { dirty_pages, writeback_pages } = device.amounts();
        assert_eq!(device.amounts(), device.ledger.amounts());
        assert_eq!(device.charged(), device.ledger.charged());
        [device.charged(), dirty_pages, writeback_pages, device.in_flight(), device.ledger.unplaceable()]
    }

    #[test]
    fn room_is_given_up_to_the_limits_and_comes_back() {
        let device = device();
        let room = take(&device, 8, 100).unwrap();
        assert_eq!(room.pages(), 8);
        let rest = take(&device, 8, 100).unwrap();
        assert_eq!(rest.pages(), 2);
        assert_eq!(take(&device, 1, 100).unwrap_err(), NoRoom::Everywhere);
        drop(room);
        device.set_limits(4, 10);
        assert_eq!(take(&device, 8, 100).unwrap().pages(), 2);
        drop(rest);
        assert_eq!(take(&device, 8, 3).unwrap().pages(), 3, "the frames allow no more");
        let exempt = Room::take_exempt(&device, 30);
        assert_eq!(counts(&device), [30, 0, 0, 0, 0]);
        drop(exempt);
        assert_eq!(counts(&device), [0; 5]);
    }

    #[test]
    fn a_page_is_counted_in_one_state_at_a_time_and_then_in_none() {
        let device = device();
        let mut dirty = DirtyPages::new(device.clone());
        dirty.insert(0..6, take(&device, 6, 100).unwrap());
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
    fn unplaceable_pages_have_no_room_until_they_are_under_write_back() {
        let device = device();
        let mut dirty = DirtyPages::new(device.clone());
        dirty.insert(0..4, take(&device, 4, 100).unwrap());
        assert!(dirty.set_unplaceable() && !dirty.set_unplaceable());
        assert_eq!(counts(&device), [0, 0, 0, 0, 4]);
        dirty.insert(4..5, Room::take_exempt(&device, 1));
        assert_eq!(counts(&device), [0, 0, 0, 0, 5]);
        let run = dirty.take(0..2);
        assert_eq!(counts(&device), [2, 0, 2, 2, 3]);
        dirty.put_back(0..2, run);
        assert_eq!(counts(&device), [0, 0, 0, 0, 5]);
        drop(dirty.remove(0..1));
        assert!(dirty.set_placeable());
        assert_eq!(counts(&device), [4, 4, 0, 0, 0]);
        assert!(dirty.set_unplaceable());
        drop(dirty);
        assert_eq!(counts(&device), [0; 5]);
    }

    #[test]
    #[should_panic(expected = "each page that becomes dirty has room")]
    fn a_page_without_room_cannot_become_dirty() {
        let device = device();
        let mut dirty = DirtyPages::new(device.clone());
        dirty.insert(0..2, take(&device, 1, 100).unwrap());
    }
}

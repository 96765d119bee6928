//! A frame's state word. It says which users may touch the frame's bytes, and what the bytes
//! contain.
//!
//! Everything else rests on this protocol:
//! - *Shared use*: [`FrameWord::pin`] counts a reader in if the frame is up to date, attached and
//!   not being changed. While there is a pin, bytes and identity do not change.
//! - *Exclusive use*: [`FrameWord::claim`] needs a frame without pins; its holder may change bytes
//!   and identity. It is held at most for a copy, never across an await.
//! - *Loading*: the device owns the bytes; no one else touches them until [`FrameWord::loaded`].
//! - *Write-back*: a pin held by the device, with a flag.
//! - A frame removed from its mapping is *detached*; its last user frees it. Freeing is one
//!   compare-and-swap from "detached, unused" to zero, so exactly one party succeeds.
//!
//! Readers on the fast path take no hold at all: they copy, and then check whether the frame was
//! left alone ([`Version`]). A reader that takes a hold may count itself in on a frame that was
//! just recycled. It then checks the identity and counts itself out again (the speculative
//! reference of Linux's `folio_try_get`).

use std::sync::atomic::{AtomicU32, Ordering, fence};

const PINS: u32 = 0xffff;
const EXCLUSIVE: u32 = 1 << 16;
const UPTODATE: u32 = 1 << 17;
const LOADING: u32 = 1 << 18;
const WRITEBACK: u32 = 1 << 19;
const DETACHED: u32 = 1 << 20;
const MARK: u32 = 1 << 21;
const UNREAD: u32 = 1 << 22;
const USES_SHIFT: u32 = 24;
const USES_ONE: u32 = 1 << USES_SHIFT;
const USES: u32 = 3 << USES_SHIFT;
const DIRTY_SHIFT: u32 = 28;
const DIRTY: u32 = 0xf << DIRTY_SHIFT;

/// The atomic operations the protocol needs, as a trait, so that loom's model checker can replace
/// them.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, to: u32, order: Ordering);
    fn fence(order: Ordering);
    fn fetch_add(&self, n: u32, order: Ordering) -> u32;
    fn fetch_sub(&self, n: u32, order: Ordering) -> u32;
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32;
    fn compare_exchange(&self, from: u32, to: u32, ok: Ordering, fail: Ordering) -> Result<u32, u32>;
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    #[inline]
    fn store(&self, to: u32, order: Ordering) {
        self.store(to, order);
    }
    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
    #[inline]
    fn fetch_add(&self, n: u32, order: Ordering) -> u32 {
        self.fetch_add(n, order)
    }
    #[inline]
    fn fetch_sub(&self, n: u32, order: Ordering) -> u32 {
        self.fetch_sub(n, order)
    }
    #[inline]
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        self.fetch_or(bits, order)
    }
    #[inline]
    fn compare_exchange(&self, from: u32, to: u32, ok: Ordering, fail: Ordering) -> Result<u32, u32> {
        self.compare_exchange(from, to, ok, fail)
    }
}

/// The word's value at one moment.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Snapshot(u32);

impl Snapshot {
    pub(crate) fn pins(self) -> u32 {
        self.0 & PINS
    }
    /// Whether the bytes are valid and not being changed.
    pub(crate) fn is_readable(self) -> bool {
        self.0 & (UPTODATE | EXCLUSIVE | DETACHED) == UPTODATE
    }
    pub(crate) fn is_exclusive(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }
    pub(crate) fn is_uptodate(self) -> bool {
        self.0 & UPTODATE != 0
    }
    pub(crate) fn is_loading(self) -> bool {
        self.0 & LOADING != 0
    }
    pub(crate) fn is_writeback(self) -> bool {
        self.0 & WRITEBACK != 0
    }
    pub(crate) fn is_detached(self) -> bool {
        self.0 & DETACHED != 0
    }
    /// Whether a reader of this page triggers the next round of read-ahead.
    pub(crate) fn is_mark(self) -> bool {
        self.0 & MARK != 0
    }
    /// Whether the page was loaded and has not been read or written since.
    pub(crate) fn is_unread(self) -> bool {
        self.0 & UNREAD != 0
    }
    /// The dirty quarters of the page, one bit each.
    pub(crate) fn dirty(self) -> u8 {
        ((self.0 & DIRTY) >> DIRTY_SHIFT) as u8
    }
    /// How often it was used recently, at most 3.
    pub(crate) fn uses(self) -> u8 {
        ((self.0 & USES) >> USES_SHIFT) as u8
    }
    /// Detached and without users: a task that sees this tries to free the frame.
    fn is_garbage(self) -> bool {
        self.0 & (DETACHED | PINS | EXCLUSIVE | LOADING) == DETACHED
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pins, dirty {:#x}, uses {}", self.pins(), self.dirty(), self.uses())?;
        for (bit, name) in [
            (EXCLUSIVE, "exclusive"),
            (UPTODATE, "uptodate"),
            (LOADING, "loading"),
            (WRITEBACK, "writeback"),
            (DETACHED, "detached"),
            (MARK, "mark"),
            (UNREAD, "unread"),
        ] {
            if self.0 & bit != 0 {
                write!(f, ", {name}")?;
            }
        }
        Ok(())
    }
}

/// Whether the caller must now put the frame on the free list.
#[must_use = "a frame that nobody frees is lost"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    InUse,
    Freed,
}

/// The word itself. Zero means a free frame.
#[derive(Debug, Default)]
pub(crate) struct FrameWord<W = AtomicU32>(W);

impl<W: Word> FrameWord<W> {
    #[cfg(all(test, extant_loom))]
    fn new(word: W) -> Self {
        Self(word)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.load(Ordering::Acquire))
    }

    /// Counts a reader in if the frame is readable and `is_wanted` confirms that it is the right
    /// one.
    #[inline]
    pub(crate) fn pin(&self, is_wanted: impl FnOnce() -> bool) -> Result<Snapshot, PinFailure> {
        let old = self.0.fetch_add(1, Ordering::Acquire);
        assert!(old & PINS < PINS - 1, "fewer than 65,534 users of one page at a time");
        if Snapshot(old).is_readable() && is_wanted() {
            return Ok(Snapshot(old));
        }
        let after = self.unpin();
        Err(PinFailure { after })
    }

    /// Removes a reader's pin.
    #[inline]
    pub(crate) fn unpin(&self) -> After {
        let old = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!(old & PINS > 0);
        if old & DETACHED == 0 { After::InUse } else { self.try_free() }
    }

    /// Counts a use. `seen` avoids touching the cache line if nothing would change. A caller
    /// without a hold may come too late; then a frame freed meanwhile stays blank, and one being
    /// loaded keeps its mark.
    #[inline]
    pub(crate) fn used(&self, seen: Snapshot) {
        if seen.uses() < 3 || seen.0 & (UNREAD | MARK) != 0 {
            self.update(Ordering::Relaxed, |s| {
                if s & (UPTODATE | DETACHED) != UPTODATE {
                    return s;
                }
                let s = s & !(UNREAD | MARK);
                if s & USES < USES { s + USES_ONE } else { s }
            });
        }
    }

    /// Lowers the use count to `uses`. If the count is lower by now, it stays: the frame may have
    /// been freed since the count was read.
    pub(crate) fn lower_uses(&self, uses: u8) {
        let uses = u32::from(uses) << USES_SHIFT;
        self.update(Ordering::Relaxed, |s| if s & USES > uses { s & !USES | uses } else { s });
    }

    /// Claims the frame for exclusive use.
    #[inline]
    pub(crate) fn claim(&self) -> Result<Snapshot, Snapshot> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            if old & (UPTODATE | EXCLUSIVE | DETACHED | LOADING | PINS) != UPTODATE {
                return Err(Snapshot(old));
            }
            match self.0.compare_exchange(old, old | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Snapshot(old)),
                Err(now) => old = now,
            }
        }
    }

    /// Releases a claim.
    #[inline]
    pub(crate) fn release(&self) -> After {
        let old = self.update(Ordering::Release, |s| s & !EXCLUSIVE);
        debug_assert!(old.is_exclusive());
        if old.is_detached() { self.try_free() } else { After::InUse }
    }

    /// Takes a free frame for its new owner. Readers may still count themselves in and out, without
    /// effect.
    pub(crate) fn take_free(&self) {
        let old = self.0.fetch_or(EXCLUSIVE, Ordering::Acquire);
        assert_eq!(old & !PINS, 0, "a frame on the free list is free");
    }

    /// The owner of a frame taken from the free list makes its bytes valid.
    pub(crate) fn publish(&self, dirty: u8, uses: u8) {
        let set = UPTODATE | u32::from(dirty) << DIRTY_SHIFT | u32::from(uses) << USES_SHIFT;
        self.update(Ordering::Release, |s| s & !EXCLUSIVE | set);
    }

    /// The owner of a frame taken from the free list gives it back.
    pub(crate) fn give_back(&self) {
        self.update(Ordering::Release, |s| s & PINS);
    }

    /// The owner of a frame taken from the free list hands its bytes to the device.
    pub(crate) fn start_loading(&self, mark: bool, unread: bool) {
        let set = LOADING | if mark { MARK } else { 0 } | if unread { UNREAD } else { 0 };
        self.update(Ordering::Release, |s| s & !EXCLUSIVE | set);
    }

    /// The device has filled the frame.
    pub(crate) fn loaded(&self) -> After {
        let old = self.update(Ordering::AcqRel, |s| s & !LOADING | UPTODATE);
        if old.is_detached() { self.try_free() } else { After::InUse }
    }

    /// The device could not fill the frame, which is already detached.
    pub(crate) fn load_failed(&self) -> After {
        let old = self.update(Ordering::AcqRel, |s| s & !LOADING);
        debug_assert!(old.is_detached());
        self.try_free()
    }

    /// Marks the frame as detached from its mapping.
    pub(crate) fn detach(&self) -> After {
        let old = self.update(Ordering::AcqRel, |s| s & !DIRTY | DETACHED);
        assert!(!old.is_detached(), "a frame is detached once");
        self.try_free()
    }

    /// Marks quarters dirty, under the file's lock. Returns which were dirty before.
    pub(crate) fn set_dirty(&self, mask: u8) -> u8 {
        Snapshot(self.0.fetch_or(u32::from(mask) << DIRTY_SHIFT, Ordering::AcqRel)).dirty()
    }

    /// Puts a dirty frame under write-back, under the file's lock, unless it is being changed.
    /// Returns the dirty quarters.
    pub(crate) fn start_writeback(&self) -> Option<u8> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            if old & (EXCLUSIVE | WRITEBACK | DETACHED) != 0 || old & DIRTY == 0 {
                return None;
            }
            let new = (old & !DIRTY | WRITEBACK) + 1;
            match self.0.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Snapshot(old).dirty()),
                Err(now) => old = now,
            }
        }
    }

    /// Ends write-back, under the file's lock; `redirty` says which quarters are still dirty.
    pub(crate) fn end_writeback(&self, redirty: u8) -> (After, Snapshot) {
        let old = self.update(Ordering::AcqRel, |s| {
            let redirty = if s & DETACHED == 0 { u32::from(redirty) << DIRTY_SHIFT } else { 0 };
            (s & !WRITEBACK | redirty) - 1
        });
        debug_assert!(old.is_writeback());
        (if old.is_detached() { self.try_free() } else { After::InUse }, old)
    }

    fn try_free(&self) -> After {
        let mut old = self.0.load(Ordering::Relaxed);
        while Snapshot(old).is_garbage() {
            // Acquire: the last users' accesses to the bytes happen before the next owner's claim.
            match self.0.compare_exchange(old, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return After::Freed,
                Err(now) => old = now,
            }
        }
        After::InUse
    }

    fn update(&self, order: Ordering, change: impl Fn(u32) -> u32) -> Snapshot {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange(old, change(old), order, Ordering::Relaxed) {
                Ok(_) => return Snapshot(old),
                Err(now) => old = now,
            }
        }
    }
}

/// A number that changes before each change of a frame's bytes or identity: the sequence of a
/// sequence lock (Linux: `seqcount_t`), whose writers exclude each other through [`FrameWord`].
#[derive(Debug, Default)]
pub(crate) struct Version<W = AtomicU32>(W);

impl<W: Word> Version<W> {
    #[cfg(all(test, extant_loom))]
    fn new(word: W) -> Self {
        Self(word)
    }

    /// Announces a change, before its first byte. The caller has exclusive use of the frame.
    #[inline]
    pub(crate) fn announce_change(&self) {
        // Only the frame's exclusive user stores here. Release: a reader that sees the new number
        // also sees the exclusive use.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        // Pairs with the fence in `read`: a reader that sees any changed byte also sees the
        // announcement.
        W::fence(Ordering::Release);
    }

    /// Runs `copy` on a frame that others may be changing, if it is readable and `is_wanted`
    /// confirms that it is the right one. `None` if it is not, or if a writer interfered and the
    /// copy must be discarded.
    #[cfg(any(all(test, extant_loom), all(target_arch = "x86_64", not(miri))))]
    #[inline]
    pub(crate) fn read(
        &self,
        state: &FrameWord<W>,
        is_wanted: impl FnOnce() -> bool,
        copy: impl FnOnce(),
    ) -> Option<Snapshot> {
        let version = self.0.load(Ordering::Acquire);
        let seen = state.snapshot();
        if !seen.is_readable() || !is_wanted() {
            return None;
        }
        copy();
        W::fence(Ordering::Acquire);
        let undisturbed = self.0.load(Ordering::Relaxed) == version && state.snapshot().is_readable();
        undisturbed.then_some(seen)
    }
}

/// A reader could not count itself in.
#[derive(Debug)]
pub(crate) struct PinFailure {
    pub(crate) after: After,
}

#[cfg(all(test, extant_loom))]
mod tests;

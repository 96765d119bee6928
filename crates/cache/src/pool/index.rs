//! From page to frame: one hash table for the process.
//!
//! Readers walk a bucket's chain without a lock. A chain may change under them: what they find they check (by pinning the
//! frame and comparing its key), what they miss they look up again under the bucket's lock. So a walk may end early, or
//! stray into another bucket's chain, but never gives a wrong frame. The table has a fixed size and nothing is ever
//! freed, so there is nothing to reclaim.

use crate::page::{FrameNo, PageKey, mix};
use crate::pool::arena::{Table, Zeroable};
use crate::pool::frames::{Frames, Pinned};
use crate::pool::state::After;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Steps after which a reader asks for the lock: chains have one or two frames, unless a walk strays.
const STEPS_MAX: u32 = 64;
const LOCKS: usize = 256;
/// Pages whose buckets lie beside each other, 16 to a cache line.
const NEIGHBOURS_SHIFT: u32 = 9;
/// Buckets under one lock, so that a run of pages takes few of them.
const STRIPE: usize = 64;
/// Buckets, and pages, that share a [`Hint`].
const HINTED: usize = 16;

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Table<AtomicU32>,
    /// Where frames lie in the order of their pages: an eighth of the buckets' memory, so that a reader finds in the
    /// processor's cache what of the buckets it would wait for.
    hints: Table<Hint>,
    mask: usize,
    locks: Box<[Stripe]>,
}

/// A line of its own for each.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

/// Which pages of a block of [`HINTED`] neighbours are in a row of frames. A guess that its readers check, like all they find; it
/// changes under the stripe's lock.
///
/// The frame of the block's first page (that page itself may be elsewhere), a tag, a bit for each page.
#[derive(Debug)]
struct Hint(AtomicU64);

// SAFETY: an atomic integer, whose zero is a value.
unsafe impl Zeroable for Hint {}

impl Hint {
    #[inline]
    fn look(&self, probe: Probe) -> Option<FrameNo> {
        let seen = self.0.load(Ordering::Relaxed);
        let is_for_us = (seen >> 16) as u16 == probe.tag && seen >> probe.slot() & 1 == 1;
        let first = (seen >> 32) as u32;
        if is_for_us { FrameNo::new(first.wrapping_add(probe.slot() as u32)) } else { None }
    }

    fn insert(&self, probe: Probe, frame: FrameNo) {
        let seen = self.0.load(Ordering::Relaxed);
        let first = frame.get().wrapping_sub(probe.slot() as u32);
        let row = u64::from(first) << 32 | u64::from(probe.tag) << 16;
        // The first one stays: others are found in their buckets.
        if seen & 0xffff == 0 {
            self.0.store(row | 1 << probe.slot(), Ordering::Relaxed);
        } else if seen & !0xffff == row {
            self.0.store(seen | 1 << probe.slot(), Ordering::Relaxed);
        }
    }

    fn remove(&self, probe: Probe, frame: FrameNo) {
        if self.look(probe) == Some(frame) {
            let seen = self.0.load(Ordering::Relaxed);
            self.0.store(seen & !(1 << probe.slot()), Ordering::Relaxed);
        }
    }
}

/// Where a page is looked for.
#[derive(Clone, Copy, Debug)]
struct Probe {
    bucket: usize,
    tag: u16,
}

impl Probe {
    fn slot(self) -> usize {
        self.bucket % HINTED
    }
}

/// The outcome of a look-up.
pub(crate) enum Found<'a> {
    Pinned(Pinned<'a>),
    /// There is a frame, but it cannot be read at the moment.
    Busy(FrameNo),
    Absent,
}

impl Index {
    pub(crate) fn new(frames: u32) -> std::io::Result<Self> {
        let buckets = (frames as usize).next_power_of_two().max(HINTED);
        Ok(Self {
            buckets: Table::zeroed(buckets)?,
            hints: Table::zeroed(buckets / HINTED)?,
            mask: buckets - 1,
            locks: (0..LOCKS).map(|_| Stripe::default()).collect(),
        })
    }

    pub(crate) fn overhead_bytes(&self) -> usize {
        self.buckets.bytes() + self.hints.bytes()
    }

    /// Neighbouring pages share cache lines of the table, and locks; runs of them begin anywhere, so that files of a page
    /// each, or every thousandth page of one, use all buckets.
    #[inline]
    fn probe(&self, key: PageKey) -> Probe {
        let run = mix(key.0 >> NEIGHBOURS_SHIFT);
        let within = key.0 & ((1 << NEIGHBOURS_SHIFT) - 1);
        let bucket = (run as usize).wrapping_add(within as usize) & self.mask;
        Probe { bucket, tag: (run >> 48) as u16 }
    }

    #[inline]
    fn hint(&self, probe: Probe) -> &Hint {
        &self.hints[probe.bucket / HINTED]
    }

    /// Looks pages up, and enters and removes frames, under the locks that this takes.
    pub(crate) fn cursor<'a>(&'a self, frames: &'a Frames) -> Cursor<'a> {
        Cursor { index: self, frames, held: None }
    }

    /// The frame of a page, counted in; lock-free unless the answer is doubtful. A frame that the look-up was the last to
    /// use is given to `freed`.
    #[inline]
    pub(crate) fn pin<'a>(&self, frames: &'a Frames, key: PageKey, freed: impl Fn(FrameNo)) -> Found<'a> {
        if let Some(frame) = self.guess(frames, key) {
            match frames.pin(frame, key) {
                Ok(pinned) => return Found::Pinned(pinned),
                Err(failure) if failure.after == After::Freed => freed(frame),
                Err(_) => {}
            }
        }
        self.pin_locked(frames, key, freed)
    }

    #[cold]
    fn pin_locked<'a>(&self, frames: &'a Frames, key: PageKey, freed: impl Fn(FrameNo)) -> Found<'a> {
        let mut cursor = self.cursor(frames);
        let Some(frame) = cursor.find(key) else { return Found::Absent };
        match frames.pin(frame, key) {
            Ok(pinned) => Found::Pinned(pinned),
            Err(failure) => {
                // A frame in the table is attached but for an instant, so this is not the last user.
                if failure.after == After::Freed {
                    freed(frame);
                }
                Found::Busy(frame)
            }
        }
    }

    /// The frame of a page, by the table alone. Certain while the caller holds the mapping's lock.
    pub(crate) fn find(&self, frames: &Frames, key: PageKey) -> Option<FrameNo> {
        self.cursor(frames).find(key)
    }

    /// The frame of a page as far as can be told without a lock; for callers that check it.
    #[inline]
    pub(crate) fn guess(&self, frames: &Frames, key: PageKey) -> Option<FrameNo> {
        let probe = self.probe(key);
        let hinted = self.hint(probe).look(probe).filter(|frame| frame.get() <= frames.count());
        if let Some(frame) = hinted
            && frames.key(frame) == key
        {
            return hinted;
        }
        let mut at = self.buckets[probe.bucket].load(Ordering::Acquire);
        for _ in 0..STEPS_MAX {
            let frame = FrameNo::new(at)?;
            if frames.key(frame) == key {
                return Some(frame);
            }
            at = frames.chain(frame).load(Ordering::Acquire);
        }
        None
    }
}

/// See [`Index::cursor`]: keeps the lock that its last step took, since the next page is most likely under the same.
/// Nothing that waits is done while there is one.
pub(crate) struct Cursor<'a> {
    index: &'a Index,
    frames: &'a Frames,
    held: Option<(usize, MutexGuard<'a, ()>)>,
}

impl Cursor<'_> {
    fn lock(&mut self, probe: Probe) {
        let stripe = probe.bucket / STRIPE % LOCKS;
        if self.held.as_ref().is_none_or(|(held, _)| *held != stripe) {
            self.held = None;
            self.held = Some((stripe, self.index.locks[stripe].0.lock()));
        }
    }

    /// The frame of a page. Certain while the caller holds the mapping's lock.
    pub(crate) fn find(&mut self, key: PageKey) -> Option<FrameNo> {
        let probe = self.index.probe(key);
        self.lock(probe);
        let mut at = self.index.buckets[probe.bucket].load(Ordering::Relaxed);
        while let Some(frame) = FrameNo::new(at) {
            if self.frames.key(frame) == key {
                return Some(frame);
            }
            at = self.frames.chain(frame).load(Ordering::Relaxed);
        }
        None
    }

    /// Enters a frame, whose key is set, under the mapping's lock. The page has no frame yet.
    pub(crate) fn insert(&mut self, frame: FrameNo) {
        let probe = self.index.probe(self.frames.key(frame));
        self.lock(probe);
        let bucket = &self.index.buckets[probe.bucket];
        self.frames.chain(frame).store(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
        bucket.store(frame.get(), Ordering::Release);
        self.index.hint(probe).insert(probe, frame);
    }

    /// Removes a frame, under the mapping's lock.
    pub(crate) fn remove(&mut self, frame: FrameNo) {
        let probe = self.index.probe(self.frames.key(frame));
        self.lock(probe);
        self.index.hint(probe).remove(probe, frame);
        // The frame's own link stays as it is: walkers that stand on it find on.
        let next = self.frames.chain(frame).load(Ordering::Relaxed);
        let mut link = &self.index.buckets[probe.bucket];
        loop {
            let at = FrameNo::new(link.load(Ordering::Relaxed)).expect("an attached frame is in its bucket");
            if at == frame {
                link.store(next, Ordering::Release);
                return;
            }
            link = self.frames.chain(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::FileId;

    /// Pages in the fullest bucket of a table with one bucket for each page.
    fn fullest(key: impl Fn(u32) -> PageKey) -> usize {
        let index = Index::new(4096).unwrap();
        let mut buckets = vec![0; 4096];
        (0..4096).for_each(|n| buckets[index.probe(key(n)).bucket] += 1);
        buckets.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn no_bucket_is_crowded_whatever_pages_of_files_are_cached() {
        // 4096 balls thrown at random into as many bins: more than 12 in one of them are seen once in 10^6 times.
        let of_each_file = fullest(|n| PageKey::new(FileId(1 + n), 0));
        let with_gaps = fullest(|n| PageKey::new(FileId(1), u64::from(n) * 512));
        assert!(of_each_file <= 12 && with_gaps <= 12, "{of_each_file} and {with_gaps} in a bucket");
        // Runs of 512 pages, eight of them, that may lie on each other.
        assert!(fullest(|n| PageKey::new(FileId(1), n.into())) <= 8);
    }
}

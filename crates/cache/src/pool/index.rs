//! Maps pages to frames: one hash table for the process.
//!
//! Readers walk a bucket's chain without a lock, and a chain may change under them. They verify
//! what they find (by pinning the frame and comparing its key), and what they miss they look up
//! again under the bucket's lock. So a walk may end early or stray into another bucket's chain, but
//! never yields a wrong frame. The table has a fixed size and nothing is ever freed, so there is
//! nothing to reclaim.

use crate::page::{FrameNo, PageKey, mix};
use crate::pool::arena::{Table, Zeroable};
use crate::pool::frame_word::After;
use crate::pool::frames::{Frames, Pinned};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Steps after which a reader takes the lock. Chains have one or two frames, unless a walk strays.
const STEPS_MAX: u32 = 64;
const LOCKS: usize = 256;
/// Log2 of the number of pages whose buckets are adjacent, 16 per cache line.
const NEIGHBOURS_SHIFT: u32 = 9;
/// Adjacent buckets under one lock, so that a run of pages takes few locks.
const STRIPE: usize = 64;
/// Buckets, and pages, that share a [`Hint`].
const HINTED: usize = 16;

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Table<AtomicU32>,
    /// Hints for pages whose frames are in page order. They take an eighth of the buckets' memory,
    /// so they are often in the processor's cache when the bucket is not.
    hints: Table<Hint>,
    mask: usize,
    locks: Box<[Stripe]>,
}

/// Each on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

/// Which pages of a block of [`HINTED`] neighbours are in consecutive frames. It is only a guess,
/// which readers verify like everything they find. Changed under the stripe's lock.
///
/// Layout: the frame that belongs to the block's first page (that page itself may be elsewhere), a
/// tag, and a bit for each page.
#[derive(Debug)]
struct Hint(AtomicU64);

// SAFETY: an atomic integer, for which zero is a valid value.
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
        // A hint describes one row of frames, the first. Pages in other rows are found through
        // their buckets.
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

/// Where to look for a page.
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

/// Result of a look-up.
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

    /// Neighbouring pages share cache lines of the table, and locks. Their runs begin anywhere, so
    /// that files of one page each, or every thousandth page of a file, use all buckets.
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

    /// A cursor to look up, insert and remove frames; it takes the locks it needs.
    pub(crate) fn cursor<'a>(&'a self, frames: &'a Frames) -> Cursor<'a> {
        Cursor { index: self, frames, held: None }
    }

    /// Finds and pins the frame of a page; lock-free unless the answer is doubtful. If the look-up
    /// turns out to be the last user of a frame, it passes the frame to `freed`.
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
                // A frame in the table is attached, except for the moment of its removal, so this
                // is not its last user.
                if failure.after == After::Freed {
                    freed(frame);
                }
                Found::Busy(frame)
            }
        }
    }

    /// Looks up a page's frame under the bucket lock. The answer is certain while the caller holds
    /// the file's lock.
    pub(crate) fn find(&self, frames: &Frames, key: PageKey) -> Option<FrameNo> {
        self.cursor(frames).find(key)
    }

    /// A lock-free guess at a page's frame, for callers that verify it.
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

/// See [`Index::cursor`]. It keeps the lock that its last step took, because the next page most
/// likely needs the same one. Do nothing that waits while a cursor exists.
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

    /// Looks up a page's frame. The answer is certain while the caller holds the file's lock.
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

    /// Inserts a frame whose key is set and whose page has no frame yet. The caller holds the
    /// file's lock.
    pub(crate) fn insert(&mut self, frame: FrameNo) {
        let probe = self.index.probe(self.frames.key(frame));
        self.lock(probe);
        let bucket = &self.index.buckets[probe.bucket];
        self.frames.chain(frame).store(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
        bucket.store(frame.get(), Ordering::Release);
        self.index.hint(probe).insert(probe, frame);
    }

    /// Removes a frame. The caller holds the file's lock.
    pub(crate) fn remove(&mut self, frame: FrameNo) {
        let probe = self.index.probe(self.frames.key(frame));
        self.lock(probe);
        self.index.hint(probe).remove(probe, frame);
        // The frame's own link stays, so that concurrent walkers that have reached the frame can
        // continue.
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

    /// Number of pages in the fullest bucket of a table that has one bucket per page.
    fn fullest(key: impl Fn(u32) -> PageKey) -> usize {
        let index = Index::new(4096).unwrap();
        let mut buckets = vec![0; 4096];
        (0..4096).for_each(|n| buckets[index.probe(key(n)).bucket] += 1);
        buckets.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn no_bucket_is_crowded_whatever_pages_of_files_are_cached() {
        // Like 4096 balls thrown at random into 4096 bins: a bin with more than 12 balls occurs
        // once in 10^6 trials.
        let of_each_file = fullest(|n| PageKey::new(FileId(1 + n), 0));
        let with_gaps = fullest(|n| PageKey::new(FileId(1), u64::from(n) * 512));
        assert!(of_each_file <= 12 && with_gaps <= 12, "{of_each_file} and {with_gaps} in a bucket");
        // Eight runs of 512 pages, which may overlap.
        assert!(fullest(|n| PageKey::new(FileId(1), n.into())) <= 8);
    }
}

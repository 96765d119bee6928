//! From page to frame: one hash table for the process.
//!
//! Readers walk a bucket's chain without a lock. A chain may change under them: what they find they check (by pinning the
//! frame and comparing its key), what they miss they look up again under the bucket's lock. So a walk may end early, or
//! stray into another bucket's chain, but never gives a wrong frame. The table has a fixed size and nothing is ever
//! freed, so there is nothing to reclaim.

use crate::arena::Table;
use crate::frames::{Frames, Pinned};
use crate::page::{FrameNo, PageKey, mix};
use crate::state::After;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Steps after which a reader asks for the lock: chains have one or two frames, unless a walk strays.
const STEPS_MAX: u32 = 64;
const LOCKS: usize = 256;
/// Pages whose buckets lie beside each other, 16 to a cache line.
const NEIGHBOURS_SHIFT: u32 = 9;

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Table<AtomicU32>,
    mask: usize,
    locks: Box<[Mutex<()>]>,
}

/// What a look-up gave.
pub(crate) enum Found<'a> {
    Pinned(Pinned<'a>),
    /// There is a frame, but it cannot be read at the moment.
    Busy(FrameNo),
    Absent,
}

impl Index {
    pub(crate) fn new(frames: u32) -> std::io::Result<Self> {
        let buckets = (frames as usize).next_power_of_two().max(16);
        let locks = (0..LOCKS).map(|_| Mutex::new(())).collect();
        Ok(Self { buckets: Table::zeroed(buckets)?, mask: buckets - 1, locks })
    }

    pub(crate) fn overhead_bytes(&self) -> usize {
        self.buckets.bytes()
    }

    /// Neighbouring pages share cache lines of the table; runs of them are spread at random.
    #[inline]
    fn bucket(&self, key: PageKey) -> usize {
        let run = key.0 >> NEIGHBOURS_SHIFT;
        let within = key.0 & ((1 << NEIGHBOURS_SHIFT) - 1);
        (mix(run) as usize).wrapping_add(within as usize) & self.mask
    }

    fn lock(&self, bucket: usize) -> parking_lot::MutexGuard<'_, ()> {
        self.locks[bucket % LOCKS].lock()
    }

    /// The frame of a page, counted in; lock-free unless the answer is doubtful. A frame that the look-up was the last to
    /// use is given to `freed`.
    #[inline]
    pub(crate) fn pin<'a>(&self, frames: &'a Frames, key: PageKey, freed: impl Fn(FrameNo)) -> Found<'a> {
        let mut at = self.buckets[self.bucket(key)].load(Ordering::Acquire);
        for _ in 0..STEPS_MAX {
            let Some(frame) = FrameNo::new(at) else { break };
            let head = frames.head(frame);
            if head.key.load(Ordering::Relaxed) == key.0 {
                match frames.pin(frame, key) {
                    Ok(pinned) => return Found::Pinned(pinned),
                    Err(failure) if failure.after == After::Freed => freed(frame),
                    Err(_) => {}
                }
                break;
            }
            at = head.chain.load(Ordering::Acquire);
        }
        self.pin_locked(frames, key, freed)
    }

    #[cold]
    fn pin_locked<'a>(&self, frames: &'a Frames, key: PageKey, freed: impl Fn(FrameNo)) -> Found<'a> {
        let bucket = self.bucket(key);
        let _guard = self.lock(bucket);
        let Some(frame) = self.walk(frames, bucket, key) else { return Found::Absent };
        match frames.pin(frame, key) {
            Ok(pinned) => Found::Pinned(pinned),
            Err(failure) => {
                // Whoever is in the table is attached but for an instant, so this is not the last user.
                if failure.after == After::Freed {
                    freed(frame);
                }
                Found::Busy(frame)
            }
        }
    }

    /// The frame of a page, by the table alone. Certain while the caller holds the mapping's lock.
    pub(crate) fn find(&self, frames: &Frames, key: PageKey) -> Option<FrameNo> {
        let bucket = self.bucket(key);
        let _guard = self.lock(bucket);
        self.walk(frames, bucket, key)
    }

    /// The frame of a page as far as can be told without a lock; for callers that check it.
    #[inline]
    pub(crate) fn guess(&self, frames: &Frames, key: PageKey) -> Option<FrameNo> {
        let mut at = self.buckets[self.bucket(key)].load(Ordering::Acquire);
        for _ in 0..STEPS_MAX {
            let frame = FrameNo::new(at)?;
            let head = frames.head(frame);
            if head.key.load(Ordering::Relaxed) == key.0 {
                return Some(frame);
            }
            at = head.chain.load(Ordering::Acquire);
        }
        None
    }

    fn walk(&self, frames: &Frames, bucket: usize, key: PageKey) -> Option<FrameNo> {
        let mut at = self.buckets[bucket].load(Ordering::Relaxed);
        while let Some(frame) = FrameNo::new(at) {
            let head = frames.head(frame);
            if head.key.load(Ordering::Relaxed) == key.0 {
                return Some(frame);
            }
            at = head.chain.load(Ordering::Relaxed);
        }
        None
    }

    /// Enters a frame, whose key is set, under the mapping's lock. The page has no frame yet.
    pub(crate) fn insert(&self, frames: &Frames, frame: FrameNo) {
        let bucket = self.bucket(frames.key(frame));
        let _guard = self.lock(bucket);
        let head = self.buckets[bucket].load(Ordering::Relaxed);
        frames.head(frame).chain.store(head, Ordering::Relaxed);
        self.buckets[bucket].store(frame.get(), Ordering::Release);
    }

    /// Removes a frame, under the mapping's lock.
    pub(crate) fn remove(&self, frames: &Frames, frame: FrameNo) {
        let bucket = self.bucket(frames.key(frame));
        let _guard = self.lock(bucket);
        // The frame's own link stays as it is: walkers that stand on it find on.
        let next = frames.head(frame).chain.load(Ordering::Relaxed);
        let mut link = &self.buckets[bucket];
        loop {
            let at = FrameNo::new(link.load(Ordering::Relaxed)).expect("an attached frame is in its bucket");
            if at == frame {
                link.store(next, Ordering::Release);
                return;
            }
            link = &frames.head(at).chain;
        }
    }
}

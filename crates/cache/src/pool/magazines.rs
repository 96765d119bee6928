//! Magazines: a few free frames for each processor, so that threads that take frames one at a time do not meet at the pool's
//! lock (Bonwick and Adams, "Magazines and Vmem", USENIX 2001).
//!
//! - A magazine never has more than [`Magazines::size`] frames, and there are [`LANES`] of them: 6 % of 2,048 frames at
//!   most, and none in a pool of few.
//! - A caller that finds nothing to take or evict takes back what is in all of them. No frame is out of reach but for the
//!   time that another caller holds a magazine's lock, and such a caller waits for that lock.
//! - A magazine's lock is taken before the pool's, and held while the magazine is filled from the pool: frames are seen in
//!   the one or in the other.

use crate::page::FrameNo;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;

/// Processors, or threads, with a magazine of their own; more of them share.
const LANES: usize = 16;
/// Frames in a magazine.
const MOST: u32 = 8;
/// A pool has at least so many frames for each frame in a magazine.
const SHARE: u32 = 128;

/// The magazines of a pool.
#[derive(Debug)]
pub(super) struct Magazines {
    size: usize,
    lanes: Box<[Lane]>,
}

/// A line of its own for each.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(Mutex<VecDeque<FrameNo>>);

impl Magazines {
    /// Magazines for a pool of `frames` frames.
    pub(super) fn new(frames: u32) -> Self {
        let size = (frames / SHARE).min(MOST) as usize;
        let lane = |_| Lane(Mutex::new(VecDeque::with_capacity(size)));
        Self { size, lanes: (0..LANES).map(lane).collect() }
    }

    /// Frames in a full magazine; 0 if there are none.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The magazine of a processor, locked.
    pub(super) fn lock(&self, lane: u32) -> MutexGuard<'_, VecDeque<FrameNo>> {
        self.lanes[lane as usize % LANES].0.lock()
    }

    /// Empties all.
    pub(super) fn take_back(&self) -> Vec<FrameNo> {
        if self.size == 0 {
            return Vec::new();
        }
        self.lanes.iter().flat_map(|lane| std::mem::take(&mut *lane.0.lock())).collect()
    }

    /// Frames in all of them.
    pub(super) fn len(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.0.lock().len() as u32).sum()
    }
}

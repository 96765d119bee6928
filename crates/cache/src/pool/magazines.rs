//! Magazines: a few free frames per processor, so that threads that take frames one at a time do
//! not contend for the pool's lock (Bonwick and Adams, "Magazines and Vmem", USENIX 2001).
//!
//! - A magazine never has more than [`Magazines::size`] frames, and there are [`LANES`] of them: at
//!   most 6 % of 2,048 frames, and none in a small pool.
//! - A caller that finds nothing to take or evict takes back the frames of all magazines. A frame
//!   is out of reach only while another caller holds a magazine's lock, and such a caller waits for
//!   that lock.
//! - A magazine's lock is taken before the pool's, and held while the magazine is filled from the
//!   pool, so that every frame is visible in one or the other.

use crate::page::FrameNo;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;

/// Processors, or threads, with their own magazine; beyond that they share.
const LANES: usize = 16;
/// Maximum number of frames in a magazine.
const MOST: u32 = 8;
/// A pool has at least this many frames for each frame in one magazine.
const SHARE: u32 = 128;

/// The magazines of a pool.
#[derive(Debug)]
pub(super) struct Magazines {
    size: usize,
    lanes: Box<[Lane]>,
}

/// Each on a cache line of its own.
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

    /// Frames in a full magazine; 0 if magazines are not used.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Locks the magazine of a processor.
    pub(super) fn lock(&self, lane: u32) -> MutexGuard<'_, VecDeque<FrameNo>> {
        self.lanes[lane as usize % LANES].0.lock()
    }

    /// Empties all magazines and returns their frames.
    pub(super) fn take_back(&self) -> Vec<FrameNo> {
        if self.size == 0 {
            return Vec::new();
        }
        self.lanes.iter().flat_map(|lane| std::mem::take(&mut *lane.0.lock())).collect()
    }

    /// Number of frames in all magazines.
    pub(super) fn len(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.0.lock().len() as u32).sum()
    }
}

//! Eviction policies: which page leaves when a frame is needed.

mod lists;
mod s3fifo;

pub use s3fifo::S3Fifo;

use crate::page::FrameNo;
use std::fmt;

/// A cache may have this many frames beyond its budget, for completions. Frame numbers include
/// them.
pub const SPARE_FRAMES: u32 = 64;

/// Use counts of frames. Readers count uses without involving the policy.
pub trait Uses {
    /// Uses since the last [`Uses::set`], at most 3.
    fn uses(&self, frame: FrameNo) -> u8;
    /// Resets the count.
    fn set(&self, frame: FrameNo, uses: u8);
}

/// An eviction policy for clean frames. Dirty frames enter once they have been written back. Pure.
///
/// `page` is a number that identifies a page.
pub trait Eviction: Send + fmt::Debug {
    /// A frame now holds a clean page. Frames already known keep their place.
    fn insert(&mut self, frame: FrameNo, page: u64);
    /// A frame is no longer a candidate. Unknown frames are ignored.
    fn remove(&mut self, frame: FrameNo);
    /// Chooses a frame and forgets it; `None` if there is no candidate. `page_of` returns the page
    /// a frame holds.
    fn victim(&mut self, uses: &dyn Uses, page_of: &dyn Fn(FrameNo) -> u64) -> Option<FrameNo>;
    /// A victim could not be taken, because it was in use just then.
    fn put_back(&mut self, frame: FrameNo);
    /// Number of candidates.
    fn len(&self) -> usize;
    /// Whether there is no candidate.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Memory used by the policy, in bytes.
    fn overhead_bytes(&self) -> usize;
}

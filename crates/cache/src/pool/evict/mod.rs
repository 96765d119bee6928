//! Which page leaves when a frame is needed.

mod lists;
mod s3fifo;

pub use s3fifo::S3Fifo;

use crate::page::FrameNo;
use std::fmt;

/// A cache has up to so many frames more than its budget, for completions: numbers of frames reach that far.
pub const SPARE_FRAMES: u32 = 64;

/// How often frames were used; a reader counts without asking the policy.
pub trait Uses {
    /// Uses since the last [`Uses::set`], at most 3.
    fn uses(&self, frame: FrameNo) -> u8;
    /// Puts the count back.
    fn set(&self, frame: FrameNo, uses: u8);
}

/// An eviction policy over clean frames: dirty ones are not its affair until they have been written back. Pure.
///
/// `page` is a number that tells pages apart.
pub trait Eviction: Send + fmt::Debug {
    /// A frame holds a clean page from now on. Known frames stay where they are.
    fn insert(&mut self, frame: FrameNo, page: u64);
    /// A frame is no candidate any more. Unknown ones are ignored.
    fn remove(&mut self, frame: FrameNo);
    /// Chooses a frame and forgets it; `None` where there is no candidate. `page_of` names what a frame holds.
    fn victim(&mut self, uses: &dyn Uses, page_of: &dyn Fn(FrameNo) -> u64) -> Option<FrameNo>;
    /// A victim could not be taken, because it was in use at that moment.
    fn put_back(&mut self, frame: FrameNo);
    /// Candidates.
    fn len(&self) -> usize;
    /// Whether there is no candidate.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Memory that the policy takes.
    fn overhead_bytes(&self) -> usize;
}

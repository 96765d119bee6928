//! A run of write-back, from taking its pages to its end.

use crate::backing::WrittenExtent;
use crate::dirty::ledger::WritebackCharge;
use crate::page::{FrameNo, PAGE};
use crate::state::Inner;
use crate::state::plug::Plug;
use crate::state::underway::RunNo;
use crate::{BackingError, ByteRange, CacheError, PageRange, Result};
use extant_block::BioFlags;
use extant_rt::Nanos;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Waker;

/// A run of pages under write-back.
#[derive(Debug)]
pub(crate) struct WriteRun {
    pub(crate) inner: Arc<Inner>,
    pub(crate) first: u64,
    pub(crate) frames: Vec<FrameNo>,
    /// Which quarters of each page to write; empty if all of them.
    pub(crate) masks: Vec<u8>,
    /// The file's size before the run was taken …
    pub(crate) size_bytes: u64,
    /// … and the same in whole blocks: nothing past it is written.
    pub(crate) end_bytes: u64,
    /// The longest bio, in pages.
    pub(crate) bio_pages: u64,
    /// Its bios are not merged with others.
    pub(crate) is_whole_bios: bool,
    pub(crate) started: Nanos,
    /// The run's number within the file.
    pub(crate) number: RunNo,
    /// Flushes of the device that had failed when the run was taken.
    pub(crate) flush_failures: u64,
    /// How often stuck files had been retried by then.
    pub(crate) retries: u64,
    /// Present until the pages have left write-back.
    pub(crate) charge: Mutex<Option<WritebackCharge>>,
}

impl WriteRun {
    /// The run's pages.
    pub(crate) fn pages(&self) -> PageRange {
        PageRange::new(self.first, self.first + self.frames.len() as u64)
    }

    /// The ranges of the file to write.
    pub(crate) fn pieces(&self) -> Pieces {
        let start = self.first * PAGE;
        if self.masks.is_empty() {
            let end = (start + self.frames.len() as u64 * PAGE).min(self.end_bytes.max(start));
            return (start < end).then_some(ByteRange::new(start, end)).into_iter().collect();
        }
        let mut pieces = Pieces::new();
        for (slot, mask) in self.masks.iter().enumerate() {
            for quarter in (0..4).filter(|quarter| mask >> quarter & 1 == 1) {
                let at = start + slot as u64 * PAGE + quarter * (PAGE / 4);
                let end = (at + PAGE / 4).min(self.end_bytes);
                match pieces.last_mut() {
                    Some(last) if last.end == at => last.end = end.max(at),
                    _ if at < end => pieces.push(ByteRange::new(at, end)),
                    _ => {}
                }
            }
        }
        pieces
    }
}

/// The placed extents and their results.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) extents: SmallVec<[WrittenExtent; 2]>,
    pub(crate) changes_map: bool,
    /// Something was written to the device.
    pub(crate) had_bios: bool,
    /// End of the last extent placed.
    pub(crate) placed_end: u64,
    /// Why the rest was not placed.
    pub(crate) not_placed: Option<BackingError>,
}

impl Outcome {
    /// The first error.
    pub(crate) fn result(&self) -> Result<()> {
        let io = self.extents.iter().find_map(|extent| extent.result.clone().err());
        match (io, &self.not_placed) {
            (Some(error), _) => Err(CacheError::Io(error)),
            (None, Some(error)) => Err(CacheError::Backing(error.clone())),
            (None, None) => Ok(()),
        }
    }
}

/// Ranges of a run, in order.
pub(crate) type Pieces = SmallVec<[ByteRange; 1]>;

/// A run in flight. It completes whether or not its starter waits. If its backing has nothing to do
/// then, it completes on the thread that reaps its last bio; otherwise it is queued for the
/// device's completion task or for a waiter.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) run: WriteRun,
    pub(crate) flags: BioFlags,
    pub(crate) window: Arc<Mutex<InFlight>>,
    /// Where its bios wait for those of other runs.
    pub(crate) plug: Arc<Plug>,
    /// Bios that have not ended, plus one for the submission itself.
    pub(crate) left: AtomicUsize,
    pub(crate) outcome: Mutex<Outcome>,
}

/// How much of the runs submitted together is in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) pages: u64,
    /// A task that waits until at most this many pages are in flight.
    pub(crate) waiter: Option<(u64, Waker)>,
}

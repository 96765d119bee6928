//! A run of pages under write-back, from taking them to its end.

use crate::backing::WrittenExtent;
use crate::device::bio_batch::BioBatch;
use crate::dirty::charges::WritebackCharge;
use crate::file::CachedFile;
use crate::file::runs_in_flight::RunNumber;
use crate::page::{FrameNo, PAGE};
use crate::{BackingError, ByteRange, CacheError, PageRange, Result};
use extant_block::BioFlags;
use extant_rt::Nanos;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Waker;

/// A run of pages under write-back. It completes whether or not its starter waits. If the backing
/// has nothing to do at its end, the run completes on the thread that reaps its last bio. Otherwise
/// it is queued for the device's completion task or for a waiter.
#[derive(Debug)]
pub(crate) struct WriteRun {
    pub(crate) file: Arc<CachedFile>,
    pub(crate) first: u64,
    pub(crate) frames: Vec<FrameNo>,
    /// Which quarters of each page to write; empty if all of them.
    pub(crate) quarters: Vec<u8>,
    /// The file's size before the run was taken …
    pub(crate) size_bytes: u64,
    /// … and the same in whole blocks: nothing past it is written.
    pub(crate) end_bytes: u64,
    /// The longest bio, in pages.
    pub(crate) bio_pages: u64,
    /// Whether its bios are kept whole, not merged with others.
    pub(crate) is_whole_bios: bool,
    pub(crate) flags: BioFlags,
    /// The batch in which its bios wait for those of other runs.
    pub(crate) batch: Arc<BioBatch>,
    pub(crate) in_flight: Arc<Mutex<InFlight>>,
    pub(crate) started: Nanos,
    /// The run's number within the file.
    pub(crate) number: RunNumber,
    /// Flushes of the device that had failed when the run was taken.
    pub(crate) flush_failures: u64,
    /// Number of requests to retry unplaceable files when the run was taken.
    pub(crate) retries: u64,
    /// Present until the pages have left write-back.
    pub(crate) charge: Mutex<Option<WritebackCharge>>,
    /// Bios that have not ended, plus one for the submission itself.
    pub(crate) bios_left: AtomicUsize,
    pub(crate) progress: Mutex<Progress>,
}

/// A run's progress.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    step: RunStep,
    pub(crate) result: RunResult,
}

/// The steps of a run, each of which comes once, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RunStep {
    /// Its pages are under write-back.
    #[default]
    Taken,
    /// Its bios are with the device or in a batch.
    Submitted,
    /// They have ended.
    Landed,
    /// Its pages have left write-back.
    Settled,
}

impl Progress {
    /// Moves on to the next step.
    pub(crate) fn advance(&mut self, to: RunStep) {
        assert_eq!(self.step as u8 + 1, to as u8, "a run takes one step after the other");
        self.step = to;
    }
}

/// The placed extents and their results.
#[derive(Debug, Default)]
pub(crate) struct RunResult {
    pub(crate) extents: SmallVec<[WrittenExtent; 2]>,
    pub(crate) changes_map: bool,
    /// Whether something was written to the device.
    pub(crate) had_bios: bool,
    /// End of the last extent placed.
    pub(crate) placed_end: u64,
    /// Why the rest was not placed.
    pub(crate) not_placed: Option<BackingError>,
}

impl RunResult {
    /// The first error.
    pub(crate) fn as_result(&self) -> Result<()> {
        let io = self.extents.iter().find_map(|extent| extent.result.clone().err());
        match (io, &self.not_placed) {
            (Some(error), _) => Err(CacheError::Io(error)),
            (None, Some(error)) => Err(CacheError::Backing(error.clone())),
            (None, None) => Ok(()),
        }
    }
}

/// How many pages are in flight, of the runs submitted together.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    pub(crate) pages: u64,
    /// A task that waits until at most this many pages are in flight.
    pub(crate) waiter: Option<(u64, Waker)>,
}

/// Ranges of a run, in order.
pub(crate) type Pieces = SmallVec<[ByteRange; 1]>;

impl WriteRun {
    /// The run's pages.
    pub(crate) fn pages(&self) -> PageRange {
        PageRange::new(self.first, self.first + self.frames.len() as u64)
    }

    /// The ranges of the file to write.
    pub(crate) fn pieces(&self) -> Pieces {
        let start = self.first * PAGE;
        if self.quarters.is_empty() {
            let end = (start + self.frames.len() as u64 * PAGE).min(self.end_bytes.max(start));
            return (start < end).then_some(ByteRange::new(start, end)).into_iter().collect();
        }
        let mut pieces = Pieces::new();
        for (slot, dirty) in self.quarters.iter().enumerate() {
            for quarter in (0..4).filter(|quarter| dirty >> quarter & 1 == 1) {
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

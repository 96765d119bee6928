//! A run in flight: placed by its backing, submitted as bios, and handed to completion.

use crate::backing::{DirtyRun, Placed, WriteExtent, WriteTo, WrittenExtent, WrittenRun};
use crate::caught::caught;
use crate::page::{PAGE, neighbours};
use crate::state::run::{Outcome, Pieces, WriteRun, Writing};
use crate::writeback::Window;
use crate::{BackingError, BackingErrorKind, ByteRange, CacheError, Cost, Result};
use extant_block::{Bio, BioFlags, Buf, Op, Sector, Segment};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Clips the extents of an answer to the requested pieces, and removes from the pieces what is now
/// placed.
///
/// # Panics
/// The answer does not begin where the pieces do, or leaves a gap.
fn match_up(pieces: &mut Pieces, placed: &mut Placed) {
    assert!(!placed.extents.is_empty(), "a backing's answer is never empty");
    for extent in &mut placed.extents {
        let piece = pieces.first_mut().expect("no more is placed than was asked for");
        assert_eq!(extent.range.start, piece.start, "an extent begins where the one before it ended");
        assert!(!extent.range.is_empty(), "an extent is never empty");
        if let WriteTo::Device(sector) = extent.to {
            let before = u64::from(extent.zero_before);
            let is_there = before.is_multiple_of(Sector::BYTES) && before / Sector::BYTES <= sector.0;
            assert!(is_there, "zeroes before an extent are whole sectors of the device");
        }
        extent.range = extent.range.intersect(*piece);
        piece.start = extent.range.end;
        if piece.is_empty() {
            pieces.remove(0);
        }
    }
}

impl WriteRun {
    /// Starts the write. Errors go to the file's log.
    pub(super) fn start_in(self, flags: BioFlags, window: &Window) {
        let shared = self.inner.shared.clone();
        let writing = Writing {
            run: self,
            flags,
            window: window.in_flight.clone(),
            plug: window.plug.clone(),
            left: AtomicUsize::new(1),
            outcome: Mutex::default(),
        };
        shared.see_off(Arc::new(writing).submit());
    }
}

/// The submission of a run's bios. The run cannot end before the submission does.
struct Submission<'a> {
    writing: &'a Arc<Writing>,
    is_whole: bool,
}

/// The submission ended half way, because of a device or because the world ended.
#[derive(Debug, thiserror::Error)]
#[error("the write was given up before all of it was submitted")]
struct GivenUp;

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            let error = BackingError::new(BackingErrorKind::Other, GivenUp);
            self.writing.outcome.lock().not_placed.get_or_insert(error);
        }
        self.writing.part_ended();
    }
}

impl Writing {
    pub(super) async fn submit(self: Arc<Self>) {
        let inner = &self.run.inner;
        let mut submission = Submission { writing: &self, is_whole: false };
        let mut pieces = self.run.pieces();
        while !pieces.is_empty() {
            inner.shared.rt.charge(Cost::MapLookup(1));
            let answer = caught(async {
                let WriteRun { size_bytes, number, .. } = self.run;
                let run = DirtyRun { pieces: &pieces, size_bytes, number: number.0 };
                let mut placed = inner.backing.prepare_write(run).await?;
                match_up(&mut pieces, &mut placed);
                Ok(placed)
            });
            match answer.await {
                Ok(placed) => self.submit_placed(&placed),
                Err(error) => {
                    self.outcome.lock().not_placed = Some(error);
                    break;
                }
            }
        }
        submission.is_whole = true;
    }

    fn submit_placed(self: &Arc<Self>, placed: &Placed) {
        let first = {
            let mut outcome = self.outcome.lock();
            outcome.changes_map |= placed.changes_map;
            outcome.had_bios |= placed.extents.iter().any(|extent| matches!(extent.to, WriteTo::Device(_)));
            outcome.placed_end = placed.extents.last().map_or(0, |extent| extent.range.end);
            let first = outcome.extents.len();
            let not_ended = |&extent| WrittenExtent { extent, result: Ok(()), bytes: None };
            outcome.extents.extend(placed.extents.iter().map(not_ended));
            first
        };
        for (nth, extent) in placed.extents.iter().enumerate() {
            match extent.to {
                WriteTo::Device(sector) => self.submit_extent(first + nth, extent, sector),
                WriteTo::Backing => {
                    let memory = self.memory(extent.range);
                    let bytes = memory.iter().flat_map(|segment| segment.as_slice()).copied().collect();
                    let mut outcome = self.outcome.lock();
                    outcome.extents[first + nth].bytes = Some(bytes);
                    outcome.changes_map = true;
                }
            }
        }
    }

    /// The memory of a range of the run.
    fn memory(&self, range: ByteRange) -> Vec<Segment> {
        let shared = &self.run.inner.shared;
        let mut segments = Vec::new();
        if shared.pool.frames.are_phantoms() {
            let most = self.most_bytes().min(Segment::MAX_ZEROES as u64);
            let mut left = range.len();
            while left > 0 {
                let len = left.min(most);
                segments.push(Segment::zeroes(len as usize));
                left -= len;
            }
            return segments;
        }
        let owner: Arc<dyn Any + Send + Sync> = shared.clone();
        for (frame, count, skip, len) in
            neighbours(&self.run.frames, range.start - self.run.first * PAGE, range.len())
        {
            // SAFETY: the frames are pinned for write-back until `WriteRun::end`, which comes after
            // every bio has ended and been dropped.
            segments.push(unsafe { shared.pool.frames.to_write(frame, count, skip, len, owner.clone()) });
        }
        segments
    }

    /// Size limit for a bio, in bytes.
    fn most_bytes(&self) -> u64 {
        let inner = &self.run.inner;
        let most = inner.disk.device.limits().max_bytes.min(self.run.bio_pages * PAGE);
        (most / PAGE * PAGE).max(PAGE)
    }

    fn submit_extent(self: &Arc<Self>, nth: usize, extent: &WriteExtent, sector: Sector) {
        let device = &self.run.inner.disk.device;
        let (most, most_segments) = (self.most_bytes(), device.limits().max_segments as usize);
        let zeroes = |bytes: u32| (bytes > 0).then(|| Segment::from(Buf::zeroed(bytes as usize)));
        let segments = zeroes(extent.zero_before)
            .into_iter()
            .chain(self.memory(extent.range))
            .chain(zeroes(extent.zero_after));
        let mut start = sector.0 - u64::from(extent.zero_before) / Sector::BYTES;
        let mut bios = Vec::new();
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut flush = |batch: &mut Vec<Segment>, bytes: &mut u64| {
            if batch.is_empty() {
                return;
            }
            let mut bio = Bio::new(Op::Write, Sector(start), std::mem::take(batch));
            bio.flags = self.flags;
            start += *bytes / Sector::BYTES;
            *bytes = 0;
            let writing = self.clone();
            bio.on_end(Box::new(move |bio, result| {
                drop(bio);
                if let Err(error) = result {
                    let io = &mut writing.outcome.lock().extents[nth].result;
                    *io = std::mem::replace(io, Ok(())).and(Err(error));
                }
                writing.part_ended();
            }));
            bios.push(bio);
        };
        for segment in segments {
            if bytes > 0 && (bytes + segment.len() as u64 > most || batch.len() >= most_segments) {
                flush(&mut batch, &mut bytes);
            }
            bytes += segment.len() as u64;
            batch.push(segment);
        }
        flush(&mut batch, &mut bytes);
        self.left.fetch_add(bios.len(), Ordering::Relaxed);
        match self.run.is_whole_bios {
            // A pass that sets the bio length gets exactly those bios, unmerged.
            true => device.submit_all(&mut bios.into_iter()),
            false => self.plug.submit(bios),
        }
    }

    fn part_ended(self: &Arc<Self>) {
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let inner = &self.run.inner;
        self.run.landed();
        inner.disk.note_unflushed(inner, self.run.flush_failures);
        let outcome = {
            let mut outcome = self.outcome.lock();
            let must_finish = outcome.changes_map && !outcome.extents.is_empty();
            (!must_finish).then(|| std::mem::take(&mut *outcome))
        };
        match outcome {
            Some(outcome) => self.settle(&outcome.result(), &outcome),
            None => self.enlist(),
        }
    }

    /// Notifies the backing that the run has ended; returns the result, for [`Self::settle`].
    pub(super) async fn tell_backing(&self) -> (Result<()>, Outcome) {
        let mut outcome = std::mem::take(&mut *self.outcome.lock());
        let mut result = outcome.result();
        let run =
            WrittenRun { extents: std::mem::take(&mut outcome.extents), size_bytes: self.run.size_bytes };
        let finished = caught(async { self.run.inner.backing.finish_write(&run).await }).await;
        if result.is_ok() {
            result = finished.map_err(CacheError::Backing);
        }
        (result, outcome)
    }

    /// Ends the run although its backing has not been notified of all of it, because the world has
    /// ended.
    pub(super) fn give_up(&self) {
        let mut outcome = std::mem::take(&mut *self.outcome.lock());
        outcome.changes_map = true;
        self.settle(&Err(CacheError::ShutDown), &outcome);
    }

    /// Takes the pages out of write-back and wakes the window's waiter.
    pub(super) fn settle(&self, result: &Result<()>, outcome: &Outcome) {
        self.run.end(result, outcome);
        let mut window = self.window.lock();
        window.pages -= self.run.frames.len() as u64;
        let pages = window.pages;
        let waker = window.waiter.take_if(|(most, _)| pages <= *most);
        drop(window);
        if let Some((_, waker)) = waker {
            waker.wake();
        }
    }
}

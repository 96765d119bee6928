//! A run on its way to the device: placed by its backing and submitted as bios.

use crate::backing::{DirtyRun, Placed, WriteExtent, WriteTo, WrittenExtent};
use crate::caught::caught;
use crate::file::write_run::{Pieces, RunStep, WriteRun};
use crate::page::{PAGE, neighbours};
use crate::{BackingError, BackingErrorKind, ByteRange, Cost};
use extant_block::{Bio, Buf, Op, Sector, Segment};
use extant_rt::Class;
use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

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

/// The submission of a run's bios. The run cannot end before the submission does.
struct Submission<'a> {
    run: &'a Arc<WriteRun>,
    is_whole: bool,
}

/// The submission stopped half way, because of a device or because the world ended.
#[derive(Debug, thiserror::Error)]
#[error("the write was given up before all of it was submitted")]
struct GivenUp;

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        {
            let mut progress = self.run.progress.lock();
            progress.advance(RunStep::Submitted);
            if !self.is_whole {
                let error = BackingError::new(BackingErrorKind::Other, GivenUp);
                progress.result.not_placed.get_or_insert(error);
            }
        }
        self.run.part_ended();
    }
}

impl WriteRun {
    /// Starts the write: places the pages and submits bios for them. If the backing must wait to
    /// place them, a task continues. Errors go to the file's log.
    pub(super) fn start(self: Arc<Self>) {
        let rt = self.file.core.rt.clone();
        let mut work = Box::pin(self.submit());
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            drop(rt.spawn("write-back", Class::Normal, work));
        }
    }

    async fn submit(self: Arc<Self>) {
        let file = &self.file;
        let mut submission = Submission { run: &self, is_whole: false };
        let mut pieces = self.pieces();
        while !pieces.is_empty() {
            file.core.rt.charge(Cost::MapLookup(1));
            let answer = caught(async {
                let run = DirtyRun { pieces: &pieces, size_bytes: self.size_bytes, number: self.number.0 };
                let mut placed = file.backing.prepare_write(run).await?;
                match_up(&mut pieces, &mut placed);
                Ok(placed)
            });
            match answer.await {
                Ok(placed) => self.submit_placed(&placed),
                Err(error) => {
                    self.progress.lock().result.not_placed = Some(error);
                    break;
                }
            }
        }
        submission.is_whole = true;
    }

    fn submit_placed(self: &Arc<Self>, placed: &Placed) {
        let first = {
            let result = &mut self.progress.lock().result;
            result.changes_map |= placed.changes_map;
            result.had_bios |= placed.extents.iter().any(|extent| matches!(extent.to, WriteTo::Device(_)));
            result.placed_end = placed.extents.last().map_or(0, |extent| extent.range.end);
            let first = result.extents.len();
            let not_ended = |&extent| WrittenExtent { extent, result: Ok(()), bytes: None };
            result.extents.extend(placed.extents.iter().map(not_ended));
            first
        };
        for (nth, extent) in placed.extents.iter().enumerate() {
            match extent.to {
                WriteTo::Device(sector) => self.submit_extent(first + nth, extent, sector),
                WriteTo::Backing => {
                    let memory = self.memory(extent.range);
                    let bytes = memory.iter().flat_map(|segment| segment.as_slice()).copied().collect();
                    let result = &mut self.progress.lock().result;
                    result.extents[first + nth].bytes = Some(bytes);
                    result.changes_map = true;
                }
            }
        }
    }

    /// The memory of a range of the run.
    fn memory(&self, range: ByteRange) -> Vec<Segment> {
        let core = &self.file.core;
        let mut segments = Vec::new();
        if core.pool.frames.are_phantoms() {
            let most = self.most_bytes().min(Segment::MAX_ZEROES as u64);
            let mut left = range.len();
            while left > 0 {
                let len = left.min(most);
                segments.push(Segment::zeroes(len as usize));
                left -= len;
            }
            return segments;
        }
        let owner: Arc<dyn Any + Send + Sync> = core.clone();
        for (frame, count, skip, len) in
            neighbours(&self.frames, range.start - self.first * PAGE, range.len())
        {
            // SAFETY: the frames are pinned for write-back until `WriteRun::settle`, which comes
            // after every bio has ended and been dropped.
            segments.push(unsafe { core.pool.frames.to_write(frame, count, skip, len, owner.clone()) });
        }
        segments
    }

    /// Size limit for a bio, in bytes.
    fn most_bytes(&self) -> u64 {
        let most = self.file.disk.device.limits().max_bytes.min(self.bio_pages * PAGE);
        (most / PAGE * PAGE).max(PAGE)
    }

    fn submit_extent(self: &Arc<Self>, nth: usize, extent: &WriteExtent, sector: Sector) {
        let device = &self.file.disk.device;
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
            let run = self.clone();
            bio.on_end(Box::new(move |bio, result| {
                drop(bio);
                if let Err(error) = result {
                    let io = &mut run.progress.lock().result.extents[nth].result;
                    *io = std::mem::replace(io, Ok(())).and(Err(error));
                }
                run.part_ended();
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
        self.bios_left.fetch_add(bios.len(), Ordering::Relaxed);
        match self.is_whole_bios {
            // A pass that sets the bio length gets exactly those bios, unmerged.
            true => device.submit_all(&mut bios.into_iter()),
            false => self.batch.add(bios),
        }
    }
}

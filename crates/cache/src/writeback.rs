//! Dirty pages on their way to the device, and the end of that.

use crate::backing::{DirtyRun, Placed, WriteExtent, WriteTo, WrittenExtent, WrittenRun};
use crate::caught::caught;
use crate::disk::DiskState;
use crate::load::neighbours;
use crate::mapping::{Aftermath, Inner, written};
use crate::page::{FrameNo, PAGE};
use crate::pass::{ByRuns, DirtyAhead, Visiting};
use crate::shared::Shared;
use crate::waits::Key;
use crate::{BackingError, ByteRange, CacheError, OnWriteError, Result};
use crate::{Cost, Event};
use extant_block::{Bio, BioFlags, Buf, Op, Sector, Segment};
use extant_rt::{Class, Nanos, Rt};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

/// A run of pages under write-back.
#[derive(Debug)]
pub(crate) struct WriteRun {
    inner: Arc<Inner>,
    first: u64,
    frames: Vec<FrameNo>,
    /// Which quarters of each page are to be written; empty where all are.
    masks: Vec<u8>,
    /// The file's size before the run was taken …
    size_bytes: u64,
    /// … and in whole blocks: nothing past it is written.
    end_bytes: u64,
    /// The longest bio, in pages.
    bio_pages: u64,
    started: Nanos,
}

/// What a search for dirty pages came upon.
#[derive(Debug)]
pub(crate) enum Taken {
    /// A run, under write-back from now on.
    Run(WriteRun),
    /// This page is dirty, but its predecessor is on its way to the device.
    InFlight(u64),
    /// This page is dirty, but somebody is changing it.
    Busy(u64),
    /// Nothing is dirty.
    Clean,
}

impl Inner {
    /// Takes the next run of `range`, of which `left` pages may still be written, as the visit has it.
    pub(crate) async fn take_step(
        self: &Arc<Self>,
        range: Range<u64>,
        left: u64,
        visiting: &mut Visiting<'_>,
    ) -> Taken {
        let most_pages = self.shared.settings.run_pages;
        let look_pages = visiting.visit.look_pages(left, most_pages);
        let run_pages = {
            let pages = self.pages.lock();
            let Some(first) = pages.dirty.first_in(range.clone()) else { return Taken::Clean };
            pages.dirty.run_end(first..range.end.min(first.saturating_add(look_pages))) - first
        };
        let step = visiting.visit.step(DirtyAhead { run_pages, left_pages: left, most_pages });
        // Nothing is taken before the last yield: a caller may leave there.
        visiting.before_taking(step).await;
        let mut taken = self.take_dirty(range, step.take_pages);
        if let (Taken::Run(run), Some(bio_pages)) = (&mut taken, step.bio_pages) {
            run.bio_pages = bio_pages.max(1);
        }
        taken
    }

    /// Puts the first run of dirty pages in `range` under write-back, at most `max_pages` of them.
    pub(crate) fn take_dirty(self: &Arc<Self>, range: Range<u64>, max_pages: u64) -> Taken {
        let mut pages = self.pages.lock();
        // Before the first page is taken: what grows the file from now on is not in the run.
        let size = self.size();
        let Some(first) = pages.dirty.first_in(range.clone()) else { return Taken::Clean };
        if pages.writeback.contains(first) {
            return Taken::InFlight(first);
        }
        let end = pages.dirty.run_end(first..range.end.min(first.saturating_add(max_pages.max(1))));
        let end = pages.writeback.first_in(first..end).unwrap_or(end);
        let (mut frames, mut masks) =
            (Vec::with_capacity((end - first) as usize), Vec::with_capacity((end - first) as usize));
        let mut cursor = self.cursor(&pages);
        for index in first..end {
            let frame = cursor.find(self.key(index)).expect("a dirty page has a frame");
            let Some(mask) = self.shared.frames.state(frame).start_writeback() else { break };
            frames.push(frame);
            masks.push(mask);
        }
        drop(cursor);
        if frames.is_empty() {
            return Taken::Busy(first);
        }
        let count = frames.len() as u64;
        pages.dirty.remove(first..first + count);
        pages.writeback.insert(first..first + count);
        self.shared.writeback.fetch_add(count, Ordering::Relaxed);
        self.disk.writeback.fetch_add(count, Ordering::SeqCst);
        self.disk.in_flight.fetch_add(count, Ordering::SeqCst);
        if self.no_longer_dirty(&pages, count) < count {
            // Stuck pages are not charged, but those under write-back are.
            self.shared.charge_exempt(&self.disk, count);
        }
        let mut after = Aftermath::default();
        self.unlist_if_clean(&mut pages, &mut after);
        drop(pages);
        self.settle(after);
        if masks.iter().all(|&mask| mask == 0xf) {
            masks.clear();
        }
        let end_bytes =
            size.next_multiple_of(self.backing.block_bytes().into()).min(self.backing.end_bytes().max(size));
        let started = self.shared.rt.now();
        self.shared.rt.charge(Cost::PageDirty(count));
        let (inner, bio_pages) = (self.clone(), self.shared.settings.bio_pages);
        Taken::Run(WriteRun { inner, first, frames, masks, size_bytes: size, end_bytes, bio_pages, started })
    }
}

impl WriteRun {
    /// Starts the write and leaves it to itself. Errors are in the file's log.
    pub(crate) fn start(self, flags: BioFlags) {
        self.start_in(flags, None);
    }

    fn start_in(self, flags: BioFlags, window: Option<&Window>) {
        let shared = self.inner.shared.clone();
        let writing = Writing {
            run: self,
            flags,
            window: window.map(|window| window.0.clone()),
            left: AtomicUsize::new(1),
            outcome: Mutex::default(),
        };
        shared.see_off(Arc::new(writing).submit());
    }

    /// The pages.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.first..self.first + self.frames.len() as u64
    }

    /// The ranges of the file to be written.
    fn pieces(&self) -> Pieces {
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

type Pieces = SmallVec<[ByteRange; 1]>;

/// Cuts the extents of an answer to the pieces that were asked about, and these to what is not placed yet.
///
/// # Panics
/// The answer does not begin where the pieces do, or leaves something out.
fn match_up(pieces: &mut Pieces, placed: &mut Placed) {
    assert!(!placed.extents.is_empty(), "a backing's answer is never empty");
    for extent in &mut placed.extents {
        let piece = pieces.first_mut().expect("no more is placed than was asked for");
        assert_eq!(extent.range.start, piece.start, "an extent begins where the one before it ended");
        assert!(!extent.range.is_empty(), "an extent is never empty");
        extent.range = extent.range.intersect(*piece);
        piece.start = extent.range.end;
        if piece.is_empty() {
            pieces.remove(0);
        }
    }
}

/// A run on its way to the device. It comes to its end whether or not its starter waits: on the thread that reaps its last
/// bio where the backing has nothing to do then; else it is enlisted, for the device's completion task or for a waiter.
#[derive(Debug)]
pub(crate) struct Writing {
    run: WriteRun,
    flags: BioFlags,
    window: Option<Arc<Mutex<InFlight>>>,
    /// Bios that have not ended, and one for the submission.
    left: AtomicUsize,
    outcome: Mutex<Outcome>,
}

/// What was placed and how it went.
#[derive(Debug, Default)]
struct Outcome {
    extents: SmallVec<[WrittenExtent; 2]>,
    changes_map: bool,
    /// Why the rest was not placed.
    not_placed: Option<BackingError>,
}

impl Outcome {
    /// The first error.
    fn result(&self) -> Result<()> {
        let io = self.extents.iter().find_map(|extent| extent.result.clone().err());
        match (io, &self.not_placed) {
            (Some(error), _) => Err(CacheError::Io(error)),
            (None, Some(error)) => Err(CacheError::Backing(error.clone())),
            (None, None) => Ok(()),
        }
    }
}

impl Writing {
    async fn submit(self: Arc<Self>) {
        let inner = &self.run.inner;
        let mut pieces = self.run.pieces();
        while !pieces.is_empty() {
            inner.shared.rt.charge(Cost::MapLookup(1));
            let answer = caught(async {
                let run = DirtyRun { pieces: &pieces, size_bytes: self.run.size_bytes };
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
        self.part_ended();
    }

    fn submit_placed(self: &Arc<Self>, placed: &Placed) {
        let first = {
            let mut outcome = self.outcome.lock();
            outcome.changes_map |= placed.changes_map;
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
        if shared.frames.are_phantoms() {
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
            // SAFETY: the frames are pinned for write-back until `WriteRun::end`, which comes after every bio has ended
            // and been dropped.
            segments.push(unsafe { shared.frames.to_write(frame, count, skip, len, owner.clone()) });
        }
        segments
    }

    /// Most bytes of a bio.
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
        device.submit_all(&mut bios.into_iter());
    }

    fn part_ended(self: &Arc<Self>) {
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let inner = &self.run.inner;
        inner.disk.in_flight.fetch_sub(self.run.frames.len() as u64, Ordering::SeqCst);
        inner.disk.note_unflushed(inner);
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

    /// Leaves the run to the device's completion task, or to a caller that waits for the file.
    fn enlist(self: &Arc<Self>) {
        let inner = &self.run.inner;
        let shared = &inner.shared;
        inner.ended.lock().push_back(self.clone());
        let starts = {
            let mut completions = inner.disk.completions.lock();
            completions.files.push_back(inner.clone());
            !std::mem::replace(&mut completions.is_running, true)
        };
        if let Some(window) = &self.window {
            let waker = window.lock().waiter.take();
            if let Some((_, waker)) = waker {
                waker.wake();
            }
        }
        shared.pages.wake(written(inner.file));
        shared.waits.wake_all(Key::Written(inner.disk.index.0));
        if starts {
            let name = "write-back completion";
            drop(shared.rt.spawn(name, Class::Normal, complete(shared.rt.clone(), inner.disk.clone())));
        }
    }

    /// Tells the backing, and has the pages leave write-back.
    async fn finish(self: Arc<Self>) {
        let mut outcome = std::mem::take(&mut *self.outcome.lock());
        let mut result = outcome.result();
        let run =
            WrittenRun { extents: std::mem::take(&mut outcome.extents), size_bytes: self.run.size_bytes };
        let finished = caught(async { self.run.inner.backing.finish_write(&run).await }).await;
        if result.is_ok() {
            result = finished.map_err(CacheError::Backing);
        }
        self.settle(&result, &outcome);
    }

    fn settle(&self, result: &Result<()>, outcome: &Outcome) {
        self.run.end(result, outcome);
        let Some(window) = &self.window else { return };
        let mut window = window.lock();
        window.pages -= self.run.frames.len() as u64;
        let pages = window.pages;
        let waker = window.waiter.take_if(|(most, _)| pages <= *most);
        drop(window);
        if let Some((_, waker)) = waker {
            waker.wake();
        }
    }
}

/// Files of a device with ended runs, in order of the runs' ends; a file may be there several times.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    files: VecDeque<Arc<Inner>>,
    /// Whether the completion task is at it.
    is_running: bool,
}

/// The completion task of a device: finishes what has ended until there is nothing left.
async fn complete(rt: Rt, disk: Arc<DiskState>) {
    let mut budget = rt.budget(ByRuns::STINT);
    loop {
        let file = {
            let mut completions = disk.completions.lock();
            let Some(file) = completions.files.pop_front() else {
                completions.is_running = false;
                return;
            };
            file
        };
        while let Some(ended) = file.next_ended() {
            ended.finish().await;
            budget.resched().await;
        }
    }
}

/// Work that is done here; where the caller leaves, it goes on as a task.
pub(crate) struct Unstoppable {
    rt: Rt,
    name: &'static str,
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Unstoppable {
    pub(crate) fn new(rt: &Rt, name: &'static str, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { rt: rt.clone(), name, work: Some(Box::pin(work)) }
    }
}

impl Future for Unstoppable {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.work else { return Poll::Ready(()) };
        let poll = work.as_mut().poll(cx);
        if poll.is_ready() {
            self.work = None;
        }
        poll
    }
}

impl Drop for Unstoppable {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            drop(self.rt.spawn(self.name, Class::Normal, work));
        }
    }
}

impl WriteRun {
    /// The pages leave write-back: clean, or as the configuration has it after an error.
    fn end(&self, result: &Result<()>, outcome: &Outcome) {
        let inner = &self.inner;
        let shared = &inner.shared;
        let count = self.frames.len() as u64;
        let keep = result.is_err() && shared.settings.on_write_error == OnWriteError::KeepDirty;
        inner.disk.note(result);
        if let Err(error) = result {
            inner.record(error.clone());
        }
        let sticks = matches!(result, Err(CacheError::Backing(_))) && keep;
        shared.rt.charge(Cost::PageLookup(count));
        let mut clean = Vec::with_capacity(self.frames.len());
        let mut freed = Vec::new();
        let mut redirtied = 0;
        // What was not placed is given up with its reservation.
        let gives_up = !keep && outcome.not_placed.is_some();
        let mut abandoned = Vec::new();
        {
            let mut pages = inner.pages.lock();
            if outcome.changes_map {
                pages.fills.remapped(self.pages().into());
            }
            if sticks {
                inner.stick(&mut pages, result.clone().err());
            } else if result.is_ok() {
                inner.unstick(&mut pages);
            }
            for (slot, &frame) in self.frames.iter().enumerate() {
                let index = self.first + slot as u64;
                let mask = self.masks.get(slot).copied().unwrap_or(0xf);
                let (after, before) = shared.frames.state(frame).end_writeback(if keep { mask } else { 0 });
                if after == crate::state::After::Freed {
                    freed.push(frame);
                }
                if !keep {
                    if !before.is_detached() {
                        clean.push(frame);
                        abandoned.extend(gives_up.then_some(index));
                    }
                    continue;
                }
                // What was written to the page meanwhile is in another frame, which takes over what was not written.
                if before.is_detached() {
                    match inner.frame(&pages, index) {
                        Some(newer) if pages.dirty.contains(index) => {
                            shared.frames.state(newer).set_dirty(mask);
                        }
                        _ => {}
                    }
                } else {
                    // In a stuck file the page's charge has gone back.
                    redirtied += u64::from(!pages.is_stuck);
                    inner.enter_dirty(&mut pages, index..index + 1);
                }
            }
        }
        shared.writeback.fetch_sub(count, Ordering::Relaxed);
        inner.disk.writeback.fetch_sub(count, Ordering::SeqCst);
        inner.abandon(abandoned);
        if !freed.is_empty() {
            shared.free_all(freed);
        }
        if !clean.is_empty() {
            shared.evictable(clean);
        }
        if result.is_ok() {
            inner.disk.written_total.fetch_add(count, Ordering::Relaxed);
            shared.rt.trace(Event::PagesWritten { inode: inner.inode, page: self.first, pages: count });
            let now = shared.rt.now();
            let numbers = shared.numbers(&inner.disk);
            shared.control.lock().written(now, &numbers, count, now.saturating_sub(self.started));
        } else {
            // Whoever waits for room looks again, and hears that there will be none.
            shared.waits.wake_all(Key::Room(None));
            shared.waits.wake_all(Key::Room(Some(inner.disk.index.0)));
            shared.waits.wake_all(Key::Frames);
        }
        shared.trace_levels(&inner.disk);
        shared.uncharge_dirty(&inner.disk, count - redirtied);
        shared.waits.wake_all(Key::Written(inner.disk.index.0));
        // The last thing, so that whoever waited for it finds everything settled.
        inner.pages.lock().writeback.remove(self.pages());
        shared.pages.wake(written(inner.file));
    }
}

/// Runs that were put on their way together. They come to their ends whether somebody waits or not.
#[derive(Debug)]
struct Window(Arc<Mutex<InFlight>>);

#[derive(Debug)]
struct InFlight {
    pages: u64,
    /// Who waits until no more than so many pages are on their way.
    waiter: Option<(u64, Waker)>,
}

impl Window {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(InFlight { pages: 0, waiter: None })))
    }

    /// Starts a run.
    fn push(&mut self, run: WriteRun, flags: BioFlags) {
        self.0.lock().pages += run.frames.len() as u64;
        run.start_in(flags, Some(self));
    }

    /// Waits until at most `pages` pages are on their way, and finishes what of `file`'s has ended meanwhile.
    async fn drain_to(&mut self, pages: u64, file: &Arc<Inner>) {
        loop {
            file.finish_ended().await;
            let is_over = std::future::poll_fn(|cx| {
                let mut in_flight = self.0.lock();
                if in_flight.pages <= pages {
                    return Poll::Ready(true);
                }
                // A run is enlisted before its window's waiter is looked for.
                if file.has_ended() {
                    return Poll::Ready(false);
                }
                in_flight.waiter = Some((pages, cx.waker().clone()));
                Poll::Pending
            });
            if is_over.await {
                return;
            }
        }
    }
}

impl Shared {
    /// Does here and now what need not wait, the rest on a task of its own.
    fn see_off(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work = Box::pin(work);
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            drop(self.rt.spawn("write-back", extant_rt::Class::Normal, work));
        }
    }
}

impl Inner {
    /// Whether a run has ended that its backing has not heard of.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.lock().is_empty()
    }

    fn next_ended(&self) -> Option<Arc<Writing>> {
        self.ended.lock().pop_front()
    }

    /// Finishes the runs of this file that have ended, on the caller's thread.
    pub(crate) async fn finish_ended(&self) {
        while let Some(ended) = self.next_ended() {
            Unstoppable::new(&self.shared.rt, "write-back completion", ended.finish()).await;
        }
    }

    /// Writes back what is dirty in `pages` now, and waits for it and for what of it was under way; what is dirtied
    /// meanwhile may be left.
    ///
    /// # Errors
    /// The last that the mapping's log took in since this began; it stays in the log.
    pub(crate) async fn write_back(self: &Arc<Self>, pages: Range<u64>, flags: BioFlags) -> Result<()> {
        let shared = self.shared.clone();
        let most = shared.settings.run_pages;
        let mut since = self.errors.now();
        let mut window = Window::new();
        let mut visiting = Visiting::new(&shared.rt, &*shared.pass);
        let mut at = pages.start;
        while at < pages.end {
            match self.take_step(at..pages.end, u64::MAX, &mut visiting).await {
                Taken::Run(run) => {
                    at = run.pages().end;
                    window.push(run, flags);
                    window.drain_to(16 * most, self).await;
                }
                Taken::Clean => break,
                Taken::InFlight(index) => {
                    at = index;
                    self.wait_written(index).await;
                }
                Taken::Busy(index) => {
                    at = index;
                    shared.rt.yield_now().await;
                }
            }
        }
        window.drain_to(0, self).await;
        self.wait_for_writeback(pages).await;
        self.errors.peek(&mut since)
    }

    /// Waits until nothing of `pages` that is on its way now is.
    pub(crate) async fn wait_for_writeback(self: &Arc<Self>, pages: Range<u64>) {
        let mut at = pages.start;
        loop {
            let Some(index) = self.pages.lock().writeback.first_in(at..pages.end) else { break };
            self.wait_written(index).await;
            at = index + 1;
        }
    }
}

/// Writes back every file of a device that is dirty now, all at a time, and waits for them and for what was under way.
pub(crate) async fn write_back_all(shared: &Arc<Shared>, disk: &DiskState) {
    let most = shared.settings.run_pages;
    let mut window = Window::new();
    let mut left = Vec::new();
    let mut visiting = Visiting::new(&shared.rt, &*shared.pass);
    for file in disk.all_dirty() {
        visiting.next(&*shared.pass);
        let mut at = 0;
        loop {
            match file.take_step(at..u64::MAX, u64::MAX, &mut visiting).await {
                Taken::Run(run) => {
                    at = run.pages().end;
                    window.push(run, BioFlags::SYNC);
                    window.drain_to(16 * most, &file).await;
                }
                Taken::Clean => break,
                // Waiting for one page must not keep other files waiting.
                Taken::InFlight(_) | Taken::Busy(_) => {
                    left.push(file.clone());
                    break;
                }
            }
        }
    }
    for file in left {
        // Errors are in the logs.
        let _ = file.write_back(0..u64::MAX, BioFlags::SYNC).await;
    }
    let mut budget = shared.rt.budget(ByRuns::STINT);
    // Files that are clean but under write-back are on no list. The window is waited for with them.
    for file in shared.all_files() {
        if file.disk.index == disk.index {
            file.wait_for_writeback(0..u64::MAX).await;
            budget.resched().await;
        }
    }
}

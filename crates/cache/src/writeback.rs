//! Dirty pages on their way to the device.

use crate::backing::WriteExtent;
use crate::load::neighbours;
use crate::mapping::{Aftermath, Inner, written};
use crate::page::{FrameNo, PAGE};
use crate::shared::Shared;
use crate::waits::Key;
use crate::{CacheError, OnWriteError, Result};
use extant_block::{Bio, BioFlags, Buf, IoError, Op, Sector, Segment};
use extant_rt::{Cost, Event, Nanos};
use parking_lot::Mutex;
use std::any::Any;
use std::future::Future;
use std::ops::Range;
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
    /// The file's size, in whole blocks, when the run was taken: nothing past it is written.
    end_bytes: u64,
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
    /// Puts the first run of dirty pages in `range` under write-back, at most `max_pages` of them.
    pub(crate) fn take_dirty(self: &Arc<Self>, range: Range<u64>, max_pages: u64) -> Taken {
        let mut pages = self.pages.lock();
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
        self.disk.writeback.fetch_add(count, Ordering::Relaxed);
        self.no_longer_dirty(count);
        let mut after = Aftermath::default();
        self.unlist_if_clean(&mut pages, &mut after);
        drop(pages);
        self.settle(after);
        if masks.iter().all(|&mask| mask == 0xf) {
            masks.clear();
        }
        let size = self.size();
        let end_bytes =
            size.next_multiple_of(self.backing.block_bytes().into()).min(self.backing.end_bytes().max(size));
        let started = self.shared.rt.now();
        Taken::Run(WriteRun { inner: self.clone(), first, frames, masks, end_bytes, started })
    }
}

impl WriteRun {
    /// Starts the write and leaves it to itself. Errors are in the file's log.
    pub(crate) fn start(self) {
        self.start_in(None);
    }

    fn start_in(self, window: Option<&Window>) {
        let shared = self.inner.shared.clone();
        let writing = Writing {
            run: self,
            window: window.map(|window| window.0.clone()),
            left: AtomicUsize::new(1),
            extents: Mutex::default(),
            not_prepared: Mutex::new(Ok(())),
        };
        shared.see_off(Arc::new(writing).submit());
    }

    /// The pages.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.first..self.first + self.frames.len() as u64
    }

    /// The ranges of the file to be written.
    fn pieces(&self) -> Vec<Range<u64>> {
        let start = self.first * PAGE;
        if self.masks.is_empty() {
            let end = (start + self.frames.len() as u64 * PAGE).min(self.end_bytes.max(start));
            return Vec::from_iter((start < end).then_some(start..end));
        }
        let mut pieces: Vec<Range<u64>> = Vec::new();
        for (slot, mask) in self.masks.iter().enumerate() {
            for quarter in (0..4).filter(|quarter| mask >> quarter & 1 == 1) {
                let at = start + slot as u64 * PAGE + quarter * (PAGE / 4);
                let end = (at + PAGE / 4).min(self.end_bytes);
                match pieces.last_mut() {
                    Some(last) if last.end == at => last.end = end.max(at),
                    _ if at < end => pieces.push(at..end),
                    _ => {}
                }
            }
        }
        pieces
    }
}

/// A run on its way to the device. Whatever happens to whoever started it, it comes to its end: on the thread that reaps
/// its last bio, or, where the backing has more to do than that, on a task of its own.
struct Writing {
    run: WriteRun,
    window: Option<Arc<Mutex<InFlight>>>,
    /// Bios that have not ended, and one for whoever still submits.
    left: AtomicUsize,
    /// What has been prepared, and how its bios ended.
    extents: Mutex<Vec<(WriteExtent, std::result::Result<(), IoError>)>>,
    /// Why the rest has not.
    not_prepared: Mutex<Result<()>>,
}

impl Writing {
    async fn submit(self: Arc<Self>) {
        let backing = &self.run.inner.backing;
        let mut result = Ok(());
        'pieces: for piece in self.run.pieces() {
            let mut at = piece.start;
            while at < piece.end {
                match backing.prepare_write(at..piece.end).await {
                    Ok(extent) => {
                        assert!(
                            extent.offset == at && extent.bytes > 0,
                            "an extent begins where it was asked for"
                        );
                        let extent = WriteExtent { bytes: extent.bytes.min(piece.end - at), ..extent };
                        at += extent.bytes;
                        self.submit_extent(&extent);
                    }
                    Err(error) => {
                        result = Err(CacheError::Backing(error));
                        break 'pieces;
                    }
                }
            }
        }
        if result.is_err() {
            *self.not_prepared.lock() = result;
        }
        self.part_ended();
    }

    fn submit_extent(self: &Arc<Self>, extent: &WriteExtent) {
        let run = &self.run;
        let shared = &run.inner.shared;
        let device = &run.inner.disk.device;
        let limits = device.limits();
        let most = (limits.max_bytes.min(shared.settings.bio_pages * PAGE) / PAGE * PAGE).max(PAGE);
        let owner: Arc<dyn Any + Send + Sync> = shared.clone();
        let base = run.first * PAGE;
        let mut segments = Vec::new();
        let mut start = extent.sector.0;
        if extent.zero_before > 0 {
            start -= u64::from(extent.zero_before) / Sector::BYTES;
            segments.push(Segment::from(Buf::zeroed(extent.zero_before as usize)));
        }
        let (mut phantom, real) = match shared.frames.are_phantoms() {
            true => (extent.bytes, 0),
            false => (0, extent.bytes),
        };
        while phantom > 0 {
            let len = phantom.min(most).min(Segment::MAX_ZEROES as u64);
            segments.push(Segment::zeroes(len as usize));
            phantom -= len;
        }
        for (frame, count, skip, len) in neighbours(&run.frames, extent.offset - base, real) {
            // SAFETY: the frames are pinned for write-back until `WriteRun::end`, which comes after every bio has ended
            // and been dropped.
            segments.push(unsafe { shared.frames.to_write(frame, count, skip, len, owner.clone()) });
        }
        if extent.zero_after > 0 {
            segments.push(Segment::from(Buf::zeroed(extent.zero_after as usize)));
        }
        let nth = {
            let mut extents = self.extents.lock();
            extents.push((*extent, Ok(())));
            extents.len() - 1
        };
        let mut bios = Vec::new();
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut flush = |batch: &mut Vec<Segment>, bytes: &mut u64| {
            if batch.is_empty() {
                return;
            }
            let mut bio = Bio::new(Op::Write, Sector(start), std::mem::take(batch));
            bio.flags = BioFlags::empty();
            start += *bytes / Sector::BYTES;
            *bytes = 0;
            let writing = self.clone();
            bio.on_end(Box::new(move |bio, result| {
                drop(bio);
                if let Err(error) = result {
                    let io = &mut writing.extents.lock()[nth].1;
                    *io = std::mem::replace(io, Ok(())).and(Err(error));
                }
                writing.part_ended();
            }));
            bios.push(bio);
        };
        for segment in segments {
            if bytes > 0
                && (bytes + segment.len() as u64 > most || batch.len() >= limits.max_segments as usize)
            {
                flush(&mut batch, &mut bytes);
            }
            bytes += segment.len() as u64;
            batch.push(segment);
        }
        flush(&mut batch, &mut bytes);
        self.left.fetch_add(bios.len(), Ordering::Relaxed);
        shared.rt.charge(Cost::BioSubmit(bios.len() as u64));
        device.submit_all(&mut bios.into_iter());
    }

    fn part_ended(self: &Arc<Self>) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let shared = self.run.inner.shared.clone();
            shared.see_off(self.clone().finish());
        }
    }

    /// All bios have ended.
    async fn finish(self: Arc<Self>) {
        let mut result = std::mem::replace(&mut *self.not_prepared.lock(), Ok(()));
        let extents = std::mem::take(&mut *self.extents.lock());
        for (extent, io) in extents {
            if result.is_ok()
                && let Err(error) = &io
            {
                result = Err(CacheError::Io(error.clone()));
            }
            let finished = self.run.inner.backing.finish_write(extent, io).await;
            if result.is_ok() {
                result = finished.map_err(CacheError::Backing);
            }
        }
        self.run.end(&result);
        let Some(window) = &self.window else { return };
        let mut window = window.lock();
        window.pages -= self.run.frames.len() as u64;
        if window.result.is_ok() {
            window.result = result;
        }
        let pages = window.pages;
        let waker = window.waiter.take_if(|(most, _)| pages <= *most);
        drop(window);
        if let Some((_, waker)) = waker {
            waker.wake();
        }
    }
}

impl WriteRun {
    /// The pages leave write-back: clean, or as the configuration has it after an error.
    fn end(&self, result: &Result<()>) {
        let inner = &self.inner;
        let shared = &inner.shared;
        let count = self.frames.len() as u64;
        let keep = result.is_err() && shared.settings.on_write_error == OnWriteError::KeepDirty;
        inner.disk.note(result);
        if let Err(error) = result {
            inner.errors.record(error.clone());
        }
        shared.rt.charge(Cost::BioComplete(1));
        let mut clean = Vec::with_capacity(self.frames.len());
        let mut freed = Vec::new();
        let mut redirtied = 0;
        {
            let mut pages = inner.pages.lock();
            pages.epoch += 1;
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
                    inner.mark_redirtied(&mut pages, index);
                    redirtied += 1;
                }
            }
        }
        shared.writeback.fetch_sub(count, Ordering::Relaxed);
        inner.disk.writeback.fetch_sub(count, Ordering::Relaxed);
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
    /// The first error.
    result: Result<()>,
    /// Who waits until no more than so many pages are on their way.
    waiter: Option<(u64, Waker)>,
}

impl Window {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(InFlight { pages: 0, result: Ok(()), waiter: None })))
    }

    /// Starts a run.
    fn push(&mut self, run: WriteRun) {
        self.0.lock().pages += run.frames.len() as u64;
        run.start_in(Some(self));
    }

    /// Waits until at most `pages` pages are on their way.
    async fn drain_to(&mut self, pages: u64) {
        std::future::poll_fn(|cx| {
            let mut in_flight = self.0.lock();
            if in_flight.pages <= pages {
                return Poll::Ready(());
            }
            in_flight.waiter = Some((pages, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Waits for all; the first error, if there was one.
    async fn finish(mut self) -> Result<()> {
        self.drain_to(0).await;
        std::mem::replace(&mut self.0.lock().result, Ok(()))
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
    /// A page whose write-back failed is dirty again; its charge was never given back.
    fn mark_redirtied(self: &Arc<Self>, pages: &mut crate::mapping::Pages, index: u64) {
        self.enter_dirty(pages, index..index + 1);
    }

    /// Writes back what is dirty in `pages` now, and waits for it; what is dirtied meanwhile may be left.
    ///
    /// The result is that of this call's own writes; errors of write-back are in the mapping's log in any case.
    pub(crate) async fn write_back(self: &Arc<Self>, pages: Range<u64>) -> Result<()> {
        let shared = self.shared.clone();
        let most = shared.settings.bio_pages;
        let mut window = Window::new();
        let mut at = pages.start;
        while at < pages.end {
            match self.take_dirty(at..pages.end, most) {
                Taken::Run(run) => {
                    at = run.pages().end;
                    window.push(run);
                    window.drain_to(16 * most).await;
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
        let result = window.finish().await;
        self.wait_for_writeback(pages).await;
        result
    }

    /// Waits until nothing of `pages` that is on its way now is.
    pub(crate) async fn wait_for_writeback(&self, pages: Range<u64>) {
        let mut at = pages.start;
        loop {
            let Some(index) = self.pages.lock().writeback.first_in(at..pages.end) else { break };
            self.wait_written(index).await;
            at = index + 1;
        }
    }
}

//! An open file: reading, writing, syncing.

use crate::dirty::ledger::NoRoom;
use crate::dirty::writer::Writer;
use crate::mapping::exclude::InLine;
use crate::mapping::load::{Load, Loading, Wanted};
use crate::mapping::pause::Pause;
use crate::mapping::read::ReadStop;
use crate::mapping::readahead::{Plan, ReadAhead};
use crate::mapping::write::{Source, Terms, WriteStop, Wrote};
use crate::page::{PAGE, check_size};
use crate::pass::ByRuns;
use crate::pool::Purpose;
use crate::state::errseq::Told;
use crate::state::{Inner, Shared};
use crate::waits::{Condition, Waiting};
use crate::{ByteRange, CacheError, PageRange, Result, WouldWait, WriteError};
use extant_block::{BioFlags, StreamId};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// An open file: the pages, and the opener's own state (errors already reported to it, its
/// read-ahead, and how much it has dirtied).
///
/// Concurrent reads and writes are atomic per page, not beyond. A caller that needs more holds a
/// lock, as a file system does.
#[derive(Debug)]
pub struct OpenFile {
    pub(crate) inner: Arc<Inner>,
    pub(crate) told: Mutex<Told>,
    pub(crate) ahead: Mutex<ReadAhead>,
    pub(crate) writer: Mutex<Writer>,
    /// Pages that may be dirtied before asking the controller. Copied from `writer`, so that an
    /// overwrite takes no lock.
    pub(crate) allowance: AtomicU64,
    /// End offset of the last read that ended inside a page.
    pub(crate) last_end: AtomicU64,
    pub(crate) stream: StreamId,
    pub(crate) exempt: bool,
    /// The opener holds the exclusion of the pages.
    pub(crate) in_exclusion: bool,
    /// Writes do not grow the file.
    pub(crate) keeps_size: bool,
}

/// The order in which a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrder {
    /// Not said (`POSIX_FADV_NORMAL`).
    Unknown,
    /// From front to back (`POSIX_FADV_SEQUENTIAL`): reads twice as far ahead.
    Sequential,
    /// At random (`POSIX_FADV_RANDOM`): reads nothing ahead.
    Random,
}

impl Inner {
    /// Starts loading the missing pages of a range that nobody waits for. Returns false if it
    /// stopped early, because of an error or for want of frames.
    async fn read_ahead(self: &Arc<Self>, run: PageRange, mark: Option<u64>, stream: StreamId) -> bool {
        let mut at = run.start;
        while at < run.end {
            let wanted = Wanted {
                pages: PageRange::new(at, run.end),
                purpose: Purpose::Ahead,
                mark,
                stream,
                in_exclusion: false,
            };
            match self.load(wanted, &mut None).await {
                Ok(Loading::Started(load)) => at = load.pages().end,
                Ok(Loading::Present) => at += 1,
                // The reader that needs the page gets the error.
                Ok(Loading::NoFrames) | Err(_) => return false,
            }
        }
        true
    }
}

impl OpenFile {
    /// Attributes reads to a stream.
    pub fn with_stream(mut self, stream: StreamId) -> Self {
        self.stream = stream;
        self
    }

    /// Exempts writes from the dirty limits and from throttling, and lets reads and writes take
    /// reserve frames. For completions ([`crate::Backing::finish_write`]) and the like, which must
    /// not wait for memory that only they can free.
    pub fn exempt(mut self) -> Self {
        self.exempt = true;
        self
    }

    /// Reads from byte `at`; returns the number of bytes read, which is smaller only at the end of
    /// the file.
    ///
    /// # Errors
    /// Nothing could be read. An error past the first byte is returned by the next read. If pages
    /// of a failing device fill all frames, that device's error.
    pub async fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_on(at, buf, 0).await
    }

    /// Like [`OpenFile::read`], for ordinary threads. Cached data is copied directly, without
    /// entering the executor.
    pub fn read_blocking(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        let some = self.inner.read_cached(at, buf, self.is_new_use(at));
        self.note_end(at + some.bytes as u64);
        if some.stop == ReadStop::Done && some.mark.is_none() {
            return Ok(some.bytes);
        }
        if let Some(mark) = some.mark {
            self.read_on_past(mark);
        }
        if some.stop == ReadStop::Done {
            return Ok(some.bytes);
        }
        match self.inner.shared.rt.block_on(self.read_on(at, buf, some.bytes)) {
            Ok(result) => result,
            Err(ended) => Err(ended.into()),
        }
    }

    /// Like [`OpenFile::read`], for callers that must not wait: reads everything from memory, or
    /// returns how much of it was there.
    ///
    /// # Errors
    /// The rest would have to be loaded. No I/O is started.
    pub fn try_read(&self, at: u64, buf: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        let some = self.inner.read_cached(at, buf, self.is_new_use(at));
        self.note_end(at + some.bytes as u64);
        if let Some(mark) = some.mark {
            self.read_on_past(mark);
        }
        match some.stop {
            ReadStop::Done => Ok(some.bytes),
            _ => Err(WouldWait { done_bytes: some.bytes }),
        }
    }

    /// A read that continues inside the page where the last one ended is not a new use of that
    /// page.
    fn is_new_use(&self, at: u64) -> bool {
        at.is_multiple_of(PAGE) || self.last_end.load(Ordering::Relaxed) != at
    }

    fn note_end(&self, end: u64) {
        if !end.is_multiple_of(PAGE) {
            self.last_end.store(end, Ordering::Relaxed);
        }
    }

    async fn read_on(&self, at: u64, buf: &mut [u8], mut done: usize) -> Result<usize> {
        let inner = &self.inner;
        // After an error, read one page at a time, so that a bad sector costs only its own page.
        let mut most = u64::MAX;
        let mut budget = inner.shared.rt.budget(ByRuns::STINT);
        let mut waiting = Waiting::No;
        let mut contest = Contest::default();
        loop {
            let offset = at + done as u64;
            let asked = (buf.len() - done).min(stretch(offset));
            let some = inner.read_cached(offset, &mut buf[done..done + asked], self.is_new_use(offset));
            done += some.bytes;
            contest.moved(some.bytes);
            self.note_end(at + done as u64);
            if let Some(mark) = some.mark {
                self.read_on_past(mark);
            }
            if !matches!(some.stop, ReadStop::Missing(_)) {
                waiting.leave();
            }
            let error = match some.stop {
                ReadStop::Done if some.bytes == asked && done < buf.len() => {
                    budget.resched().await;
                    continue;
                }
                ReadStop::Done => return Ok(done),
                ReadStop::Busy => {
                    inner.shared.rt.yield_now().await;
                    continue;
                }
                ReadStop::Loading(page) => {
                    inner.wait_loaded(page).await;
                    contest.was_loaded = true;
                    continue;
                }
                ReadStop::Missing(page) => {
                    let last = (at + buf.len() as u64).div_ceil(PAGE).min(page.saturating_add(most));
                    let pages = PageRange::new(page, last.max(page + 1));
                    match self.fill(pages, true, &mut waiting, &mut contest).await {
                        Ok(None) => continue,
                        Ok(Some(load)) => match load.wait().await {
                            Ok(()) => {
                                contest.was_loaded = true;
                                continue;
                            }
                            Err(_) if load.pages().end - page > 1 => {
                                most = 1;
                                continue;
                            }
                            Err(error) => error,
                        },
                        Err(error) => error,
                    }
                }
            };
            return if done > 0 { Ok(done) } else { Err(error) };
        }
    }

    /// Starts loading missing pages, together with what read-ahead wants. `None` if another task
    /// was first, or after a wait for a frame.
    async fn fill<'a>(
        &'a self,
        pages: PageRange,
        read_ahead: bool,
        waiting: &mut Waiting,
        contest: &mut Contest<'a>,
    ) -> Result<Option<Arc<Load>>> {
        let inner = &self.inner;
        if contest.was_loaded && !self.in_exclusion && contest.place.is_none() {
            contest.place = Some(inner.enter_to_fill(pages));
        }
        let end = inner.size().div_ceil(PAGE);
        let wanted = Wanted {
            pages,
            purpose: if self.exempt { Purpose::Completion } else { Purpose::Demand },
            mark: None,
            stream: self.stream,
            in_exclusion: self.in_exclusion,
        };
        let mut load = pin!(inner.load(wanted, &mut contest.place));
        let loading = poll_fn(|cx| {
            let loading = load.as_mut().poll(cx);
            if loading.is_pending() {
                // The load waits for something else, perhaps for an exclusion whose holder needs
                // the frame that our token stands for.
                waiting.leave();
            }
            loading
        });
        match loading.await? {
            Loading::Started(load) => {
                waiting.took(|on| on == Condition::Frames);
                if read_ahead {
                    let plan =
                        self.ahead.lock().missed(pages.start..pages.end.min(end).max(pages.start + 1), end);
                    self.carry_out(plan);
                }
                Ok(Some(load))
            }
            Loading::Present => {
                waiting.leave();
                Ok(None)
            }
            Loading::NoFrames => {
                wait_for_frames(&inner.shared, waiting).await?;
                Ok(None)
            }
        }
    }

    fn read_on_past(&self, mark: u64) {
        let end = self.inner.size().div_ceil(PAGE);
        let plan = self.ahead.lock().marked(mark, end);
        self.carry_out(plan);
    }

    /// Starts read-ahead. It moves to a task of its own if the backing cannot say at once where the
    /// pages are.
    fn carry_out(&self, plan: Plan) {
        if plan.ahead.is_empty() {
            return;
        }
        let (inner, stream) = (self.inner.clone(), self.stream);
        let mut work = Box::pin(async move {
            for run in plan.ahead {
                if !inner.read_ahead(PageRange::new(run.start, run.end), plan.mark, stream).await {
                    return;
                }
            }
        });
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        if std::future::Future::poll(work.as_mut(), &mut cx).is_pending() {
            drop(self.inner.shared.rt.spawn("read-ahead", extant_rt::Class::Normal, work));
        } else {
            self.inner.shared.rt.ensure_driven();
        }
    }

    /// Says in which order the file will be read, like `posix_fadvise(2)`: it changes how far this
    /// open file reads ahead.
    pub fn expects(&self, order: ReadOrder) {
        let pages = self.inner.shared.settings.read_ahead_pages;
        *self.ahead.lock() = ReadAhead::new(match order {
            ReadOrder::Unknown => pages,
            ReadOrder::Sequential => 2 * pages,
            ReadOrder::Random => 0,
        });
    }

    /// Submits reads of a range's missing pages, and waits for none of them, like
    /// `posix_fadvise(2)` with `POSIX_FADV_WILLNEED`. Stops early if no frame is free, or at an
    /// error; a later read of these pages gets it.
    pub async fn will_need(&self, bytes: impl Into<ByteRange>) {
        let end = self.inner.size().div_ceil(PAGE);
        let pages = bytes.into().pages();
        if pages.start < pages.end.min(end) {
            let pages = PageRange::new(pages.start, pages.end.min(end));
            self.inner.read_ahead(pages, None, self.stream).await;
            self.inner.shared.rt.ensure_driven();
        }
    }

    /// The most that the cache reads ahead of one reader, in bytes.
    pub fn read_ahead_bytes(&self) -> u64 {
        self.inner.shared.settings.read_ahead_pages * PAGE
    }

    /// Writes `bytes` at byte `at`, into the cache. The file grows as needed. May pause when much
    /// is dirty.
    ///
    /// Durable after [`OpenFile::sync`]. If the future is dropped, bytes already written stay
    /// written.
    ///
    /// # Errors
    /// The file would be too large, a page to be partly overwritten cannot be read, or the dirty
    /// limit is reached and the device fails. The error says how many bytes were written before it.
    pub async fn write(&self, at: u64, bytes: &[u8]) -> std::result::Result<(), WriteError> {
        self.write_all(at, Source::Bytes(bytes)).await
    }

    /// Like [`OpenFile::write`], but counts the bytes as they are copied. `copied_bytes` is the
    /// number of bytes in the cache even if the future is dropped.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub async fn write_counted(&self, at: u64, bytes: &[u8], copied_bytes: &AtomicUsize) -> Result<()> {
        check_size(at.saturating_add(bytes.len() as u64))?;
        self.write_on(at, Source::Bytes(bytes), copied_bytes).await
    }

    /// Like [`OpenFile::write`], for ordinary threads. An overwrite of cached pages, or a write to
    /// new pages while there is room, completes without entering the executor.
    pub fn write_blocking(&self, at: u64, bytes: &[u8]) -> std::result::Result<(), WriteError> {
        check_size(at.saturating_add(bytes.len() as u64))
            .map_err(|error| WriteError { done_bytes: 0, error })?;
        let source = Source::Bytes(bytes);
        let (wrote, stop) = self.inner.write_cached(at, source, self.terms());
        let asks = self.account(wrote);
        if stop == WriteStop::Done && !asks {
            return Ok(());
        }
        let done = wrote.bytes;
        let rest = async {
            if asks {
                self.balance().await;
            }
            self.write_all(at + done as u64, source.skip(done)).await
        };
        match self.inner.shared.rt.block_on(rest) {
            Ok(result) => {
                result.map_err(|stopped| WriteError { done_bytes: done + stopped.done_bytes, ..stopped })
            }
            Err(ended) => Err(WriteError { done_bytes: done, error: ended.into() }),
        }
    }

    /// Like [`OpenFile::write`], for callers that must not wait: writes everything into memory, or
    /// returns how much it wrote.
    ///
    /// # Errors
    /// The rest would need a page load, memory or a pause. No I/O is started.
    pub fn try_write(&self, at: u64, bytes: &[u8]) -> std::result::Result<(), WouldWait> {
        let asks = {
            let writer = self.writer.lock();
            !self.exempt && writer.dirtied_pages() > 0 && writer.is_to_ask()
        };
        if check_size(at.saturating_add(bytes.len() as u64)).is_err() || asks && !self.try_balance() {
            return Err(WouldWait { done_bytes: 0 });
        }
        let (wrote, stop) = self.inner.write_cached(at, Source::Bytes(bytes), self.terms());
        self.account(wrote);
        if stop == WriteStop::Done { Ok(()) } else { Err(WouldWait { done_bytes: wrote.bytes }) }
    }

    /// Accounts for what was written; returns whether to ask the controller.
    #[inline]
    fn account(&self, wrote: Wrote) -> bool {
        if wrote.dirtied == 0 {
            return false;
        }
        let mut writer = self.writer.lock();
        let is_to_ask = writer.dirtied(wrote.dirtied);
        self.note_allowance(&writer);
        !self.exempt && is_to_ask
    }

    /// Caches the writer's allowance for the lock-free path.
    pub(crate) fn note_allowance(&self, writer: &Writer) {
        self.allowance.store(writer.allowance(), Ordering::Relaxed);
    }

    #[inline]
    fn terms(&self) -> Terms {
        let most = if self.exempt { u64::MAX } else { self.allowance.load(Ordering::Relaxed) };
        Terms { most, exempt: self.exempt, in_exclusion: self.in_exclusion, keeps_size: self.keeps_size }
    }

    pub(crate) async fn write_all(&self, at: u64, source: Source<'_>) -> std::result::Result<(), WriteError> {
        let copied = AtomicUsize::new(0);
        let result = match check_size(at.saturating_add(source.len() as u64)) {
            Ok(()) => self.write_on(at, source, &copied).await,
            Err(error) => Err(error),
        };
        result.map_err(|error| WriteError { done_bytes: copied.load(Ordering::Relaxed), error })
    }

    async fn write_on(&self, at: u64, source: Source<'_>, copied_bytes: &AtomicUsize) -> Result<()> {
        let inner = &self.inner;
        let mut budget = inner.shared.rt.budget(ByRuns::STINT);
        let mut waiting = Waiting::No;
        let mut contest = Contest::default();
        let mut refused = false;
        // The wait at the dirty limits themselves, for the trace.
        let mut pause = None;
        loop {
            budget.resched().await;
            let mut done = copied_bytes.load(Ordering::Relaxed);
            let offset = at + done as u64;
            let piece = source.skip(done).first(stretch(offset));
            let (wrote, stop) = inner.write_cached(offset, piece, self.terms());
            let asks = self.account(wrote);
            done += wrote.bytes;
            copied_bytes.store(done, Ordering::Relaxed);
            contest.moved(wrote.bytes);
            if wrote.bytes > 0 {
                waiting.took(|on| if on == Condition::Frames { wrote.frames > 0 } else { wrote.dirtied > 0 });
                refused = false;
                pause = None;
            }
            if !matches!(stop, WriteStop::NoRoom(_) | WriteStop::NoFrames | WriteStop::Missing(_)) {
                waiting.leave();
            }
            if let (true, None, WriteStop::NoRoom(_) | WriteStop::NoFrames) =
                (waiting.is_waiting(), &pause, stop)
            {
                let rule = match stop {
                    WriteStop::NoRoom(NoRoom::Everywhere) => "limit",
                    WriteStop::NoRoom(NoRoom::OnDevice(_)) => "device limit",
                    _ => "no frames",
                };
                pause = Pause::begin(inner, rule, self.writer.lock().dirtied_pages());
            }
            match stop {
                WriteStop::Done | WriteStop::Asks => {}
                WriteStop::Busy => inner.shared.rt.yield_now().await,
                // Waits are boxed: every write's future reserves space for the largest one, and is
                // moved before it is polled.
                WriteStop::Loading(page) => {
                    Box::pin(inner.wait_loaded(page)).await;
                    contest.was_loaded = true;
                }
                WriteStop::Missing(page) => {
                    let fill = self.fill(PageRange::one(page), false, &mut waiting, &mut contest);
                    if let Some(load) = Box::pin(fill).await? {
                        Box::pin(load.wait()).await?;
                        contest.was_loaded = true;
                    }
                }
                WriteStop::Excluded(page) => {
                    let pages = PageRange::one(page);
                    Box::pin(inner.wait_admitted(pages, &mut contest.place)).await;
                }
                WriteStop::NoFrames => Box::pin(wait_for_frames(&inner.shared, &mut waiting)).await?,
                WriteStop::NoRoom(_) if inner.shared.is_closed() => return Err(CacheError::ShutDown),
                WriteStop::NoRoom(NoRoom::Stuck) => {
                    if let Some(error) = inner.stuck_error() {
                        return Err(error);
                    }
                }
                WriteStop::NoRoom(reason) => {
                    let failure = inner.disk.ledger.holds_up().then(|| inner.disk.failure()).flatten();
                    // Stuck files and other failing devices hold all the room, and nothing in
                    // flight will release any.
                    let held_up = failure.is_none().then(|| inner.shared.held_up_room()).flatten();
                    // A failing device gets one more try on behalf of its writers.
                    let refusal = if refused { failure.clone() } else { None };
                    if let Some(error) = held_up.or(refusal) {
                        // The token counts as used, since the writer has looked. Passed on, the
                        // wake would circulate among writers that are all refused.
                        waiting.took(|_| true);
                        return Err(error);
                    }
                    refused = failure.is_some() && waiting.is_waiting();
                    if reason == NoRoom::Everywhere {
                        want_frames(&inner.shared, false);
                    }
                    if matches!(reason, NoRoom::OnDevice(_)) || failure.is_some() {
                        inner.disk.want(&inner.shared);
                    }
                    Box::pin(waiting.wait(&inner.shared.waits, reason.condition())).await;
                }
            }
            if asks {
                waiting.leave();
                self.balance().await;
            }
            if stop == WriteStop::Done && done == source.len() {
                return Ok(());
            }
        }
    }

    /// Makes all earlier writes durable: writes them back, waits, and flushes the device's cache.
    ///
    /// # Errors
    /// Whatever failed since this open file was last told, including background write-back. Each
    /// error is returned once.
    pub async fn sync(&self) -> Result<()> {
        self.sync_range(ByteRange::ALL).await?;
        // A failed flush is recorded in the log of this file and of every other file written.
        // Writes from before the file was forgotten and reopened are in no log, but are not durable
        // either, so the flush's own result is returned too.
        let flushed = self.inner.disk.flush(&self.inner.shared).await;
        self.inner.errors.check(&mut self.told.lock()).and(flushed)
    }

    /// As [`OpenFile::sync`], for ordinary threads.
    pub fn sync_blocking(&self) -> Result<()> {
        match self.inner.shared.rt.block_on(self.sync()) {
            Ok(result) => result,
            Err(ended) => Err(ended.into()),
        }
    }

    /// Writes back a range and waits, without flushing the device (`sync_file_range(2)`). Not
    /// durable yet.
    pub async fn sync_range(&self, bytes: impl Into<ByteRange>) -> Result<()> {
        let bytes = bytes.into();
        let unit = PAGE.max(self.inner.backing.block_bytes().into());
        let end = self.inner.size().next_multiple_of(unit).max(bytes.start);
        let pages = ByteRange::new(bytes.start, bytes.end.min(end)).pages();
        // Errors are in the log, together with those of other callers.
        let _ = self.inner.write_back(pages, BioFlags::SYNC).await;
        self.inner.errors.check(&mut self.told.lock())
    }
}

/// A reader's or writer's contest for a page with those that exclude it again and again.
#[derive(Default)]
struct Contest<'a> {
    /// The page was loaded since the last byte was copied. If it is missing again, an exclusion has
    /// taken it away, or memory is short.
    was_loaded: bool,
    place: Option<InLine<'a>>,
}

impl Contest<'_> {
    /// So many bytes have been copied.
    fn moved(&mut self, bytes: usize) {
        if bytes > 0 {
            *self = Self::default();
        }
    }
}

/// Bytes a task copies before it checks its budget.
const STRETCH_BYTES: usize = 256 << 10;

/// The stretch from `offset`: like `STRETCH_BYTES`, but ending at a page boundary, so that no page
/// is read because it is written in two parts.
fn stretch(offset: u64) -> usize {
    STRETCH_BYTES - (offset % PAGE) as usize
}

/// Bytes that clients are asked to give back when frames are short.
const WANTED_BYTES: u64 = 256 << 10;

/// Waits for a frame. While there are eviction candidates, they are only in use for a moment, so
/// this just yields: no wake announces the end of a use, which is as short as a copy.
///
/// # Errors
/// Every frame holds a dirty page, either of a failing device that has been tried once more or of a
/// stuck file; or the world has ended, and with it the tasks that free frames.
async fn wait_for_frames(shared: &Arc<Shared>, waiting: &mut Waiting) -> Result<()> {
    if shared.pool.evictable_frames() > 0 {
        shared.rt.yield_now().await;
        return Ok(());
    }
    if shared.is_forsaken() {
        waiting.took(|_| true);
        return Err(CacheError::ShutDown);
    }
    let held_up = shared.held_up_frames();
    if let Some(error) = &held_up
        && waiting.has_waited(Condition::Frames)
    {
        waiting.took(|_| true);
        return Err(error.clone());
    }
    want_frames(shared, held_up.is_some());
    waiting.wait(&shared.waits, Condition::Frames).await;
    Ok(())
}

/// Makes flushers work and clients give memory back, because a caller waits for frames or room.
/// Flushers of failing devices are included only if nothing else is left; otherwise they would be
/// retried over and over on behalf of others.
fn want_frames(shared: &Arc<Shared>, even_failing: bool) {
    shared.shrink_accounts(WANTED_BYTES);
    for disk in shared.disks.read().iter() {
        if disk.ledger.amounts().dirty_pages > 0 && (even_failing || !disk.is_failing()) {
            disk.want(shared);
        }
    }
}

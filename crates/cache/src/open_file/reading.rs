//! Reading: copies cached pages, loads missing ones, and starts read-ahead.

use crate::file::CachedFile;
use crate::open_file::contest::Contest;
use crate::open_file::readahead::{Plan, ReadAhead};
use crate::open_file::waiting_for_room::wait_for_frames;
use crate::open_file::{CachedOpenFile, stretch};
use crate::page::PAGE;
use crate::pages::cached_read::ReadStop;
use crate::pages::load::{Load, Loading, Wanted};
use crate::pages::read_past::Passing;
use crate::pass_policy::ByRuns;
use crate::pool::Purpose;
use crate::waits::{Condition, Waiting};
use crate::{ByteRange, PageRange, Result, WouldWait};
use extant_block::StreamId;
use extant_rt::Class;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

/// The order in which a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrder {
    /// The reader gives no hint (`POSIX_FADV_NORMAL`).
    Unknown,
    /// From front to back (`POSIX_FADV_SEQUENTIAL`): reads twice as far ahead.
    Sequential,
    /// At random (`POSIX_FADV_RANDOM`): reads nothing ahead.
    Random,
}

impl CachedFile {
    /// Starts loading the missing pages of a range before a reader needs them. Returns false if it
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

impl CachedOpenFile {
    /// Reads from byte `at`; returns the number of bytes read, which is smaller only at the end of
    /// the file.
    ///
    /// # Errors
    /// Nothing could be read. (An error past the first byte is returned by the next read.) If pages
    /// of a failing device fill all frames, this is that device's error.
    pub async fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_on(at, buf).await
    }

    /// Like [`CachedOpenFile::read`], for callers that must not wait: reads everything from memory,
    /// or returns how much of it was there.
    ///
    /// # Errors
    /// The rest would have to be loaded. No I/O is started.
    pub fn try_read(&self, at: u64, buf: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        self.read_until(at, buf, true, |_, _| None)
    }

    /// Like [`CachedOpenFile::read`], for a thread that has nothing else to do: the thread itself
    /// reads missing pages, if its world and the device allow that, and copies them. A file
    /// that is too large for the cache is read past it, if the host caches the device.
    ///
    /// # Errors
    /// The rest needs [`CachedOpenFile::read`], for one of these reasons: the device reads better
    /// in the background, the backing cannot say at once where the bytes are, another task is
    /// loading them, memory is short, or an error occurred, which that call returns.
    pub fn read_here(&self, at: u64, buf: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        let end = at.saturating_add(buf.len() as u64).div_ceil(PAGE);
        let passing = if self.is_plain() { self.file.passing(buf.len()) } else { Passing::Never };
        let mut passes = None;
        let mut last = None;
        // Read-ahead would have the rest of the file in the cache before the reader gets there.
        self.read_until(at, buf, passing == Passing::Never, |offset, rest| {
            let page = offset / PAGE;
            let is_past = *passes.get_or_insert_with(|| self.file.passes(page, passing));
            if is_past && offset.is_multiple_of(PAGE) {
                let bytes = self.file.read_past(offset, rest);
                if bytes > 0 {
                    return Some(bytes);
                }
            }
            let pages = PageRange::new(page, end.max(page + 1));
            let is_filled = match last.replace(page) {
                // The page was loaded, but is missing again before it could be copied: memory is
                // short, or an exclusion removed it.
                Some(last) if last == page => false,
                // The next pages pass the cache, too.
                _ if is_past => self.file.load_here(PageRange::one(page)),
                None if passing == Passing::Never => self.fill_here(pages),
                _ => self.file.load_here(pages),
            };
            is_filled.then_some(0)
        })
    }

    /// Reads cached pages. At a byte whose page is missing, it goes on if `fill` has loaded the
    /// page, or has read this many bytes itself. `goes_on` says whether read-ahead does.
    #[inline]
    fn read_until(
        &self,
        at: u64,
        buf: &mut [u8],
        goes_on: bool,
        mut fill: impl FnMut(u64, &mut [u8]) -> Option<usize>,
    ) -> std::result::Result<usize, WouldWait> {
        let mut done = 0;
        loop {
            let offset = at + done as u64;
            let some = self.file.read_cached(offset, &mut buf[done..], self.is_new_use(offset));
            done += some.bytes;
            self.note_end(offset + some.bytes as u64);
            if let Some(mark) = some.mark.filter(|_| goes_on) {
                self.read_on_past(mark);
            }
            let filled = match some.stop {
                ReadStop::Done => return Ok(done),
                ReadStop::Missing(_) => fill(at + done as u64, &mut buf[done..]),
                _ => None,
            };
            match filled {
                Some(bytes) => done += bytes,
                None => return Err(WouldWait { done_bytes: done }),
            }
        }
    }

    /// Whether its reads and writes are those of a program.
    fn is_plain(&self) -> bool {
        !self.exempt && !self.in_exclusion
    }

    /// Loads missing pages on this thread, then starts the read-ahead that follows.
    fn fill_here(&self, pages: PageRange) -> bool {
        let end = self.file.size().div_ceil(PAGE);
        let is_filled = self.is_plain() && self.file.loads_here() && self.file.load_here(pages);
        if is_filled {
            self.read_ahead_of(pages, end);
        }
        is_filled
    }

    /// Starts read-ahead after a reader asked for these pages of a file of `end` pages, and the
    /// first was missing.
    fn read_ahead_of(&self, pages: PageRange, end: u64) {
        let asked = pages.start..pages.end.min(end).max(pages.start + 1);
        let plan = self.ahead.lock().missed(asked, end);
        self.carry_out(plan);
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

    async fn read_on(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        let file = &self.file;
        let mut done = 0;
        // After an error, read one page at a time, so that a bad sector costs only its own page.
        let mut most = u64::MAX;
        let mut budget = file.core.rt.budget(ByRuns::STINT);
        let mut waiting = Waiting::No;
        let mut contest = Contest::default();
        loop {
            let offset = at + done as u64;
            let asked = (buf.len() - done).min(stretch(offset));
            let some = file.read_cached(offset, &mut buf[done..done + asked], self.is_new_use(offset));
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
                    file.core.rt.yield_now().await;
                    continue;
                }
                ReadStop::Loading(page) => {
                    file.wait_loaded(page).await;
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

    /// Starts loading missing pages, together with read-ahead. `None` if another task was first, or
    /// after a wait for a frame.
    pub(super) async fn fill<'a>(
        &'a self,
        pages: PageRange,
        read_ahead: bool,
        waiting: &mut Waiting,
        contest: &mut Contest<'a>,
    ) -> Result<Option<Arc<Load>>> {
        let file = &self.file;
        if contest.was_loaded && !self.in_exclusion && contest.place.is_none() {
            contest.place = Some(file.enter_to_fill(pages));
        }
        let end = file.size().div_ceil(PAGE);
        let wanted = Wanted {
            pages,
            purpose: if self.exempt { Purpose::Completion } else { Purpose::Demand },
            mark: None,
            stream: self.stream,
            in_exclusion: self.in_exclusion,
        };
        let mut load = pin!(file.load(wanted, &mut contest.place));
        let loading = poll_fn(|cx| {
            let loading = load.as_mut().poll(cx);
            if loading.is_pending() {
                // From here on the load waits for something else, perhaps for an exclusion. Its
                // holder may need the frame that this caller's token stands for, so pass the token
                // on.
                waiting.leave();
            }
            loading
        });
        match loading.await? {
            Loading::Started(load) => {
                waiting.took(|on| on == Condition::Frames);
                if read_ahead {
                    self.read_ahead_of(pages, end);
                }
                Ok(Some(load))
            }
            Loading::Present => {
                waiting.leave();
                Ok(None)
            }
            Loading::NoFrames => {
                wait_for_frames(&file.core, waiting).await?;
                Ok(None)
            }
        }
    }

    fn read_on_past(&self, mark: u64) {
        let end = self.file.size().div_ceil(PAGE);
        let plan = self.ahead.lock().marked(mark, end);
        self.carry_out(plan);
    }

    /// Starts read-ahead. If the backing cannot say at once where the pages are, a new task does
    /// it. No thread is woken to reap: the reader that needs the pages will.
    fn carry_out(&self, plan: Plan) {
        if plan.ahead.is_empty() {
            return;
        }
        let (file, stream) = (self.file.clone(), self.stream);
        let mut work = Box::pin(async move {
            for run in plan.ahead {
                if !file.read_ahead(PageRange::new(run.start, run.end), plan.mark, stream).await {
                    return;
                }
            }
        });
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            drop(self.file.core.rt.spawn("read-ahead", Class::Normal, work));
        }
    }

    /// Announces the order in which the file will be read, like `posix_fadvise(2)`. This changes
    /// how far this open file reads ahead.
    pub fn expects(&self, order: ReadOrder) {
        let pages = self.file.core.settings.read_ahead_pages;
        *self.ahead.lock() = ReadAhead::new(match order {
            ReadOrder::Unknown => pages,
            ReadOrder::Sequential => 2 * pages,
            ReadOrder::Random => 0,
        });
    }

    /// Submits reads of a range's missing pages without waiting for them, like `posix_fadvise(2)`
    /// with `POSIX_FADV_WILLNEED`. Stops early if no frame is free, or at an error, which a later
    /// read of these pages gets.
    pub async fn will_need(&self, bytes: impl Into<ByteRange>) {
        let end = self.file.size().div_ceil(PAGE);
        let pages = bytes.into().pages();
        if pages.start < pages.end.min(end) {
            let pages = PageRange::new(pages.start, pages.end.min(end));
            self.file.read_ahead(pages, None, self.stream).await;
            self.file.core.rt.ensure_driven();
        }
    }

    /// Maximum number of bytes that the cache reads ahead of one reader.
    pub fn read_ahead_bytes(&self) -> u64 {
        self.file.core.settings.read_ahead_pages * PAGE
    }
}

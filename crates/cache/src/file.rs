//! A file of the cache, and an open file.

use crate::backing::Place;
use crate::control::Writer;
use crate::errseq::Told;
use crate::load::{Load, Loading, Wanted};
use crate::mapping::Inner;
use crate::page::{MAX_FILE_BYTES, PAGE};
use crate::read::ReadStop;
use crate::readahead::{Plan, ReadAhead};
use crate::shared::{NoRoom, Purpose, Shared};
use crate::throttle::Pause;
use crate::waits::{Key, Listener};
use crate::write::{Source, WriteStop, Wrote};
use crate::{CacheError, Result};
use extant_block::StreamId;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One inode's pages. Cheap to clone; the pages live until the last clone is dropped, and dirty ones until they have been
/// written back.
#[derive(Clone, Debug)]
pub struct Mapping(pub(crate) Arc<Inner>);

impl Mapping {
    /// The file's size in bytes, as the cache has it: write-back may not have told the device yet.
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// The inode number that it was opened with, for traces.
    pub fn inode(&self) -> u64 {
        self.0.inode
    }

    /// Pages that have a frame.
    pub fn cached_pages(&self) -> u64 {
        self.0.pages.lock().cached
    }

    /// Pages that are dirty and not on their way to the device.
    pub fn dirty_pages(&self) -> u64 {
        self.0.pages.lock().dirty.len()
    }

    /// Opens the file: a place for what each opener has of its own.
    pub fn open(&self) -> OpenFile {
        OpenFile {
            told: Mutex::new(self.0.errors.sample()),
            ahead: Mutex::new(ReadAhead::new(self.0.shared.settings.read_ahead_pages)),
            writer: Mutex::default(),
            allowance: AtomicU64::new(1),
            last_end: AtomicU64::new(u64::MAX),
            stream: StreamId::default(),
            inner: self.0.clone(),
        }
    }

    /// Sets the size. What is cut off is gone, and when this returns no write to it is under way, so that its blocks may
    /// be given to others. The rest of the last page or block is zeroed and will be written back. The caller keeps writers
    /// out.
    ///
    /// # Errors
    /// The last page could not be read; the size is as it was.
    pub async fn set_size(&self, size: u64) -> Result<()> {
        let inner = &self.0;
        check_size(size)?;
        if size < inner.size() {
            let unit = PAGE.max(inner.backing.block_bytes().into());
            let end = size.next_multiple_of(unit);
            let tail = size..end.min(inner.size());
            if !tail.is_empty() && !self.is_hole(tail.clone()).await? {
                self.zero(tail).await?;
            }
            inner.store_size(size);
            inner.drop_pages(end / PAGE..u64::MAX);
            inner.wait_for_writeback(end / PAGE..u64::MAX).await;
        } else {
            inner.store_size(size);
        }
        Ok(())
    }

    /// Makes a range read as zeroes: its whole pages are forgotten, dirty or not, and its edges zeroed. To be called before
    /// the range's blocks are freed; when it returns no write to them is under way.
    pub async fn punch(&self, bytes: Range<u64>) -> Result<()> {
        let end = bytes.end.min(self.size());
        if bytes.start >= end {
            return Ok(());
        }
        let (first, last) = (bytes.start.next_multiple_of(PAGE), end / PAGE * PAGE);
        if bytes.start < first {
            self.zero(bytes.start..first.min(end)).await?;
        }
        if last < end && last >= first {
            self.zero(last..end).await?;
        }
        if first < last {
            self.0.drop_pages(first / PAGE..last / PAGE);
            self.0.wait_for_writeback(first / PAGE..last / PAGE).await;
        }
        Ok(())
    }

    /// Makes the cache forget a range, after writing back what is dirty in it: before direct I/O writes there. Pages that
    /// are written again meanwhile stay. Who does not keep readers out calls it again after the direct write, since they
    /// may have brought in what was there before.
    ///
    /// # Errors
    /// Something could not be written back: it is still there, and would be written over what direct I/O writes.
    pub async fn invalidate(&self, bytes: Range<u64>) -> Result<()> {
        let bytes = bytes.start.min(MAX_FILE_BYTES)..bytes.end.min(MAX_FILE_BYTES);
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        self.0.write_back(pages.clone()).await?;
        // Write-back that others had begun may have failed: whether it does again is ours to tell.
        let is_dirty = self.0.pages.lock().dirty.first_in(pages.clone()).is_some();
        if is_dirty {
            self.0.write_back(pages.clone()).await?;
        }
        self.0.drop_clean_pages(pages, true);
        Ok(())
    }

    /// Makes the cache forget what nobody uses, after writing back what is dirty: as `posix_fadvise(2)` with
    /// `POSIX_FADV_DONTNEED`, which leaves what somebody reads or writes meanwhile.
    ///
    /// # Errors
    /// What could not be written back by this call.
    pub async fn forget(&self) -> Result<()> {
        self.0.write_back(0..u64::MAX).await?;
        self.0.drop_clean_pages(0..u64::MAX, false);
        Ok(())
    }

    /// Tells the cache that the backing maps the file differently now, though nothing was written through the cache.
    pub fn remapped(&self) {
        self.0.pages.lock().epoch += 1;
    }

    /// Writes back what is dirty in a range, and waits; no flush of the device. Errors stay in the record that
    /// [`OpenFile::sync`] reports from.
    pub async fn write_back(&self, bytes: Range<u64>) -> Result<()> {
        self.0.write_back(bytes.start / PAGE..bytes.end.div_ceil(PAGE)).await
    }

    /// Whether nothing was ever written to a range that lies inside one block or page.
    async fn is_hole(&self, bytes: Range<u64>) -> Result<bool> {
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        let is_dirty = {
            let state = self.0.pages.lock();
            state.dirty.first_in(pages.clone()).or(state.writeback.first_in(pages.clone())).is_some()
        };
        if is_dirty {
            return Ok(false);
        }
        let mut at = pages.start * PAGE;
        while at < bytes.end {
            let extent = self.0.backing.map_read(at..pages.end * PAGE).await.map_err(CacheError::Backing)?;
            if extent.place != Place::Hole {
                return Ok(false);
            }
            at += extent.bytes;
        }
        Ok(true)
    }

    async fn zero(&self, bytes: Range<u64>) -> Result<()> {
        let len = (bytes.end - bytes.start) as usize;
        self.open().write_all(bytes.start, Source::Zeroes(len)).await
    }
}

fn check_size(bytes: u64) -> Result<()> {
    if bytes > MAX_FILE_BYTES { Err(CacheError::TooLarge { bytes }) } else { Ok(()) }
}

/// An open file: the pages, and what an opener has of its own: which errors it was told of, its read-ahead, and how much
/// it has dirtied.
///
/// Reads and writes of different callers are atomic by page, not beyond; who needs more holds a lock, as a file system
/// does.
#[derive(Debug)]
pub struct OpenFile {
    pub(crate) inner: Arc<Inner>,
    told: Mutex<Told>,
    ahead: Mutex<ReadAhead>,
    pub(crate) writer: Mutex<Writer>,
    /// Pages that may become dirty before the controller is asked, from `writer`, so that an overwrite needs no lock.
    allowance: AtomicU64,
    /// Where the last read that ended inside a page ended.
    last_end: AtomicU64,
    stream: StreamId,
}

impl OpenFile {
    /// Charges reads to a stream.
    pub fn with_stream(mut self, stream: StreamId) -> Self {
        self.stream = stream;
        self
    }

    /// The pages.
    pub fn mapping(&self) -> Mapping {
        Mapping(self.inner.clone())
    }

    /// Reads from byte `at` on; returns how many bytes there were before the file's end.
    ///
    /// # Errors
    /// Nothing could be read. An error behind the first byte shows itself to the next read.
    pub async fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_on(at, buf, 0).await
    }

    /// As [`OpenFile::read`], for ordinary threads: what is cached is copied here and now, without meeting the executor.
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
            Err(_ended) => Err(CacheError::ShutDown),
        }
    }

    /// Copies what is cached and nothing else; returns how many bytes that was.
    pub fn read_now(&self, at: u64, buf: &mut [u8]) -> usize {
        self.inner.read_cached(at, buf, self.is_new_use(at)).bytes
    }

    /// A read that goes on inside a page where the last one ended is no further use of that page.
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
        // After an error a page at a time, so that a bad sector costs its own page only.
        let mut most = u64::MAX;
        let mut waiting: Option<(Key, Listener)> = None;
        loop {
            let offset = at + done as u64;
            let some = inner.read_cached(offset, &mut buf[done..], self.is_new_use(offset));
            done += some.bytes;
            self.note_end(at + done as u64);
            if let Some(mark) = some.mark {
                self.read_on_past(mark);
            }
            let error = match some.stop {
                ReadStop::Done => return Ok(done),
                ReadStop::Busy => {
                    inner.shared.rt.yield_now().await;
                    continue;
                }
                ReadStop::Loading(page) => {
                    inner.wait_loaded(page).await;
                    continue;
                }
                ReadStop::Missing(page) => {
                    let last = (at + buf.len() as u64).div_ceil(PAGE).min(page.saturating_add(most));
                    match self.fill(page..last.max(page + 1), true, &mut waiting).await {
                        Ok(None) => continue,
                        Ok(Some(load)) => match load.wait().await {
                            Ok(()) => continue,
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

    /// Has missing pages loaded, and with them what read-ahead wants. `None` if somebody else was first, or after waiting
    /// for a frame.
    async fn fill(
        &self,
        pages: Range<u64>,
        read_ahead: bool,
        waiting: &mut Option<(Key, Listener)>,
    ) -> Result<Option<Arc<Load>>> {
        let inner = &self.inner;
        let end = inner.size().div_ceil(PAGE);
        let wanted =
            Wanted { pages: pages.clone(), purpose: Purpose::Demand, mark: None, stream: self.stream };
        match inner.load(wanted).await? {
            Loading::Started(load) => {
                if read_ahead {
                    let plan =
                        self.ahead.lock().missed(pages.start..pages.end.min(end).max(pages.start + 1), end);
                    self.carry_out(plan);
                }
                Ok(Some(load))
            }
            Loading::Present => Ok(None),
            Loading::NoFrames => {
                wait_for_frames(&inner.shared, waiting).await;
                Ok(None)
            }
        }
    }

    fn read_on_past(&self, mark: u64) {
        let end = self.inner.size().div_ceil(PAGE);
        let plan = self.ahead.lock().marked(mark, end);
        self.carry_out(plan);
    }

    /// Starts read-ahead, on a task of its own where the backing needs time to say where the pages are.
    fn carry_out(&self, plan: Plan) {
        if plan.ahead.is_empty() {
            return;
        }
        let inner = self.inner.clone();
        let stream = self.stream;
        let mut work = Box::pin(async move {
            for run in plan.ahead {
                let mut at = run.start;
                while at < run.end {
                    let wanted =
                        Wanted { pages: at..run.end, purpose: Purpose::Ahead, mark: plan.mark, stream };
                    match inner.load(wanted).await {
                        Ok(Loading::Started(load)) => at = load.pages().end,
                        Ok(Loading::Present) => at += 1,
                        // Nobody waits for it: whoever needs the page hears of the error.
                        Ok(Loading::NoFrames) | Err(_) => return,
                    }
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

    /// Writes from byte `at` on, into the cache; the file grows as needed. May pause when much is dirty.
    ///
    /// Durable after [`OpenFile::sync`]. What a dropped future had written stays written.
    ///
    /// # Errors
    /// The file would be too large, a page that is overwritten in part cannot be read, or no more may be dirtied and the
    /// device fails.
    pub async fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.write_all(at, Source::Bytes(bytes)).await
    }

    /// As [`OpenFile::write`], for ordinary threads: an overwrite of cached pages, or a write to new ones while there is
    /// room, is done here and now.
    pub fn write_blocking(&self, at: u64, bytes: &[u8]) -> Result<()> {
        check_size(at.saturating_add(bytes.len() as u64))?;
        let source = Source::Bytes(bytes);
        let (wrote, stop) = self.inner.write_cached(at, source, self.allowance());
        let asks = self.account(wrote);
        if stop == WriteStop::Done && !asks {
            return Ok(());
        }
        let rest = async {
            if asks {
                self.balance().await;
            }
            let done = wrote.bytes;
            self.write_all(at + done as u64, source.skip(done)).await
        };
        match self.inner.shared.rt.block_on(rest) {
            Ok(result) => result,
            Err(_ended) => Err(CacheError::ShutDown),
        }
    }

    /// Takes note of what was written; says whether the controller is to be asked.
    #[inline]
    fn account(&self, wrote: Wrote) -> bool {
        if wrote.dirtied == 0 {
            return false;
        }
        let mut writer = self.writer.lock();
        writer.dirtied_pages += wrote.dirtied;
        self.note_allowance(&writer);
        writer.dirtied_pages >= writer.ask_after_pages
    }

    /// Takes over what the controller allows.
    pub(crate) fn note_allowance(&self, writer: &Writer) {
        let left = writer.ask_after_pages.saturating_sub(writer.dirtied_pages);
        self.allowance.store(left.max(1), Ordering::Relaxed);
    }

    #[inline]
    fn allowance(&self) -> u64 {
        self.allowance.load(Ordering::Relaxed)
    }

    pub(crate) async fn write_all(&self, at: u64, source: Source<'_>) -> Result<()> {
        check_size(at.saturating_add(source.len() as u64))?;
        let inner = &self.inner;
        let mut done = 0;
        let mut waiting: Option<(Key, Listener)> = None;
        let mut refused = false;
        // Waits at the limits themselves, for the trace.
        let mut pause = None;
        loop {
            let (wrote, stop) = inner.write_cached(at + done as u64, source.skip(done), self.allowance());
            let asks = self.account(wrote);
            done += wrote.bytes;
            if wrote.bytes > 0 {
                waiting = None;
                refused = false;
                pause = None;
            }
            if let (Some(_), None, WriteStop::NoRoom(_) | WriteStop::NoFrames) = (&waiting, &pause, stop) {
                let rule = match stop {
                    WriteStop::NoRoom(NoRoom::Everywhere) => "limit",
                    WriteStop::NoRoom(NoRoom::OnDevice(_)) => "device limit",
                    _ => "no frames",
                };
                pause = Pause::begin(self, rule, self.writer.lock().dirtied_pages);
            }
            match stop {
                WriteStop::Done | WriteStop::Asks => {}
                WriteStop::Busy => inner.shared.rt.yield_now().await,
                WriteStop::Loading(page) => {
                    inner.wait_loaded(page).await;
                }
                WriteStop::Missing(page) => {
                    if let Some(load) = self.fill(page..page + 1, false, &mut waiting).await? {
                        load.wait().await?;
                    }
                }
                WriteStop::NoFrames => wait_for_frames(&inner.shared, &mut waiting).await,
                WriteStop::NoRoom(reason) => {
                    // A device that fails gets one more try on behalf of whoever waits.
                    let failure = inner.disk.failure();
                    if let (Some(error), true) = (&failure, refused) {
                        return Err(error.clone());
                    }
                    refused = failure.is_some() && waiting.is_some();
                    match reason {
                        NoRoom::Everywhere => want_frames(&inner.shared),
                        NoRoom::OnDevice(_) => inner.disk.want(&inner.shared),
                    }
                    wait_for(&inner.shared, &mut waiting, Shared::room_key(reason)).await;
                }
            }
            if asks {
                self.balance().await;
            }
            if stop == WriteStop::Done {
                return Ok(());
            }
        }
    }

    /// Makes everything written before durable: writes back, waits, flushes the device's cache.
    ///
    /// # Errors
    /// What went wrong since this open file was last told, once: also errors of background write-back.
    pub async fn sync(&self) -> Result<()> {
        self.sync_range(0..u64::MAX).await?;
        self.flush_device().await
    }

    /// As [`OpenFile::sync`], for ordinary threads.
    pub fn sync_blocking(&self) -> Result<()> {
        match self.inner.shared.rt.block_on(self.sync()) {
            Ok(result) => result,
            Err(_ended) => Err(CacheError::ShutDown),
        }
    }

    /// Writes back a range and waits, without a flush of the device (`sync_file_range(2)`): not durable yet.
    pub async fn sync_range(&self, bytes: Range<u64>) -> Result<()> {
        let end = bytes.end.min(self.inner.size().next_multiple_of(PAGE).max(bytes.start));
        // Errors are in the log, with those of others.
        let _ = self.inner.write_back(bytes.start / PAGE..end.div_ceil(PAGE)).await;
        self.inner.errors.check(&mut self.told.lock())
    }

    async fn flush_device(&self) -> Result<()> {
        let device = &self.inner.disk.device;
        if device.limits().volatile_cache {
            extant_block::flush(&**device).await?;
        }
        Ok(())
    }
}

/// Waits for `key`: the first time it only begins to listen, so that the caller looks once more before it waits.
async fn wait_for(shared: &Shared, waiting: &mut Option<(Key, Listener)>, key: Key) {
    match waiting.take() {
        Some((listened, listener)) if listened == key => listener.await,
        _ => *waiting = Some((key, shared.waits.listen(key))),
    }
}

/// Waits for a frame. Nobody tells when a page that could be evicted is no longer in use, for as long as that may be: as a
/// copy takes.
async fn wait_for_frames(shared: &Shared, waiting: &mut Option<(Key, Listener)>) {
    if shared.frame_counts().evictable > 0 {
        return shared.rt.yield_now().await;
    }
    want_frames(shared);
    wait_for(shared, waiting, Key::Frames).await;
}

/// Has every flusher work, because somebody waits for frames or room.
fn want_frames(shared: &Shared) {
    for disk in shared.disks.read().iter() {
        if disk.dirty.load(Ordering::Relaxed) > 0 {
            disk.want(shared);
        }
    }
}

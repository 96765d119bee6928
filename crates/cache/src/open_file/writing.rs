//! Writing: into pages that are cached or new, with waits for room, for frames and for pages to be
//! loaded.

use crate::dirty::writer::Writer;
use crate::open_file::contest::Contest;
use crate::open_file::waiting_for_room::{RoomWait, wait_for_frames};
use crate::open_file::{CachedOpenFile, stretch};
use crate::page::check_size;
use crate::pages::cached_write::{Source, Terms, WriteStop, Wrote};
use crate::pass_policy::ByRuns;
use crate::{ByteRange, PageRange, Result, WouldWait, WriteError};
use std::sync::atomic::{AtomicUsize, Ordering};

impl CachedOpenFile {
    /// Writes `bytes` at byte `at`, into the cache. The file grows as needed. May pause when much
    /// is dirty.
    ///
    /// Durable after [`CachedOpenFile::sync`]. If the future is dropped, bytes already written stay
    /// written.
    ///
    /// # Errors
    /// The file would be too large, a page to be partly overwritten cannot be read, or the dirty
    /// limit is reached and the device fails. The error says how many bytes were written before it.
    pub async fn write(&self, at: u64, bytes: &[u8]) -> std::result::Result<(), WriteError> {
        self.write_all(at, Source::Bytes(bytes)).await
    }

    /// Like [`CachedOpenFile::write`], but counts the bytes as they are copied. `copied_bytes` is
    /// the number of bytes in the cache even if the future is dropped.
    ///
    /// # Errors
    /// As [`CachedOpenFile::write`].
    pub async fn write_counted(&self, at: u64, bytes: &[u8], copied_bytes: &AtomicUsize) -> Result<()> {
        check_size(at.saturating_add(bytes.len() as u64))?;
        self.write_on(at, Source::Bytes(bytes), copied_bytes).await
    }

    /// Like [`CachedOpenFile::write`], for callers that must not wait: writes everything into
    /// memory, or returns how much it wrote.
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
        let (wrote, stop) = self.file.write_cached(at, Source::Bytes(bytes), self.terms());
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
    pub(super) fn note_allowance(&self, writer: &Writer) {
        self.allowance.store(writer.allowance(), Ordering::Relaxed);
    }

    #[inline]
    fn terms(&self) -> Terms {
        let most =
            if self.exempt || self.unpaced { u64::MAX } else { self.allowance.load(Ordering::Relaxed) };
        Terms { most, exempt: self.exempt, in_exclusion: self.in_exclusion, keeps_size: self.keeps_size }
    }

    async fn write_all(&self, at: u64, source: Source<'_>) -> std::result::Result<(), WriteError> {
        let copied = AtomicUsize::new(0);
        let result = match check_size(at.saturating_add(source.len() as u64)) {
            Ok(()) => self.write_on(at, source, &copied).await,
            Err(error) => Err(error),
        };
        result.map_err(|error| WriteError { done_bytes: copied.load(Ordering::Relaxed), error })
    }

    /// Writes zeroes to a range.
    pub(crate) async fn write_zeroes(&self, bytes: ByteRange) -> Result<()> {
        Ok(self.write_all(bytes.start, Source::Zeroes(bytes.len() as usize)).await?)
    }

    async fn write_on(&self, at: u64, source: Source<'_>, copied_bytes: &AtomicUsize) -> Result<()> {
        let file = &self.file;
        let mut budget = file.core.rt.budget(ByRuns::STINT);
        let mut wait = RoomWait::new(self);
        let mut contest = Contest::default();
        loop {
            budget.resched().await;
            let mut done = copied_bytes.load(Ordering::Relaxed);
            let offset = at + done as u64;
            let piece = source.skip(done).first(stretch(offset));
            let (wrote, stop) = file.write_cached(offset, piece, self.terms());
            let asks = self.account(wrote);
            done += wrote.bytes;
            copied_bytes.store(done, Ordering::Relaxed);
            contest.moved(wrote.bytes);
            wait.stopped(wrote, stop);
            match stop {
                WriteStop::Done | WriteStop::Asks => {}
                WriteStop::Busy => file.core.rt.yield_now().await,
                // Waits are boxed: otherwise every write's future would reserve space for the
                // largest wait, and it is moved before it is polled.
                WriteStop::Loading(page) => {
                    Box::pin(file.wait_loaded(page)).await;
                    contest.was_loaded = true;
                }
                WriteStop::Missing(page) => {
                    let fill = self.fill(PageRange::one(page), false, &mut wait.waiting, &mut contest);
                    if let Some(load) = Box::pin(fill).await? {
                        Box::pin(load.wait()).await?;
                        contest.was_loaded = true;
                    }
                }
                WriteStop::Excluded(page) => {
                    let pages = PageRange::one(page);
                    Box::pin(file.wait_admitted(pages, &mut contest.place)).await;
                }
                WriteStop::NoFrames => Box::pin(wait_for_frames(&file.core, &mut wait.waiting)).await?,
                WriteStop::NoRoom(reason) => Box::pin(wait.for_room(reason)).await?,
            }
            if asks {
                wait.waiting.leave();
                self.balance().await;
            }
            if stop == WriteStop::Done && done == source.len() {
                return Ok(());
            }
        }
    }
}

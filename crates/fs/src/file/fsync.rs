//! Makes a file durable: first its data, then the transaction that points to them.

use super::cache_errors::cache_error;
use super::contents::Contents;
use super::open_file::OpenFile;
use crate::journal::{Credits, Handle};
use crate::{Error, Result};
use extant_cache::{ByteRange, Mapping, ReadOrder};
use futures_util::future::BoxFuture;

/// Rounds of write-back until the recorded size covers the size at the start. A block that another
/// writer dirties while it is in flight takes a second round.
const ROUNDS: u32 = 4;

impl OpenFile {
    /// Makes the file's data, size, map, attributes and names durable.
    ///
    /// # Errors
    /// A failure to write the data since this open file last reported one, each reported once; why
    /// the journal gave up.
    pub fn sync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.contents.writer.guarded(self.sync_range(ByteRange::ALL, false)))
    }

    /// Makes durable what is needed to read the data back, which excludes the times.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn datasync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.contents.writer.guarded(self.sync_range(ByteRange::ALL, true)))
    }

    /// Allocates places for the file's dirty data and writes them. The map and the size are logged
    /// when this returns; they are durable after a sync.
    ///
    /// # Errors
    /// The write-back error, which the next sync also returns.
    pub fn write_back(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.contents.writer.guarded(self.contents.write_back(&self.mapping)))
    }

    /// Writes back the dirty data of a range and waits, like `sync_file_range(2)`. Not durable yet.
    ///
    /// # Errors
    /// The write-back error, which the next sync also returns.
    pub fn write_back_range(&self, bytes: impl Into<ByteRange>) -> BoxFuture<'_, Result<()>> {
        let bytes = bytes.into();
        let write = async move { self.mapping.write_back(bytes).await.map_err(cache_error) };
        Box::pin(self.contents.writer.guarded(write))
    }

    /// Like [`Self::write_back_range`], but does not wait for the data once they are submitted.
    /// Errors are returned by the next sync.
    pub async fn begin_write_back(&self, bytes: impl Into<ByteRange>) {
        self.mapping.begin_write_back(bytes).await;
    }

    /// Begins the write-back of a range and drops its clean whole pages from the cache
    /// (`POSIX_FADV_DONTNEED`).
    pub async fn not_needed(&self, bytes: impl Into<ByteRange>) {
        self.mapping.not_needed(bytes).await;
    }

    /// Drops the clean whole pages of a range from the cache: the caller keeps what it has read.
    pub async fn drop_clean(&self, bytes: impl Into<ByteRange>) {
        self.mapping.drop_clean(bytes).await;
    }

    /// Reads a range ahead without waiting (`POSIX_FADV_WILLNEED`).
    pub async fn will_need(&self, bytes: impl Into<ByteRange>) {
        self.pages.will_need(bytes).await;
    }

    /// Maximum number of bytes that are read ahead of one reader.
    pub fn read_ahead_bytes(&self) -> u64 {
        self.pages.read_ahead_bytes()
    }

    /// Says in which order the file will be read; it changes how far it is read ahead.
    pub fn expects(&self, order: ReadOrder) {
        self.pages.expects(order);
    }

    /// Like [`Self::sync`], but for one range, as a boxed future.
    pub(super) fn sync_boxed(&self, bytes: ByteRange, data_only: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.sync_range(bytes, data_only))
    }

    async fn sync_range(&self, bytes: ByteRange, data_only: bool) -> Result<()> {
        let contents = &*self.contents;
        let _sync = contents.writer.disk.begin_sync();
        // The whole size: after a crash, a small synced write must not leave the file shorter than
        // it was when the sync began.
        let size = self.size();
        let mut written = self.pages.sync_range(bytes).await.map_err(cache_error);
        if written.is_ok() && size == 0 {
            // No new contents were logged, which would have logged this as well.
            written = contents.log_emptied().await;
        }
        if written.is_ok() {
            // Dirty blocks outside the range may be holding the recorded size back.
            let write = || async { self.pages.sync_range(ByteRange::ALL).await.map_err(cache_error) };
            written = contents.reach(size, &self.mapping, write).await;
        }
        let logged = contents.log_times(data_only).await;
        let durable = contents.make_durable().await;
        written.and(logged).and(durable)
    }
}

impl Contents {
    /// Writes the file's data. The map and the size are logged when this returns. The caller holds
    /// no lock of the inode.
    ///
    /// # Errors
    /// As [`OpenFile::write_back`].
    pub(super) async fn write_back(&self, mapping: &Mapping) -> Result<()> {
        let size = mapping.size();
        let write = || async { mapping.write_back(ByteRange::ALL).await.map_err(cache_error) };
        write().await?;
        self.log_emptied().await?;
        self.reach(size, mapping, write).await
    }

    /// Calls `write` to write the file's data until the recorded size reaches `size` bytes, or the
    /// file's current size if that is smaller by then. The caller holds no lock of the inode.
    ///
    /// # Errors
    /// Errors of `write`; [`Error::NotWritten`] if data below the size cannot be written.
    pub(super) async fn reach<W>(&self, size: u64, mapping: &Mapping, write: impl Fn() -> W) -> Result<()>
    where
        W: Future<Output = Result<()>>,
    {
        for _ in 0..ROUNDS {
            if self.has_recorded(size.min(mapping.size())) {
                return Ok(());
            }
            write().await?;
        }
        if self.has_recorded(size.min(mapping.size())) {
            return Ok(());
        }
        // Try once more with writers locked out. Those whose blocks held the recorded size back
        // have finished.
        let _inode = self.cell.write_lock().await;
        write().await?;
        if mapping.size() == 0 {
            self.log_emptied().await?;
        }
        self.record_reached().await?;
        let recorded = self.recorded_bytes();
        if self.has_recorded(size.min(mapping.size())) {
            return Ok(());
        }
        let inode = self.number();
        let what = format!("inode {inode}: its size of {size} bytes is not recorded, only {recorded}");
        Err(Error::NotWritten(what))
    }

    /// Logs times that changed with the data.
    pub(super) async fn log_times(&self, data_only: bool) -> Result<()> {
        if data_only || !self.live.lock().times_unlogged {
            return Ok(());
        }
        self.log_times_under(self.writer.journal.start(Credits(1)).await?);
        Ok(())
    }

    /// Like [`Self::log_times`], but only if that needs no wait for the log.
    pub(super) fn try_log_times(&self) -> Result<()> {
        let Some(handle) = self.writer.journal.try_start(Credits(1))? else { return Ok(()) };
        self.log_times_under(handle);
        Ok(())
    }

    /// Logs the times. A sync that sees them as logged also sees the transaction that has them.
    fn log_times_under(&self, mut handle: Handle) {
        let mut live = self.live.lock();
        drop(handle.inode(&self.cell));
        live.times_unlogged = false;
    }

    /// Commits the transaction that last changed the inode, then flushes the device unless a flush
    /// begun after the data were written already covers it.
    async fn make_durable(&self) -> Result<()> {
        let journal = &self.writer.journal;
        let written = journal.flushes_begun();
        journal.commit_change(self.cell.changed_by()).await?;
        journal.flush_since(written).await
    }
}

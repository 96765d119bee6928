//! Making a file durable: its data, then the transaction that points to them.

use super::contents::Contents;
use super::write::{OpenFile, cache_error};
use crate::journal::Credits;
use crate::{Error, Result};
use extant_cache::ByteRange;

/// Rounds of write-back until the recorded size covers what was there at the beginning: a block that another writer dirties
/// while it is in flight takes a second one.
const ROUNDS: u32 = 4;

impl OpenFile {
    /// Makes the file's data, size, map, attributes and names durable.
    ///
    /// # Errors
    /// What went wrong with its data since this open file was last told, once; why the journal gave up.
    pub async fn sync(&self) -> Result<()> {
        self.contents.writer.guarded(self.sync_range(ByteRange::ALL, false)).await
    }

    /// Makes durable what is needed to read the file's data back: not its times.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub async fn datasync(&self) -> Result<()> {
        self.contents.writer.guarded(self.sync_range(ByteRange::ALL, true)).await
    }

    /// Gives the file's dirty data their places and writes them; the map and the size are logged when this returns. Durable
    /// after a sync.
    ///
    /// # Errors
    /// The error of the write-back, which the next sync returns as well.
    pub async fn write_back(&self) -> Result<()> {
        let written = async {
            self.mapping.write_back(ByteRange::ALL).await.map_err(cache_error)?;
            self.contents.log_emptied().await
        };
        self.contents.writer.guarded(written).await
    }

    pub(super) async fn sync_range(&self, bytes: ByteRange, data_only: bool) -> Result<()> {
        let contents = &*self.contents;
        let _sync = contents.writer.disk.begin_sync();
        // All of it: a small write that is synced shows the file no shorter than it was when it began.
        let size = self.size();
        let mut written = self.pages.sync_range(bytes).await.map_err(cache_error);
        if written.is_ok() && size == 0 {
            // Nothing came that would have logged it.
            written = contents.log_emptied().await;
        }
        let mut round = 0;
        while written.is_ok() && !contents.has_recorded(size) && round < ROUNDS {
            // Blocks outside the range keep the size from being recorded.
            written = self.pages.sync_range(ByteRange::ALL).await.map_err(cache_error);
            round += 1;
        }
        if written.is_ok() && !contents.has_recorded(size.min(self.size())) {
            // Once more, without other writers.
            let _inode = contents.cell.lock().write().await;
            written = self.pages.sync_range(ByteRange::ALL).await.map_err(cache_error);
            if written.is_ok() && !contents.has_recorded(size.min(self.size())) {
                let recorded = contents.recorded_bytes();
                written = Err(Error::NotWritten(format!(
                    "inode {}: its size of {size} bytes is not recorded, only {recorded}",
                    self.inode()
                )));
            }
        }
        let logged = contents.log_times(data_only).await;
        let durable = contents.make_durable().await;
        written.and(logged).and(durable)
    }
}

impl Contents {
    /// Logs times that changed with the data.
    pub(super) async fn log_times(&self, data_only: bool) -> Result<()> {
        if data_only || !self.live.lock().times_unlogged {
            return Ok(());
        }
        let mut handle = self.writer.journal.start(Credits(1)).await?;
        self.live.lock().times_unlogged = false;
        drop(handle.inode(&self.cell));
        Ok(())
    }

    /// As [`Self::log_times`], as far as no wait is needed for the log.
    pub(super) fn try_log_times(&self) -> Result<()> {
        let Some(mut handle) = self.writer.journal.try_start(Credits(1))? else { return Ok(()) };
        // First: a write that comes meanwhile sets it again.
        self.live.lock().times_unlogged = false;
        drop(handle.inode(&self.cell));
        Ok(())
    }

    /// Commits the transaction that changed the inode last, and flushes the device unless a flush that began since the data
    /// were written has done that.
    async fn make_durable(&self) -> Result<()> {
        let journal = &self.writer.journal;
        let written = journal.flushes_begun();
        if let Some(tid) = self.cell.changed_by() {
            journal.commit(tid).await?;
        }
        journal.flush_since(written).await
    }
}

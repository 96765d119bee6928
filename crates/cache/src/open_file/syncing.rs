//! Making writes durable.

use crate::open_file::CachedOpenFile;
use crate::page::PAGE;
use crate::{ByteRange, Result};
use extant_block::BioFlags;

impl CachedOpenFile {
    /// Makes all earlier writes durable: writes them back, waits, and flushes the device's cache.
    ///
    /// # Errors
    /// Any failure that this open file has not reported yet, including those of background
    /// write-back. Each error is returned once.
    pub async fn sync(&self) -> Result<()> {
        self.sync_range(ByteRange::ALL).await?;
        // A failed flush is recorded in the log of this file and of every other file written.
        // Writes from before the file was forgotten and reopened are in no log, but are not durable
        // either, so the flush's own result is returned too.
        let flushed = self.file.disk.flushes.flush().await;
        self.file.errors.check(&mut self.told.lock()).and(flushed)
    }

    /// Writes back a range and waits, without flushing the device (`sync_file_range(2)`). Not
    /// durable yet.
    ///
    /// # Errors
    /// As [`CachedOpenFile::sync`].
    pub async fn sync_range(&self, bytes: impl Into<ByteRange>) -> Result<()> {
        let bytes = bytes.into();
        let unit = PAGE.max(self.file.backing.block_bytes().into());
        let end = self.file.size().next_multiple_of(unit).max(bytes.start);
        let pages = ByteRange::new(bytes.start, bytes.end.min(end)).pages();
        // Errors are in the log, together with those of other callers.
        let _ = self.file.write_back(pages, BioFlags::SYNC).await;
        self.file.errors.check(&mut self.told.lock())
    }
}

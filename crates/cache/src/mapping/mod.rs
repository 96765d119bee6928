//! A file's pages, as their owner uses them.

mod truncate;

use crate::file::CachedFile;
use crate::open_file::CachedOpenFile;
use crate::page::{MAX_FILE_BYTES, PAGE};
use crate::pages::exclude::Exclusion;
use crate::pages::page_removal::Which;
use crate::{ByteRange, OnWriteError, PageRange, Result};
use extant_block::BioFlags;
use std::sync::Arc;

/// The pages of one inode. Cheap to clone. The pages live until the last clone is dropped; dirty
/// pages live until they have been written back.
#[derive(Clone, Debug)]
pub struct Mapping(pub(crate) Arc<CachedFile>);

/// A write in progress that bypasses the cache: see [`Mapping::writes_directly`].
#[derive(Debug)]
#[must_use = "a flush covers this write only if the write tells its end"]
pub struct DirectWrite {
    file: Mapping,
    /// Failed flushes when the write began.
    flush_failures: u64,
}

impl DirectWrite {
    /// The write has reached the device, though perhaps only its volatile cache.
    pub fn has_ended(self) {
        self.file.0.disk.flushes.note_write(&self.file.0, self.flush_failures);
    }
}

impl Mapping {
    /// The file's size in bytes, as the cache knows it. Write-back may not have recorded it on the
    /// device yet.
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// The inode number the mapping was created with, for traces.
    pub fn inode(&self) -> u64 {
        self.0.inode
    }

    /// Pages that have a frame.
    pub fn cached_pages(&self) -> u64 {
        self.0.lock_pages().cached()
    }

    /// Pages that are dirty and not under write-back.
    pub fn dirty_pages(&self) -> u64 {
        self.0.lock_pages().dirty().len()
    }

    /// Whether the file can be forgotten: no page is dirty or under write-back, and every error has
    /// been reported to an open file.
    pub fn is_settled(&self) -> bool {
        let pages = self.0.lock_pages();
        pages.dirty().is_empty() && pages.writeback().is_empty() && self.0.errors.is_told()
    }

    /// Opens the file. The result holds this opener's own state.
    pub fn open(&self) -> CachedOpenFile {
        CachedOpenFile::new(self.0.clone())
    }

    /// Keeps all others from loading pages of a range until the result is dropped (Linux:
    /// `invalidate_lock`). Waits while another exclusion overlaps it.
    ///
    /// Fills that have already asked the backing ask again afterwards. Cached pages stay, and may
    /// be overwritten. A caller that needs the range to itself first keeps writers out, then takes
    /// the exclusion, then calls [`Mapping::set_size`], [`Mapping::punch`] or
    /// [`Mapping::invalidate`], and changes the map or the device before it drops the exclusion.
    /// The holder itself must not read or write the range through a [`CachedOpenFile`].
    pub async fn exclude(&self, bytes: impl Into<ByteRange>) -> Exclusion {
        self.0.exclude(bytes.into().pages()).await
    }

    /// Drops a range from the cache after writing back its dirty pages, so that direct I/O can
    /// write there.
    ///
    /// Pages that are written again meanwhile stay. A caller without the
    /// [exclusion](Mapping::exclude) of the range calls this again after the direct write, since
    /// readers may have loaded the old contents.
    ///
    /// # Errors
    /// Something could not be written back. It is still cached, and would later overwrite the data
    /// of the direct write.
    pub async fn invalidate(&self, bytes: impl Into<ByteRange>) -> Result<()> {
        let pages = clamped(bytes.into()).pages();
        let written = self.0.write_back(pages, BioFlags::SYNC).await;
        // Retry a failed write-back once: the failed one may have been another caller's, begun
        // earlier.
        let is_dirty = self.0.lock_pages().dirty().first_in(pages.indices()).is_some();
        if is_dirty || self.0.core.settings.on_write_error == OnWriteError::MarkClean {
            written?;
        }
        if is_dirty {
            self.0.write_back(pages, BioFlags::SYNC).await?;
        }
        self.0.remove_pages(pages, Which::Clean { and_loading: true }).await;
        Ok(())
    }

    /// Drops the file's clean, unpinned pages after writing back its dirty ones, and waits for
    /// that. Pages that are read or written meanwhile stay. So do loaded pages that have not been
    /// read yet: a reader may be waiting for them.
    ///
    /// # Errors
    /// A write-back failed while this waited.
    pub async fn forget(&self) -> Result<()> {
        self.0.write_back(PageRange::ALL, BioFlags::empty()).await?;
        self.0.remove_pages(PageRange::ALL, Which::Clean { and_loading: false }).await;
        Ok(())
    }

    /// Drops every page, dirty or not, without waiting: the file's owner is gone, as after a crash.
    /// Writes in flight end normally. If there are many pages, a task frees their frames.
    pub fn discard(&self) {
        self.0.discard();
    }

    /// Like [`Disk::retry`](crate::Disk::retry), for this file only and for any error.
    pub fn retry(&self) {
        self.0.lock_pages().set_placeable();
    }

    /// Announces a write that bypasses the cache (direct I/O).
    ///
    /// Call it before the write, and [`DirectWrite::has_ended`] after it. If a flush of the device
    /// that begins in between fails, or the next one does, the file's open files report it.
    pub fn writes_directly(&self) -> DirectWrite {
        DirectWrite { flush_failures: self.0.disk.flushes.failures(), file: self.clone() }
    }

    /// Tells the cache that the backing's map of a range has changed without a write through the
    /// cache.
    ///
    /// Fills in progress ask again. Cached pages stay; [`Mapping::invalidate`] or
    /// [`Mapping::punch`] removes them.
    pub fn remapped(&self, bytes: impl Into<ByteRange>) {
        self.0.lock_pages().fills().remapped(bytes.into().pages());
    }

    /// Writes back the dirty pages of a range, and waits for them and for earlier writes still in
    /// flight.
    ///
    /// Does not flush the device. Errors stay in the error log, from which [`CachedOpenFile::sync`]
    /// reports them.
    ///
    /// # Errors
    /// A write-back of this file failed while this waited.
    pub async fn write_back(&self, bytes: impl Into<ByteRange>) -> Result<()> {
        let pages = clamped(bytes.into()).pages();
        self.0.write_back(pages, BioFlags::SYNC).await
    }

    /// Begins the write-back of a range's dirty pages and returns once they are submitted, like
    /// `sync_file_range(2)` with `SYNC_FILE_RANGE_WRITE` alone. Skips pages that are under
    /// write-back.
    ///
    /// Errors stay in the record that [`CachedOpenFile::sync`] reports from.
    pub async fn begin_write_back(&self, bytes: impl Into<ByteRange>) {
        self.0.begin_write_back(clamped(bytes.into()).pages()).await;
    }

    /// Begins the write-back of a range and [drops its clean pages](Self::drop_clean), like
    /// `posix_fadvise(2)` with `POSIX_FADV_DONTNEED`.
    pub async fn not_needed(&self, bytes: impl Into<ByteRange>) {
        let bytes = clamped(bytes.into());
        self.begin_write_back(bytes).await;
        self.drop_clean(bytes).await;
    }

    /// Drops a range's clean, unpinned whole pages. A page that the range covers in part stays,
    /// unless it is the file's last. Dirty pages stay too, and so do pages that were loaded but not
    /// read yet.
    pub async fn drop_clean(&self, bytes: impl Into<ByteRange>) {
        let bytes = clamped(bytes.into());
        let size = self.size();
        let end = if bytes.end >= size { size.next_multiple_of(PAGE) } else { bytes.end };
        let (first, end) = (bytes.start.div_ceil(PAGE), end / PAGE);
        if first < end {
            self.0.remove_pages(PageRange::new(first, end), Which::Clean { and_loading: false }).await;
        }
    }

    /// Waits until the range's writes now in flight have ended and their backing has been notified.
    /// Writes nothing back itself, and does not wait for later writes.
    pub async fn wait_written(&self, bytes: impl Into<ByteRange>) {
        self.0.wait_for_writeback(clamped(bytes.into()).pages()).await;
    }
}

impl CachedOpenFile {
    /// The file's pages.
    pub fn mapping(&self) -> Mapping {
        Mapping(self.file.clone())
    }
}

/// Clamps a range to the largest possible file.
fn clamped(bytes: ByteRange) -> ByteRange {
    ByteRange::new(bytes.start.min(MAX_FILE_BYTES), bytes.end.min(MAX_FILE_BYTES))
}

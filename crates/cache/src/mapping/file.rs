//! A file of the cache: operations of the pages' owner.

use crate::backing::ReadFrom;
use crate::caught::caught;
use crate::dirty::writer::Writer;
use crate::mapping::exclude::Exclusion;
use crate::mapping::open::OpenFile;
use crate::mapping::readahead::ReadAhead;
use crate::mapping::sweep::Which;
use crate::mapping::write::Source;
use crate::page::{MAX_FILE_BYTES, PAGE, check_size};
use crate::state::Inner;
use crate::{ByteRange, OnWriteError, PageRange, Result};
use extant_block::{BioFlags, StreamId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The pages of one inode. Cheap to clone. The pages live until the last clone is dropped; dirty
/// pages live until they have been written back.
#[derive(Clone, Debug)]
pub struct Mapping(pub(crate) Arc<Inner>);

impl OpenFile {
    /// The file's pages.
    pub fn mapping(&self) -> Mapping {
        Mapping(self.inner.clone())
    }
}

/// A write in progress that bypasses the cache: see [`Mapping::writes_directly`].
#[derive(Debug)]
#[must_use = "a write that does not tell its end is covered by no flush"]
pub struct DirectWrite {
    file: Mapping,
    /// Failed flushes when the write began.
    flush_failures: u64,
}

impl DirectWrite {
    /// The write has reached the device, though perhaps only its volatile cache.
    pub fn has_ended(self) {
        self.file.0.disk.note_unflushed(&self.file.0, self.flush_failures);
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
        self.0.pages.lock().cached
    }

    /// Pages that are dirty and not under write-back.
    pub fn dirty_pages(&self) -> u64 {
        self.0.pages.lock().dirty.len()
    }

    /// Whether the file can be forgotten: no page is dirty or under write-back, and every error has
    /// been reported to an open file.
    pub fn is_settled(&self) -> bool {
        let pages = self.0.pages.lock();
        pages.dirty.is_empty() && pages.writeback.is_empty() && self.0.errors.is_told()
    }

    /// Opens the file. The result holds the state that each opener has of its own.
    pub fn open(&self) -> OpenFile {
        OpenFile {
            told: Mutex::new(self.0.errors.sample()),
            ahead: Mutex::new(ReadAhead::new(self.0.shared.settings.read_ahead_pages)),
            writer: Mutex::new(Writer::new(self.0.shared.next_writer())),
            allowance: AtomicU64::new(1),
            last_end: AtomicU64::new(u64::MAX),
            stream: StreamId::default(),
            exempt: false,
            in_exclusion: false,
            keeps_size: false,
            inner: self.0.clone(),
        }
    }

    /// Sets the size.
    ///
    /// When this returns, pages past the new size are gone and no write to them is in flight, so
    /// their blocks can be reused. The rest of the last page or block is zeroed and will be written
    /// back. The caller keeps writers out; if it frees blocks afterwards, it also holds the
    /// [exclusion](Mapping::exclude) of what is cut off. If a call is dropped, the next call, with
    /// any size, removes what was left.
    ///
    /// # Errors
    /// The last page could not be read; the size is unchanged.
    pub async fn set_size(&self, size: u64) -> Result<()> {
        let inner = &self.0;
        check_size(size)?;
        let unit = PAGE.max(inner.backing.block_bytes().into());
        if size < inner.size() {
            let tail = ByteRange::new(size, size.next_multiple_of(unit).min(inner.size()));
            if !tail.is_empty() && !self.is_hole(tail).await? {
                self.zero(tail).await?;
            }
            inner.pages.lock().is_cut = true;
            inner.store_size(size);
        }
        if inner.pages.lock().is_cut {
            let cut = PageRange::new(inner.size().next_multiple_of(unit) / PAGE, u64::MAX);
            inner.sweep(cut, Which::All).await;
            inner.wait_for_writeback(cut).await;
            inner.pages.lock().is_cut = false;
        }
        inner.grow_size(size);
        Ok(())
    }

    /// Makes a range read as zeros: drops its whole pages, dirty or not, and zeroes its edges.
    ///
    /// Call it before freeing the range's blocks, with the [exclusion](Mapping::exclude) of the
    /// range held. When it returns, no write to the blocks is in flight.
    pub async fn punch(&self, bytes: impl Into<ByteRange>) -> Result<()> {
        let bytes = bytes.into();
        let end = bytes.end.min(self.size());
        if bytes.start >= end {
            return Ok(());
        }
        let (first, last) = (bytes.start.next_multiple_of(PAGE), end / PAGE * PAGE);
        if bytes.start < first {
            self.zero(ByteRange::new(bytes.start, first.min(end))).await?;
        }
        if last < end && last >= first {
            self.zero(ByteRange::new(last, end)).await?;
        }
        if first < last {
            let whole = PageRange::new(first / PAGE, last / PAGE);
            self.0.sweep(whole, Which::All).await;
            self.0.wait_for_writeback(whole).await;
        }
        Ok(())
    }

    /// Keeps all others from loading pages of a range until the result is dropped (Linux:
    /// `invalidate_lock`). Waits while others exclude it.
    ///
    /// Fills that have already asked the backing ask again afterwards. Cached pages stay, and may
    /// be overwritten. A caller that needs the range to itself first keeps writers out, then takes
    /// the exclusion, then calls [`Mapping::set_size`], [`Mapping::punch`] or
    /// [`Mapping::invalidate`], and changes the map or the device before it drops the exclusion.
    /// The holder itself must not read or write the range through an [`OpenFile`].
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
        let is_dirty = self.0.pages.lock().dirty.first_in(pages.indices()).is_some();
        if is_dirty || self.0.shared.settings.on_write_error == OnWriteError::MarkClean {
            written?;
        }
        if is_dirty {
            self.0.write_back(pages, BioFlags::SYNC).await?;
        }
        self.0.sweep(pages, Which::Clean { and_loading: true }).await;
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
        self.0.sweep(PageRange::ALL, Which::Clean { and_loading: false }).await;
        Ok(())
    }

    /// Drops every page, dirty or not, without waiting: the file's owner is gone, as after a crash.
    /// Writes in flight end normally. If there are many pages, a task frees their frames.
    pub fn discard(&self) {
        self.0.discard();
    }

    /// Like [`Disk::retry`](crate::Disk::retry), for this file, whatever its error is.
    pub fn retry(&self) {
        self.0.retry();
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
        self.0.pages.lock().fills.remapped(bytes.into().pages());
    }

    /// Writes back the dirty pages of a range, and waits for them and for earlier writes still in
    /// flight.
    ///
    /// Does not flush the device. Errors stay in the record that [`OpenFile::sync`] reports from.
    ///
    /// # Errors
    /// A write-back of this file failed while this waited.
    pub async fn write_back(&self, bytes: impl Into<ByteRange>) -> Result<()> {
        let pages = clamped(bytes.into()).pages();
        self.0.write_back(pages, BioFlags::SYNC).await
    }

    /// Begins the write-back of a range's dirty pages and returns once they are submitted, like
    /// `sync_file_range(2)` with `SYNC_FILE_RANGE_WRITE` alone. Pages under write-back are left.
    ///
    /// Errors stay in the record that [`OpenFile::sync`] reports from.
    pub async fn begin_write_back(&self, bytes: impl Into<ByteRange>) {
        self.0.begin_write_back(clamped(bytes.into()).pages()).await;
    }

    /// Begins the write-back of a range and drops its clean, unpinned whole pages, like
    /// `posix_fadvise(2)` with `POSIX_FADV_DONTNEED`. A page that the range covers in part stays,
    /// unless it is the file's last. Dirty pages stay too, as do loaded ones not read yet.
    pub async fn not_needed(&self, bytes: impl Into<ByteRange>) {
        let bytes = clamped(bytes.into());
        self.begin_write_back(bytes).await;
        let size = self.size();
        let end = if bytes.end >= size { size.next_multiple_of(PAGE) } else { bytes.end };
        let (first, end) = (bytes.start.div_ceil(PAGE), end / PAGE);
        if first < end {
            self.0.sweep(PageRange::new(first, end), Which::Clean { and_loading: false }).await;
        }
    }

    /// Waits until the range's writes now in flight have ended and their backing has been notified.
    /// Writes nothing back itself, and does not wait for later writes.
    pub async fn wait_written(&self, bytes: impl Into<ByteRange>) {
        self.0.wait_for_writeback(clamped(bytes.into()).pages()).await;
    }

    /// Whether a range inside one block or page has never been written.
    async fn is_hole(&self, bytes: ByteRange) -> Result<bool> {
        let pages = bytes.pages();
        let is_dirty = {
            let state = self.0.pages.lock();
            let (dirty, writeback) = (&state.dirty, &state.writeback);
            dirty.first_in(pages.indices()).or(writeback.first_in(pages.indices())).is_some()
        };
        if is_dirty {
            return Ok(false);
        }
        let mut asked = ByteRange::new(pages.bytes().start, pages.bytes().end);
        while asked.start < bytes.end {
            let extent = caught(async { self.0.backing.map_read(asked).await }).await?;
            if extent.from != ReadFrom::Hole {
                return Ok(false);
            }
            asked.start += extent.bytes;
        }
        Ok(true)
    }

    /// Zeroes the bytes from the file's end to the end of the block it lies in, without growing the
    /// file.
    ///
    /// They are dirty when this returns, and zero on the device after a write-back. Call it before
    /// the file grows by a size change alone, if that tail may hold data of a formerly larger file.
    /// The caller keeps writers out.
    ///
    /// # Errors
    /// The last page could not be read, or no page can become dirty.
    pub async fn zero_past_end(&self) -> Result<()> {
        let size = self.size();
        let end = size.next_multiple_of(self.0.backing.block_bytes().into()).min(self.0.backing.end_bytes());
        if size < end {
            let mut file = self.open();
            file.keeps_size = true;
            file.write_all(size, Source::Zeroes((end - size) as usize)).await?;
        }
        Ok(())
    }

    async fn zero(&self, bytes: ByteRange) -> Result<()> {
        let mut file = self.open();
        file.in_exclusion = true;
        file.write_all(bytes.start, Source::Zeroes(bytes.len() as usize)).await?;
        Ok(())
    }
}

/// Clamps a range to the largest possible file.
fn clamped(bytes: ByteRange) -> ByteRange {
    ByteRange::new(bytes.start.min(MAX_FILE_BYTES), bytes.end.min(MAX_FILE_BYTES))
}

//! Removes parts of a file: truncation, holes, and zeroes at the end of a file.

use crate::backing::ReadFrom;
use crate::caught::caught;
use crate::mapping::Mapping;
use crate::page::{PAGE, check_size};
use crate::pages::page_removal::Which;
use crate::{ByteRange, PageRange, Result};

impl Mapping {
    /// Sets the size.
    ///
    /// When this returns, pages past the new size are gone and no write to them is in flight, so
    /// their blocks can be reused. The rest of the last page or block is zeroed and will be written
    /// back. The caller keeps writers out; if it frees blocks afterwards, it also holds the
    /// [exclusion](Mapping::exclude) of the part that is cut off. If a call is dropped half way,
    /// the next call, with any size, removes the remaining pages.
    ///
    /// # Errors
    /// The last page could not be read; the size is unchanged.
    pub async fn set_size(&self, size: u64) -> Result<()> {
        let file = &self.0;
        check_size(size)?;
        let unit = PAGE.max(file.backing.block_bytes().into());
        if size < file.size() {
            let tail = ByteRange::new(size, size.next_multiple_of(unit).min(file.size()));
            if !tail.is_empty() && !self.is_hole(tail).await? {
                self.zero(tail).await?;
            }
            file.lock_pages().set_cut(true);
            file.store_size(size);
        }
        if file.lock_pages().is_cut() {
            let cut = PageRange::new(file.size().next_multiple_of(unit) / PAGE, u64::MAX);
            file.remove_pages(cut, Which::All).await;
            file.wait_for_writeback(cut).await;
            file.lock_pages().set_cut(false);
        }
        file.grow_size(size);
        Ok(())
    }

    /// Makes a range read as zeros: drops its whole pages, dirty or not, and zeroes its edges.
    ///
    /// Call it before freeing the range's blocks, with the [exclusion](Mapping::exclude) of the
    /// range held. When it returns, no write to the blocks is in flight.
    ///
    /// # Errors
    /// A page at an edge of the range cannot be loaded.
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
            self.0.remove_pages(whole, Which::All).await;
            self.0.wait_for_writeback(whole).await;
        }
        Ok(())
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
            self.open().keeping_size().write_zeroes(ByteRange::new(size, end)).await?;
        }
        Ok(())
    }

    async fn zero(&self, bytes: ByteRange) -> Result<()> {
        self.open().in_exclusion().write_zeroes(bytes).await
    }

    /// Whether a range inside one block or page has never been written.
    async fn is_hole(&self, bytes: ByteRange) -> Result<bool> {
        let pages = bytes.pages();
        let is_dirty = {
            let state = self.0.lock_pages();
            let (dirty, writeback) = (state.dirty(), state.writeback());
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
}

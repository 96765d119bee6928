//! Copies ranges between files of one volume (`copy_file_range(2)`), through the cache. Holes stay
//! holes.

use super::fallocate::Fallocate;
use super::open_file::OpenFile;
use crate::{Error, Result};
use extant_cache::ByteRange;
use extant_format::UintExt;
use std::sync::Arc;

/// Bytes read and written in one step.
const PIECE_BYTES: u64 = 256 << 10;

impl OpenFile {
    /// Copies up to `len` bytes from offset `at` of this file to offset `to_at` of `to`. Returns
    /// the number of bytes copied: fewer than `len` if this file ends or space runs out. Holes stay
    /// holes. The copy is in memory when this returns, unless the options of `to` say otherwise.
    /// Other writers may interleave between pieces.
    ///
    /// # Errors
    /// If nothing was copied: [`Error::CrossDevice`] if the files are on different volumes;
    /// [`Error::Invalid`] for overlapping ranges of one file; [`Error::BadFile`] if `to` is open
    /// for appending; otherwise the errors of [`OpenFile::read`], [`OpenFile::write`] and
    /// [`OpenFile::set_size`]. If the copy is to be durable, also the errors of
    /// [`OpenFile::sync`].
    pub async fn copy_range(&self, at: u64, to: &Self, to_at: u64, len: u64) -> Result<u64> {
        if !Arc::ptr_eq(&self.contents.writer, &to.contents.writer) {
            return Err(Error::CrossDevice(format!("inode {}", to.inode())));
        }
        if to.options.append {
            return Err(Error::BadFile("writing at an offset"));
        }
        to.check_may_change(false)?;
        let len = len.min(self.size().saturating_sub(at));
        let max = to.contents.max_bytes();
        if len > 0 && to_at >= max {
            return Err(Error::TooBig(format!("inode {}", to.inode())));
        }
        let len = len.min(max.saturating_sub(to_at));
        let same = Arc::ptr_eq(&self.contents, &to.contents);
        if same && to_at < at + len && at < to_at + len {
            return Err(Error::Invalid(format!("inode {}: a copy over a part of itself", to.inode())));
        }
        let mut piece = vec![0; len.min(PIECE_BYTES).to_usize()];
        let mut done = 0;
        while done < len {
            match self.copy_piece(at + done, to, to_at + done, len - done, &mut piece).await {
                Ok(0) => break,
                Ok(copied) => done += copied,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        to.contents.writer.guarded(to.settle(ByteRange::at(to_at, done))).await?;
        Ok(done)
    }

    async fn copy_piece(&self, at: u64, to: &Self, to_at: u64, len: u64, piece: &mut [u8]) -> Result<u64> {
        let end = (at + len).min(self.size());
        if at >= end {
            return Ok(0);
        }
        let data = self.seek_data(at).await?.unwrap_or(end).min(end);
        if at < data {
            to.clear(to_at, data - at).await?;
            return Ok(data - at);
        }
        let hole = self.seek_hole(at).await?.unwrap_or(end).min(end);
        let piece = &mut piece[..(hole - at).min(PIECE_BYTES).to_usize()];
        let read = self.read(at, piece).await?;
        let writer = &to.contents.writer;
        Ok(writer.guarded(to.write_at(to_at, &piece[..read])).await?.len())
    }

    /// Makes a range read as zeroes, extending the file to cover it.
    async fn clear(&self, at: u64, len: u64) -> Result<()> {
        let size = self.size();
        if at < size {
            let punch = self.fallocate_in_memory(Fallocate::PunchHole, at, len);
            self.contents.writer.guarded(punch).await?;
        }
        // Another writer may have extended the file since.
        if self.size() < at + len {
            self.grow_over(at + len).await?;
        }
        Ok(())
    }
}

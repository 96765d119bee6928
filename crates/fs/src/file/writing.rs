//! Cached writes to an open file.
//!
//! A write reserves its blocks, and the nodes that mapping them may need, before it is
//! acknowledged. Write-back allocates them. The file grows in memory at once, and on the volume
//! when its data are there.

use super::cache_errors::cache_error;
use super::open_file::OpenFile;
use crate::{Error, Result};
use extant_block::Buf;
use extant_cache::{ByteRange, WouldWait};
use extant_format::UintExt;
use std::sync::atomic::Ordering;

/// Bytes reserved and copied in one step.
const STEP_BYTES: u64 = 1 << 20;
/// Shortest write that passes the cache: see [`OpenFile::step_past`].
const PAST_BYTES_MIN: u64 = 256 << 10;
/// The most bytes of such a write that are one request. Longer ones would go to threads of the
/// kernel, which keep others from the image meanwhile.
const PAST_BYTES_MAX: u64 = 1 << 20;
/// Files up to this size are written through the cache. They are often read, changed or removed
/// soon.
const CACHED_BYTES: u64 = 8 << 20;
/// Unit of the writes that pass the cache, so that no page is written in two ways.
const PAGE_BYTES: u64 = extant_cache::PAGE_BYTES as u64;

impl OpenFile {
    /// Writes from byte `at` on, or at the end of the file with
    /// [`append`](crate::FileOptions::append). Returns
    /// the number of bytes written, which is smaller than asked for if space runs out. The data are
    /// in memory when this returns, unless the options say otherwise, and durable after
    /// [`OpenFile::sync`].
    ///
    /// # Errors
    /// Nothing was written: [`Error::NoSpace`]; [`Error::TooBig`] beyond the largest size;
    /// [`Error::Permission`] for an immutable or append-only file; [`Error::ReadOnly`]; a partly
    /// overwritten page cannot be read.
    pub async fn write(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        let write = async {
            let written = self.write_at(at, bytes).await?;
            self.settle(written).await?;
            Ok(written.len().to_usize())
        };
        self.contents.writer.guarded(write).await
    }

    /// Like [`OpenFile::write`], but for callers that must not wait: writes bytes of one page into
    /// memory. More bytes are refused, because [`OpenFile::write`] would write the rest under
    /// another hold of the file's lock.
    ///
    /// # Errors
    /// Nothing was written: the write has to wait, changes the inode, or fails.
    pub fn try_write(&self, at: u64, bytes: &[u8]) -> std::result::Result<usize, WouldWait> {
        self.write_now(at, bytes).ok_or(WouldWait { done_bytes: 0 })
    }

    /// How many of `len` bytes the calling thread should write at once with
    /// [`OpenFile::write_past`]; `None` if the write is for the cache.
    ///
    /// A long write that lets a large file grow goes past the cache if the host caches the image.
    /// The thread then copies the bytes to the host once, and the stream touches no memory of the
    /// cache. Through the cache, the bytes would be copied twice, and the system would have to find
    /// and zero all the memory that the cache may have. Not where each write is synced, whose
    /// errors go to one caller once, nor where data go through the journal, nor with clusters
    /// of several blocks, where the last free ones would go to the nodes of a tree.
    pub fn step_past(&self, at: u64, len: usize) -> Option<usize> {
        let (bytes, options) = (len.to_u64(), &self.options);
        let (writer, unit) = (&self.contents.writer, PAGE_BYTES.max(self.contents.block.bytes().into()));
        let is_past = bytes >= PAST_BYTES_MIN
            && at == self.size()
            && at.saturating_add(bytes) > CACHED_BYTES
            && (at | bytes).is_multiple_of(unit)
            && !(options.append || options.sync || options.datasync || self.is_synchronous())
            && !self.contents.is_journalled()
            && self.contents.sb().cluster_size().is_block()
            && writer.disk.device().is_cached_by_host()
            && writer.rt.may_wait();
        let steps = bytes.div_ceil(PAST_BYTES_MAX).max(1);
        is_past.then(|| bytes.div_ceil(steps).next_multiple_of(unit).min(bytes).to_usize())
    }

    /// As [`OpenFile::write_direct`], for a stream that began in the cache. What it has there is
    /// placed first, so that the file's blocks are in order.
    ///
    /// # Errors
    /// As [`OpenFile::write_direct`].
    pub async fn write_past(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        if self.mapping.dirty_pages() > 0 {
            // If it fails, the pages stay dirty, and the next sync returns the error. Pages far
            // before this have been placed by then, or by the write-back that a large file meets.
            let _ = self.mapping.write_back(ByteRange::new(at.saturating_sub(CACHED_BYTES), at)).await;
        }
        self.write_direct(at, buf).await
    }

    fn write_now(&self, at: u64, bytes: &[u8]) -> Option<usize> {
        let contents = &*self.contents;
        if bytes.is_empty() || contents.writer.may_halt() || contents.writer.has_noted() {
            return None;
        }
        let _inode = contents.cell.lock().try_write()?;
        let at = if self.options.append { self.size() } else { at };
        let range = ByteRange::new(at, at.checked_add(bytes.len().to_u64())?);
        let is_possible = range.pages().len() == 1 && range.end <= contents.max_bytes();
        if !is_possible
            || !self.is_written_plainly()
            || self.check_may_write(at).is_err()
            || self.tail_end(at) > self.size()
        {
            return None;
        }
        self.touch();
        let reserved = contents.try_reserve_for_copy(contents.blocks_of(range), at, self.privilege())?;
        self.pages.try_write(at, bytes).ok()?;
        reserved.copied_bytes.store(bytes.len(), Ordering::Relaxed);
        Some(bytes.len())
    }

    /// Writes into memory. Returns the range written, for [`Self::settle`].
    pub(super) async fn write_at(&self, at: u64, bytes: &[u8]) -> Result<ByteRange> {
        if bytes.is_empty() {
            return Ok(ByteRange::default());
        }
        let contents = &*self.contents;
        let _inode = contents.cell.write_lock().await;
        let at = if self.options.append { self.size() } else { at };
        self.check_may_write(at)?;
        let end = contents.max_bytes().min(at.saturating_add(bytes.len().to_u64()));
        if at >= end {
            return Err(Error::TooBig(format!("inode {}", self.inode())));
        }
        self.drop_privileges().await?;
        contents.leave_inode(&self.mapping, &self.pages, self.privilege()).await?;
        self.touch();
        let done = self.write_steps(at, &bytes[..(end - at).to_usize()]).await?;
        Ok(ByteRange::at(at, done.to_u64()))
    }

    /// Ends a change of these bytes. Makes it durable if the options of the file or the volume, or
    /// the inode's flags, say so. The caller holds no lock.
    ///
    /// # Errors
    /// As [`OpenFile::sync`].
    pub(super) async fn settle(&self, written: ByteRange) -> Result<()> {
        let sync = self.options.sync || self.is_synchronous();
        match (sync || self.options.datasync) && !written.is_empty() {
            true => self.sync_boxed(written, !sync).await,
            false => Ok(()),
        }
    }

    /// Changes the times, unless the caller sets them itself.
    pub(super) fn touch(&self) {
        if !self.options.keeps_times {
            self.contents.touch();
        }
    }

    pub(super) async fn write_steps(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        let mut step = STEP_BYTES;
        while done < bytes.len() {
            let start = at + done.to_u64();
            // Steps end at multiples of their length, so no block is split between two.
            let end = ((start / step + 1) * step).min(at + bytes.len().to_u64());
            let part = &bytes[done..done + (end - start).to_usize()];
            match self.write_step(start, part).await {
                Ok(()) => done += part.len(),
                // A smaller step may still fit.
                Err((0, Error::NoSpace)) if step > u64::from(self.contents.block.bytes()) => {
                    step = (step / 2).max(self.contents.block.bytes().into());
                }
                Err((part, error)) => {
                    done += part;
                    return if done > 0 { Ok(done) } else { Err(error) };
                }
            }
        }
        Ok(done)
    }

    /// Writes bytes whose blocks are reserved together. An error carries the number of bytes
    /// written before it.
    async fn write_step(&self, at: u64, bytes: &[u8]) -> std::result::Result<(), (usize, Error)> {
        let blocks = self.contents.blocks_of(ByteRange::at(at, bytes.len().to_u64()));
        let reserved = self.contents.reserve_for_copy(blocks, at, self.privilege()).await;
        let reserved = reserved.map_err(|error| (0, error))?;
        // After space for the new data is reserved: the file must not grow to the end of its block
        // and then fail.
        self.zero_tail(at).await.map_err(|error| (0, error))?;
        let copied = self.pages.write_counted(at, bytes, &reserved.copied_bytes).await;
        copied.map_err(|error| (reserved.copied(), cache_error(error)))
    }

    /// Before the file grows past its last block, extends it with zeroes to the end of that block
    /// or to `until`. The device may hold stale bytes there from when the file was larger.
    async fn zero_tail(&self, until: u64) -> Result<()> {
        let (size, end) = (self.size(), self.tail_end(until));
        if size >= end { Ok(()) } else { Box::pin(self.zero_up_to(end, size)).await }
    }

    /// The end of the block in which the file ends, or `until`.
    fn tail_end(&self, until: u64) -> u64 {
        self.size().next_multiple_of(self.contents.block.bytes().into()).min(until)
    }

    async fn zero_up_to(&self, end: u64, size: u64) -> Result<()> {
        let contents = &*self.contents;
        if !contents.ends_in_data(size).await? {
            return Ok(());
        }
        let reserved =
            contents.reserve_for_copy(contents.blocks_of(ByteRange::new(size, end)), size, self.privilege());
        let reserved = reserved.await?;
        let zeroes = vec![0; (end - size).to_usize()];
        self.pages.write_counted(size, &zeroes, &reserved.copied_bytes).await.map_err(cache_error)
    }

    fn check_may_write(&self, at: u64) -> Result<()> {
        self.check_may_change(self.options.append && at >= self.size())
    }
}

//! An open file of a volume that is open for writing: reading and writing through the cache.
//!
//! A write reserves its blocks, and the nodes that mapping them may need, before it is acknowledged; allocation comes with
//! write-back. The file grows in memory at once, on the volume when its data are there.

use super::contents::Contents;
use crate::alloc::Privilege;
use crate::xattr::live::{drop_capabilities, may_have_any};
use crate::{Error, Result};
use extant_cache::{ByteRange, CacheError, Mapping, OpenFile as CachedFile, WouldWait};
use extant_format::{
    BlockRange, ExtentNode, InodeFlags, InodeNumber, RoCompat, indirect_capacity, pointers_per_block,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are reserved and copied in one go.
const STEP_BYTES: u64 = 1 << 20;

/// How a file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Every write goes to the end of the file (`O_APPEND`).
    pub append: bool,
    /// A write returns when it is durable (`O_SYNC`).
    pub sync: bool,
    /// As `sync`, for what is needed to read the data back (`O_DSYNC`).
    pub datasync: bool,
    /// The caller may use the blocks reserved for the superuser (`CAP_SYS_RESOURCE`).
    pub reserved_blocks: bool,
    /// The caller keeps the set-user-ID and set-group-ID bits of what it writes to (`CAP_FSETID`).
    pub keeps_setid: bool,
}

/// A file open for reading and writing. Cheap operations complete on the caller's task without waiting.
pub struct OpenFile {
    pub(super) contents: Arc<Contents>,
    pub(super) mapping: Mapping,
    pub(super) pages: CachedFile,
    pub(super) options: FileOptions,
}

impl OpenFile {
    pub(super) fn new(contents: Arc<Contents>, mapping: Mapping, options: FileOptions) -> Self {
        contents.cell.open();
        contents.files.fetch_add(1, Ordering::Relaxed);
        let pages = mapping.open();
        Self { contents, mapping, pages, options }
    }

    /// The file, opened once more in the same way.
    pub(super) fn reopened(&self) -> Self {
        Self::new(self.contents.clone(), self.mapping.clone(), self.options)
    }

    /// The file's inode.
    pub fn inode(&self) -> InodeNumber {
        self.contents.number()
    }

    /// The size in bytes, with what has been written and not yet recorded.
    pub fn size(&self) -> u64 {
        self.mapping.size()
    }

    /// Reads from byte `at` on; returns how many bytes there were before the end of the file.
    ///
    /// # Errors
    /// Nothing could be read.
    pub async fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let read = async { self.pages.read(at, to).await.map_err(cache_error) };
        self.contents.writer.guarded(read).await
    }

    /// As [`OpenFile::read`], for callers that must not wait: reads all of it from memory, or says how much of it was there.
    ///
    /// # Errors
    /// The rest has to be read from the device, or the volume's errors have to be looked at first; nothing is started.
    pub fn try_read(&self, at: u64, to: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        match self.contents.writer.may_halt() {
            true => Err(WouldWait { done_bytes: 0 }),
            false => self.pages.try_read(at, to),
        }
    }

    /// Writes from byte `at` on (with [`FileOptions::append`] at the end of the file), and returns how many bytes that was:
    /// fewer where space ended. In memory when it returns, unless the options say otherwise; durable after
    /// [`OpenFile::sync`].
    ///
    /// # Errors
    /// Nothing was written: [`Error::NoSpace`]; [`Error::TooBig`] beyond the largest size; [`Error::Permission`] for an
    /// immutable or append-only file; [`Error::ReadOnly`]; a page that is overwritten in part and cannot be read.
    pub async fn write(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        self.contents.writer.guarded(self.write_at(at, bytes)).await
    }

    async fn write_at(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let (at, done) = {
            let contents = &*self.contents;
            let _inode = contents.cell.write_lock().await;
            let at = if self.options.append { self.size() } else { at };
            self.check_may_write(at)?;
            let end = contents.max_bytes().min(at.saturating_add(bytes.len() as u64));
            if at >= end {
                return Err(Error::TooBig(format!("inode {}", self.inode())));
            }
            self.drop_privileges().await?;
            contents.leave_inode(&self.mapping, &self.pages, self.privilege()).await?;
            contents.touch();
            (at, self.write_steps(at, &bytes[..(end - at) as usize]).await?)
        };
        let sync = self.options.sync || self.is_synchronous();
        if sync || self.options.datasync {
            let range = ByteRange::at(at, done as u64);
            self.sync_boxed(range, !sync).await?;
        }
        Ok(done)
    }

    pub(super) async fn write_steps(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        let mut step = STEP_BYTES;
        while done < bytes.len() {
            let start = at + done as u64;
            // Steps end on multiples of their length, so that no block is in two.
            let end = ((start / step + 1) * step).min(at + bytes.len() as u64);
            let part = &bytes[done..done + (end - start) as usize];
            match self.write_step(start, part).await {
                Ok(()) => done += part.len(),
                // Fewer blocks may fit.
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

    /// Writes bytes whose blocks are reserved together; an error says how many were written before it.
    async fn write_step(&self, at: u64, bytes: &[u8]) -> std::result::Result<(), (usize, Error)> {
        let blocks = self.contents.blocks_of(ByteRange::at(at, bytes.len() as u64));
        let reserved = self.contents.reserve_for_copy(blocks, at, self.privilege()).await;
        let reserved = reserved.map_err(|error| (0, error))?;
        // With the space for what follows: a file does not grow over its tail alone.
        self.zero_tail(at).await.map_err(|error| (0, error))?;
        let copied = self.pages.write_counted(at, bytes, &reserved.copied_bytes).await;
        copied.map_err(|error| (reserved.copied(), cache_error(error)))
    }

    /// Grows the file by zeroes to the end of its last block, or to `until`, before it grows past that: what lies there may
    /// be the past of a larger file.
    async fn zero_tail(&self, until: u64) -> Result<()> {
        let contents = &*self.contents;
        let size = self.size();
        let end = size.next_multiple_of(contents.block.bytes().into()).min(until);
        if size >= end { Ok(()) } else { Box::pin(self.zero_up_to(end, size)).await }
    }

    async fn zero_up_to(&self, end: u64, size: u64) -> Result<()> {
        let contents = &*self.contents;
        if !contents.ends_in_data(size).await? {
            return Ok(());
        }
        let reserved =
            contents.reserve_for_copy(contents.blocks_of(ByteRange::new(size, end)), size, self.privilege());
        let reserved = reserved.await?;
        let zeroes = vec![0; (end - size) as usize];
        self.pages.write_counted(size, &zeroes, &reserved.copied_bytes).await.map_err(cache_error)
    }

    fn check_may_write(&self, at: u64) -> Result<()> {
        self.check_may_change(self.options.append && at >= self.size())
    }

    /// Whether the contents may change; of an append-only file where the change `appends`.
    pub(super) fn check_may_change(&self, appends: bool) -> Result<()> {
        self.contents.writer.check_may_change_data()?;
        let flags = self.contents.cell.read(extant_format::Inode::flags);
        if flags.contains(InodeFlags::IMMUTABLE) || (flags.contains(InodeFlags::APPEND) && !appends) {
            return Err(Error::Permission(format!("inode {}", self.inode())));
        }
        if !self.contents.uses_extents() && self.contents.sb().blocks_count() > 1 << 32 {
            // They may have to lie beyond what a pointer reaches, which is known only when their data are written back.
            let feature = "writing to a file with a map of pointers on a volume of more than 2^32 blocks";
            return Err(Error::unsupported(feature));
        }
        if flags.contains(InodeFlags::VERITY) {
            return Err(Error::Permission(format!("inode {}: sealed by fs-verity", self.inode())));
        }
        match flags.contains(InodeFlags::ENCRYPT) {
            true => Err(Error::unsupported("writing to an encrypted file")),
            false => Ok(()),
        }
    }

    /// Whether the file is one of which every change is durable when it returns (`chattr +S`).
    pub(super) fn is_synchronous(&self) -> bool {
        self.contents.cell.read(|inode| inode.flags().contains(InodeFlags::SYNC))
    }

    pub(super) fn privilege(&self) -> Privilege {
        if self.options.reserved_blocks { Privilege::Reserved } else { Privilege::Ordinary }
    }

    /// Takes away, before the contents change, what a program has only as it is: the capabilities of a file, and
    /// set-user-ID, and set-group-ID of a file that its group may execute, where an ordinary caller changes it (Linux's
    /// `file_remove_privs`).
    pub(super) async fn drop_privileges(&self) -> Result<()> {
        let Contents { writer, cell, .. } = &*self.contents;
        if cell.read(may_have_any) {
            Box::pin(drop_capabilities(writer, cell, self.privilege())).await?;
        }
        self.strip_setid().await
    }

    async fn strip_setid(&self) -> Result<()> {
        const SUID: u16 = 0o4000;
        const SGID: u16 = 0o2000;
        const GROUP_EXECUTES: u16 = 0o0010;
        let cell = &self.contents.cell;
        let strips = |mode: u16| {
            let sgid = if mode & GROUP_EXECUTES != 0 { mode & SGID } else { 0 };
            (mode & SUID) | sgid
        };
        if self.options.keeps_setid || strips(cell.read(extant_format::Inode::mode)) == 0 {
            return Ok(());
        }
        let mut handle = self.contents.writer.journal.start(crate::journal::Credits(1)).await?;
        let mut inode = handle.inode(cell);
        let mode = inode.mode();
        inode.raw.i_mode = (mode & !strips(mode)).into();
        Ok(())
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.contents.files.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish_emptied();
            self.contents.writer.alloc.close_window(self.inode());
        }
        self.contents.close();
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenFile({}, {:?})", self.inode(), self.options)
    }
}

impl Contents {
    /// The largest size: what the map can address, and what `i_blocks` can count; for a map of pointers always without
    /// `huge_file`.
    pub(super) fn max_bytes(&self) -> u64 {
        let bits = self.block.log2();
        let addressed = (1 << 32) - 1;
        // The limit of `i_blocks` without `huge_file`, in units of 512 bytes; the map's own blocks count.
        let countable = u64::from(u32::MAX) >> (bits - 9);
        if self.uses_extents() {
            if self.sb().ro_compat().contains(RoCompat::HUGE_FILE) {
                return addressed << bits;
            }
            // Nodes at least half full, each but the root with one entry above it.
            let half = (ExtentNode::capacity(self.block.byte_len(), false) / 2) as u64;
            return addressed.min(countable - countable / (half - 1) - 1) << bits;
        }
        let per_block = u64::from(pointers_per_block(self.block));
        let pointers = countable / per_block + countable / per_block / per_block + 4;
        indirect_capacity(self.block).min(countable - pointers).min(addressed) << bits
    }

    /// Notes a change of the contents in the inode's times; the transaction that logs the data, or a sync, logs them.
    pub(super) fn touch(&self) {
        let now = self.writer.clock.now();
        // Under the lock: a sync that finds the new times finds them unlogged, too.
        let mut live = self.live.lock();
        live.times_unlogged |= self.cell.touch_contents(now);
    }

    /// Whether byte `end` lies inside a block, and that holds data or will.
    pub(super) async fn ends_in_data(&self, end: u64) -> Result<bool> {
        if end.is_multiple_of(self.block.bytes().into()) {
            return Ok(false);
        }
        self.has_data(end >> self.block.log2()).await
    }

    /// Whether a block holds data or will.
    pub(super) async fn has_data(&self, block: u64) -> Result<bool> {
        loop {
            // A reader's look-up may push out what this one has found.
            self.know(BlockRange::one(block)).await?;
            if let Some(has_data) = self.live.lock().map.has_data(block) {
                return Ok(has_data);
            }
        }
    }
}

/// The error of this crate behind one of the cache.
pub(super) fn cache_error(error: CacheError) -> Error {
    match error {
        CacheError::Io(error) => Error::Io(error),
        CacheError::Backing(error) => match error.get::<Error>() {
            Some(own) => own.clone(),
            None => Error::NotWritten(error.to_string()),
        },
        CacheError::TooLarge { bytes } => Error::TooBig(format!("a file of {bytes} bytes")),
        other => Error::NotWritten(other.to_string()),
    }
}

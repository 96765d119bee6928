//! An open file on a volume open for writing: cached reads and writes.
//!
//! A write reserves its blocks, and the nodes that mapping them may need, before it is
//! acknowledged. Write-back allocates them. The file grows in memory at once, and on the volume
//! when its data are there.

use super::cache_errors::cache_error;
use super::contents::Contents;
use crate::alloc::Privilege;
use crate::xattr::live::{drop_capabilities, may_have_any};
use crate::{Error, Result};
use extant_cache::{ByteRange, Mapping, OpenFile as CachedFile, WouldWait};
use extant_format::{InodeFlags, InodeNumber};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes reserved and copied in one step.
const STEP_BYTES: u64 = 1 << 20;

/// How a file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Every write goes to the end of the file (`O_APPEND`).
    pub append: bool,
    /// Writes return once they are durable (`O_SYNC`).
    pub sync: bool,
    /// Like `sync`, but only for what is needed to read the data back (`O_DSYNC`).
    pub datasync: bool,
    /// The caller may use the blocks reserved for the superuser (`CAP_SYS_RESOURCE`).
    pub reserved_blocks: bool,
    /// Writing keeps the file's set-user-ID and set-group-ID bits (`CAP_FSETID`).
    pub keeps_setid: bool,
}

/// A file open for reading and writing. Cheap operations complete on the caller's task without
/// waiting.
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

    /// The same file, opened again with the same options.
    pub(super) fn reopened(&self) -> Self {
        Self::new(self.contents.clone(), self.mapping.clone(), self.options)
    }

    /// The file's inode.
    pub fn inode(&self) -> InodeNumber {
        self.contents.number()
    }

    /// The size in bytes, including writes that are not recorded yet.
    pub fn size(&self) -> u64 {
        self.mapping.size()
    }

    /// Reads from byte `at` on. Returns the number of bytes read, which is smaller than asked for
    /// at the end of the file.
    ///
    /// # Errors
    /// Nothing could be read.
    pub async fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let read = async { self.pages.read(at, to).await.map_err(cache_error) };
        self.contents.writer.guarded(read).await
    }

    /// As [`OpenFile::read`], for callers that must not wait: reads everything from memory or
    /// reports how much of it was there.
    ///
    /// # Errors
    /// The rest must be read from the device, or the volume's errors must be checked first. Nothing
    /// is started.
    pub fn try_read(&self, at: u64, to: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        match self.contents.writer.may_halt() {
            true => Err(WouldWait { done_bytes: 0 }),
            false => self.pages.try_read(at, to),
        }
    }

    /// Writes from byte `at` on, or at the end of the file with [`FileOptions::append`]. Returns
    /// the number of bytes written, which is smaller than asked for if space runs out. The data are
    /// in memory when this returns, unless the options say otherwise, and durable after
    /// [`OpenFile::sync`].
    ///
    /// # Errors
    /// Nothing was written: [`Error::NoSpace`]; [`Error::TooBig`] beyond the largest size;
    /// [`Error::Permission`] for an immutable or append-only file; [`Error::ReadOnly`]; a partly
    /// overwritten page cannot be read.
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
            // Steps end at multiples of their length, so no block is split between two.
            let end = ((start / step + 1) * step).min(at + bytes.len() as u64);
            let part = &bytes[done..done + (end - start) as usize];
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
        let blocks = self.contents.blocks_of(ByteRange::at(at, bytes.len() as u64));
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

    /// Checks that the contents may change. An append-only file allows only a change that
    /// `appends`.
    pub(super) fn check_may_change(&self, appends: bool) -> Result<()> {
        self.contents.writer.check_may_change_data()?;
        let flags = self.contents.cell.read(extant_format::Inode::flags);
        if flags.contains(InodeFlags::IMMUTABLE) || (flags.contains(InodeFlags::APPEND) && !appends) {
            return Err(Error::Permission(format!("inode {}", self.inode())));
        }
        if !self.contents.uses_extents() && self.contents.sb().blocks_count() > 1 << 32 {
            // New blocks may have to lie beyond a pointer's reach, which is not known until
            // write-back.
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

    /// Whether every change of the file must be durable when it returns (`chattr +S`).
    pub(super) fn is_synchronous(&self) -> bool {
        self.contents.cell.read(|inode| inode.flags().contains(InodeFlags::SYNC))
    }

    pub(super) fn privilege(&self) -> Privilege {
        if self.options.reserved_blocks { Privilege::Reserved } else { Privilege::Ordinary }
    }

    /// Before the contents change, drops the file's capabilities and, if the caller is
    /// unprivileged, its set-user-ID bit and, if its group may execute it, its set-group-ID bit
    /// (Linux's `file_remove_privs`).
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

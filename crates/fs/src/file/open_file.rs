//! An open file on a volume open for writing, and who may change it.

use super::contents::Contents;
use crate::alloc::Privilege;
use crate::xattr::live::{drop_capabilities, may_have_any};
use crate::{Error, Result};
use extant_cache::{CachedOpenFile, Mapping};
use extant_format::{InodeFlags, InodeNumber};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    /// Changes of the contents keep the file's times, because a cache above this one sets them.
    pub keeps_times: bool,
    /// What is written has been accepted by a cache above this one, which has checked and paced
    /// whoever wrote it: see [`OpenFile::behind_cache`].
    pub from_cache: bool,
}

/// A file open for reading and writing. Cheap operations complete on the caller's task without
/// waiting.
pub struct OpenFile {
    pub(super) contents: Arc<Contents>,
    pub(super) mapping: Mapping,
    pub(super) pages: CachedOpenFile,
    pub(super) options: FileOptions,
}

impl OpenFile {
    pub(super) fn new(contents: Arc<Contents>, mapping: Mapping, options: FileOptions) -> Self {
        contents.cell.open();
        contents.files.fetch_add(1, Ordering::Relaxed);
        let pages = mapping.open();
        let pages = if options.from_cache { pages.unpaced() } else { pages };
        Self { contents, mapping, pages, options }
    }

    /// The same file, for write-back by a cache above this one. Such a write may come long after
    /// the program's own, which has returned. So it succeeds in files that have become immutable or
    /// append-only since, keeps set-ID bits and capabilities, and does not pause.
    pub fn behind_cache(&self) -> Self {
        let options =
            FileOptions { append: false, sync: false, datasync: false, from_cache: true, ..self.options };
        Self::new(self.contents.clone(), self.mapping.clone(), options)
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

    /// Checks that the contents may change. An append-only file allows only a change that
    /// `appends`.
    pub(super) fn check_may_change(&self, appends: bool) -> Result<()> {
        self.contents.writer.check_may_change_data()?;
        let flags = self.contents.cell.read(extant_format::Inode::flags);
        let is_fixed =
            flags.contains(InodeFlags::IMMUTABLE) || (flags.contains(InodeFlags::APPEND) && !appends);
        if is_fixed && !self.options.from_cache {
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

    /// Whether every change of the file must be durable when it returns (`chattr +S`, mount option
    /// `sync`).
    pub(super) fn is_synchronous(&self) -> bool {
        let mount = self.contents.writer.mount;
        self.contents.cell.read(|inode| mount.syncs(inode, InodeFlags::SYNC))
    }

    pub(super) fn privilege(&self) -> Privilege {
        if self.options.reserved_blocks { Privilege::Reserved } else { Privilege::Ordinary }
    }

    /// Before the contents change, drops the file's capabilities and, if the caller is
    /// unprivileged, its set-user-ID bit and, if its group may execute it, its set-group-ID bit
    /// (Linux's `file_remove_privs`).
    pub(super) async fn drop_privileges(&self) -> Result<()> {
        if self.options.from_cache {
            return Ok(());
        }
        let Contents { writer, cell, .. } = &*self.contents;
        if cell.read(may_have_any) {
            Box::pin(drop_capabilities(writer, cell, self.privilege())).await?;
        }
        self.strip_setid().await
    }

    /// Whether a write changes only the inode's times, that is, neither its capabilities, nor its
    /// set-ID bits, nor where its contents are, and need not be durable when it returns.
    pub(super) fn is_written_plainly(&self) -> bool {
        let mount = self.contents.writer.mount;
        !(self.options.sync || self.options.datasync)
            && self.contents.cell.read(|inode| {
                let keeps_privileges =
                    self.options.from_cache || !may_have_any(inode) && self.stripped(inode.mode()) == 0;
                keeps_privileges
                    && !inode.flags().contains(InodeFlags::INLINE_DATA)
                    && !mount.syncs(inode, InodeFlags::SYNC)
            })
    }

    /// The set-ID bits that a write takes away from a mode.
    fn stripped(&self, mode: u16) -> u16 {
        const SUID: u16 = 0o4000;
        const SGID: u16 = 0o2000;
        const GROUP_EXECUTES: u16 = 0o0010;
        let sgid = if mode & GROUP_EXECUTES != 0 { mode & SGID } else { 0 };
        if self.options.keeps_setid { 0 } else { (mode & SUID) | sgid }
    }

    async fn strip_setid(&self) -> Result<()> {
        let cell = &self.contents.cell;
        if self.stripped(cell.read(extant_format::Inode::mode)) == 0 {
            return Ok(());
        }
        let mut handle = self.contents.writer.journal.start(crate::journal::Credits(1)).await?;
        let mut inode = handle.inode(cell);
        let mode = inode.mode();
        inode.raw.i_mode = (mode & !self.stripped(mode)).into();
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

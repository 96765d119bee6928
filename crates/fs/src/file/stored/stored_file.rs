//! A file of a volume, open for reading.

use super::cached_files::StoredFiles;
use crate::file::open_file::OpenFile;
use crate::map::Mapper;
use crate::view::View;
use crate::xattr::inline_data;
use crate::{Error, Result};
use extant_cache::{ByteRange, CachedOpenFile, WouldWait};
use extant_format::{BlockRange, Corrupt, INLINE_HEAD_BYTES, Inode, InodeFlags, Place, Superblock, UintExt};
use parking_lot::Mutex;

/// A file open for reading at any offset.
#[derive(Debug)]
pub struct File {
    pub(in crate::file) view: View,
    pub(in crate::file) inode: Inode,
    /// The part of the map read last when bypassing the cache.
    mapper: Mutex<Option<Mapper>>,
    pub(in crate::file) inline: Option<Inline>,
    /// The file's pages, if the volume is open for reading with a cache.
    pages: Option<CachedOpenFile>,
    /// The same file on a volume open for writing, where written data may still be only in memory.
    pub(in crate::file) live: Option<OpenFile>,
}

/// Contents kept in the inode.
#[derive(Debug)]
pub(in crate::file) struct Inline {
    /// The readable prefix of the contents.
    pub(super) bytes: Vec<u8>,
    /// Why that is shorter than the file.
    pub(super) damage: Option<Corrupt>,
}

impl Inline {
    fn of(inode: &Inode) -> Self {
        match inline_data(inode) {
            Ok(data) => Self { bytes: data.to_vec(), damage: None },
            // The first bytes are in the inode's own fields, so they can be read regardless.
            Err(corrupt) => {
                let bytes = inode.size().min(INLINE_HEAD_BYTES.to_u64()).to_usize();
                Self { bytes: inode.map()[..bytes].to_vec(), damage: Some(corrupt) }
            }
        }
    }

    /// Fills the front of `to` with the bytes at `offset`.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let from = self.bytes.get(offset.to_usize()..).unwrap_or_default();
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        match &self.damage {
            Some(corrupt) if n == 0 && !to.is_empty() => Err((*corrupt).into()),
            _ => Ok(n),
        }
    }
}

impl View {
    pub(super) fn inline_contents(&self, inode: &Inode) -> Result<Option<Inline>> {
        if inode.flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::Encrypted(inode.number));
        }
        if !inode.flags().contains(InodeFlags::INLINE_DATA) {
            check_size(inode, self.superblock())?;
            return Ok(None);
        }
        Ok(Some(Inline::of(inode)))
    }
}

impl File {
    /// Opens a file as stored on the volume.
    ///
    /// # Errors
    /// [`Error::Encrypted`] if only ciphertext is available; a size that no map can address.
    pub(crate) fn stored(view: &View, inode: Inode) -> Result<Self> {
        let inline = view.inline_contents(&inode)?;
        Ok(Self { view: view.clone(), inode, mapper: Mutex::default(), inline, pages: None, live: None })
    }

    /// The same file with its in-memory state.
    pub(crate) fn with_live(self, live: OpenFile) -> Self {
        Self { live: Some(live), ..self }
    }

    /// The same file, read through the cache.
    pub(crate) fn through(self, files: &StoredFiles) -> Self {
        let pages = if self.inline.is_some() { None } else { files.open(&self.view, &self.inode) };
        Self { pages, ..self }
    }

    /// The inode.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Reads into `to` from byte `offset` on. Returns the number of bytes read; fewer than asked
    /// for at the end of the file or before the first unreadable byte.
    ///
    /// # Errors
    /// The first byte cannot be read.
    pub async fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        if let Some(live) = &self.live {
            return live.read(offset, to).await;
        }
        let size = self.inode.size();
        let len = size.saturating_sub(offset).min(to.len().to_u64()).to_usize();
        let to = &mut to[..len];
        if let Some(inline) = &self.inline {
            return inline.read_at(offset, to);
        }
        let mut done = 0;
        if let Some(pages) = &self.pages {
            done = pages.read(offset, to).await.unwrap_or(0);
            if done == len {
                return Ok(done);
            }
        }
        // The cache loses whole pages. Where it stops, read on without it, up to the first
        // unreadable byte. A concurrent reader walks the map on its own, so neither waits for the
        // other.
        let mut mapper = self.mapper.lock().take().unwrap_or_default();
        let read = mapper.read_some(&self.view, &self.inode, offset + done.to_u64(), &mut to[done..]).await;
        *self.mapper.lock() = Some(mapper);
        match read {
            Ok(more) => Ok(done + more),
            Err(_) if done > 0 => Ok(done),
            Err(error) => Err(error),
        }
    }

    /// Drops the clean whole pages of a range from the cache: the caller keeps what it has read.
    pub async fn drop_clean(&self, bytes: impl Into<ByteRange>) {
        match (&self.live, &self.pages) {
            (Some(live), _) => live.drop_clean(bytes).await,
            (None, Some(pages)) => pages.mapping().drop_clean(bytes).await,
            (None, None) => {}
        }
    }

    /// Like [`File::read_at`], but for a thread that has nothing else to do: see
    /// [`OpenFile::read_here`].
    ///
    /// # Errors
    /// The rest needs [`File::read_at`].
    pub fn read_here_at(&self, offset: u64, to: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        match (&self.live, &self.pages) {
            (Some(live), _) => live.read_here(offset, to),
            (None, Some(pages)) => pages.read_here(offset, to),
            (None, None) => self.try_read_at(offset, to),
        }
    }

    /// Like [`File::read_at`], but for callers that must not wait: reads everything from memory or
    /// reports how much of it was there.
    ///
    /// # Errors
    /// The rest must be read from the device.
    pub fn try_read_at(&self, offset: u64, to: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        match (&self.live, &self.pages) {
            (Some(live), _) => live.try_read(offset, to),
            (None, Some(pages)) => pages.try_read(offset, to),
            (None, None) => match &self.inline {
                Some(inline) => inline.read_at(offset, to).map_err(|_| WouldWait { done_bytes: 0 }),
                None => Err(WouldWait { done_bytes: 0 }),
            },
        }
    }
}

/// Checks that a map can address every block of a file whose contents are in blocks. Otherwise a
/// reader of a few stored bytes would have to scan exabytes of holes.
pub(in crate::file) fn check_size(inode: &Inode, sb: &Superblock) -> std::result::Result<(), Corrupt> {
    if sb.block_size().blocks_for(inode.size()) <= BlockRange::MAP_END {
        return Ok(());
    }
    let rule = "within 2^32 blocks, which is what a file's map can address";
    Err(Corrupt::field(Place::Inode(inode.number), "i_size", inode.size(), rule))
}

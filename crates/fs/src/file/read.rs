//! Contents of files and symbolic links.

use super::{OpenFile, StoredFiles};
use crate::map::Mapper;
use crate::view::View;
use crate::xattr::inline_data;
use crate::{Error, Result};
use extant_cache::{OpenFile as CachedFile, WouldWait};
use extant_format::{BlockRange, Corrupt, FileKind, INLINE_HEAD_BYTES, Inode, InodeFlags, Place, Superblock};
use parking_lot::Mutex;

/// Longest target of a symbolic link, in bytes: what Linux allows in a path.
const SYMLINK_MAX: u64 = 4096;

/// A file open for reading at any offset.
#[derive(Debug)]
pub struct File {
    pub(super) view: View,
    pub(super) inode: Inode,
    /// The part of the map that was read last past the cache.
    mapper: Mutex<Option<Mapper>>,
    pub(super) inline: Option<Inline>,
    /// Its pages, where the volume is open for reading with a cache.
    pages: Option<CachedFile>,
    /// The same file where the volume is open for writing: what was written may be in memory only.
    pub(super) live: Option<OpenFile>,
}

/// Contents kept in the inode.
#[derive(Debug)]
pub(super) struct Inline {
    /// As many of them as can be read, from the first on.
    pub(super) bytes: Vec<u8>,
    /// Why there are fewer than the file has.
    pub(super) damage: Option<Corrupt>,
}

impl Inline {
    fn of(inode: &Inode) -> Self {
        match inline_data(inode) {
            Ok(data) => Self { bytes: data.to_vec(), damage: None },
            // The first bytes are among the inode's fields, and need nothing else.
            Err(corrupt) => {
                let bytes = inode.size().min(INLINE_HEAD_BYTES as u64) as usize;
                Self { bytes: inode.map()[..bytes].to_vec(), damage: Some(corrupt) }
            }
        }
    }

    /// Fills the front of `to` from byte `offset` on, which lies in the file.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let from = self.bytes.get(offset as usize..).unwrap_or_default();
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

    /// The target of a symbolic link.
    pub(crate) async fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        let place = Place::Symlink(inode.number);
        let size = inode.size();
        if inode.kind() != Some(FileKind::Symlink) {
            let rule = "that of a symbolic link";
            return Err(Corrupt::field(place, "i_mode", inode.mode().into(), rule).into());
        }
        if size == 0 || size > SYMLINK_MAX {
            return Err(Corrupt::field(place, "i_size", size, "from 1 to 4096").into());
        }
        let fast = inode.is_fast_symlink(self.superblock());
        if fast && size >= 60 {
            return Err(Corrupt::field(place, "i_size", size, "below 60 for a target in the inode").into());
        }
        if inode.flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::Encrypted(inode.number));
        }
        let mut target = if fast {
            inode.map()[..size as usize].to_vec()
        } else {
            let mut target = vec![0; size as usize];
            match self.inline_contents(inode)? {
                Some(Inline { damage: Some(corrupt), .. }) => return Err(corrupt.into()),
                Some(inline) => target = inline.bytes,
                None => Mapper::default().read(self, inode, 0, &mut target).await?,
            }
            target
        };
        // The kernel stops at the first NUL.
        target.truncate(target.iter().position(|&b| b == 0).unwrap_or(target.len()));
        Ok(target)
    }
}

impl File {
    /// A file as the volume has it, open for reading.
    ///
    /// # Errors
    /// [`Error::Encrypted`] where only ciphertext could be had; a size that no map can address.
    pub(crate) fn stored(view: &View, inode: Inode) -> Result<Self> {
        let inline = view.inline_contents(&inode)?;
        Ok(Self { view: view.clone(), inode, mapper: Mutex::default(), inline, pages: None, live: None })
    }

    /// The same file as it is in memory.
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

    /// Fills `to` from byte `offset` on and returns how many bytes there were before the end of the file, or before the first
    /// byte that cannot be read.
    ///
    /// # Errors
    /// The first byte cannot be read.
    pub async fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        if let Some(live) = &self.live {
            return live.read(offset, to).await;
        }
        if let Some(pages) = &self.pages
            && let Ok(read) = pages.read(offset, to).await
        {
            return Ok(read);
        }
        // After an error, to find the first byte that cannot be read: a page is the least that the cache gives up.
        let size = self.inode.size();
        let len = size.saturating_sub(offset).min(to.len() as u64) as usize;
        let to = &mut to[..len];
        if let Some(inline) = &self.inline {
            return inline.read_at(offset, to);
        }
        // A second reader at the same time reads the map for itself, so that neither waits for the other.
        let mut mapper = self.mapper.lock().take().unwrap_or_default();
        let read = mapper.read_some(&self.view, &self.inode, offset, to).await;
        *self.mapper.lock() = Some(mapper);
        read
    }

    /// As [`File::read_at`], for callers that must not wait: reads all of it from memory, or says how much of it was there.
    ///
    /// # Errors
    /// The rest has to be read from the device.
    pub fn try_read_at(&self, offset: u64, to: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        match (&self.live, &self.pages) {
            (Some(live), _) => live.try_read(offset, to),
            (None, Some(pages)) => pages.try_read(offset, to),
            (None, None) => Err(WouldWait { done_bytes: 0 }),
        }
    }
}

/// Checks that a map can address all of a file whose contents are in blocks. Otherwise a reader of a few stored bytes would be
/// sent over exabytes of holes.
pub(super) fn check_size(inode: &Inode, sb: &Superblock) -> std::result::Result<(), Corrupt> {
    if sb.block_size().blocks_for(inode.size()) <= BlockRange::MAP_END {
        return Ok(());
    }
    let rule = "within 2^32 blocks, which is what a file's map can address";
    Err(Corrupt::field(Place::Inode(inode.number), "i_size", inode.size(), rule))
}

//! Targets of symbolic links.

use super::stored_file::Inline;
use crate::map::Mapper;
use crate::view::View;
use crate::{Error, Result, RunState};
use extant_format::{Corrupt, EXTENT_MAGIC, FileKind, Inode, InodeFlags, Place, UintExt};

/// Longest symbolic link target in bytes: Linux's limit for a path.
const SYMLINK_MAX: u64 = 4096;

impl View {
    /// The target of a symbolic link.
    pub(crate) async fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        let place = Place::Symlink(inode.number);
        let size = inode.size();
        if inode.kind() != Some(FileKind::Symlink) {
            let rule = "that of a symbolic link";
            return Err(Corrupt::field(place, "i_mode", inode.mode().into(), rule).into());
        }
        // Linux ignores the flag where nothing is mapped.
        let is_stray = inode.flags().contains(InodeFlags::EXTENTS)
            && !inode.map().starts_with(&EXTENT_MAGIC.to_le_bytes());
        let without_flag = || {
            let mut plain = inode.clone();
            plain.raw.i_flags = (inode.flags() - InodeFlags::EXTENTS).bits().into();
            plain
        };
        let plain = is_stray.then(without_flag).filter(|plain| plain.is_fast_symlink(self.superblock()));
        if plain.is_some() {
            let flags = inode.flags().bits().into();
            let rule = "without EXT4_EXTENTS_FL, for the target is in the inode";
            self.note(Err(Corrupt::field(place, "i_flags", flags, rule)))?;
        }
        let inode = plain.as_ref().unwrap_or(inode);
        let fast = inode.is_fast_symlink(self.superblock());
        if fast && size >= 60 {
            return Err(Corrupt::field(place, "i_size", size, "below 60 for a target in the inode").into());
        }
        if size == 0 || size > SYMLINK_MAX {
            let corrupt = Corrupt::field(place, "i_size", size, "from 1 to 4096");
            match size {
                0 => return Err(corrupt.into()),
                _ => self.note(Err(corrupt))?,
            }
        }
        if inode.flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::Encrypted(inode.number));
        }
        let mut target = if fast {
            inode.map()[..size.to_usize()].to_vec()
        } else {
            match self.inline_contents(inode)? {
                Some(Inline { damage: Some(corrupt), .. }) => return Err(corrupt.into()),
                Some(inline) => inline.bytes,
                None => self.link_block(inode, size.min(SYMLINK_MAX)).await?,
            }
        };
        // The kernel stops at the first NUL.
        target.truncate(target.iter().position(|&b| b == 0).unwrap_or(target.len()));
        match target.is_empty() {
            true => Err(Corrupt::field(place, "length of the target", 0, "at least 1").into()),
            false => Ok(target),
        }
    }

    /// The first `size` bytes of a symbolic link's block. The last byte of the block is never part
    /// of the target.
    async fn link_block(&self, inode: &Inode, size: u64) -> Result<Vec<u8>> {
        let place = Place::Symlink(inode.number);
        let at = match Mapper::default().map(self, inode, 0).await?.state {
            RunState::Written(at) => at,
            RunState::Unwritten(at) => {
                // Linux reads the block all the same.
                self.note(Err(Corrupt::field(place, "blocks unwritten", 1, "0")))?;
                at
            }
            RunState::Hole => return Err(Corrupt::field(place, "blocks unmapped", 1, "0").into()),
        };
        let block = self.buffers().block(at).await?;
        let most = block.len() - 1;
        if size > most.to_u64() {
            self.note(Err(Corrupt::field(place, "i_size", size, "below the size of a block")))?;
        }
        Ok(block[..most.min(size.to_usize())].to_vec())
    }
}

//! Contents of files and symbolic links.

use super::OpenFile;
use crate::map::{Mapper, RunWalker};
use crate::meta::CHUNK_BYTES;
use crate::view::View;
use crate::xattr::inline_data;
use crate::{BlockRef, Error, Result, Run, RunState};
use extant_block::{Buf, IoError, Sector};
use extant_format::{BlockRange, Corrupt, FileKind, Inode, InodeFlags, Place, Superblock, VolumeBlock};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

/// Bytes of one read of a stream.
const READ_BYTES: u64 = 1 << 20;
/// Bytes that a stream asks for ahead of its consumer.
const WINDOW_BYTES: u64 = 8 << 20;
/// Longest target of a symbolic link, in bytes: what Linux allows in a path.
const SYMLINK_MAX: u64 = 4096;

/// A file open for reading at any offset.
#[derive(Debug)]
pub struct File {
    pub(super) view: View,
    pub(super) inode: Inode,
    mapper: Mapper,
    pub(super) inline: Option<Vec<u8>>,
    /// The same file where the volume is open for writing: what was written may be in memory only.
    pub(super) live: Option<OpenFile>,
}

/// A piece of a file, in order.
#[derive(Debug)]
pub enum Chunk {
    /// Bytes from this offset on.
    Data {
        /// Offset in the file, in bytes.
        offset: u64,
        /// The bytes.
        bytes: BlockRef,
    },
    /// A range that reads as zeroes and need not be stored.
    Hole {
        /// Offset in the file, in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
}

impl View {
    fn inline_contents(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        if inode.flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::Encrypted(inode.number));
        }
        if !inode.flags().contains(InodeFlags::INLINE_DATA) {
            check_size(inode, self.superblock())?;
            return Ok(None);
        }
        Ok(Some(inline_data(inode)?.to_vec()))
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
            let mut file = File::stored(self, inode.clone())?;
            let mut target = vec![0; size as usize];
            file.read_at(0, &mut target).await?;
            target
        };
        // The kernel stops at the first NUL.
        target.truncate(target.iter().position(|&b| b == 0).unwrap_or(target.len()));
        Ok(target)
    }

    /// Reads `bytes` bytes of volume blocks, whole blocks, as the journal leaves them. The read starts at once.
    fn read_run(
        &self,
        at: VolumeBlock,
        bytes: u64,
    ) -> impl Future<Output = std::result::Result<Buf, IoError>> + use<> {
        let start = Sector(at.0 << (self.superblock().block_size().log2() - 9));
        extant_block::read(&**self.device(), start, bytes as usize)
    }
}

impl File {
    /// A file as the volume has it, open for reading.
    ///
    /// # Errors
    /// [`Error::Encrypted`] where only ciphertext could be had; a size that no map can address.
    pub(crate) fn stored(view: &View, inode: Inode) -> Result<Self> {
        let inline = view.inline_contents(&inode)?;
        Ok(Self { view: view.clone(), inode, mapper: Mapper::default(), inline, live: None })
    }

    /// The same file as it is in memory.
    pub(crate) fn with_live(self, live: OpenFile) -> Self {
        Self { live: Some(live), ..self }
    }

    /// The inode.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Fills `to` from byte `offset` on and returns how many bytes there were before the end of the file.
    pub async fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<usize> {
        if let Some(live) = &self.live {
            return live.read(offset, to).await;
        }
        let size = self.inode.size();
        let len = size.saturating_sub(offset).min(to.len() as u64) as usize;
        let to = &mut to[..len];
        if let Some(inline) = &self.inline {
            to.copy_from_slice(&inline[offset as usize..offset as usize + len]);
            return Ok(len);
        }
        self.mapper.read(&self.view, &self.inode, offset, to).await?;
        Ok(len)
    }
}

type PendingRead = Pin<Box<dyn Future<Output = std::result::Result<Buf, IoError>> + Send>>;

enum Ahead {
    Read {
        offset: u64,
        bytes: u64,
        read: PendingRead,
    },
    /// Neighbouring blocks of a small file.
    Chunk {
        offset: u64,
        at: VolumeBlock,
        blocks: u64,
    },
    Block {
        offset: u64,
        at: VolumeBlock,
    },
    Hole {
        offset: u64,
        bytes: u64,
    },
}

/// A file's contents from start to end.
pub struct FileStream {
    view: View,
    inode: Inode,
    size: u64,
    walker: RunWalker,
    inline: Option<Buf>,
    /// The file as it is in memory, and the byte at which the next piece begins.
    live: Option<(OpenFile, u64)>,
    /// The rest of the run from which reads are being made.
    current: Option<Run>,
    ahead: VecDeque<Ahead>,
    ahead_bytes: u64,
    /// A map that could not be read, to be told when the reads before it are consumed.
    failed: Option<Error>,
    /// It has been told.
    ended: bool,
}

impl FileStream {
    /// A file as the volume has it, from its start.
    ///
    /// # Errors
    /// As those of [`File::stored`].
    pub(crate) fn stored(view: &View, inode: Inode) -> Result<Self> {
        let inline = view.inline_contents(&inode)?;
        let size = inode.size();
        let end = if inline.is_some() { 0 } else { view.superblock().block_size().blocks_for(size) };
        Ok(Self {
            view: view.clone(),
            walker: RunWalker::new(BlockRange::new(0, end)),
            inline: inline.map(|mut bytes| {
                bytes.resize(size as usize, 0);
                Buf::from_slice(&bytes)
            }),
            inode,
            size,
            live: None,
            current: None,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            failed: None,
            ended: false,
        })
    }

    /// The same file as it is in memory, with the size that it has now.
    pub(crate) fn with_live(self, live: OpenFile) -> Self {
        Self { size: live.size(), inline: None, live: Some((live, 0)), ..self }
    }

    /// The next piece; `None` at the end. Pieces lie end to end and together are as long as the file.
    ///
    /// After an error in the device the stream goes on behind the piece that could not be read; after an error in the map
    /// it ends.
    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        if let Some((file, at)) = &mut self.live {
            return next_live(file, at, self.size).await;
        }
        if let Some(inline) = self.inline.take() {
            if inline.is_empty() {
                return Ok(None);
            }
            let len = inline.len();
            return Ok(Some(Chunk::Data { offset: 0, bytes: BlockRef::from(inline).truncated(len) }));
        }
        let block_bytes = u64::from(self.view.superblock().block_size().bytes());
        let size = self.size;
        let in_file = |offset: u64, bytes: u64| bytes.min(size.saturating_sub(offset));
        let data = |offset: u64, bytes: BlockRef| {
            let len = in_file(offset, bytes.len() as u64) as usize;
            Ok(Some(Chunk::Data { offset, bytes: bytes.truncated(len) }))
        };
        loop {
            self.fill().await;
            match self.ahead.pop_front() {
                None => match self.failed.take() {
                    Some(error) => {
                        self.ended = true;
                        return Err(error);
                    }
                    None => return Ok(None),
                },
                Some(Ahead::Hole { offset, bytes }) => {
                    return Ok(Some(Chunk::Hole { offset, bytes: in_file(offset, bytes) }));
                }
                Some(Ahead::Chunk { offset, at, blocks }) => {
                    match self.view.buffers().contents(at, blocks).await {
                        Ok(bytes) => {
                            self.ahead_bytes -= blocks * block_bytes;
                            return data(offset, bytes);
                        }
                        // The fault may be a neighbour's.
                        Err(_) => (0..blocks).rev().for_each(|n| {
                            let (offset, at) = (offset + n * block_bytes, VolumeBlock(at.0 + n));
                            self.ahead.push_front(Ahead::Block { offset, at });
                        }),
                    }
                }
                Some(Ahead::Block { offset, at }) => {
                    self.ahead_bytes -= block_bytes;
                    return data(offset, self.view.buffers().block(at).await?);
                }
                Some(Ahead::Read { offset, bytes, read }) => {
                    self.ahead_bytes -= bytes;
                    return data(offset, BlockRef::from(read.await?));
                }
            }
        }
    }

    /// Starts reads until the window is full.
    async fn fill(&mut self) {
        let block_bytes = u64::from(self.view.superblock().block_size().bytes());
        while self.ahead_bytes < WINDOW_BYTES && self.ahead.len() < 64 && self.failed.is_none() && !self.ended
        {
            let run = match self.current.take() {
                Some(run) => run,
                None => match self.walker.next(&self.view, &self.inode).await {
                    Ok(Some(run)) => run,
                    Ok(None) => break,
                    Err(error) => {
                        self.failed = Some(error);
                        break;
                    }
                },
            };
            let offset = run.logical * block_bytes;
            let RunState::Written(first) = run.state else {
                self.ahead.push_back(Ahead::Hole { offset, bytes: run.blocks * block_bytes });
                continue;
            };
            let clean = self.view.buffers().clean_run(first, run.blocks.min(READ_BYTES / block_bytes));
            let neighbours = match self.size <= CHUNK_BYTES {
                true => self.view.buffers().chunk_run(first, clean),
                false => 0,
            };
            let blocks = if clean == 0 {
                self.ahead.push_back(Ahead::Block { offset, at: first });
                1
            } else if neighbours > 0 {
                self.ahead.push_back(Ahead::Chunk { offset, at: first, blocks: neighbours });
                neighbours
            } else {
                let bytes = clean * block_bytes;
                let read = Box::pin(self.view.read_run(first, bytes));
                self.ahead.push_back(Ahead::Read { offset, bytes, read });
                clean
            };
            self.ahead_bytes += blocks * block_bytes;
            if blocks < run.blocks {
                self.current = Some(Run {
                    logical: run.logical + blocks,
                    blocks: run.blocks - blocks,
                    state: RunState::Written(VolumeBlock(first.0 + blocks)),
                });
            }
        }
    }
}

/// The next piece of a file that may change, up to byte `size`; `at` moves behind it.
async fn next_live(file: &OpenFile, at: &mut u64, size: u64) -> Result<Option<Chunk>> {
    let offset = *at;
    if offset >= size {
        return Ok(None);
    }
    // After an error in the map there is no next piece.
    *at = size;
    let bytes = loop {
        let data = file.seek_data(offset).await?.unwrap_or(size).min(size);
        if offset < data {
            *at = data;
            return Ok(Some(Chunk::Hole { offset, bytes: data - offset }));
        }
        match file.seek_hole(offset).await?.unwrap_or(size).min(size) {
            // The data went between the two looks.
            hole if hole == offset => {}
            hole => break (hole - offset).min(READ_BYTES),
        }
    };
    *at = offset + bytes;
    let mut buf = Buf::zeroed(bytes as usize);
    // Bytes that were cut off meanwhile are zeroes.
    file.read(offset, &mut buf).await?;
    Ok(Some(Chunk::Data { offset, bytes: BlockRef::from(buf) }))
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

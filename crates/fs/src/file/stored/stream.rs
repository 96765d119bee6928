//! A file's contents from start to end, skipping what cannot be read.

use super::stored_file::Inline;
use crate::file::open_file::OpenFile;
use crate::map::RunWalker;
use crate::meta::CHUNK_BYTES;
use crate::view::View;
use crate::{BlockRef, Error, Lost, Result, Run, RunState};
use extant_block::{Buf, IoError, IoErrorKind, Op, Sector};
use extant_format::{BlockRange, Inode, UintExt, VolumeBlock};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

/// Maximum number of bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// Bytes to read ahead of the consumer.
const WINDOW_BYTES: u64 = 8 << 20;

/// A piece of a file; pieces come in order.
#[derive(Debug)]
pub enum Chunk {
    /// Bytes starting at this offset.
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

type Piece = std::result::Result<Option<Chunk>, Lost>;

type PendingRead = Pin<Box<dyn Future<Output = std::result::Result<Buf, IoError>> + Send>>;

enum Ahead {
    Read {
        offset: u64,
        at: VolumeBlock,
        blocks: u64,
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
    /// The readable part of a block that could not be read as a whole.
    Part {
        offset: u64,
        bytes: BlockRef,
    },
    Hole {
        offset: u64,
        bytes: u64,
    },
    Lost(Lost),
}

/// A file's contents from start to end.
pub struct FileStream {
    view: View,
    inode: Inode,
    size: u64,
    walker: RunWalker,
    inline: Option<Inline>,
    /// The file's in-memory state, and the byte where the next piece starts.
    live: Option<(OpenFile, u64)>,
    /// The rest of the run that is currently being read.
    current: Option<Run>,
    ahead: VecDeque<Ahead>,
    ahead_bytes: u64,
    /// Result that ended a lost part; to be returned next.
    held: Option<Piece>,
}

impl View {
    /// Reads whole blocks of the volume as stored on the device. The read starts at once.
    fn read_run(
        &self,
        at: VolumeBlock,
        blocks: u64,
    ) -> impl Future<Output = std::result::Result<Buf, IoError>> + use<> {
        let log2 = self.superblock().block_size().log2();
        extant_block::read(&**self.device(), Sector(at.0 << (log2 - 9)), (blocks << log2).to_usize())
    }

    /// The error for volume blocks beyond the end of the device.
    fn beyond_device(&self, at: VolumeBlock, blocks: u64) -> Error {
        let log2 = self.superblock().block_size().log2();
        Error::Io(IoError {
            device: self.device().limits().name.clone(),
            op: Op::Read,
            start: Sector(at.0 << (log2 - 9)),
            bytes: blocks << log2,
            kind: IoErrorKind::OutOfRange,
        })
    }
}

impl FileStream {
    /// Streams a file as stored on the volume, from its start.
    ///
    /// # Errors
    /// As [`File::stored`](super::File::stored).
    pub(crate) fn stored(view: &View, inode: Inode) -> Result<Self> {
        let inline = view.inline_contents(&inode)?;
        let size = inode.size();
        let end = if inline.is_some() { 0 } else { view.superblock().block_size().blocks_for(size) };
        Ok(Self {
            view: view.clone(),
            walker: RunWalker::new(BlockRange::new(0, end)),
            inline,
            inode,
            size,
            live: None,
            current: None,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            held: None,
        })
    }

    /// Streams the file's in-memory contents instead, up to its current size.
    pub(crate) fn with_live(self, live: OpenFile) -> Self {
        Self { size: live.size(), inline: None, live: Some((live, 0)), ..self }
    }

    /// Returns the next piece, or `None` at the end. Pieces and lost parts are contiguous and
    /// together as long as the file.
    ///
    /// # Errors
    /// A part of the file cannot be read because the device fails or the map is damaged. The next
    /// call continues after it.
    pub async fn next(&mut self) -> std::result::Result<Option<Chunk>, Lost> {
        let first = match self.held.take() {
            Some(held) => held,
            None => self.next_part().await,
        };
        let Err(mut lost) = first else { return first };
        loop {
            match self.next_part().await {
                Err(next) if lost.joins(&next) => {}
                other => {
                    self.held = Some(other);
                    return Err(lost);
                }
            }
        }
    }

    /// Like [`Self::next`], but one lost range may come in several parts.
    async fn next_part(&mut self) -> Piece {
        if let Some((file, at)) = &mut self.live {
            return file.next_piece(at, self.size).await;
        }
        if let Some(Inline { bytes, damage }) = self.inline.take() {
            let held = bytes.len().to_u64();
            if let Some(corrupt) = damage.filter(|_| held < self.size) {
                self.ahead.push_back(Ahead::Lost(Lost {
                    directory: None,
                    offset: held,
                    bytes: self.size - held,
                    error: corrupt.into(),
                }));
            }
            if held > 0 {
                let bytes = Buf::from_slice(&bytes);
                let len = bytes.len();
                return Ok(Some(Chunk::Data { offset: 0, bytes: BlockRef::from(bytes).truncated(len) }));
            }
        }
        let block_bytes = u64::from(self.view.superblock().block_size().bytes());
        let size = self.size;
        let in_file = |offset: u64, bytes: u64| bytes.min(size.saturating_sub(offset));
        let data = |offset: u64, bytes: BlockRef| {
            let len = in_file(offset, bytes.len().to_u64()).to_usize();
            Ok(Some(Chunk::Data { offset, bytes: bytes.truncated(len) }))
        };
        loop {
            self.fill().await;
            match self.ahead.pop_front() {
                None => return Ok(None),
                Some(Ahead::Hole { offset, bytes }) => {
                    return Ok(Some(Chunk::Hole { offset, bytes: in_file(offset, bytes) }));
                }
                Some(Ahead::Chunk { offset, at, blocks }) => {
                    match self.view.buffers().contents(at, blocks).await {
                        Ok(bytes) => {
                            self.ahead_bytes -= blocks * block_bytes;
                            return data(offset, bytes);
                        }
                        // The fault may be in a neighbouring block.
                        Err(_) => self.one_by_one(offset, at, blocks),
                    }
                }
                Some(Ahead::Read { offset, at, blocks, read }) => match read.await {
                    Ok(bytes) => {
                        self.ahead_bytes -= blocks * block_bytes;
                        return data(offset, BlockRef::from(bytes));
                    }
                    Err(_) => self.one_by_one(offset, at, blocks),
                },
                Some(Ahead::Block { offset, at }) => {
                    self.ahead_bytes -= block_bytes;
                    match self.view.buffers().block(at).await {
                        Ok(bytes) => return data(offset, bytes),
                        Err(error) => self.in_pieces(offset, at, error).await,
                    }
                }
                // The file may end before its last block does.
                Some(Ahead::Part { offset, .. }) if offset >= size => {}
                Some(Ahead::Part { offset, bytes }) => return data(offset, bytes),
                Some(Ahead::Lost(lost)) => {
                    let bytes = in_file(lost.offset, lost.bytes);
                    if bytes > 0 {
                        return Err(Lost { bytes, ..lost });
                    }
                }
            }
        }
    }

    /// Queues blocks that could not be read together to be read one by one.
    fn one_by_one(&mut self, offset: u64, at: VolumeBlock, blocks: u64) {
        let block_bytes = u64::from(self.view.superblock().block_size().bytes());
        for n in (0..blocks).rev() {
            let (offset, at) = (offset + n * block_bytes, VolumeBlock(at.0 + n));
            self.ahead.push_front(Ahead::Block { offset, at });
        }
    }

    /// Reads a block in smaller pieces after reading it whole failed with `error`.
    async fn in_pieces(&mut self, offset: u64, at: VolumeBlock, error: Error) {
        for (range, piece) in self.view.pieces(at, error).await.into_iter().rev() {
            let (offset, bytes) = (offset + range.start.to_u64(), range.len().to_u64());
            self.ahead.push_front(match piece {
                Ok(bytes) => Ahead::Part { offset, bytes },
                Err(error) => Ahead::Lost(Lost { directory: None, offset, bytes, error }),
            });
        }
    }

    /// Starts reads until the window is full.
    async fn fill(&mut self) {
        let block_bytes = u64::from(self.view.superblock().block_size().bytes());
        let capacity = self.view.device().limits().capacity_bytes;
        // The last block counted by `device_blocks` may be only partly on the device.
        let (whole_blocks, device_blocks) = (capacity / block_bytes, capacity.div_ceil(block_bytes));
        while self.ahead_bytes < WINDOW_BYTES && self.ahead.len() < 64 {
            let run = match self.current.take() {
                Some(run) => run,
                None => match self.walker.next(&self.view, &self.inode).await {
                    Ok(Some(run)) => run,
                    Ok(None) => break,
                    Err(unmapped) => {
                        let lost = unmapped.lost(self.view.superblock(), self.size);
                        self.ahead.push_back(Ahead::Lost(lost));
                        continue;
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
            let on_device = whole_blocks.saturating_sub(first.0).min(clean);
            let blocks = if clean == 0 {
                self.ahead.push_back(Ahead::Block { offset, at: first });
                1
            } else if first.0 >= device_blocks {
                // Take the run to its end, to report the missing end of a truncated image all at
                // once.
                let blocks = self.view.buffers().clean_run(first, run.blocks);
                let error = self.view.beyond_device(first, blocks);
                self.ahead.push_back(Ahead::Lost(Lost {
                    directory: None,
                    offset,
                    bytes: blocks * block_bytes,
                    error,
                }));
                self.rest_of(run, blocks);
                continue;
            } else if on_device == 0 {
                self.ahead.push_back(Ahead::Block { offset, at: first });
                1
            } else if neighbours > 0 {
                self.ahead.push_back(Ahead::Chunk { offset, at: first, blocks: neighbours });
                neighbours
            } else {
                let read = Box::pin(self.view.read_run(first, on_device));
                self.ahead.push_back(Ahead::Read { offset, at: first, blocks: on_device, read });
                on_device
            };
            self.ahead_bytes += blocks * block_bytes;
            self.rest_of(run, blocks);
        }
    }

    /// Keeps the rest of a run after reads of its first `blocks` blocks have started.
    fn rest_of(&mut self, run: Run, blocks: u64) {
        if blocks < run.blocks {
            self.current = Some(run.from(run.logical + blocks));
        }
    }
}

impl OpenFile {
    /// The next piece of a file that may change concurrently, up to byte `size`. Moves `at` past
    /// it.
    async fn next_piece(&self, at: &mut u64, size: u64) -> Piece {
        let offset = *at;
        if offset >= size {
            return Ok(None);
        }
        let bytes = loop {
            let found = async {
                let data = self.seek_data(offset).await?.unwrap_or(size).min(size);
                let hole = if offset < data {
                    offset
                } else {
                    self.seek_hole(offset).await?.unwrap_or(size).min(size)
                };
                Ok::<_, Error>((data, hole))
            };
            match found.await {
                Ok((data, _)) if offset < data => {
                    *at = data;
                    return Ok(Some(Chunk::Hole { offset, bytes: data - offset }));
                }
                // The data vanished between the two seeks.
                Ok((_, hole)) if hole == offset => {}
                Ok((_, hole)) => break (hole - offset).min(READ_BYTES),
                Err(error) => {
                    *at = size;
                    return Err(Lost { directory: None, offset, bytes: size - offset, error });
                }
            }
        };
        let mut buf = Buf::zeroed(bytes.to_usize());
        match self.read(offset, &mut buf).await {
            // The read stopped before an unreadable byte.
            Ok(read) if read > 0 && read.to_u64() < bytes && offset + read.to_u64() < self.size() => {
                *at = offset + read.to_u64();
                Ok(Some(Chunk::Data { offset, bytes: BlockRef::from(buf).truncated(read) }))
            }
            // Bytes cut off meanwhile read as zeroes.
            Ok(_) => {
                *at = offset + bytes;
                Ok(Some(Chunk::Data { offset, bytes: BlockRef::from(buf) }))
            }
            Err(error) => {
                let end = self.contents.unreadable_end(offset).await.min(size).max(offset + 1);
                *at = end;
                Err(Lost { directory: None, offset, bytes: end - offset, error })
            }
        }
    }
}

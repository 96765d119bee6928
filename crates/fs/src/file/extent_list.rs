//! Where a file's data are: `SEEK_DATA`, `SEEK_HOLE` and the list of extents, dirty blocks
//! included.
//!
//! See `lseek(2)` and Documentation/filesystems/fiemap.rst. A block counts as data once it has been
//! written. Delayed blocks and dirty blocks over unwritten ones are data; clean unwritten blocks
//! are holes.

use super::contents::Contents;
use super::open_file::OpenFile;
use super::stored::File;
use crate::Result;
use crate::map::block_state::Stored;
use crate::map::{RunWalker, Unmapped};
use crate::view::View;
use bitflags::bitflags;
use extant_cache::ByteRange;
use extant_format::{BlockRange, BlockSize, Inode, InodeFlags, UintExt, VolumeBlock};

/// Offset within the inode record of `i_block`, where inline contents begin.
const I_BLOCK: u64 = 0x28;

bitflags! {
    /// Properties of an extent, with the values of Linux's `FIEMAP_EXTENT_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ExtentFlags: u32 {
        /// Last extent of the file.
        const LAST = 0x1;
        /// The extent has no place on the device yet.
        const UNKNOWN = 0x2;
        /// The bytes are in memory; their place is allocated at write-back.
        const DELALLOC = 0x4;
        /// The bytes cannot be read directly from the device.
        const ENCODED = 0x8;
        /// The offsets are not block-aligned.
        const NOT_ALIGNED = 0x100;
        /// The bytes are stored among metadata, in the inode.
        const DATA_INLINE = 0x200;
        /// Allocated, but reads as zeroes unless its bytes are in memory.
        const UNWRITTEN = 0x800;
        /// The file maps single blocks; adjacent ones were merged into this extent.
        const MERGED = 0x1000;
    }
}

/// A run of a file's bytes and its place on the device, like `struct fiemap_extent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// First byte on the device, or 0 if it has no place.
    pub device_offset: u64,
    /// Properties of the extent.
    pub flags: ExtentFlags,
}

/// A run of blocks stored in the same way.
#[derive(Clone, Debug)]
struct Stretch {
    blocks: BlockRange,
    stored: Stored,
}

impl Stretch {
    fn is_data(&self) -> bool {
        match self.stored {
            Stored::Hole => false,
            Stored::Unwritten { is_dirty, .. } => is_dirty,
            Stored::Delayed | Stored::Written(_) => true,
        }
    }

    /// Whether `next`, which starts where this ends in the file, also follows it on the device.
    fn continues(&self, next: &Self) -> bool {
        let follows = |a: VolumeBlock, b: VolumeBlock| b.0 == a.0 + self.blocks.len();
        match (self.stored, next.stored) {
            (Stored::Hole, Stored::Hole) | (Stored::Delayed, Stored::Delayed) => true,
            (Stored::Written(a), Stored::Written(b)) => follows(a, b),
            (Stored::Unwritten { at: a, .. }, Stored::Unwritten { at: b, .. }) => follows(a, b),
            _ => false,
        }
    }
}

/// A file's stretches in order, from the in-memory map or from a volume open for reading.
enum Stretches<'a> {
    Live { contents: &'a Contents, left: BlockRange },
    Still { view: &'a View, inode: &'a Inode, walker: Box<RunWalker> },
}

impl Stretches<'_> {
    /// # Errors
    /// Blocks that the map does not account for. The next call continues after them.
    async fn next(&mut self) -> std::result::Result<Option<Stretch>, Unmapped> {
        match self {
            Self::Live { contents, left } => {
                while !left.is_empty() {
                    let at = left.start;
                    let found = match contents.know(BlockRange::one(at)).await {
                        Ok(()) => contents.live.lock().map.stored(at),
                        Err(_) => Some(Self::of_damaged(contents, left).await?),
                    };
                    let Some((run, stored)) = found else { continue };
                    let blocks = run.until(left.end);
                    left.start = blocks.end;
                    return Ok(Some(Stretch { blocks, stored }));
                }
                Ok(None)
            }
            Self::Still { view, inode, walker } => Ok(walker.next(*view, inode).await?.map(|run| Stretch {
                blocks: BlockRange::at(run.logical, run.blocks),
                stored: run.state.into(),
            })),
        }
    }

    /// How the first block is stored if the map around it is damaged.
    async fn of_damaged(
        contents: &Contents,
        left: &mut BlockRange,
    ) -> std::result::Result<(BlockRange, Stored), Unmapped> {
        if let Some(found) = contents.live.lock().map.stored(left.start) {
            return Ok(found);
        }
        match contents.know_damaged(left.start).await {
            Ok(run) => Ok((BlockRange::at(run.logical, run.blocks), run.state.into())),
            Err(unmapped) => {
                let blocks = unmapped.blocks.until(left.end);
                left.start = blocks.end;
                Err(Unmapped { blocks, ..unmapped })
            }
        }
    }

    /// The first byte at or after `from` that is data (or, with `data` false, in a hole), up to the
    /// file's `size`. The end of the file counts as a hole. Blocks that the map does not account
    /// for count as data, so that reading them reports the error.
    async fn seek(mut self, block: BlockSize, from: u64, size: u64, data: bool) -> Result<Option<u64>> {
        loop {
            let (blocks, is_data) = match self.next().await {
                Ok(Some(stretch)) => (stretch.blocks, stretch.is_data()),
                Ok(None) => break,
                Err(unmapped) => (unmapped.blocks, true),
            };
            if is_data == data {
                let found = from.max(blocks.start << block.log2());
                return Ok(if found < size { Some(found) } else { (!data).then_some(size) });
            }
        }
        Ok((!data).then_some(size))
    }

    /// The extents in `blocks`. The last one is marked [`ExtentFlags::LAST`] if it is the file's
    /// last extent.
    async fn list(mut self, blocks: BlockRange, form: Form) -> Result<Vec<FileExtent>> {
        let mut found: Vec<Stretch> = Vec::new();
        let mut is_last = true;
        while let Some(mut stretch) = self.next().await? {
            if stretch.stored == Stored::Hole {
                continue;
            }
            if stretch.blocks.start >= blocks.end {
                is_last = false;
                break;
            }
            is_last = stretch.blocks.end <= blocks.end;
            stretch.blocks.end = stretch.blocks.end.min(blocks.end);
            match found.last_mut() {
                Some(last) if last.blocks.end == stretch.blocks.start && last.continues(&stretch) => {
                    last.blocks.end = stretch.blocks.end;
                }
                _ => found.push(stretch),
            }
            if !is_last {
                break;
            }
        }
        let mut extents: Vec<_> = found.into_iter().map(|stretch| form.extent(&stretch)).collect();
        if let (Some(last), true) = (extents.last_mut(), is_last) {
            last.flags |= ExtentFlags::LAST;
        }
        Ok(extents)
    }
}

/// Properties shared by all extents of a file.
#[derive(Clone, Copy)]
struct Form {
    block: BlockSize,
    has_tree: bool,
}

impl Form {
    fn extent(self, stretch: &Stretch) -> FileExtent {
        let bits = self.block.log2();
        let (at, mut flags) = match stretch.stored {
            Stored::Hole => unreachable!("holes are left out"),
            Stored::Delayed => (VolumeBlock(0), ExtentFlags::DELALLOC | ExtentFlags::UNKNOWN),
            Stored::Unwritten { at, .. } => (at, ExtentFlags::UNWRITTEN),
            Stored::Written(at) => (at, ExtentFlags::empty()),
        };
        if !self.has_tree {
            flags |= ExtentFlags::MERGED;
        }
        let (start, len) = (stretch.blocks.start, stretch.blocks.len());
        FileExtent { offset: start << bits, bytes: len << bits, device_offset: at.0 << bits, flags }
    }
}

/// Blocks with bytes in a range, limited to what a map can address.
fn blocks_of(block: BlockSize, range: ByteRange) -> BlockRange {
    let end = block.blocks_for(range.end).min(BlockRange::MAP_END);
    BlockRange::new((range.start >> block.log2()).min(end), end)
}

/// The extent of inline contents; the inode's record is at byte `record` of the device.
fn inline_extent(inode: &Inode, record: u64, range: ByteRange) -> Vec<FileExtent> {
    let bytes = inode.size();
    if bytes == 0 || range.start >= bytes || range.end == 0 {
        return Vec::new();
    }
    let flags = ExtentFlags::DATA_INLINE | ExtentFlags::NOT_ALIGNED | ExtentFlags::LAST;
    vec![FileExtent { offset: 0, bytes, device_offset: record + I_BLOCK, flags }]
}

/// The result of a seek in contents that are all data.
fn seek_in_data(from: u64, size: u64, data: bool) -> u64 {
    if data { from } else { size }
}

impl OpenFile {
    /// Finds the first data byte at or after `from` (`SEEK_DATA`), including data in memory.
    /// Returns `None` if there is none before the end of the file (ENXIO).
    ///
    /// # Errors
    /// The map is damaged or unreadable.
    pub async fn seek_data(&self, from: u64) -> Result<Option<u64>> {
        self.seek(from, true).await
    }

    /// Finds the first byte at or after `from` that is in a hole (`SEEK_HOLE`). The end of the file
    /// counts as a hole. Returns `None` if `from` is at or past the end (ENXIO).
    ///
    /// # Errors
    /// As [`Self::seek_data`].
    pub async fn seek_hole(&self, from: u64) -> Result<Option<u64>> {
        self.seek(from, false).await
    }

    async fn seek(&self, from: u64, data: bool) -> Result<Option<u64>> {
        self.contents.writer.guarded(self.find(from, data)).await
    }

    async fn find(&self, from: u64, data: bool) -> Result<Option<u64>> {
        let contents = &*self.contents;
        let _inode = contents.cell.read_lock().await;
        let size = self.size();
        if from >= size {
            return Ok(None);
        }
        if contents.inline_bytes().is_some_and(|bytes| !bytes.is_empty()) {
            return Ok(Some(seek_in_data(from, size, data)));
        }
        let blocks = blocks_of(contents.block, ByteRange::new(from, size));
        let stretches = Stretches::Live { contents, left: blocks };
        stretches.seek(contents.block, from, size, data).await
    }

    /// Lists the file's extents with bytes in a range, in order. Adjacent extents are joined, and
    /// the list is clipped to the blocks of the range. Extents past the end of the file are
    /// included.
    ///
    /// # Errors
    /// As [`Self::seek_data`].
    pub async fn extents(&self, range: impl Into<ByteRange>) -> Result<Vec<FileExtent>> {
        self.contents.writer.guarded(self.list(range.into())).await
    }

    async fn list(&self, range: ByteRange) -> Result<Vec<FileExtent>> {
        let contents = &*self.contents;
        let _inode = contents.cell.read_lock().await;
        if contents.inline_bytes().is_some_and(|bytes| !bytes.is_empty()) {
            let (table, at) = contents.cell.home();
            let record = (table.number().0 << contents.block.log2()) + at.to_u64();
            return Ok(contents.cell.read(|inode| inline_extent(inode, record, range)));
        }
        let form = Form { block: contents.block, has_tree: contents.uses_extents() };
        let blocks = blocks_of(contents.block, range);
        let stretches = Stretches::Live { contents, left: BlockRange::from_block(blocks.start) };
        stretches.list(blocks, form).await
    }
}

impl File {
    /// Like [`OpenFile::seek_data`].
    ///
    /// # Errors
    /// As [`OpenFile::seek_data`].
    pub async fn seek_data(&self, from: u64) -> Result<Option<u64>> {
        self.seek(from, true).await
    }

    /// Like [`OpenFile::seek_hole`].
    ///
    /// # Errors
    /// As [`OpenFile::seek_hole`].
    pub async fn seek_hole(&self, from: u64) -> Result<Option<u64>> {
        self.seek(from, false).await
    }

    async fn seek(&self, from: u64, data: bool) -> Result<Option<u64>> {
        if let Some(live) = &self.live {
            return live.seek(from, data).await;
        }
        let size = self.inode.size();
        if from >= size {
            return Ok(None);
        }
        if self.inline.is_some() {
            return Ok(Some(seek_in_data(from, size, data)));
        }
        let block = self.view.superblock().block_size();
        self.stretches(blocks_of(block, ByteRange::new(from, size))).seek(block, from, size, data).await
    }

    /// Like [`OpenFile::extents`].
    ///
    /// # Errors
    /// As [`OpenFile::extents`].
    pub async fn extents(&self, range: impl Into<ByteRange>) -> Result<Vec<FileExtent>> {
        let range = range.into();
        if let Some(live) = &self.live {
            return live.extents(range).await;
        }
        let block = self.view.superblock().block_size();
        if self.inline.is_some() {
            let (table, at) = self.view.locate(self.inode.number).await?;
            return Ok(inline_extent(&self.inode, (table.0 << block.log2()) + at.to_u64(), range));
        }
        let blocks = blocks_of(block, range);
        let form = Form { block, has_tree: self.inode.flags().contains(InodeFlags::EXTENTS) };
        self.stretches(BlockRange::from_block(blocks.start)).list(blocks, form).await
    }

    fn stretches(&self, blocks: BlockRange) -> Stretches<'_> {
        let walker = Box::new(RunWalker::new(blocks));
        Stretches::Still { view: &self.view, inode: &self.inode, walker }
    }
}

//! Pages, files and their blocks.

use super::{BLOCK_BYTES, Tiobench};
use extant_sim::MemorySpec;
use std::collections::{BTreeSet, VecDeque};

/// No frame, or no place on the volume.
pub(super) const NONE: u32 = u32::MAX;

/// A chunk of the stripe, and the blocks that ext2 allocates to a file at a time (kernel: `EXT2_DEFAULT_PREALLOC_BLOCKS`, 8).
pub(super) const CHUNK_BYTES: u64 = 32 << 10;

/// Blocks of metadata that an fsync writes: the indirect ones of a file of 32 MiB, and that of the inode.
pub(super) const META_BLOCKS: u64 = 10;

/// Sizes of things.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) files: u64,
    pub(super) page_bytes: u64,
    pub(super) file_pages: u64,
}

impl Shape {
    pub(super) fn new(options: Tiobench, page_bytes: u64) -> Self {
        let file_pages = (u64::from(options.mib_per_thread) << 20) / page_bytes;
        Self { files: u64::from(options.threads), page_bytes, file_pages }
    }

    pub(super) fn file_blocks(self) -> u64 {
        self.file_pages * self.page_blocks()
    }

    /// Blocks in a page.
    pub(super) fn page_blocks(self) -> u64 {
        self.page_bytes / BLOCK_BYTES
    }

    pub(super) fn chunks(self) -> u64 {
        self.file_pages * self.page_bytes / CHUNK_BYTES
    }
}

/// A page frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    /// The page in it, as file × pages of a file + index; [`NONE`] if it is free.
    pub(super) slot: u32,
    /// Tasks that hold it while they wait or use it.
    pub(super) pins: u16,
    /// Blocks in it that are as the file has them, and those that the disk has not, a bit each.
    pub(super) valid: u16,
    pub(super) dirty: u16,
    pub(super) locked: bool,
    pub(super) writeback: bool,
    pub(super) referenced: bool,
}

/// The page cache.
pub(super) struct Cache {
    shape: Shape,
    slots: Vec<u32>,
    pub(super) frames: Vec<Frame>,
    free: Vec<u32>,
    /// In order of arrival.
    inactive: VecDeque<u32>,
    /// Dirty pages by file, in order, and the files that have some, in the order in which they are to be written.
    pub(super) dirty: Vec<BTreeSet<u32>>,
    pub(super) dirty_files: VecDeque<u32>,
    pub(super) dirty_pages: u64,
    pub(super) writeback_pages: u64,
    /// Pages that may be dirty or under write-back, and those from which on they are written in the background.
    pub(super) limit: u64,
    pub(super) background: u64,
    pub(super) background_runs: bool,
    /// Chunk of the volume by chunk of a file.
    placed: Vec<u32>,
    /// First of the two chunks of a file's metadata.
    pub(super) meta: Vec<u32>,
    pub(super) meta_locked: Vec<bool>,
    next_chunk: u32,
}

/// Frames that a search for a free one looks at before it gives up for now.
const LOOKS: usize = 4096;

impl Cache {
    pub(super) fn new(shape: Shape, memory: MemorySpec) -> Self {
        let count = (memory.cache_bytes / shape.page_bytes) as usize;
        let empty = Frame { slot: NONE, ..Frame::default() };
        Self {
            shape,
            slots: vec![NONE; (shape.files * shape.file_pages) as usize],
            frames: vec![empty; count],
            free: (0..count as u32).rev().collect(),
            inactive: VecDeque::new(),
            dirty: vec![BTreeSet::new(); shape.files as usize],
            dirty_files: VecDeque::new(),
            dirty_pages: 0,
            writeback_pages: 0,
            limit: memory.dirty_limit_bytes / shape.page_bytes,
            background: memory.dirty_background_bytes / shape.page_bytes,
            background_runs: false,
            placed: vec![NONE; (shape.files * shape.chunks()) as usize],
            meta: vec![NONE; shape.files as usize],
            meta_locked: vec![false; (shape.files * META_BLOCKS) as usize],
            next_chunk: 0,
        }
    }

    fn slot(&self, file: u32, page: u64) -> usize {
        (u64::from(file) * self.shape.file_pages + page) as usize
    }

    /// The frame of a page, if it is cached.
    pub(super) fn find(&self, file: u32, page: u64) -> Option<u32> {
        Some(self.slots[self.slot(file, page)]).filter(|frame| *frame != NONE)
    }

    /// A frame for a page, locked; `None` if there is none to be had now.
    pub(super) fn add(&mut self, file: u32, page: u64) -> Option<u32> {
        let frame = self.free.pop().or_else(|| self.reclaim())?;
        let slot = self.slot(file, page);
        self.slots[slot] = frame;
        self.frames[frame as usize] = Frame { slot: slot as u32, locked: true, ..Frame::default() };
        self.inactive.push_back(frame);
        Some(frame)
    }

    fn reclaim(&mut self) -> Option<u32> {
        for _ in 0..LOOKS.min(self.inactive.len()) {
            let number = self.inactive.pop_front()?;
            let frame = &mut self.frames[number as usize];
            if frame.locked || frame.writeback || frame.dirty != 0 || frame.pins > 0 || frame.referenced {
                frame.referenced = false;
                self.inactive.push_back(number);
            } else {
                self.slots[frame.slot as usize] = NONE;
                frame.slot = NONE;
                return Some(number);
            }
        }
        None
    }

    /// Whether all of a page is as the file has it.
    pub(super) fn is_uptodate(&self, frame: u32) -> bool {
        u32::from(self.frames[frame as usize].valid).count_ones() as u64 == self.shape.page_blocks()
    }

    /// File and page of a frame.
    pub(super) fn owner(&self, frame: u32) -> (u32, u64) {
        let slot = u64::from(self.frames[frame as usize].slot);
        ((slot / self.shape.file_pages) as u32, slot % self.shape.file_pages)
    }

    /// Marks blocks of a page dirty; true if the page was clean.
    pub(super) fn dirtied(&mut self, frame: u32, blocks: u16) -> bool {
        let (file, page) = self.owner(frame);
        let state = &mut self.frames[frame as usize];
        let was_clean = state.dirty == 0;
        state.dirty |= blocks;
        state.valid |= blocks;
        if was_clean {
            self.dirty_pages += 1;
            let pages = &mut self.dirty[file as usize];
            if pages.is_empty() {
                self.dirty_files.push_back(file);
            }
            pages.insert(page as u32);
        }
        was_clean
    }

    /// Gives a page its place on the volume, if it has none: the next eight blocks that are free, for it and its neighbours.
    pub(super) fn place(&mut self, file: u32, page: u64) {
        if self.meta[file as usize] == NONE {
            self.meta[file as usize] = self.next_chunk;
            self.next_chunk += 2;
        }
        let chunk = page * self.shape.page_bytes / CHUNK_BYTES;
        let at = (u64::from(file) * self.shape.chunks() + chunk) as usize;
        if self.placed[at] == NONE {
            self.placed[at] = self.next_chunk;
            self.next_chunk += 1;
        }
    }

    /// Where a page lies on the volume, in bytes.
    pub(super) fn byte(&self, file: u32, page: u64) -> u64 {
        let byte = page * self.shape.page_bytes;
        let at = u64::from(file) * self.shape.chunks() + byte / CHUNK_BYTES;
        u64::from(self.placed[at as usize]) * CHUNK_BYTES + byte % CHUNK_BYTES
    }
}

//! Pages, files and their blocks.

use crate::options::Tiobench;
use extant_sim::MemorySpec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes per call, and size of a file system block.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// No frame, or no location on the volume.
pub(crate) const NONE: u32 = u32::MAX;

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunSizes {
    pub(crate) files: u64,
    pub(crate) page_bytes: u64,
    pub(crate) file_pages: u64,
}

impl RunSizes {
    pub(crate) fn new(options: Tiobench, page_bytes: u64) -> Self {
        let file_pages = (u64::from(options.mib_per_thread) << 20) / page_bytes;
        Self { files: u64::from(options.threads), page_bytes, file_pages }
    }

    pub(crate) fn file_blocks(self) -> u64 {
        self.file_pages * self.page_blocks()
    }

    /// Blocks per page.
    pub(crate) fn page_blocks(self) -> u64 {
        self.page_bytes / BLOCK_BYTES
    }

    /// The block device's number; it follows those of the files.
    pub(crate) fn device(self) -> u32 {
        self.files as u32
    }
}

/// A page frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageFrame {
    /// The page in it: file × pages per file + index, where the block device follows the files.
    /// [`NONE`] if free.
    pub(crate) slot: u32,
    /// Tasks that hold the frame while they wait or use it.
    pub(crate) pins: u32,
    /// Bit masks of blocks: `valid` ones have the file's contents, `dirty` ones are newer than on
    /// disk.
    pub(crate) valid: u16,
    pub(crate) dirty: u16,
    /// Bit mask of blocks whose buffers are locked.
    pub(crate) locked_buffers: u16,
    pub(crate) locked: bool,
    pub(crate) writeback: bool,
    pub(crate) referenced: bool,
}

/// The page cache.
pub(crate) struct PageCache {
    shape: RunSizes,
    slots: Vec<u32>,
    /// Frames of the block device's pages.
    device: BTreeMap<u32, u32>,
    pub(crate) frames: Vec<PageFrame>,
    free: Vec<u32>,
    /// Frames in use, in order of insertion.
    inactive: VecDeque<u32>,
    /// Dirty pages by file, in order. A page stays here until its write-back starts (kernel:
    /// `PAGECACHE_TAG_DIRTY`).
    pub(crate) dirty: Vec<BTreeSet<u32>>,
    /// For each file, the page after the last one written back.
    pub(crate) writeback_index: Vec<u32>,
    pub(crate) dirty_pages: u64,
    pub(crate) writeback_pages: u64,
    /// `limit` bounds dirty pages, including those under write-back; background write-back starts
    /// at `background` dirty pages.
    pub(crate) limit: u64,
    pub(crate) background: u64,
    pub(crate) background_runs: bool,
    /// Whether the last writer that checked found the limit exceeded.
    pub(crate) dirty_exceeded: bool,
}

/// Frames that a search for a free one examines before it fails.
const LOOKS: usize = 4096;

impl PageCache {
    pub(crate) fn new(shape: RunSizes, memory: MemorySpec) -> Self {
        let count = (memory.cache_bytes / shape.page_bytes) as usize;
        let empty = PageFrame { slot: NONE, ..PageFrame::default() };
        Self {
            shape,
            slots: vec![NONE; (shape.files * shape.file_pages) as usize],
            device: BTreeMap::new(),
            frames: vec![empty; count],
            free: (0..count as u32).rev().collect(),
            inactive: VecDeque::new(),
            dirty: vec![BTreeSet::new(); shape.files as usize + 1],
            writeback_index: vec![0; shape.files as usize + 1],
            dirty_pages: 0,
            writeback_pages: 0,
            limit: memory.dirty_limit_bytes / shape.page_bytes,
            background: memory.dirty_background_bytes / shape.page_bytes,
            background_runs: false,
            dirty_exceeded: false,
        }
    }

    fn slot(&self, file: u32, page: u64) -> usize {
        (u64::from(file) * self.shape.file_pages + page) as usize
    }

    /// The frame of a page, if cached.
    pub(crate) fn find(&self, file: u32, page: u64) -> Option<u32> {
        let slot = self.slot(file, page);
        match self.slots.get(slot) {
            Some(frame) => Some(*frame).filter(|frame| *frame != NONE),
            None => self.device.get(&(slot as u32)).copied(),
        }
    }

    /// Inserts a page and returns its frame, locked; `None` if no frame can be freed now.
    pub(crate) fn add(&mut self, file: u32, page: u64) -> Option<u32> {
        let frame = self.free.pop().or_else(|| self.reclaim())?;
        let slot = self.slot(file, page);
        match self.slots.get_mut(slot) {
            Some(place) => *place = frame,
            None => drop(self.device.insert(slot as u32, frame)),
        }
        self.frames[frame as usize] = PageFrame { slot: slot as u32, locked: true, ..PageFrame::default() };
        self.inactive.push_back(frame);
        Some(frame)
    }

    fn reclaim(&mut self) -> Option<u32> {
        for _ in 0..LOOKS.min(self.inactive.len()) {
            let number = self.inactive.pop_front()?;
            let frame = &mut self.frames[number as usize];
            let in_use = frame.locked || frame.writeback || frame.dirty != 0 || frame.locked_buffers != 0;
            if in_use || frame.pins > 0 || frame.referenced {
                frame.referenced = false;
                self.inactive.push_back(number);
                continue;
            }
            let slot = std::mem::replace(&mut frame.slot, NONE);
            match self.slots.get_mut(slot as usize) {
                Some(place) => *place = NONE,
                None => drop(self.device.remove(&slot)),
            }
            return Some(number);
        }
        None
    }

    /// Whether all blocks of a page are valid.
    pub(crate) fn is_uptodate(&self, frame: u32) -> bool {
        u32::from(self.frames[frame as usize].valid).count_ones() as u64 == self.shape.page_blocks()
    }

    /// The file and page in a frame.
    pub(crate) fn owner(&self, frame: u32) -> (u32, u64) {
        let slot = u64::from(self.frames[frame as usize].slot);
        let file = (slot / self.shape.file_pages).min(self.shape.files);
        (file as u32, slot - file * self.shape.file_pages)
    }

    /// Marks blocks of a page dirty. A file's page must be locked.
    pub(crate) fn dirtied(&mut self, frame: u32, blocks: u16) {
        let (file, page) = self.owner(frame);
        let state = &mut self.frames[frame as usize];
        let was_clean = state.dirty == 0;
        state.dirty |= blocks;
        state.valid |= blocks;
        if was_clean {
            self.dirty_pages += 1;
            self.dirty[file as usize].insert(page as u32);
        }
    }

    /// Returns the next dirty pages of a file with their frames, and pins those.
    pub(crate) fn pin_dirty(&mut self, file: u32, from: u32, most: usize) -> Vec<(u32, u32)> {
        let pages = self.dirty[file as usize].range(from..).take(most);
        let found: Vec<(u32, u32)> =
            pages.filter_map(|page| Some((*page, self.find(file, u64::from(*page))?))).collect();
        found.iter().for_each(|(_, frame)| self.frames[*frame as usize].pins += 1);
        found
    }

    /// Returns and pins the frames of a file's pages under write-back.
    pub(crate) fn pin_writeback(&mut self, file: u32) -> Vec<u32> {
        let cached = (0..self.shape.file_pages).filter_map(|page| self.find(file, page));
        let found: Vec<u32> = cached.filter(|frame| self.frames[*frame as usize].writeback).collect();
        found.iter().for_each(|frame| self.frames[*frame as usize].pins += 1);
        found
    }

    /// Marks a locked page clean and returns its dirty blocks; `None` if it is clean or still under
    /// write-back.
    ///
    /// Blocks of the block device's pages stay dirty: each is cleaned by itself.
    pub(crate) fn clear_dirty(&mut self, frame: u32, is_device: bool) -> Option<u16> {
        let state = &mut self.frames[frame as usize];
        if state.dirty == 0 || state.writeback {
            return None;
        }
        if is_device {
            return Some(state.dirty);
        }
        self.dirty_pages -= 1;
        Some(std::mem::take(&mut state.dirty))
    }

    /// Evicts a file's clean pages.
    #[cfg(test)]
    pub(crate) fn forget(&mut self, file: u32) {
        let mut held = Vec::new();
        while let Some(number) = self.reclaim() {
            held.push(number);
        }
        assert!(
            self.inactive
                .iter()
                .all(|number| self.owner(*number).0 != file || self.frames[*number as usize].dirty != 0)
        );
        self.free.extend(held);
    }

    /// Marks one block of a page clean; false if it was clean already.
    pub(crate) fn clean_block(&mut self, frame: u32, block: u16) -> bool {
        let dirty = &mut self.frames[frame as usize].dirty;
        let was_dirty = *dirty & block != 0;
        *dirty &= !block;
        if was_dirty && *dirty == 0 {
            self.dirty_pages -= 1;
            let (file, page) = self.owner(frame);
            self.dirty[file as usize].remove(&(page as u32));
        }
        was_dirty
    }

    /// Puts a locked page under write-back.
    pub(crate) fn begin_writeback(&mut self, file: u32, page: u32, frame: u32) {
        self.frames[frame as usize].writeback = true;
        self.writeback_pages += 1;
        if self.frames[frame as usize].dirty == 0 {
            self.dirty[file as usize].remove(&page);
        }
    }

    pub(crate) fn end_writeback(&mut self, frame: u32) {
        self.frames[frame as usize].writeback = false;
        self.writeback_pages -= 1;
    }

    /// Checks whether too many pages are dirty or under write-back.
    pub(crate) fn check_limit(&mut self) -> bool {
        self.dirty_exceeded = self.dirty_pages + self.writeback_pages > self.limit;
        self.dirty_exceeded
    }

    pub(crate) fn wants_background(&self) -> bool {
        self.dirty_pages >= self.background
    }
}

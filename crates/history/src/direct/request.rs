//! The state machine of one direct I/O request.

use super::{BlockMap, BoundaryRule, FullVolume, Mapped};
use std::collections::VecDeque;

/// Pages pinned at a time (`DIO_PAGES`).
const PINNED_PAGES: u64 = 64;

/// Sizes at which a request is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Page size of the caller's memory in bytes; a multiple of the block size.
    pub page_bytes: u64,
    /// Block size of the file system in bytes.
    pub block_bytes: u64,
    /// Maximum pages per bio (`bio_get_nr_vecs`).
    pub bio_pages: u64,
}

/// A run of blocks within one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Number of the page in the request.
    pub page: u64,
    /// First byte in the page.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// First block on the volume.
    block: u64,
}

/// Why a bio was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The next blocks are not adjacent on the volume.
    Gap,
    /// The bio was full.
    Full,
    /// A boundary.
    Boundary,
    /// The end of the request.
    End,
}

/// A bio as sent to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentBio {
    /// First block on the volume.
    pub block: u64,
    /// Its memory (`bi_io_vec`).
    pub sections: Vec<Section>,
    /// See [`Cause`].
    pub cause: Cause,
}

impl SentBio {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.sections.iter().map(|section| section.bytes).sum()
    }
}

/// A step of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Pages of the caller's memory were pinned; this many.
    Pinned(u64),
    /// The file system returned a mapping.
    Mapped(Mapped),
    /// A bio is sent to the device.
    Sent(SentBio),
}

/// A bio that still takes sections.
#[derive(Debug)]
struct Building {
    block: u64,
    /// The block after its last one (`final_block_in_bio`).
    end_block: u64,
    room_pages: u64,
    sections: Vec<Section>,
}

/// A request of whole blocks, processed page by page (`struct dio`).
#[derive(Debug)]
pub struct Request {
    rule: BoundaryRule,
    limits: Limits,
    /// The next file block, and the end of the request (`block_in_file`, `final_block_in_request`).
    at_block: u64,
    end_block: u64,
    page: u64,
    pages: u64,
    /// Pages not yet in a bio (`pages_in_io`).
    pages_left: u64,
    /// The current mapping: blocks left, the first of them on the volume, and whether it is marked
    /// as a boundary (`blocks_available`, `next_block_for_io`, the bit of `map_bh`).
    available_blocks: u64,
    next_block: u64,
    marked: bool,
    /// Send the current bio at the next opportunity (`boundary`).
    boundary: bool,
    /// The last section, held back from the bio since the next one may continue it in the same page
    /// (`cur_page`).
    current: Option<Section>,
    bio: Option<Building>,
    events: VecDeque<Event>,
}

impl Request {
    /// A request for `bytes` bytes at byte `at` of the file, both whole blocks, from page-aligned
    /// memory.
    ///
    /// # Panics
    /// If `at`, `bytes` or a page is not a multiple of the block size, or a bio has no room for a
    /// page.
    pub fn new(rule: BoundaryRule, limits: Limits, at: u64, bytes: u64) -> Self {
        let Limits { page_bytes, block_bytes, bio_pages } = limits;
        let whole = |bytes: u64| bytes.is_multiple_of(block_bytes);
        assert!(whole(at) && whole(bytes) && whole(page_bytes) && bio_pages > 0, "{limits:?} {at}+{bytes}");
        let pages = bytes.div_ceil(page_bytes);
        Self {
            rule,
            limits,
            at_block: at / block_bytes,
            end_block: (at + bytes) / block_bytes,
            page: 0,
            pages,
            pages_left: pages,
            available_blocks: 0,
            next_block: 0,
            marked: false,
            boundary: false,
            current: None,
            bio: None,
            events: VecDeque::new(),
        }
    }

    /// The next step; `None` once everything is sent.
    ///
    /// # Errors
    /// [`FullVolume`], from the map; blocks collected so far are not sent.
    pub fn next(&mut self, map: &mut dyn BlockMap) -> Result<Option<Event>, FullVolume> {
        while self.events.is_empty() {
            if self.page < self.pages {
                self.one_page(map)?;
            } else if self.current.is_some() || self.bio.is_some() {
                self.send_current();
                self.send_bio(Cause::End);
            } else {
                return Ok(None);
            }
        }
        Ok(self.events.pop_front())
    }

    /// `do_direct_IO`, for a page.
    fn one_page(&mut self, map: &mut dyn BlockMap) -> Result<(), FullVolume> {
        if self.page.is_multiple_of(PINNED_PAGES) {
            self.events.push_back(Event::Pinned(PINNED_PAGES.min(self.pages - self.page)));
        }
        let Limits { page_bytes, block_bytes, .. } = self.limits;
        let mut offset = 0;
        while offset < page_bytes && self.at_block < self.end_block {
            if self.available_blocks == 0 {
                let mapped = map.map(self.at_block, self.end_block - self.at_block)?;
                (self.available_blocks, self.next_block) = (mapped.blocks, mapped.block);
                self.marked = mapped.boundary;
                self.events.push_back(Event::Mapped(mapped));
            }
            let rest_of_page = (page_bytes - offset) / block_bytes;
            let blocks = self.available_blocks.min(rest_of_page).min(self.end_block - self.at_block);
            self.boundary = match self.rule {
                BoundaryRule::EveryChunk => self.marked,
                BoundaryRule::FirstChunk => std::mem::take(&mut self.marked),
                BoundaryRule::LastChunkEarly | BoundaryRule::LastChunk => {
                    self.marked && blocks == self.available_blocks
                }
            };
            let bytes = blocks * block_bytes;
            self.take_section(Section { page: self.page, offset, bytes, block: self.next_block });
            self.at_block += blocks;
            self.next_block += blocks;
            self.available_blocks -= blocks;
            offset += bytes;
        }
        self.page += 1;
        Ok(())
    }

    fn is_late(&self) -> bool {
        self.rule == BoundaryRule::LastChunk
    }

    /// `submit_page_section`.
    fn take_section(&mut self, section: Section) {
        // The second patch hides the mark from bios sent to make room for this section.
        let boundary = if self.is_late() { std::mem::take(&mut self.boundary) } else { self.boundary };
        let grows = self.current.as_ref().is_some_and(|current| {
            current.page == section.page
                && current.offset + current.bytes == section.offset
                && current.block + current.bytes / self.limits.block_bytes == section.block
        });
        if let Some(current) = self.current.as_mut().filter(|_| grows) {
            current.bytes += section.bytes;
            if boundary && !self.is_late() {
                self.send_current();
            }
        } else {
            self.send_current();
            self.current = Some(section);
        }
        if boundary && self.is_late() {
            self.boundary = true;
            self.send_current();
        }
    }

    /// `dio_send_cur_page`.
    fn send_current(&mut self) {
        let Some(section) = self.current.take() else { return };
        if self.bio.as_ref().is_some_and(|bio| bio.end_block != section.block) {
            self.send_bio(Cause::Gap);
        }
        if self.boundary && !self.is_late() {
            self.send_bio(Cause::Boundary);
        }
        if self.bio.is_none() {
            self.new_bio(section.block);
        }
        if !self.add(section) {
            self.send_bio(Cause::Full);
            self.new_bio(section.block);
            let added = self.add(section);
            debug_assert!(added, "a bio has room for a page");
        }
        if self.boundary && self.is_late() {
            self.send_bio(Cause::Boundary);
        }
    }

    /// `dio_new_bio`.
    fn new_bio(&mut self, block: u64) {
        let room_pages = self.pages_left.min(self.limits.bio_pages).max(1);
        self.bio = Some(Building { block, end_block: block, room_pages, sections: Vec::new() });
        if !self.is_late() {
            self.boundary = false;
        }
    }

    /// `dio_bio_add_page`; returns whether there was room.
    fn add(&mut self, section: Section) -> bool {
        let Some(bio) = &mut self.bio else { return false };
        let is_full = bio.sections.len() as u64 == bio.room_pages;
        match bio.sections.last_mut() {
            Some(last) if last.page == section.page && last.offset + last.bytes == section.offset => {
                last.bytes += section.bytes;
            }
            _ if is_full => return false,
            _ => bio.sections.push(section),
        }
        bio.end_block = section.block + section.bytes / self.limits.block_bytes;
        if section.offset + section.bytes == self.limits.page_bytes {
            self.pages_left = self.pages_left.saturating_sub(1);
        }
        true
    }

    /// `dio_bio_submit`.
    fn send_bio(&mut self, cause: Cause) {
        if let Some(Building { block, sections, .. }) = self.bio.take() {
            self.boundary = false;
            self.events.push_back(Event::Sent(SentBio { block, sections, cause }));
        }
    }
}

#[cfg(test)]
mod tests;

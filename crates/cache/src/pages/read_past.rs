//! Reads that pass the cache: the calling thread reads missing pages into the reader's own memory.
//!
//! The host's page cache has the bytes of a buffered image anyway. A file that is larger than much
//! of the budget pushes out everything else, is gone before it is read again, and touches all
//! frames: memory that the system has to find and to zero, which can take longer than ten reads.
//! Past the cache its bytes are copied once instead of twice, and no page is entered. A page that
//! short reads ask for again soon is cached: then it is worth its frame.

use crate::backing::ReadFrom;
use crate::file::CachedFile;
use crate::page::{PAGE, PAGE_BYTES};
use crate::{ByteRange, PageRange};
use extant_block::Sector;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Reads of this length pass the cache each time.
const LONG_BYTES: usize = 128 << 10;
/// Most pages looked up under one hold of the file's lock.
const PAGES_MAX: u64 = 256;
/// Files larger than one part in this many of the frames pass the cache.
const SHARE: u64 = 2;

/// Whether the reads of a file pass the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    Never,
    /// When a page is missed for the first time.
    AtFirst,
    Always,
}

impl CachedFile {
    /// How a read of this many bytes passes the cache, as far as its pages are missing.
    pub(crate) fn passing(&self, bytes: usize) -> Passing {
        let is_large = self.size() / PAGE > u64::from(self.core.pool.capacity()) / SHARE;
        if bytes < PAGE_BYTES || !is_large || !self.disk.device.is_cached_by_host() || !self.loads_here() {
            return Passing::Never;
        }
        if bytes >= LONG_BYTES { Passing::Always } else { Passing::AtFirst }
    }

    /// Whether a read that asks for this page first passes the cache.
    pub(crate) fn passes(&self, page: u64, passing: Passing) -> bool {
        match passing {
            Passing::Never => false,
            Passing::AtFirst => !self.core.pool.missed.again(self.key(page)),
            Passing::Always => true,
        }
    }

    /// Reads missing pages from byte `at` on, the start of a page, into `to`. Returns the number of
    /// bytes read, which are whole pages. With 0 the first page is to be loaded instead: the file
    /// ends inside it, others use it, or it takes [`Self::load`] to find out where it is.
    ///
    /// Nothing keeps the map or the blocks from being changed meanwhile. What was read from there
    /// on does not count.
    pub(crate) fn read_past(self: &Arc<Self>, at: u64, to: &mut [u8]) -> usize {
        let start = at / PAGE;
        let end = at.saturating_add(to.len() as u64).min(self.size()) / PAGE;
        if end <= start {
            return 0;
        }
        let wanted = PageRange { start, end: end.min(start + PAGES_MAX) };
        let Some((lookup, pages)) = self.begin_past(wanted) else { return 0 };
        let read = self.read_extents(at, &mut to[..pages.len() as usize * PAGE_BYTES]);
        let mut locked = self.lock_pages();
        let valid_end = lookup.end(&mut locked).min(self.size() / PAGE);
        // A page that has a frame by now may be on its way to the device.
        let valid_end = locked.missing_until(PageRange { start, end: valid_end.max(start) });
        (read / PAGE_BYTES).min((valid_end - start) as usize) * PAGE_BYTES
    }

    /// Fills `to` with the bytes at `at`; returns how many it could.
    fn read_extents(&self, at: u64, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let asked = ByteRange::at(at + done as u64, (to.len() - done) as u64);
            let Some(extent) = self.extent_at_once(asked) else { break };
            let some = &mut to[done..][..extent.bytes as usize];
            match extent.from {
                ReadFrom::Device(sector) if !self.read_device(sector, some) => break,
                ReadFrom::Device(_) => {}
                _ => some.fill(0),
            }
            done += some.len();
        }
        done
    }

    fn read_device(&self, from: Sector, to: &mut [u8]) -> bool {
        self.disk.device.read_here(from, &mut [IoSliceMut::new(to)])
    }
}

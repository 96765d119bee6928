//! Loads pages on the calling thread, if it may wait for the device. This needs no bio, task or
//! other thread, so a page that the host has in memory costs little more than its copy.

use crate::PageRange;
use crate::backing::{Answer, ReadFrom};
use crate::caught::shielded;
use crate::file::CachedFile;
use crate::page::PAGE;
use crate::pages::loading_pages::LoadingPages;
use crate::pool::Purpose;
use crate::{ByteRange, ReadExtent};
use extant_block::Sector;
use smallvec::SmallVec;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Maximum number of pages loaded at once. The reader copies them while they are still in the
/// processor's cache.
const PAGES_MAX: u64 = 64;

/// Pages being loaded on this thread. A panic on the way removes them.
struct LoadingHere<'a> {
    file: &'a Arc<CachedFile>,
    entered: LoadingPages,
    is_read: bool,
}

impl Drop for LoadingHere<'_> {
    fn drop(&mut self) {
        self.entered.end(self.file, self.is_read);
        self.entered.wake(self.file);
    }
}

impl CachedFile {
    /// Whether the calling thread may and can load pages itself.
    pub(crate) fn loads_here(&self) -> bool {
        self.disk.device.reads_here() && self.core.rt.may_wait() && !self.core.pool.frames.are_phantoms()
    }

    /// Loads the first page of a range, and following pages that are missing, before it returns.
    /// Returns false if that is not possible or fails. Then [`Self::load`] reports the error, or
    /// waits for what is missing.
    ///
    /// The pages are entered before the backing is asked where they are. So its answer stays valid,
    /// because no one changes the map of pages that are being loaded. A load that may have to wait
    /// for the answer cannot use this order.
    pub(crate) fn load_here(self: &Arc<Self>, pages: PageRange) -> bool {
        let (core, start) = (&self.core, pages.start);
        let mut end = pages.end.min(start + PAGES_MAX).min(self.size().div_ceil(PAGE)).max(start + 1);
        if end > start + 1 && !core.pool.has_free(end - start) {
            // Evict no page for one that is already cached.
            let is_cached = |&page: &u64| core.pool.index.guess(&core.pool.frames, self.key(page)).is_some();
            end = (start + 1..end).find(is_cached).unwrap_or(end);
        }
        let count = (end - start) as usize;
        let mut taken = Vec::with_capacity(count);
        core.take_frames(count, Purpose::Demand, &mut taken);
        if taken.is_empty() {
            return false;
        }
        let entered = self.enter_loading(None, PageRange::new(start, end), taken, None);
        let Some(entered) = entered.filter(|entered| !entered.pages().is_empty()) else { return false };
        let mut loading = LoadingHere { file: self, entered, is_read: false };
        loading.is_read = loading.fill();
        loading.is_read
    }

    /// Where the start of a range is, if the backing knows without waiting and the bytes are on the
    /// device or nowhere.
    pub(super) fn extent_at_once(&self, asked: ByteRange) -> Option<ReadExtent> {
        let mut answer = None;
        shielded(|| {
            if let Answer::Ready(Ok(extent)) = self.backing.map_read(asked) {
                answer = Some(extent);
            }
        });
        let ReadExtent { from, bytes } = answer?;
        let bytes = bytes.min(asked.len());
        (bytes > 0 && !matches!(from, ReadFrom::Inline(_))).then_some(ReadExtent { from, bytes })
    }
}

impl LoadingHere<'_> {
    /// Fills the pages; returns whether it could.
    fn fill(&self) -> bool {
        let ByteRange { start, end } = self.entered.pages().bytes();
        let mut at = start;
        while at < end {
            let Some(extent) = self.file.extent_at_once(ByteRange::new(at, end)) else { return false };
            let is_filled = match extent.from {
                ReadFrom::Device(sector) => self.read(at - start, extent.bytes, sector),
                _ => {
                    self.entered.zero(&self.file.core, ByteRange::at(at, extent.bytes));
                    true
                }
            };
            if !is_filled {
                return false;
            }
            at += extent.bytes;
        }
        true
    }

    /// Reads `len` bytes at offset `skip` of the pages.
    fn read(&self, skip: u64, len: u64, from: Sector) -> bool {
        let memory = self.entered.memory(&self.file.core, skip, len);
        let mut memory: SmallVec<[IoSliceMut<'_>; 4]> = memory.map(IoSliceMut::new).collect();
        self.file.disk.device.read_here(from, &mut memory)
    }
}

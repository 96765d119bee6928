//! The part of reading that never waits.

use crate::Cost;
use crate::file::CachedFile;
use crate::page::{PAGE, PAGE_BYTES};
use crate::pool::index::Found;

/// How often a reader retries a page that is being changed: about as long as a copy may take.
pub(crate) const SPINS: u32 = 4096;

/// Why a cached read stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStop {
    /// Everything was read, or the end of the file was reached.
    Done,
    /// This page has no frame.
    Missing(u64),
    /// This page is being loaded.
    Loading(u64),
    /// This page has been changing for longer than a copy takes.
    Busy,
}

/// Result of a cached read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSome {
    pub(crate) bytes: usize,
    pub(crate) stop: ReadStop,
    /// The page whose mark asks for more read-ahead, if it read one.
    pub(crate) mark: Option<u64>,
}

impl CachedFile {
    /// Copies what is cached, starting at byte `at`. Takes no lock and allocates nothing. `counts`
    /// says whether this counts as a new use of the first page, instead of continuing one.
    #[inline]
    pub(crate) fn read_cached(&self, at: u64, buf: &mut [u8], counts: bool) -> ReadSome {
        let wanted = (buf.len() as u64).min(self.size().saturating_sub(at)) as usize;
        let mut out = ReadSome { bytes: 0, stop: ReadStop::Done, mark: None };
        let mut spins = 0;
        let core = &*self.core;
        while out.bytes < wanted {
            let offset = at + out.bytes as u64;
            let (index, skip) = (offset / PAGE, (offset % PAGE) as usize);
            let n = (PAGE_BYTES - skip).min(wanted - out.bytes);
            let key = self.key(index);
            let to = &mut buf[out.bytes..out.bytes + n];
            if let Some(frame) = core.pool.index.guess(&core.pool.frames, key)
                && let Some(seen) = core.pool.frames.read(frame, key, skip, to, wanted > PAGE_BYTES)
            {
                if seen.is_mark() {
                    out.mark = Some(index);
                }
                if counts || out.bytes > 0 {
                    core.pool.frames.state(frame).used(seen);
                }
                out.bytes += n;
                continue;
            }
            match core.pool.index.pin(&core.pool.frames, key, |frame| core.pool.free(frame)) {
                Found::Pinned(page) => {
                    to.copy_from_slice(&page[skip..skip + n]);
                    if page.seen.is_mark() {
                        out.mark = Some(index);
                    }
                    if counts || out.bytes > 0 {
                        page.used();
                    }
                    let frame = page.frame;
                    core.pool.settle(frame, page.end());
                    out.bytes += n;
                }
                Found::Absent => {
                    out.stop = ReadStop::Missing(index);
                    break;
                }
                Found::Busy(frame) => {
                    if core.pool.frames.state(frame).snapshot().is_loading() {
                        out.stop = ReadStop::Loading(index);
                        break;
                    }
                    spins += 1;
                    if spins > SPINS {
                        out.stop = ReadStop::Busy;
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
        }
        let pages = out.bytes.div_ceil(PAGE_BYTES) as u64;
        core.rt.charge(Cost::PageLookup(pages));
        core.rt.charge(Cost::PageCopy(pages));
        out
    }
}

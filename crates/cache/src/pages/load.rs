//! Loads pages from the device.

use crate::PageRange;
use crate::backing::{ReadExtent, ReadFrom};
use crate::caught::caught;
use crate::file::{CachedFile, loaded};
use crate::page::PAGE;
use crate::pages::exclude::InLine;
use crate::pages::loading_pages::LoadingPages;
use crate::pool::Purpose;
use crate::{ByteRange, Result};
use crate::{Cost, Event};
use extant_block::{Bio, BioFlags, IoError, Op, Sector, StreamId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Which pages to load, and how.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) pages: PageRange,
    pub(crate) purpose: Purpose,
    /// The page whose reader triggers the next round of read-ahead.
    pub(crate) mark: Option<u64>,
    pub(crate) stream: StreamId,
    /// The caller holds the exclusion of these pages.
    pub(crate) in_exclusion: bool,
}

/// Result of an attempt to load.
#[derive(Debug)]
pub(crate) enum Loading {
    /// These pages are being loaded.
    Started(Arc<Load>),
    /// The first page already has a frame.
    Present,
    /// No frame is available for the first page.
    NoFrames,
}

/// Pages being loaded. They end up loaded or removed, even if the task that asked for them is
/// cancelled.
#[derive(Debug)]
pub(crate) struct Load {
    file: Arc<CachedFile>,
    entered: LoadingPages,
    left: AtomicUsize,
    over: AtomicBool,
    error: Mutex<Option<IoError>>,
}

impl CachedFile {
    /// Loads the first page of `wanted`, and following pages that are missing, adjacent on the
    /// device and get a frame. May wait for the backing or for the end of an exclusion. If an
    /// exclusion is in the way, it enters the line at `place`; it holds nothing else while it
    /// waits. The caller leaves the line once it has the page's bytes.
    pub(crate) async fn load<'a>(
        self: &'a Arc<Self>,
        wanted: Wanted,
        place: &mut Option<InLine<'a>>,
    ) -> Result<Loading> {
        let Wanted { pages: PageRange { start, end }, purpose, mark, stream, in_exclusion } = wanted;
        let pool = &self.core.pool;
        // Whether exclusions have taken pages away before they were used.
        let mut was_overtaken = place.is_some();
        loop {
            let is_cached = |&page: &u64| pool.index.guess(&pool.frames, self.key(page)).is_some();
            if purpose == Purpose::Ahead && is_cached(&start) {
                return Ok(Loading::Present);
            }
            let end = end.min(self.size().div_ceil(PAGE)).max(start + 1);
            if was_overtaken {
                Box::pin(self.wait_admitted(PageRange::new(start, end), place)).await;
            }
            let Some((lookup, PageRange { end, .. })) =
                self.begin_lookup(PageRange::new(start, end), in_exclusion)
            else {
                if purpose == Purpose::Ahead {
                    return Ok(Loading::Present);
                }
                was_overtaken = true;
                continue;
            };
            let device_block = u64::from(self.disk.device.limits().block_bytes);
            let mut extents = Vec::new();
            let mut at = start * PAGE;
            // Collect extents until they cover the run of pages, or at least the first page.
            while at < end * PAGE {
                let asked = ByteRange::new(at, end * PAGE);
                let extent = caught(async {
                    let extent = self.backing.map_read(asked).await?;
                    let bytes = extent.bytes.min(asked.len());
                    assert!(bytes > 0, "a backing's answer is never empty");
                    let is_whole =
                        bytes.is_multiple_of(device_block) || !matches!(extent.from, ReadFrom::Device(_));
                    assert!(is_whole, "a backing answers in whole blocks of its device");
                    Ok(ReadExtent { bytes, ..extent })
                });
                let extent = match extent.await {
                    Ok(extent) => extent,
                    // The pages before the error are readable. A read of the rest returns the
                    // error.
                    Err(_) if at >= (start + 1) * PAGE => break,
                    Err(error) => return Err(error.into()),
                };
                self.core.rt.charge(Cost::MapLookup(1));
                let begins = at;
                at += extent.bytes;
                extents.push((begins, extent));
                if extents.len() >= 16 && at >= (start + 1) * PAGE {
                    break;
                }
            }
            let mut end = at / PAGE;
            if !pool.has_free(end - start) {
                // Evict no page for one that is already cached.
                end = (start + 1..end).find(is_cached).unwrap_or(end);
            }
            let mut taken = Vec::new();
            self.core.take_frames((end - start) as usize, purpose, &mut taken);
            if taken.is_empty() {
                return Ok(Loading::NoFrames);
            }
            let range = PageRange::new(start, end);
            let Some(entered) = self.enter_loading(Some(lookup), range, taken, mark) else {
                was_overtaken = purpose != Purpose::Ahead && !in_exclusion;
                continue;
            };
            let count = entered.pages().len();
            if count == 0 {
                return Ok(Loading::Present);
            }
            self.core.rt.charge(Cost::PageInsert(count));
            if purpose == Purpose::Ahead {
                let (inode, page, pages) = (self.inode, start, count);
                self.core.rt.trace(Event::PagesReadAhead { inode, page, pages });
            }
            let load = Arc::new(Load {
                file: self.clone(),
                entered,
                left: AtomicUsize::new(1),
                over: AtomicBool::new(false),
                error: Mutex::new(None),
            });
            load.submit(&extents, purpose, stream);
            return Ok(Loading::Started(load));
        }
    }

    /// Waits until a page is no longer being loaded, according to the lock-free look-up.
    pub(crate) async fn wait_loaded(&self, index: u64) {
        let (core, key) = (&self.core, self.key(index));
        let is_over = || {
            let frame = core.pool.index.guess(&core.pool.frames, key);
            frame.is_none_or(|frame| !core.pool.frames.state(frame).snapshot().is_loading())
        };
        core.pages.wait_until(loaded(key), is_over).await;
    }
}

impl Load {
    /// The pages being loaded.
    pub(crate) fn pages(&self) -> PageRange {
        self.entered.pages()
    }

    /// Waits until the load ends.
    pub(crate) async fn wait(&self) -> Result<()> {
        let first = self.file.key(self.pages().start);
        self.file.core.pages.wait_until(loaded(first), || self.over.load(Ordering::Acquire)).await;
        self.error().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The error, if it failed.
    fn error(&self) -> Option<IoError> {
        self.error.lock().clone()
    }

    /// Starts one bio per extent, or more if the device takes less at a time.
    fn submit(self: &Arc<Self>, extents: &[(u64, ReadExtent)], purpose: Purpose, stream: StreamId) {
        let core = &self.file.core;
        let device = &self.file.disk.device;
        let limits = device.limits();
        let (base, end) = (self.pages().start * PAGE, self.pages().end * PAGE);
        let most = (limits.max_bytes.min(core.settings.bio_pages * PAGE) / PAGE * PAGE).max(PAGE);
        let mut bios = Vec::new();
        for (offset, extent) in extents {
            let offset = *offset;
            let extent_end = (offset + extent.bytes).min(end);
            let sector = match &extent.from {
                ReadFrom::Device(sector) => sector,
                ReadFrom::Hole => {
                    self.entered.zero(core, ByteRange::new(offset, extent_end));
                    continue;
                }
                ReadFrom::Inline(bytes) => {
                    let inline_end = extent_end.min(offset + bytes.len() as u64);
                    let inline = &bytes[..inline_end.saturating_sub(offset) as usize];
                    self.entered.fill(core, offset, inline);
                    self.entered.zero(core, ByteRange::new(inline_end, extent_end));
                    continue;
                }
            };
            let mut at = offset;
            while at < extent_end {
                let segments = self.entered.segments(core, at - base, most.min(extent_end - at));
                let mut segments: Vec<_> = segments.collect();
                segments.truncate(limits.max_segments.max(1) as usize);
                let bytes = segments.iter().map(|segment| segment.len() as u64).sum::<u64>();
                let start = Sector(sector.0 + (at - offset) / Sector::BYTES);
                let mut bio = Bio::new(Op::Read, start, segments);
                bio.flags = match purpose {
                    Purpose::Demand | Purpose::Completion => BioFlags::SYNC,
                    Purpose::Ahead => BioFlags::RAHEAD,
                };
                bio.stream = stream;
                let load = self.clone();
                bio.on_end(Box::new(move |bio, result| {
                    drop(bio);
                    load.piece_ended(result);
                }));
                bios.push(bio);
                at += bytes;
            }
        }
        self.left.fetch_add(bios.len(), Ordering::Relaxed);
        device.submit_all(&mut bios.into_iter());
        self.piece_ended(Ok(()));
    }

    fn piece_ended(&self, result: std::result::Result<(), IoError>) {
        if let Err(error) = result {
            self.error.lock().get_or_insert(error);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish();
        }
    }

    /// All bios have ended.
    fn finish(&self) {
        let is_read = self.error.lock().is_none();
        self.entered.end(&self.file, is_read);
        self.over.store(true, Ordering::Release);
        self.entered.wake(&self.file);
    }
}

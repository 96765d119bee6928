//! Loads pages from the device.

use crate::PageRange;
use crate::backing::{ReadExtent, ReadFrom};
use crate::caught::caught;
use crate::file::{CachedFile, loaded};
use crate::page::{FrameNo, PAGE, PAGE_BYTES, neighbours};
use crate::pages::exclude::InLine;
use crate::pool::Purpose;
use crate::{ByteRange, Result};
use crate::{Cost, Event};
use extant_block::{Bio, BioFlags, IoError, Op, Sector, StreamId};
use parking_lot::Mutex;
use std::any::Any;
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
    first: u64,
    frames: Vec<FrameNo>,
    /// How many bytes of the file, from `first`, are valid; the rest becomes zeros.
    valid_bytes: u64,
    left: AtomicUsize,
    over: AtomicBool,
    error: Mutex<Option<IoError>>,
}

impl CachedFile {
    /// Loads the first page of `wanted`, and following pages that are missing, adjacent on the
    /// device and get a frame. May wait for the backing or for the end of an exclusion; it holds
    /// nothing meanwhile but its `place` in the line, which it enters if an exclusion is in its
    /// way. The caller leaves the line once it has the page's bytes.
    pub(crate) async fn load<'a>(
        self: &'a Arc<Self>,
        wanted: Wanted,
        place: &mut Option<InLine<'a>>,
    ) -> Result<Loading> {
        let Wanted { pages: PageRange { start, end }, purpose, mark, stream, in_exclusion } = wanted;
        let pool = &self.core.pool;
        // Pages that exclusions have taken away before they were used.
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
                    // What lies before the error is readable. A read of the rest returns the error.
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
            let mut unused = taken.into_iter();
            let mut frames = Vec::new();
            let (valid_bytes, stale) = {
                let mut pages = self.lock_pages();
                let valid_end = lookup.end(&mut pages);
                // A truncation stores the new size before it takes the lock to drop pages.
                let size = self.size();
                if size > start * PAGE {
                    let limit = end.min(valid_end).min(size.div_ceil(PAGE));
                    let mut cursor = pages.cursor();
                    for index in start..limit {
                        if cursor.find(self.key(index)).is_some() {
                            break;
                        }
                        let Some(frame) = unused.next() else { break };
                        let fresh = self.core.pool.frames.take_free(frame, self.key(index));
                        // Pages loaded on demand start as unread too. Otherwise, when memory is
                        // short, the reader's own read-ahead could evict the page before the reader
                        // has copied it, and the reader would load it again, forever.
                        fresh.start_loading(mark == Some(index), true);
                        pages.add_page(&mut cursor, frame);
                        frames.push(frame);
                    }
                }
                (size.saturating_sub(start * PAGE), valid_end <= start)
            };
            pool.return_frames(unused);
            if stale {
                was_overtaken = purpose != Purpose::Ahead && !in_exclusion;
                continue;
            }
            if frames.is_empty() {
                return Ok(Loading::Present);
            }
            let count = frames.len() as u64;
            self.core.rt.charge(Cost::PageInsert(count));
            if purpose == Purpose::Ahead {
                let (inode, page, pages) = (self.inode, start, count);
                self.core.rt.trace(Event::PagesReadAhead { inode, page, pages });
            }
            let load = Arc::new(Load {
                file: self.clone(),
                first: start,
                frames,
                valid_bytes,
                left: AtomicUsize::new(1),
                over: AtomicBool::new(false),
                error: Mutex::new(None),
            });
            load.submit(&extents, purpose, stream);
            return Ok(Loading::Started(load));
        }
    }

    /// Waits until a page is no longer being loaded, as far as the lock-free look-up can tell.
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
        PageRange::new(self.first, self.first + self.frames.len() as u64)
    }

    /// Waits until the load ends.
    pub(crate) async fn wait(&self) -> Result<()> {
        let first = self.file.key(self.first);
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
        let base = self.first * PAGE;
        let end = base + self.frames.len() as u64 * PAGE;
        let most = (limits.max_bytes.min(core.settings.bio_pages * PAGE) / PAGE * PAGE).max(PAGE);
        let mut bios = Vec::new();
        for (offset, extent) in extents {
            let offset = *offset;
            let extent_end = (offset + extent.bytes).min(end);
            let sector = match &extent.from {
                ReadFrom::Device(sector) => sector,
                ReadFrom::Hole => {
                    self.zero(ByteRange::new(offset, extent_end));
                    continue;
                }
                ReadFrom::Inline(bytes) => {
                    let inline_end = extent_end.min(offset + bytes.len() as u64);
                    self.fill(offset, &bytes[..inline_end.saturating_sub(offset) as usize]);
                    self.zero(ByteRange::new(inline_end, extent_end));
                    continue;
                }
            };
            let mut at = offset;
            while at < extent_end {
                let mut segments = self.segments(at - base, most.min(extent_end - at));
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

    /// Zeroes a range of the file within the pages. For parts that no bio fills.
    fn zero(&self, range: ByteRange) {
        self.for_each_part(range, |frame, skip, n, _| {
            // SAFETY: the frame is loading, and no bio covers this part of it: either none was
            // created for it, or all have ended.
            unsafe { self.file.core.pool.frames.zero_loading(frame, skip, n) };
        });
    }

    /// Copies `bytes` to offset `offset` of the file, within the pages. For parts that no bio
    /// fills.
    fn fill(&self, offset: u64, bytes: &[u8]) {
        self.for_each_part(ByteRange::at(offset, bytes.len() as u64), |frame, skip, n, from| {
            let from = (from - offset) as usize;
            // SAFETY: as in `zero`.
            unsafe { self.file.core.pool.frames.fill_loading(frame, skip, &bytes[from..from + n]) };
        });
    }

    /// Splits a range of the file at page boundaries. Calls `part` with (frame, bytes to skip in
    /// it, length, offset in the file).
    fn for_each_part(&self, range: ByteRange, part: impl Fn(FrameNo, usize, usize, u64)) {
        let base = self.first * PAGE;
        let mut at = range.start;
        while at < range.end {
            let slot = ((at - base) / PAGE) as usize;
            let skip = (at % PAGE) as usize;
            let n = ((range.end - at) as usize).min(PAGE_BYTES - skip);
            part(self.frames[slot], skip, n, at);
            at += n as u64;
        }
    }

    /// Memory for the bytes `skip..skip + len` of the run: one segment for each run of adjacent
    /// frames.
    fn segments(&self, skip: u64, len: u64) -> Vec<extant_block::Segment> {
        let owner: Arc<dyn Any + Send + Sync> = self.file.core.clone();
        neighbours(&self.frames, skip, len)
            .map(|(frame, count, skip, len)| {
                // SAFETY: the frames stay loading until every bio of this load has ended and been
                // dropped, and the pieces of a load do not overlap.
                unsafe { self.file.core.pool.frames.to_fill(frame, count, skip, len, owner.clone()) }
            })
            .collect()
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
        let core = &self.file.core;
        if self.error.lock().is_some() {
            let mut pages = self.file.lock_pages();
            let mut cursor = pages.cursor();
            for &frame in &self.frames {
                if !core.pool.frames.state(frame).snapshot().is_detached() {
                    pages.drop_page(&mut cursor, frame);
                }
            }
            drop(cursor);
            drop(pages);
            for &frame in &self.frames {
                core.pool.settle(frame, core.pool.frames.state(frame).load_failed());
            }
        } else {
            let end = (self.first + self.frames.len() as u64) * PAGE;
            let valid = (self.first * PAGE + self.valid_bytes).min(end);
            self.zero(ByteRange::new(valid, end));
            // Make the pages eviction candidates before anyone can change them: a writer that
            // dirties one withdraws it.
            core.pool.evictable(&self.frames);
            for &frame in &self.frames {
                core.pool.settle(frame, core.pool.frames.state(frame).loaded());
            }
        }
        self.over.store(true, Ordering::Release);
        let mut batch = core.pages.batch();
        for index in self.pages().indices() {
            batch.wake(loaded(self.file.key(index)));
        }
    }
}

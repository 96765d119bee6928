//! The part of writing that never waits.

use crate::PageRange;
use crate::dirty::ledger::{NoRoom, Room};
use crate::mapping::read::SPINS;
use crate::page::{FrameNo, PAGE, PAGE_BYTES};
use crate::pool::Purpose;
use crate::state::Inner;
use crate::state::inner::Aftermath;
use crate::{Cost, Event};
use std::sync::Arc;

/// Pages written as one batch: their frames are taken, filled and entered together.
const BATCH_PAGES: usize = 64;

/// Why a cached write stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStop {
    /// Everything was written.
    Done,
    /// This page must be loaded first, because only part of it is overwritten.
    Missing(u64),
    /// This page is being loaded.
    Loading(u64),
    /// Another task has held a page for longer than a copy takes.
    Busy,
    /// No frame is available.
    NoFrames,
    /// No more pages may become dirty.
    NoRoom(NoRoom),
    /// This page has no frame, and none may be entered: see [`crate::Mapping::exclude`].
    Excluded(u64),
    /// The allowance is used up: ask the controller.
    Asks,
}

/// Result of a cached write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wrote {
    pub(crate) bytes: usize,
    /// Pages that were clean and are now dirty.
    pub(crate) dirtied: u64,
    /// Frames taken.
    pub(crate) frames: u64,
}

/// Conditions of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Pages that may become dirty; at least one.
    pub(crate) most: u64,
    /// The dirty limits do not apply.
    pub(crate) exempt: bool,
    /// The caller holds the exclusion of the range it writes.
    pub(crate) in_exclusion: bool,
    /// The write does not grow the file.
    pub(crate) keeps_size: bool,
}

impl Terms {
    /// The purpose of the frames it takes.
    fn purpose(&self) -> Purpose {
        if self.exempt { Purpose::Completion } else { Purpose::Demand }
    }
}

/// The source of a write: a caller's bytes, or zeros.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Zeroes(usize),
    /// No data, for frames without memory.
    Phantom(usize),
}

impl Source<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeroes(len) | Self::Phantom(len) => *len,
        }
    }

    pub(crate) fn skip(&self, n: usize) -> Self {
        match *self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[n..]),
            Self::Zeroes(len) => Self::Zeroes(len - n),
            Self::Phantom(len) => Self::Phantom(len - n),
        }
    }

    /// At most the first `n` bytes.
    pub(crate) fn first(&self, n: usize) -> Self {
        match *self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[..n.min(bytes.len())]),
            Self::Zeroes(len) => Self::Zeroes(len.min(n)),
            Self::Phantom(len) => Self::Phantom(len.min(n)),
        }
    }

    #[inline]
    fn copy_to(&self, from: usize, to: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => to.copy_from_slice(&bytes[from..from + to.len()]),
            Self::Zeroes(_) => to.fill(0),
            Self::Phantom(_) => {}
        }
    }

    /// Fills a new page: `n` source bytes, from byte `from`, at offset `skip`; zeros around them.
    fn copy_to_new(&self, from: usize, page: &mut [u8], skip: usize, n: usize) {
        if let Self::Phantom(_) = self {
            return;
        }
        page[..skip].fill(0);
        self.copy_to(from, &mut page[skip..skip + n]);
        page[skip + n..].fill(0);
    }
}

/// The part of a write that goes to one page.
#[derive(Clone, Copy)]
struct Piece<'a> {
    index: u64,
    /// Offset within the page.
    skip: usize,
    n: usize,
    source: Source<'a>,
    /// Offset within the source.
    from: usize,
}

impl Piece<'_> {
    fn copy_to(&self, page: &mut [u8]) {
        self.source.copy_to(self.from, &mut page[self.skip..self.skip + self.n]);
    }

    /// End offset in the file.
    fn end(&self) -> u64 {
        self.index * PAGE + (self.skip + self.n) as u64
    }
}

enum Overwrite {
    Done { dirtied: bool, frames: u64 },
    Absent,
    Stop(WriteStop),
}

impl Inner {
    /// Grows the file to at least `end` bytes, unless the write keeps the size.
    fn grow_to(&self, end: u64, terms: Terms) {
        if !terms.keeps_size && end > self.size() {
            self.grow_size(end);
        }
    }

    /// Writes to cached and new pages from byte `at`, as far as `terms` allow and without waiting.
    ///
    /// The file grows before a page past its end can become visibly dirty, because write-back
    /// writes nothing past the end.
    pub(crate) fn write_cached(
        self: &Arc<Self>,
        at: u64,
        source: Source<'_>,
        terms: Terms,
    ) -> (Wrote, WriteStop) {
        let most = terms.most;
        debug_assert!(most > 0);
        let source = match self.shared.pool.frames.are_phantoms() {
            true => Source::Phantom(source.len()),
            false => source,
        };
        let mut wrote = Wrote::default();
        let stop = loop {
            let left = source.len() - wrote.bytes;
            if left == 0 {
                break WriteStop::Done;
            }
            if wrote.dirtied >= most {
                break WriteStop::Asks;
            }
            let offset = at + wrote.bytes as u64;
            let (index, skip) = (offset / PAGE, (offset % PAGE) as usize);
            let n = (PAGE_BYTES - skip).min(left);
            match self.overwrite(Piece { index, skip, n, source, from: wrote.bytes }, terms) {
                Overwrite::Done { dirtied, frames } => {
                    wrote.bytes += n;
                    wrote.frames += frames;
                    wrote.dirtied += u64::from(dirtied);
                }
                Overwrite::Stop(stop) => break stop,
                Overwrite::Absent => {
                    let whole = n == PAGE_BYTES || index * PAGE >= self.size();
                    if !whole {
                        break WriteStop::Missing(index);
                    }
                    let before = wrote.bytes;
                    if let Some(stop) = self.write_new(offset, source, terms, &mut wrote) {
                        break stop;
                    }
                    debug_assert!(wrote.bytes >= before);
                }
            }
        };
        let pages = wrote.bytes.div_ceil(PAGE_BYTES) as u64;
        self.shared.rt.charge(Cost::PageLookup(pages));
        self.shared.rt.charge(Cost::PageCopy(pages));
        if wrote.dirtied > 0 {
            self.shared.rt.charge(Cost::PageDirty(wrote.dirtied));
            let (inode, pages) = (self.inode, wrote.dirtied);
            self.shared.rt.trace(Event::PagesDirtied { inode, page: at / PAGE, pages });
        }
        (wrote, stop)
    }

    /// Writes a piece of `n` bytes to a page that has a frame.
    fn overwrite(self: &Arc<Self>, piece: Piece<'_>, terms: Terms) -> Overwrite {
        let Piece { index, skip, n, .. } = piece;
        let shared = &*self.shared;
        let key = self.key(index);
        for _ in 0..SPINS {
            // A guess that misses is confirmed by `find`; one that hits is checked by the claim and
            // the key.
            let guess = shared.pool.index.guess(&shared.pool.frames, key);
            let Some(frame) = guess.or_else(|| shared.pool.index.find(&shared.pool.frames, key)) else {
                return Overwrite::Absent;
            };
            match shared.pool.frames.claim(frame) {
                Ok(mut page) => {
                    if page.key() != key {
                        shared.pool.settle(frame, page.end());
                        continue;
                    }
                    let mask = self.dirty_mask(skip..skip + n);
                    let dirty_before = page.seen.dirty();
                    if dirty_before & mask == mask {
                        piece.copy_to(&mut page);
                        self.grow_to(piece.end(), terms);
                        shared.pool.frames.state(frame).used(page.seen);
                        shared.pool.settle(frame, page.end());
                        return Overwrite::Done { dirtied: false, frames: 0 };
                    }
                    let clean = dirty_before == 0;
                    let room = match clean.then(|| self.room(1, terms)).transpose() {
                        Ok(room) => room,
                        Err(reason) => {
                            shared.pool.settle(frame, page.end());
                            return Overwrite::Stop(WriteStop::NoRoom(reason));
                        }
                    };
                    piece.copy_to(&mut page);
                    self.grow_to(piece.end(), terms);
                    shared.pool.frames.state(frame).used(page.seen);
                    let attached = self.make_dirty(index, frame, mask, room);
                    shared.pool.settle(frame, page.end());
                    if attached {
                        return Overwrite::Done { dirtied: clean, frames: 0 };
                    }
                }
                Err(seen) if seen.is_loading() => {
                    if shared.pool.frames.key(frame) == key {
                        return Overwrite::Stop(WriteStop::Loading(index));
                    }
                }
                Err(seen) if seen.is_writeback() || (seen.pins() > 0 && !seen.is_exclusive()) => {
                    if let Some(done) = self.copy_on_write(frame, piece, terms) {
                        return done;
                    }
                }
                Err(_) => std::hint::spin_loop(),
            }
        }
        Overwrite::Stop(WriteStop::Busy)
    }

    /// Marks a claimed, attached frame dirty, using up `room` if it was clean. Returns whether the
    /// frame was still attached.
    fn make_dirty(self: &Arc<Self>, index: u64, frame: FrameNo, mask: u8, room: Option<Room>) -> bool {
        let shared = &*self.shared;
        let clean = room.is_some();
        let mut pages = self.pages.lock();
        if shared.pool.frames.state(frame).snapshot().is_detached() {
            return false;
        }
        shared.pool.frames.state(frame).set_dirty(mask);
        if let Some(room) = room {
            self.mark_dirty(&mut pages, PageRange::one(index), room);
        }
        drop(pages);
        if clean {
            shared.pool.not_evictable([frame]);
        }
        true
    }

    /// Writes to a copy of a page that others are reading, perhaps the device, and replaces the
    /// page by the copy. `None` if the page changed meanwhile.
    fn copy_on_write(self: &Arc<Self>, old: FrameNo, piece: Piece<'_>, terms: Terms) -> Option<Overwrite> {
        let Piece { index, skip, n, .. } = piece;
        let shared = &*self.shared;
        let key = self.key(index);
        let pinned = match shared.pool.frames.pin(old, key) {
            Ok(pinned) => pinned,
            Err(failure) => {
                shared.pool.settle(old, failure.after);
                return None;
            }
        };
        let unpin = || {
            let after = shared.pool.frames.state(old).unpin();
            shared.pool.settle(old, after);
        };
        let mut taken = Vec::new();
        shared.take_frames(1, terms.purpose(), &mut taken);
        let Some(new) = taken.pop() else {
            unpin();
            return Some(Overwrite::Stop(WriteStop::NoFrames));
        };
        // Room is not needed if the page is already dirty, but only the lock can tell.
        let room = match self.room(1, terms) {
            Ok(room) => room,
            Err(reason) => {
                shared.pool.return_frames([new]);
                unpin();
                return Some(Overwrite::Stop(WriteStop::NoRoom(reason)));
            }
        };
        let mut fresh = shared.pool.frames.take_free(new, key);
        if n < PAGE_BYTES && !shared.pool.frames.are_phantoms() {
            fresh.copy_from_slice(&pinned);
        }
        piece.copy_to(&mut fresh);
        let mut after = Aftermath::default();
        let mut pages = self.pages.lock();
        if shared.pool.frames.state(old).snapshot().is_detached() {
            drop(pages);
            shared.pool.return_frames([fresh.give_back()]);
            drop(room);
            unpin();
            return None;
        }
        let seen = shared.pool.frames.state(old).snapshot();
        let was_dirty = seen.dirty() != 0;
        self.grow_to(piece.end(), terms);
        self.replace(&mut pages, old, &mut after);
        fresh.publish(seen.dirty() | self.dirty_mask(skip..skip + n), seen.uses());
        let mut cursor = self.cursor(&pages);
        self.attach(&mut pages, &mut cursor, new);
        drop(cursor);
        let unused = match was_dirty {
            true => Some(room),
            false => {
                self.mark_dirty(&mut pages, PageRange::one(index), room);
                None
            }
        };
        drop(pages);
        self.settle(after);
        drop(unused);
        shared.rt.charge(Cost::PageInsert(1));
        unpin();
        Some(Overwrite::Done { dirtied: !was_dirty, frames: 1 })
    }

    /// Writes to pages without a frame, up to one batch: whole pages, and pages past the end of the
    /// file. `Some` says why nothing was written.
    fn write_new(
        self: &Arc<Self>,
        offset: u64,
        source: Source<'_>,
        terms: Terms,
        wrote: &mut Wrote,
    ) -> Option<WriteStop> {
        let shared = &*self.shared;
        let most = terms.most - wrote.dirtied;
        let from = wrote.bytes;
        let left = source.len() - from;
        let (first, skip) = (offset / PAGE, (offset % PAGE) as usize);
        let size = self.size();
        let batch = BATCH_PAGES.min(most.try_into().unwrap_or(BATCH_PAGES));
        let mut count = (skip + left).div_ceil(PAGE_BYTES).min(batch);
        // A partly written last page must be past the end of the file as well.
        let last = first + count as u64 - 1;
        if skip + left < count * PAGE_BYTES && last * PAGE < size {
            count -= 1;
        }
        if count == 0 {
            // Another task has grown the file over this page since the size was read.
            return Some(WriteStop::Missing(first));
        }
        let mut frames = Vec::with_capacity(count);
        shared.take_frames(count, terms.purpose(), &mut frames);
        if frames.is_empty() {
            return Some(WriteStop::NoFrames);
        }
        let mut room = match self.room(frames.len() as u64, terms) {
            Ok(room) => room,
            Err(reason) => {
                shared.pool.return_frames(frames);
                return Some(WriteStop::NoRoom(reason));
            }
        };
        shared.pool.return_frames(frames.drain(room.pages() as usize..));
        // For each page: (offset in the page, offset in the source, length).
        let piece = |slot: usize| {
            let skip = if slot == 0 { skip } else { 0 };
            let start = if slot == 0 { 0 } else { slot * PAGE_BYTES - (offset % PAGE) as usize };
            (skip, start, (PAGE_BYTES - skip).min(left - start))
        };
        // Take all frames before filling the first: each take waits until earlier stores have
        // reached their cache lines.
        let take = |(slot, frame)| shared.pool.frames.take_free(frame, self.key(first + slot as u64));
        let mut fresh: Vec<_> = frames.into_iter().enumerate().map(take).collect();
        for (slot, page) in fresh.iter_mut().enumerate() {
            let (skip, start, n) = piece(slot);
            source.copy_to_new(from + start, page, skip, n);
        }
        let mut unused = Vec::new();
        let mut entered = 0;
        let mut admitted = PageRange { start: first, end: first + fresh.len() as u64 };
        {
            let mut pages = self.pages.lock();
            if !terms.in_exclusion {
                admitted = pages.fills.admitted(admitted);
            }
            let mut cursor = self.cursor(&pages);
            for (slot, page) in fresh.into_iter().enumerate() {
                let index = first + slot as u64;
                let (skip, _, n) = piece(slot);
                // Others may have written the page since the size was read, and it may have been
                // evicted again.
                let covers = n == PAGE_BYTES || index * PAGE >= self.size();
                if index >= admitted.end
                    || entered < slot
                    || !covers
                    || cursor.find(self.key(index)).is_some()
                {
                    unused.push(page.give_back());
                    continue;
                }
                self.grow_to(index * PAGE + (skip + n) as u64, terms);
                let frame = page.frame;
                page.publish(self.dirty_mask(skip..skip + n), 1);
                self.attach(&mut pages, &mut cursor, frame);
                entered += 1;
            }
            drop(cursor);
            if entered > 0 {
                let dirtied = PageRange::new(first, first + entered as u64);
                self.mark_dirty(&mut pages, dirtied, room.split(entered as u64));
            }
        }
        drop(room);
        shared.pool.return_frames(unused);
        shared.rt.charge(Cost::PageInsert(entered as u64));
        if entered > 0 {
            let (_, start, n) = piece(entered - 1);
            wrote.bytes += start + n;
            wrote.dirtied += entered as u64;
            wrote.frames += entered as u64;
        }
        admitted.is_empty().then_some(WriteStop::Excluded(first))
    }

    /// Reserves room for up to `n` more dirty pages.
    fn room(&self, n: u64, terms: Terms) -> Result<Room, NoRoom> {
        if self.is_stuck() && !terms.exempt && !terms.in_exclusion {
            return Err(NoRoom::Stuck);
        }
        if terms.exempt {
            return Ok(self.disk.ledger.room_exempt(n));
        }
        self.disk.ledger.room(n, self.shared.pool.dirty_limit())
    }
}

const _: () = assert!(BATCH_PAGES * PAGE_BYTES <= 1 << 20);

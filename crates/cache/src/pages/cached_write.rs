//! The part of writing that never waits.

use crate::dirty::charges::Room;
use crate::dirty::ledger::NoRoom;
use crate::file::CachedFile;
use crate::page::{FrameNo, PAGE, PAGE_BYTES};
use crate::pages::cached_read::SPINS;
use crate::pool::Purpose;
use crate::{Cost, Event};

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
    /// The allowance is used up: the writer must ask the controller.
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
    pub(super) fn purpose(&self) -> Purpose {
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
    pub(super) fn copy_to_new(&self, from: usize, page: &mut [u8], skip: usize, n: usize) {
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

impl CachedFile {
    /// Grows the file to at least `end` bytes, unless the write keeps the size.
    pub(super) fn grow_to(&self, end: u64, terms: Terms) {
        if !terms.keeps_size && end > self.size() {
            self.grow_size(end);
        }
    }

    /// Writes to cached and new pages from byte `at` on, without waiting, until `terms` stop it.
    ///
    /// The file grows before a page past its end can become visibly dirty, because write-back
    /// writes nothing past the end.
    pub(crate) fn write_cached(&self, at: u64, source: Source<'_>, terms: Terms) -> (Wrote, WriteStop) {
        let most = terms.most;
        debug_assert!(most > 0);
        let source = match self.core.pool.frames.are_phantoms() {
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
        self.core.rt.charge(Cost::PageLookup(pages));
        self.core.rt.charge(Cost::PageCopy(pages));
        if wrote.dirtied > 0 {
            self.core.rt.charge(Cost::PageDirty(wrote.dirtied));
            let (inode, pages) = (self.inode, wrote.dirtied);
            self.core.rt.trace(Event::PagesDirtied { inode, page: at / PAGE, pages });
        }
        (wrote, stop)
    }

    /// Writes a piece of `n` bytes to a page that has a frame.
    fn overwrite(&self, piece: Piece<'_>, terms: Terms) -> Overwrite {
        let Piece { index, skip, n, .. } = piece;
        let core = &*self.core;
        let key = self.key(index);
        for _ in 0..SPINS {
            // If the guess finds no frame, `find` confirms it; if it finds one, the claim and the
            // key are checked.
            let guess = core.pool.index.guess(&core.pool.frames, key);
            let Some(frame) = guess.or_else(|| core.pool.index.find(&core.pool.frames, key)) else {
                return Overwrite::Absent;
            };
            match core.pool.frames.claim(frame) {
                Ok(mut page) => {
                    if page.key() != key {
                        core.pool.settle(frame, page.end());
                        continue;
                    }
                    let mask = self.dirty_mask(skip..skip + n);
                    let dirty_before = page.seen.dirty();
                    if dirty_before & mask == mask {
                        piece.copy_to(&mut page);
                        self.grow_to(piece.end(), terms);
                        core.pool.frames.state(frame).used(page.seen);
                        core.pool.settle(frame, page.end());
                        return Overwrite::Done { dirtied: false, frames: 0 };
                    }
                    let clean = dirty_before == 0;
                    let room = match clean.then(|| self.room(1, terms)).transpose() {
                        Ok(room) => room,
                        Err(reason) => {
                            core.pool.settle(frame, page.end());
                            return Overwrite::Stop(WriteStop::NoRoom(reason));
                        }
                    };
                    piece.copy_to(&mut page);
                    self.grow_to(piece.end(), terms);
                    core.pool.frames.state(frame).used(page.seen);
                    let attached = self.lock_pages().make_dirty(index, frame, mask, room);
                    if attached && clean {
                        core.pool.not_evictable([frame]);
                    }
                    core.pool.settle(frame, page.end());
                    if attached {
                        return Overwrite::Done { dirtied: clean, frames: 0 };
                    }
                }
                Err(seen) if seen.is_loading() => {
                    if core.pool.frames.key(frame) == key {
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

    /// Writes to a copy of a page that others are reading, perhaps the device, and replaces the
    /// page by the copy. `None` if the page changed meanwhile.
    fn copy_on_write(&self, old: FrameNo, piece: Piece<'_>, terms: Terms) -> Option<Overwrite> {
        let Piece { index, skip, n, .. } = piece;
        let core = &*self.core;
        let key = self.key(index);
        let pinned = match core.pool.frames.pin(old, key) {
            Ok(pinned) => pinned,
            Err(failure) => {
                core.pool.settle(old, failure.after);
                return None;
            }
        };
        let unpin = || {
            let after = core.pool.frames.state(old).unpin();
            core.pool.settle(old, after);
        };
        let mut taken = Vec::new();
        core.take_frames(1, terms.purpose(), &mut taken);
        let Some(new) = taken.pop() else {
            unpin();
            return Some(Overwrite::Stop(WriteStop::NoFrames));
        };
        // Room is not needed if the page is already dirty, but only the lock can tell.
        let room = match self.room(1, terms) {
            Ok(room) => room,
            Err(reason) => {
                core.pool.return_frames([new]);
                unpin();
                return Some(Overwrite::Stop(WriteStop::NoRoom(reason)));
            }
        };
        let mut fresh = core.pool.frames.take_free(new, key);
        if n < PAGE_BYTES && !core.pool.frames.are_phantoms() {
            fresh.copy_from_slice(&pinned);
        }
        piece.copy_to(&mut fresh);
        let mut pages = self.lock_pages();
        if core.pool.frames.state(old).snapshot().is_detached() {
            drop(pages);
            core.pool.return_frames([fresh.give_back()]);
            drop(room);
            unpin();
            return None;
        }
        self.grow_to(piece.end(), terms);
        let was_clean = pages.replace(old, fresh, self.dirty_mask(skip..skip + n), room);
        drop(pages);
        core.rt.charge(Cost::PageInsert(1));
        unpin();
        Some(Overwrite::Done { dirtied: was_clean, frames: 1 })
    }

    /// Reserves room for up to `n` more dirty pages.
    pub(super) fn room(&self, n: u64, terms: Terms) -> Result<Room, NoRoom> {
        if self.is_unplaceable() && !terms.exempt && !terms.in_exclusion {
            return Err(NoRoom::Unplaceable);
        }
        if terms.exempt {
            return Ok(Room::take_exempt(&self.disk.ledger, n));
        }
        Room::take(&self.disk.ledger, n, self.core.pool.dirty_limit())
    }
}

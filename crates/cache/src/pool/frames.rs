//! The frames: their bytes, their states, and their links within mappings.
//!
//! `unsafe` in this file turns the promises of `frame_word.rs` into slices: a pin gives `&[u8]`, a
//! claim gives `&mut [u8]`.

use crate::page::{FrameNo, PAGE_BYTES, PageKey};
use crate::pool::arena::{Region, Table, Zeroable};
use crate::pool::frame_word::{After, FrameWord, Snapshot, Version};
use extant_block::{Buf, Segment};
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The fields of a frame that a reader needs, and no others: four heads per cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) key: AtomicU64,
    pub(crate) state: FrameWord,
    version: Version,
}

// SAFETY: atomic integers, for which zero is a valid value.
unsafe impl Zeroable for Head {}

/// A frame's neighbours in its file's ring. Protected by the file's lock.
#[derive(Debug)]
pub(crate) struct Siblings {
    pub(crate) next: AtomicU32,
    pub(crate) prev: AtomicU32,
}

// SAFETY: atomic integers, for which zero is a valid value.
unsafe impl Zeroable for Siblings {}

/// All frames of a process.
#[derive(Debug)]
pub(crate) struct Frames {
    bytes: Region,
    heads: Table<Head>,
    /// The next frame in the same bucket of the index, or on a free list.
    chains: Table<AtomicU32>,
    pub(crate) siblings: Table<Siblings>,
    count: u32,
    /// Frames without data: nothing is ever written to them, so they take no memory and read as
    /// zeros.
    phantom: bool,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    racy: crate::pool::racy::RacyCopy,
}

impl Frames {
    pub(crate) fn new(count: u32, phantom: bool) -> std::io::Result<Self> {
        let slots = count as usize + 1;
        Ok(Self {
            bytes: Region::zeroed(count as usize * PAGE_BYTES)?,
            heads: Table::zeroed(slots)?,
            chains: Table::zeroed(slots)?,
            siblings: Table::zeroed(slots)?,
            count,
            phantom,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            racy: crate::pool::racy::RacyCopy::detect(),
        })
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Whether the frames have no data.
    #[inline]
    pub(crate) fn are_phantoms(&self) -> bool {
        self.phantom
    }

    /// Bytes used to describe frames.
    pub(crate) fn overhead_bytes(&self) -> usize {
        self.heads.bytes() + self.chains.bytes() + self.siblings.bytes()
    }

    #[inline]
    pub(crate) fn head(&self, frame: FrameNo) -> &Head {
        &self.heads[frame.slot()]
    }

    #[inline]
    pub(crate) fn chain(&self, frame: FrameNo) -> &AtomicU32 {
        &self.chains[frame.slot()]
    }

    #[inline]
    pub(crate) fn state(&self, frame: FrameNo) -> &FrameWord {
        &self.head(frame).state
    }

    pub(crate) fn key(&self, frame: FrameNo) -> PageKey {
        PageKey(self.head(frame).key.load(Ordering::Relaxed))
    }

    /// All frames.
    pub(crate) fn all(&self) -> impl Iterator<Item = FrameNo> + use<> {
        (1..=self.count).filter_map(FrameNo::new)
    }

    fn ptr(&self, frame: FrameNo) -> std::ptr::NonNull<u8> {
        self.bytes.at((frame.slot() - 1) * PAGE_BYTES, PAGE_BYTES)
    }

    /// Copies part of page `key` out of a frame without taking a hold. `None` if the page cannot be
    /// read or the copy was disturbed; the contents of `to` are then undefined. `more` says that
    /// neighbouring pages will be read too.
    ///
    /// Taking a hold costs two locked instructions on a cache line that readers on other processors
    /// want too. Each waits for all earlier memory accesses, which takes as long as the copy itself
    /// if the page is not in the processor's cache.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline]
    pub(crate) fn read(
        &self,
        frame: FrameNo,
        key: PageKey,
        skip: usize,
        to: &mut [u8],
        more: bool,
    ) -> Option<Snapshot> {
        let head = self.head(frame);
        let copy = || {
            let from = self.run(frame, 1, skip, to.len());
            // SAFETY: the arena's memory stays mapped as long as `self`; the copy tolerates
            // concurrent changes.
            unsafe { self.racy.copy(from.as_ptr(), to, more) };
        };
        head.version.read(&head.state, || head.key.load(Ordering::Relaxed) == key.0, copy)
    }

    /// On other targets every reader takes a hold.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub(crate) fn read(
        &self,
        _frame: FrameNo,
        _key: PageKey,
        _skip: usize,
        _to: &mut [u8],
        _more: bool,
    ) -> Option<Snapshot> {
        None
    }

    /// Counts the caller in as a reader of a frame that holds page `key`.
    #[inline]
    pub(crate) fn pin(
        &self,
        frame: FrameNo,
        key: PageKey,
    ) -> Result<Pinned<'_>, crate::pool::frame_word::PinFailure> {
        let head = self.head(frame);
        let seen = head.state.pin(|| head.key.load(Ordering::Relaxed) == key.0)?;
        Ok(Pinned { frames: self, frame, seen })
    }

    /// Claims a frame for a change.
    #[inline]
    pub(crate) fn claim(&self, frame: FrameNo) -> Result<Claimed<'_>, Snapshot> {
        let head = self.head(frame);
        let seen = head.state.claim()?;
        head.version.announce_change();
        Ok(Claimed { frames: self, frame, seen })
    }

    /// Takes a frame from the free list for page `key`.
    pub(crate) fn take_free(&self, frame: FrameNo, key: PageKey) -> Fresh<'_> {
        let head = self.head(frame);
        head.state.take_free();
        head.version.announce_change();
        head.key.store(key.0, Ordering::Relaxed);
        Fresh { frames: self, frame }
    }

    /// The bytes of frames being loaded, or part of them, for the device to fill.
    ///
    /// # Safety
    /// The frames are loading until the segment is dropped, and no other segment overlaps.
    pub(crate) unsafe fn to_fill(
        &self,
        frame: FrameNo,
        count: usize,
        skip: usize,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Segment {
        if self.phantom {
            return Segment::from(Buf::zeroed(len));
        }
        let ptr = self.run(frame, count, skip, len);
        // SAFETY: the memory lives as long as `owner`, which holds these frames. As the caller
        // promises, no one else touches it while the frames are loading.
        unsafe { Segment::exclusive(ptr, len, owner) }
    }

    /// The bytes of frames being loaded, or part of them, for the calling thread to fill.
    ///
    /// # Safety
    /// The frames are loading, and no segment and no other slice overlaps, as long as this one
    /// lives.
    #[expect(clippy::mut_from_ref, reason = "a loading frame belongs to its loader")]
    pub(crate) unsafe fn to_fill_here(
        &self,
        frame: FrameNo,
        count: usize,
        skip: usize,
        len: usize,
    ) -> &mut [u8] {
        let ptr = self.run(frame, count, skip, len);
        // SAFETY: the memory lives as long as `self`, was zeroed at first, and is in bounds. As the
        // caller promises, no one else touches it while the frames are loading.
        unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), len) }
    }

    /// The bytes of frames under write-back, for the device to read.
    ///
    /// # Safety
    /// The frames are pinned until the segment is dropped.
    pub(crate) unsafe fn to_write(
        &self,
        frame: FrameNo,
        count: usize,
        skip: usize,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Segment {
        let ptr = self.run(frame, count, skip, len);
        // SAFETY: the memory lives as long as `owner`, which holds these frames. As the caller
        // promises, no one changes it while the frames are pinned.
        unsafe { Segment::borrowed(ptr, len, owner) }
    }

    fn run(&self, frame: FrameNo, count: usize, skip: usize, len: usize) -> std::ptr::NonNull<u8> {
        assert!(skip + len <= count * PAGE_BYTES, "within the run of frames");
        self.bytes.at((frame.slot() - 1) * PAGE_BYTES + skip, len)
    }

    /// Zeroes part of a frame being loaded.
    ///
    /// # Safety
    /// The frame is loading and the device no longer accesses it.
    pub(crate) unsafe fn zero_loading(&self, frame: FrameNo, skip: usize, len: usize) {
        if self.phantom {
            return;
        }
        let ptr = self.run(frame, 1, skip, len);
        // SAFETY: in bounds, and as the caller promises, no other thread touches a loading frame.
        unsafe { ptr.write_bytes(0, len) };
    }

    /// Fills part of a frame being loaded.
    ///
    /// # Safety
    /// As for [`Frames::zero_loading`].
    pub(crate) unsafe fn fill_loading(&self, frame: FrameNo, skip: usize, bytes: &[u8]) {
        if self.phantom {
            return;
        }
        let ptr = self.run(frame, 1, skip, bytes.len());
        // SAFETY: in bounds, and as the caller promises, no other thread touches a loading frame.
        // The arena hands out no reference to it meanwhile, so `bytes` does not overlap it.
        unsafe { ptr.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Returns the memory of `count` adjacent free frames to the system.
    ///
    /// # Safety
    /// The frames are free and on no list.
    pub(crate) unsafe fn forget(&self, first: FrameNo, count: usize) {
        // SAFETY: no one has a hold on a free frame; a reader without a hold finds the frame blank
        // afterwards.
        unsafe { self.bytes.forget((first.slot() - 1) * PAGE_BYTES, count * PAGE_BYTES) };
    }
}

/// A reader's hold on a frame. End it with [`Pinned::end`], which says whether to free the frame.
#[must_use]
#[derive(Debug)]
pub(crate) struct Pinned<'a> {
    frames: &'a Frames,
    pub(crate) frame: FrameNo,
    pub(crate) seen: Snapshot,
}

impl Pinned<'_> {
    #[inline]
    pub(crate) fn used(&self) {
        self.frames.state(self.frame).used(self.seen);
    }

    #[inline]
    pub(crate) fn end(self) -> After {
        self.frames.state(self.frame).unpin()
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the pin was counted while the frame was up to date. Until it is counted out, no
        // one may claim, load or free the frame, so these initialised bytes do not change while
        // `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.frames.ptr(self.frame).as_ptr(), PAGE_BYTES) }
    }
}

/// Exclusive access to a frame. End it with [`Claimed::end`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Claimed<'a> {
    frames: &'a Frames,
    pub(crate) frame: FrameNo,
    pub(crate) seen: Snapshot,
}

impl Claimed<'_> {
    pub(crate) fn key(&self) -> PageKey {
        self.frames.key(self.frame)
    }

    #[inline]
    pub(crate) fn end(self) -> After {
        self.frames.state(self.frame).release()
    }
}

impl Deref for Claimed<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`.
        unsafe { std::slice::from_raw_parts(self.frames.ptr(self.frame).as_ptr(), PAGE_BYTES) }
    }
}

impl DerefMut for Claimed<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the exclusive bit was set on a frame without pins and stays set until `end`.
        // Readers that count themselves in meanwhile see it and touch nothing.
        unsafe { std::slice::from_raw_parts_mut(self.frames.ptr(self.frame).as_ptr(), PAGE_BYTES) }
    }
}

/// A frame taken from the free list, not in any mapping yet. It must be published or given back,
/// not dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    frames: &'a Frames,
    pub(crate) frame: FrameNo,
}

impl Fresh<'_> {
    /// Makes the bytes valid; `dirty` has a bit for each dirty quarter.
    pub(crate) fn publish(self, dirty: u8, uses: u8) {
        self.frames.state(self.frame).publish(dirty, uses);
    }

    /// Hands the bytes to the device, to be loaded.
    pub(crate) fn start_loading(self, mark: bool, unread: bool) {
        self.frames.state(self.frame).start_loading(mark, unread);
    }

    /// Makes the frame free again. The caller puts it on the free list.
    pub(crate) fn give_back(self) -> FrameNo {
        self.frames.state(self.frame).give_back();
        self.frame
    }
}

impl Deref for Fresh<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`.
        unsafe { std::slice::from_raw_parts(self.frames.ptr(self.frame).as_ptr(), PAGE_BYTES) }
    }
}

impl DerefMut for Fresh<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: a frame taken from the free list is not up to date and is marked exclusive;
        // readers that count themselves in touch nothing.
        unsafe { std::slice::from_raw_parts_mut(self.frames.ptr(self.frame).as_ptr(), PAGE_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::FileId;

    fn key(index: u64) -> PageKey {
        PageKey::new(FileId(1), index)
    }

    fn frame(number: u32) -> FrameNo {
        FrameNo::new(number).expect("not 0")
    }

    /// Fills frame `number` with page `index`, all bytes `byte`.
    fn fill(frames: &Frames, number: u32, index: u64, byte: u8) {
        let mut fresh = frames.take_free(frame(number), key(index));
        fresh.fill(byte);
        fresh.publish(0, 1);
    }

    /// Reads as the cache does: without a hold if possible, otherwise with one.
    fn read(frames: &Frames, number: u32, index: u64) -> Option<[u8; 8]> {
        let mut to = [0; 8];
        if frames.read(frame(number), key(index), PAGE_BYTES - 8, &mut to, false).is_none() {
            let pinned = frames.pin(frame(number), key(index)).ok()?;
            to.copy_from_slice(&pinned[PAGE_BYTES - 8..]);
            assert_eq!(pinned.end(), After::InUse);
        }
        Some(to)
    }

    #[test]
    fn a_frame_is_filled_read_changed_and_written() {
        let frames = Arc::new(Frames::new(4, false).unwrap());
        fill(&frames, 4, 7, 3);
        assert_eq!((read(&frames, 4, 7), read(&frames, 4, 8)), (Some([3; 8]), None));
        let mut claimed = frames.claim(frame(4)).unwrap();
        claimed[PAGE_BYTES - 1] = 9;
        assert_eq!(claimed.end(), After::InUse);
        assert_eq!(read(&frames, 4, 7), Some([3, 3, 3, 3, 3, 3, 3, 9]));
        frames.state(frame(4)).set_dirty(0xf);
        assert_eq!(frames.state(frame(4)).start_writeback(), Some(0xf));
        // SAFETY: under write-back, and so pinned, until `end_writeback` below.
        let segment = unsafe { frames.to_write(frame(4), 1, 1, PAGE_BYTES - 1, frames.clone()) };
        assert_eq!(segment.as_slice()[PAGE_BYTES - 3..], [3, 9]);
        assert!(frames.claim(frame(4)).is_err());
        drop(segment);
        assert_eq!(frames.state(frame(4)).end_writeback(0).0, After::InUse);
    }

    #[test]
    fn a_device_fills_neighbouring_frames_in_one_go() {
        let frames = Arc::new(Frames::new(4, false).unwrap());
        for number in [2, 3] {
            frames.take_free(frame(number), key(u64::from(number))).start_loading(false, false);
        }
        // SAFETY: both are loading until `loaded` below, and there is no other segment.
        let mut segment = unsafe { frames.to_fill(frame(2), 2, 0, 2 * PAGE_BYTES - 4, frames.clone()) };
        segment.as_mut_slice().unwrap().fill(5);
        drop(segment);
        // SAFETY: still loading, and the device is done.
        unsafe { frames.zero_loading(frame(3), PAGE_BYTES - 4, 4) };
        assert_eq!(read(&frames, 3, 3), None);
        for number in [2, 3] {
            assert_eq!(frames.state(frame(number)).loaded(), After::InUse);
        }
        assert_eq!(
            (read(&frames, 2, 2), read(&frames, 3, 3)),
            (Some([5; 8]), Some([5, 5, 5, 5, 0, 0, 0, 0]))
        );
    }

    #[test]
    fn readers_see_pages_whole_while_a_frame_is_changed_and_recycled() {
        let frames = Frames::new(2, false).unwrap();
        fill(&frames, 1, 0, 0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for turn in 0..200 {
                        let seen = read(&frames, 1, turn % 4);
                        assert!(seen.is_none_or(|seen| seen == [seen[0]; 8] && u64::from(seen[0] % 4) == turn % 4));
                    }
                });
            }
            for turn in 1..100_u8 {
                // Sometimes the frame gets another page, otherwise the same page gets new contents.
                let mut claimed = loop {
                    match frames.claim(frame(1)) {
                        Ok(claimed) => break claimed,
                        Err(_) => std::thread::yield_now(),
                    }
                };
                let index = claimed.key().index();
                if turn % 3 > 0 {
                    let byte = claimed[0].wrapping_add(4);
                    claimed.fill(byte);
                    assert_eq!(claimed.end(), After::InUse);
                    continue;
                }
                assert_eq!(frames.state(frame(1)).detach(), After::InUse);
                // A reader that counts itself in and out just then may be the one that frees the
                // frame.
                let _ = claimed.end();
                while frames.state(frame(1)).snapshot() != Snapshot::default() {
                    std::thread::yield_now();
                }
                let index = (index + 1) % 4;
                fill(&frames, 1, index, index as u8);
            }
        });
    }
}

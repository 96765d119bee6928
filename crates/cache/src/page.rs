//! Names of pages and frames: file numbers, page keys, frame numbers.

use crate::{CacheError, Result};
use std::num::NonZeroU32;

/// Size of a page, and of a frame, in bytes.
pub const PAGE_BYTES: usize = 4096;
pub(crate) const PAGE: u64 = PAGE_BYTES as u64;
pub(crate) const PAGE_SHIFT: u32 = PAGE_BYTES.trailing_zeros();

/// Bits of a [`PageKey`] that hold the page index: files and devices of up to 4 PiB.
const INDEX_BITS: u32 = 40;

/// Largest size of a file, in bytes.
pub const MAX_FILE_BYTES: u64 = (1 << INDEX_BITS) * PAGE;

pub(crate) fn check_size(bytes: u64) -> Result<()> {
    if bytes > MAX_FILE_BYTES { Err(CacheError::TooLarge { bytes }) } else { Ok(()) }
}

/// A mapping's number within the process, below 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(pub(crate) u32);

impl FileId {
    pub(crate) const MAX: u32 = (1 << (64 - INDEX_BITS)) - 1;
}

/// A page of a file: the file, and the page's index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageKey(pub(crate) u64);

impl PageKey {
    pub(crate) fn new(file: FileId, index: u64) -> Self {
        debug_assert!(index < 1 << INDEX_BITS);
        Self(u64::from(file.0) << INDEX_BITS | index)
    }

    pub(crate) fn file(self) -> FileId {
        FileId((self.0 >> INDEX_BITS) as u32)
    }

    pub(crate) fn index(self) -> u64 {
        self.0 & ((1 << INDEX_BITS) - 1)
    }
}

/// A frame's index in the arena, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNo(pub(crate) NonZeroU32);

impl FrameNo {
    /// Frame `number`; `None` if it is 0.
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }

    pub(crate) fn slot(self) -> usize {
        self.0.get() as usize
    }
}

/// Spreads bits (the finaliser of splitmix64, Steele et al. 2014).
#[inline]
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Splits a run of frames wherever two of them are not adjacent in the arena. Yields (first frame,
/// frame count, bytes to skip in the first, length in bytes).
pub(crate) fn neighbours(
    frames: &[FrameNo],
    skip: u64,
    len: u64,
) -> impl Iterator<Item = (FrameNo, usize, usize, usize)> {
    let (mut at, end) = (skip, skip + len);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let first = (at / PAGE) as usize;
        let last = ((end - 1) / PAGE) as usize;
        let mut count = 1;
        while first + count <= last && frames[first + count].get() == frames[first].get() + count as u32 {
            count += 1;
        }
        let skip = (at % PAGE) as usize;
        let bytes = (end - at).min((count * PAGE_BYTES - skip) as u64);
        at += bytes;
        Some((frames[first], count, skip, bytes as usize))
    })
}

//! What lies under a mapping: where a file's bytes are on its device.

use crate::{BackingError, MAX_FILE_BYTES};
use extant_block::{IoError, Sector};
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

/// A backing's answer: often there at once, sometimes after I/O of its own.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackingError>> + Send + 'a>>;

/// Where a run of a file's bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the device, from this sector on.
    Device(Sector),
    /// Nowhere: it reads as zeroes.
    Hole,
}

/// A run of a file's bytes, for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where its first byte is.
    pub place: Place,
    /// Length in bytes; more than zero.
    pub bytes: u64,
}

/// A run of a file's bytes with a place to be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteExtent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes; more than zero.
    pub bytes: u64,
    /// Where its first byte goes.
    pub sector: Sector,
    /// Bytes of the device before the run that must become zeroes with it: the start of a new block.
    pub zero_before: u32,
    /// Likewise after the run.
    pub zero_after: u32,
    /// The backing's own note, for [`Backing::finish_write`].
    pub note: u64,
}

/// Maps a file's bytes to its device's sectors. A file system implements it; the cache calls it.
///
/// Offsets are in bytes. Ranges that the cache asks for start and end on a multiple of the smaller of page and block,
/// but may end past the file's size. Answers may be shorter than what was asked for, never empty, and are whole blocks of
/// the device. Between the file's size and the end of its last block the device holds zeroes, as every writer of ext
/// leaves it; the cache keeps it so.
pub trait Backing: Send + Sync + fmt::Debug + 'static {
    /// The unit in which the file is mapped: a power of two from 1,024 on.
    fn block_bytes(&self) -> u32;

    /// The file cannot grow past this; where that lies inside a block, the block is written up to here.
    fn end_bytes(&self) -> u64 {
        MAX_FILE_BYTES
    }

    /// Where `range.start` is, and for how many bytes that holds.
    fn map_read(&self, range: Range<u64>) -> Answer<'_, Extent>;

    /// Gives the start of `range` a place to be written to; a file system allocates blocks now if there are none, in
    /// memory only. Every answer is followed by [`Backing::finish_write`]. A block that was given a place anew is not
    /// answered again before that; the second caller waits.
    fn prepare_write(&self, range: Range<u64>) -> Answer<'_, WriteExtent>;

    /// The device has written the extent, or has failed to: now the file system logs what points to it. What is read
    /// after this is read from the new place.
    fn finish_write(&self, extent: WriteExtent, result: Result<(), IoError>) -> Answer<'_, ()>;
}

/// A file that is one run on its device: the simplest backing there is. It knows no holes: what a shorter size cut off
/// is read again, as it was last written back, if the file grows past it.
#[derive(Clone, Debug)]
pub struct FlatFile {
    start: Sector,
    bytes: u64,
}

impl FlatFile {
    /// A file of at most `bytes` bytes, from `start` on; a whole number of the device's blocks.
    pub fn new(start: Sector, bytes: u64) -> Self {
        Self { start, bytes }
    }

    fn at(&self, range: &Range<u64>) -> Result<(Sector, u64), BackingError> {
        let bytes = self.bytes.min(range.end).saturating_sub(range.start);
        match bytes {
            0 => Err(std::sync::Arc::new(BeyondFlatFile { offset: range.start, bytes: self.bytes })),
            _ => Ok((Sector(self.start.0 + range.start / Sector::BYTES), bytes)),
        }
    }
}

/// A write past the end of a [`FlatFile`]'s run.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("offset {offset} is beyond the {bytes} bytes that the file can grow to")]
pub struct BeyondFlatFile {
    /// Where the write was to go.
    pub offset: u64,
    /// The run's length.
    pub bytes: u64,
}

impl Backing for FlatFile {
    fn block_bytes(&self) -> u32 {
        4096
    }

    fn end_bytes(&self) -> u64 {
        self.bytes
    }

    fn map_read(&self, range: Range<u64>) -> Answer<'_, Extent> {
        let extent = match self.at(&range) {
            Ok((sector, bytes)) => Extent { place: Place::Device(sector), bytes },
            Err(_) => Extent { place: Place::Hole, bytes: range.end - range.start },
        };
        Box::pin(std::future::ready(Ok(extent)))
    }

    fn prepare_write(&self, range: Range<u64>) -> Answer<'_, WriteExtent> {
        let extent = self.at(&range).map(|(sector, bytes)| WriteExtent {
            offset: range.start,
            bytes,
            sector,
            zero_before: 0,
            zero_after: 0,
            note: 0,
        });
        Box::pin(std::future::ready(extent))
    }

    fn finish_write(&self, _extent: WriteExtent, _result: Result<(), IoError>) -> Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

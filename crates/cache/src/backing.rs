//! The backing of a mapping: where a file's bytes are on its device.
//!
//! A [`Backing`] is asked three things. *Reading*: where a range is ([`Backing::map_read`]). *Writing back*: where a whole
//! run of dirty pages is to go ([`Backing::prepare_write`]), asked once for the run, before the first of its bios; and, once
//! every bio of the run has ended, to log what points to it ([`Backing::finish_write`]), told once. A file system that
//! allocates at write-back and logs at completion ("data before metadata") needs nothing else.

use crate::{BackingError, BackingErrorKind, ByteRange, MAX_FILE_BYTES};
use extant_block::{IoError, Sector};
use smallvec::{SmallVec, smallvec};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A backing's answer: there at once, which allocates nothing, or after I/O of its own.
pub enum Answer<'a, T> {
    /// There at once.
    Ready(Result<T, BackingError>),
    /// Later.
    Pending(Pin<Box<dyn Future<Output = Result<T, BackingError>> + Send + 'a>>),
}

impl<'a, T> Answer<'a, T> {
    /// The answer is `value`.
    pub fn ok(value: T) -> Self {
        Self::Ready(Ok(value))
    }

    /// There is none.
    pub fn err(error: impl Into<BackingError>) -> Self {
        Self::Ready(Err(error.into()))
    }

    /// The answer that `future` will have.
    pub fn later(future: impl Future<Output = Result<T, BackingError>> + Send + 'a) -> Self {
        Self::Pending(Box::pin(future))
    }
}

impl<T> fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(Ok(_)) => f.write_str("Answer(ready)"),
            Self::Ready(Err(error)) => write!(f, "Answer({error:?})"),
            Self::Pending(_) => f.write_str("Answer(pending)"),
        }
    }
}

impl<'a, T: Unpin> IntoFuture for Answer<'a, T> {
    type Output = Result<T, BackingError>;
    type IntoFuture = Answering<'a, T>;
    fn into_future(self) -> Answering<'a, T> {
        Answering(match self {
            Self::Ready(answer) => Inner::Ready(Some(answer)),
            Self::Pending(future) => Inner::Pending(future),
        })
    }
}

/// An [`Answer`] that is being awaited.
pub struct Answering<'a, T>(Inner<'a, T>);

enum Inner<'a, T> {
    Ready(Option<Result<T, BackingError>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, BackingError>> + Send + 'a>>),
}

impl<T: Unpin> Future for Answering<'_, T> {
    type Output = Result<T, BackingError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(answer) => Poll::Ready(answer.take().expect("not polled again after its end")),
            Inner::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Answering<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}

/// Where a run of a file's bytes is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// On the device, from this sector on.
    Device(Sector),
    /// Nowhere: it reads as zeroes.
    Hole,
    /// In the backing's own structures (a small file inside its inode): these bytes, then zeroes.
    Inline(Arc<[u8]>),
}

/// A run of a file's bytes with the place that it is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadExtent {
    /// Where its first byte is.
    pub from: ReadFrom,
    /// Length in bytes; more than zero.
    pub bytes: u64,
}

/// Dirty bytes of a file that are to be written back together.
#[derive(Clone, Copy, Debug)]
pub struct DirtyRun<'a> {
    /// The dirty ranges, in ascending order: one range, or several where blocks are smaller than pages and some of them are
    /// clean. Each begins and ends on a multiple of the smaller of page and block; the last may end past the file's size,
    /// but not past the end of the block in which the file ends.
    pub pieces: &'a [ByteRange],
    /// The file's size when the run was taken, before any of it: no byte below this size is newer than the run unless its
    /// page is dirty again, so that a recorded size may grow up to here once the run is on the device.
    pub size_bytes: u64,
    /// The number of the run among the file's: the same each time that the rest of a run is asked about, and no other's.
    pub number: u64,
}

impl DirtyRun<'_> {
    /// From the first dirty byte to the last.
    pub fn range(&self) -> ByteRange {
        match (self.pieces.first(), self.pieces.last()) {
            (Some(first), Some(last)) => ByteRange::new(first.start, last.end),
            _ => ByteRange::default(),
        }
    }
}

/// Where a run of dirty bytes is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteTo {
    /// To the device, from this sector on.
    Device(Sector),
    /// To the backing itself, which takes the bytes in [`Backing::finish_write`]: inline data, journalled data.
    Backing,
}

/// A run of a file's bytes with a place to be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteExtent {
    /// Which bytes; not empty.
    pub range: ByteRange,
    /// Where the first of them goes.
    pub to: WriteTo,
    /// Bytes of the device before the range that must become zeroes with it: the start of a new block.
    pub zero_before: u32,
    /// Likewise after the range.
    pub zero_after: u32,
    /// The backing's own note, for [`Backing::finish_write`].
    pub note: u64,
}

impl WriteExtent {
    /// `range` goes to the device, from `sector` on.
    pub fn new(range: ByteRange, sector: Sector) -> Self {
        Self { range, to: WriteTo::Device(sector), zero_before: 0, zero_after: 0, note: 0 }
    }
}

/// The answer to [`Backing::prepare_write`].
#[derive(Clone, Debug, Default)]
pub struct Placed {
    /// The run's pieces from the first on, in order and without a gap within a piece; at least one extent. Where it ends
    /// before the run does, the cache submits what is placed and asks again for the rest.
    pub extents: SmallVec<[WriteExtent; 2]>,
    /// Whether [`Backing::finish_write`] is to be called: the run changes the map, or the recorded size. A plain overwrite
    /// needs nothing at its end: its pages become clean where its last bio is reaped.
    pub changes_map: bool,
}

impl Placed {
    /// An overwrite of one extent, of which nothing more needs to be known.
    pub fn overwrite(extent: WriteExtent) -> Self {
        Self { extents: smallvec![extent], changes_map: false }
    }
}

/// An extent of a run that has ended.
#[derive(Clone, Debug)]
pub struct WrittenExtent {
    /// As it was placed, cut to the run.
    pub extent: WriteExtent,
    /// How the device ended it; `Ok` for [`WriteTo::Backing`].
    pub result: Result<(), IoError>,
    /// The bytes, for [`WriteTo::Backing`].
    pub bytes: Option<Box<[u8]>>,
}

/// A run that has ended: what was placed, and how each part went. Parts that could not be placed are not in it.
#[derive(Clone, Debug)]
pub struct WrittenRun {
    /// The extents, in order.
    pub extents: SmallVec<[WrittenExtent; 2]>,
    /// As in [`DirtyRun::size_bytes`].
    pub size_bytes: u64,
}

/// Maps a file's bytes to its device's sectors. A file system implements it; the cache calls it.
///
/// Offsets are in bytes. Ranges that the cache asks for start and end on a multiple of the smaller of page and block,
/// but may end past the file's size. Answers may be shorter than the request, never empty, and are whole blocks of
/// the device. Between the file's size and the end of its last block the device holds zeroes, as every writer of ext
/// leaves it; the cache keeps it so.
///
/// No method is called with a lock of the cache held. A panic in one counts as a [`BackingErrorKind::Panicked`] failure of
/// this file.
pub trait Backing: Send + Sync + fmt::Debug + 'static {
    /// The unit in which the file is mapped: a power of two from 1,024 on.
    fn block_bytes(&self) -> u32;

    /// The file cannot grow past this; where that lies inside a block, the block is written up to here.
    fn end_bytes(&self) -> u64 {
        MAX_FILE_BYTES
    }

    /// Where `range.start` is, and for how many bytes that holds.
    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent>;

    /// Gives a run of dirty bytes places to be written to; a file system allocates blocks now if there are none, in
    /// memory only. Where the answer says that the map changes, [`Backing::finish_write`] follows, once for the whole run
    /// and after the answers to all of it: an answer must not wait for that of the same run ([`DirtyRun::number`]).
    /// A block that was given a place anew is not answered again before that; a second caller waits.
    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed>;

    /// Every bio of the run has ended: now the file system logs what points to it. Reads after this are from
    /// the new places, and only after this the run's pages are clean. Called by the device's one completion task, or by
    /// a caller that waits for this file's write-back, on its own thread; never by a reader that reaps a bio. Runs of a
    /// file may be finished at the same time and in any order.
    ///
    /// Writing to cached files from here needs [`crate::OpenFile::exempt`]: the run's own room is returned after it.
    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()>;

    /// Dirty bytes were given up and will not be written back: truncated, punched, or lost to an error. Reservations
    /// for them is free. Ranges are whole pages and may end past the file's size.
    fn abandoned(&self, range: ByteRange) {
        let _ = range;
    }
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

    fn at(&self, range: ByteRange) -> Result<WriteExtent, BackingError> {
        let there = range.intersect(ByteRange::new(0, self.bytes));
        if there.is_empty() {
            let beyond = BeyondFlatFile { offset: range.start, bytes: self.bytes };
            return Err(BackingError::new(BackingErrorKind::TooLarge, beyond));
        }
        Ok(WriteExtent::new(there, Sector(self.start.0 + range.start / Sector::BYTES)))
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

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        let there = range.intersect(ByteRange::new(0, self.bytes));
        Answer::ok(match there.is_empty() {
            true => ReadExtent { from: ReadFrom::Hole, bytes: range.len() },
            false => ReadExtent {
                from: ReadFrom::Device(Sector(self.start.0 + range.start / Sector::BYTES)),
                bytes: there.len(),
            },
        })
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        let extents = run.pieces.iter().map(|&piece| self.at(piece)).collect::<Result<_, _>>();
        Answer::Ready(extents.map(|extents| Placed { extents, changes_map: false }))
    }

    fn finish_write<'a>(&'a self, _run: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::ok(())
    }
}

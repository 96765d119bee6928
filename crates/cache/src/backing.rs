//! The backing of a mapping: where a file's bytes are on its device.
//!
//! A [`Backing`] answers three calls. *Reading*: where is this range ([`Backing::map_read`])?
//! *Writing back*: where should this run of dirty pages go ([`Backing::prepare_write`])? The cache
//! asks once for the whole run, before the run's first bio. When every bio of the run has
//! completed, the cache calls [`Backing::finish_write`], once, to log the metadata that points to
//! the data. A file system that allocates at write-back and logs at completion ("data before
//! metadata") needs nothing else.

use crate::{BackingError, ByteRange, MAX_FILE_BYTES};
use extant_block::{IoError, Sector};
use smallvec::{SmallVec, smallvec};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A backing's answer: ready at once, without an allocation, or pending on I/O of its own.
pub enum Answer<'a, T> {
    /// Ready at once.
    Ready(Result<T, BackingError>),
    /// Later.
    Pending(Pin<Box<dyn Future<Output = Result<T, BackingError>> + Send + 'a>>),
}

impl<'a, T> Answer<'a, T> {
    /// Ready with `value`.
    pub fn ok(value: T) -> Self {
        Self::Ready(Ok(value))
    }

    /// Ready with an error.
    pub fn err(error: impl Into<BackingError>) -> Self {
        Self::Ready(Err(error.into()))
    }

    /// Pending until `future` completes.
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
            Self::Ready(answer) => AnswerState::Ready(Some(answer)),
            Self::Pending(future) => AnswerState::Pending(future),
        })
    }
}

/// An [`Answer`] being awaited.
pub struct Answering<'a, T>(AnswerState<'a, T>);

enum AnswerState<'a, T> {
    Ready(Option<Result<T, BackingError>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, BackingError>> + Send + 'a>>),
}

impl<T: Unpin> Future for Answering<'_, T> {
    type Output = Result<T, BackingError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            AnswerState::Ready(answer) => Poll::Ready(answer.take().expect("not polled again after its end")),
            AnswerState::Pending(future) => future.as_mut().poll(cx),
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
    /// On the device, starting at this sector.
    Device(Sector),
    /// Nowhere: it reads as zeros.
    Hole,
    /// In the backing's own structures (a small file inside its inode): these bytes, then zeros.
    Inline(Arc<[u8]>),
}

/// A run of a file's bytes, and where to read it from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadExtent {
    /// Where the first byte is.
    pub from: ReadFrom,
    /// Length in bytes; more than zero.
    pub bytes: u64,
}

/// Dirty bytes of a file to be written back together.
#[derive(Clone, Copy, Debug)]
pub struct DirtyRun<'a> {
    /// The dirty ranges, in ascending order.
    ///
    /// Usually one; several if blocks are smaller than pages and some blocks are clean. Each begins
    /// and ends on a multiple of the smaller of page and block. The last may end past the file's
    /// size, but not past the end of the block the file ends in.
    pub pieces: &'a [ByteRange],
    /// The file's size, read before any page of the run was taken.
    ///
    /// Any byte below it that is newer than the run is on a page that is dirty again. So a recorded
    /// size may grow up to here once the run is on the device.
    pub size_bytes: u64,
    /// The run's number within the file. It stays the same when the cache asks again about the rest
    /// of a run, and no other run has it.
    pub number: u64,
}

impl DirtyRun<'_> {
    /// The range from the first dirty byte to the last.
    pub fn range(&self) -> ByteRange {
        match (self.pieces.first(), self.pieces.last()) {
            (Some(first), Some(last)) => ByteRange::new(first.start, last.end),
            _ => ByteRange::default(),
        }
    }
}

/// Where to write a run of dirty bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteTo {
    /// To the device, starting at this sector.
    Device(Sector),
    /// To the backing itself, which gets the bytes in [`Backing::finish_write`]: inline or
    /// journalled data.
    Backing,
}

/// A run of a file's bytes, and where to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteExtent {
    /// The bytes; not empty.
    pub range: ByteRange,
    /// Where the first byte goes.
    pub to: WriteTo,
    /// Bytes on the device before the range to zero in the same write: the start of a new block.
    pub zero_before: u32,
    /// Bytes to zero after the range.
    pub zero_after: u32,
    /// The backing's own note, handed back in [`Backing::finish_write`].
    pub note: u64,
}

impl WriteExtent {
    /// Writes `range` to the device, starting at `sector`.
    pub fn new(range: ByteRange, sector: Sector) -> Self {
        Self { range, to: WriteTo::Device(sector), zero_before: 0, zero_after: 0, note: 0 }
    }
}

/// The answer to [`Backing::prepare_write`].
#[derive(Clone, Debug, Default)]
pub struct Placed {
    /// Extents for the run's pieces, starting with the first: in order, without gaps within a
    /// piece, and at least one. If they end before the run does, the cache submits what is placed
    /// and asks again for the rest.
    pub extents: SmallVec<[WriteExtent; 2]>,
    /// Whether to call [`Backing::finish_write`], because the run changes the map or the recorded
    /// size. A plain overwrite needs no call: its pages become clean when its last bio is reaped.
    pub changes_map: bool,
}

impl Placed {
    /// An overwrite of one extent, with nothing to log at its end.
    pub fn overwrite(extent: WriteExtent) -> Self {
        Self { extents: smallvec![extent], changes_map: false }
    }
}

/// An extent of a run that has completed.
#[derive(Clone, Debug)]
pub struct WrittenExtent {
    /// The extent as it was placed, cut to the run.
    pub extent: WriteExtent,
    /// The device's result; `Ok` for [`WriteTo::Backing`].
    pub result: Result<(), IoError>,
    /// The data, for [`WriteTo::Backing`].
    pub bytes: Option<Box<[u8]>>,
}

/// A run that has completed: what was placed, and the result of each part. Parts that could not be
/// placed are not included.
#[derive(Clone, Debug)]
pub struct WrittenRun {
    /// The extents, in order.
    pub extents: SmallVec<[WrittenExtent; 2]>,
    /// As in [`DirtyRun::size_bytes`].
    pub size_bytes: u64,
}

/// Maps a file's bytes to its device's sectors. Implemented by a file system, called by the cache.
///
/// Offsets are in bytes. Ranges the cache asks for start and end on a multiple of the smaller of
/// page and block, but may end past the file's size. Answers may be shorter than the request, are
/// never empty, and cover whole blocks of the device. Between the file's size and the end of its
/// last block the device holds zeros, as every writer of ext leaves it; the cache keeps it so.
///
/// The cache holds none of its locks while it calls a method. A panic in a method counts as a
/// [`BackingErrorKind::Panicked`](crate::BackingErrorKind::Panicked) failure of this file.
pub trait Backing: Send + Sync + fmt::Debug + 'static {
    /// The unit in which the file is mapped, in bytes: a power of two, at least 1,024.
    fn block_bytes(&self) -> u32;

    /// The file cannot grow past this. If it lies inside a block, the block is written up to here.
    fn end_bytes(&self) -> u64 {
        MAX_FILE_BYTES
    }

    /// Where `range.start` is, and for how many bytes this answer holds.
    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent>;

    /// Assigns places to a run of dirty bytes. If it has no blocks yet, a file system allocates
    /// them now, in memory only.
    ///
    /// If the answer says that the map changes, [`Backing::finish_write`] follows: once for the
    /// whole run, after the answers for all of it. So an answer must not wait for the
    /// `finish_write` of its own run ([`DirtyRun::number`]). Once a block has been newly placed,
    /// the backing does not answer for it again before that call; a second caller waits.
    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed>;

    /// Every bio of the run has completed; the file system now logs what points to the data.
    ///
    /// From here on reads use the new places, and only after this call do the run's pages become
    /// clean. It is called by the device's single completion task, or by a task that waits for this
    /// file's write-back, on that task's thread. It is never called by a reader that reaps a bio.
    /// Runs of a file may be finished concurrently and in any order.
    ///
    /// Writing to cached files from here needs [`crate::CachedOpenFile::exempt`]: the run's own
    /// room is returned only after this call.
    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()>;

    /// Dirty bytes were dropped and will not be written back: truncated, punched, or lost to an
    /// error. Reservations for them can be released. Ranges are whole pages and may end past the
    /// file's size.
    fn abandoned(&self, range: ByteRange) {
        let _ = range;
    }
}

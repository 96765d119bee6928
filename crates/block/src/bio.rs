//! The unit of block I/O.

use crate::op::{Op, Sector};
use crate::{Buf, IoError, IoErrorKind};
use bitflags::bitflags;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

bitflags! {
    /// Hints and requirements of a bio; named as in Linux's `req_flag_bits`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BioFlags: u8 {
        /// A task waits for it.
        const SYNC = 1 << 0;
        /// File-system metadata.
        const META = 1 << 1;
        /// Flush the volatile cache before this write. If the write is empty, it is just a flush.
        const PREFLUSH = 1 << 2;
        /// This write is durable when it completes.
        const FUA = 1 << 3;
        /// Read-ahead: may be dropped under pressure.
        const RAHEAD = 1 << 4;
    }
}

/// The stream a bio is charged to: a task or a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// A contiguous piece of memory used by a bio.
pub struct Segment {
    ptr: *mut u8,
    len: usize,
    owner: Owner,
}

enum Owner {
    Buf(Buf),
    Exclusive { _keep: Arc<dyn Any + Send + Sync> },
    Shared { _keep: Arc<dyn Any + Send + Sync> },
    Zeroes { _keep: Arc<dyn Any + Send + Sync> },
}

/// The memory that every [`Segment::zeroes`] refers to.
static ZEROES: LazyLock<Arc<Buf>> = LazyLock::new(|| Arc::new(Buf::zeroed(Segment::MAX_ZEROES)));

// SAFETY: the owner is Send and keeps the memory alive, and `ptr` is only dereferenced through
// methods that borrow `self`.
unsafe impl Send for Segment {}
// SAFETY: `&Segment` only reads the memory.
unsafe impl Sync for Segment {}

impl Segment {
    /// Part of a buffer that others may read concurrently; for writes only.
    pub fn shared(buf: Arc<Buf>, start: usize, len: usize) -> Self {
        assert!(start.checked_add(len).is_some_and(|end| end <= buf.len()), "segment within its buffer");
        // SAFETY: in bounds by the assertion.
        let ptr = unsafe { buf.as_ptr().add(start) };
        Self { ptr, len, owner: Owner::Shared { _keep: buf } }
    }

    /// The longest [`Segment::zeroes`], in bytes: 1 MiB.
    pub const MAX_ZEROES: usize = 1 << 20;

    /// At most [`Segment::MAX_ZEROES`] zero bytes that take no memory of their own; for writes
    /// only. A device may check [`Segment::is_zeroes`] instead of reading them.
    pub fn zeroes(len: usize) -> Self {
        let zeroes = ZEROES.clone();
        assert!(len <= zeroes.len(), "at most {} zeroes in one segment", zeroes.len());
        Self { ptr: zeroes.as_ptr(), len, owner: Owner::Zeroes { _keep: zeroes } }
    }

    /// Whether it was created as [zeroes](Segment::zeroes).
    pub fn is_zeroes(&self) -> bool {
        matches!(self.owner, Owner::Zeroes { .. })
    }

    /// Memory of another owner, such as page frames or a caller's buffer. Only this segment may
    /// touch it until it is dropped.
    ///
    /// # Safety
    /// `ptr..ptr + len` is initialised and stays valid while `owner` lives, and nothing else reads
    /// or writes it until the segment is dropped.
    pub unsafe fn exclusive(ptr: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr: ptr.as_ptr(), len, owner: Owner::Exclusive { _keep: owner } }
    }

    /// Memory of another owner that does not change until this segment is dropped; for writes only.
    ///
    /// # Safety
    /// `ptr..ptr + len` is initialised and stays valid while `owner` lives, and nothing writes it
    /// until the segment is dropped.
    pub unsafe fn borrowed(ptr: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr: ptr.as_ptr(), len, owner: Owner::Shared { _keep: owner } }
    }

    /// Part of `parent`, which `owner` contains.
    ///
    /// # Safety
    /// Until this segment is dropped, `owner` lives, `parent`'s memory is not accessed through
    /// `parent`, and no other piece overlaps this one.
    pub(crate) unsafe fn piece(
        parent: &Segment,
        start: usize,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(start.checked_add(len).is_some_and(|end| end <= parent.len), "piece within its segment");
        // SAFETY: in bounds by the assertion.
        let ptr = unsafe { parent.ptr.add(start) };
        let owner = match &parent.owner {
            Owner::Buf(_) | Owner::Exclusive { .. } => Owner::Exclusive { _keep: owner },
            Owner::Shared { .. } => Owner::Shared { _keep: owner },
            Owner::Zeroes { .. } => Owner::Zeroes { _keep: owner },
        };
        Self { ptr, len, owner }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, for writing to a device.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `owner` keeps `ptr..ptr+len` alive and initialised.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// The bytes, for filling from a device; `None` if the memory is shared.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the memory belongs to this segment alone and may be changed, and the segment is
        // borrowed exclusively.
        self.is_writable().then(|| unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) })
    }

    /// Whether a device may fill this segment.
    pub fn is_writable(&self) -> bool {
        match &self.owner {
            Owner::Buf(buf) => buf.is_writable(),
            Owner::Exclusive { .. } => true,
            Owner::Shared { .. } | Owner::Zeroes { .. } => false,
        }
    }

    /// The owned buffer, if this segment owns one.
    pub fn into_buf(self) -> Option<Buf> {
        match self.owner {
            Owner::Buf(buf) => Some(buf),
            Owner::Exclusive { .. } | Owner::Shared { .. } | Owner::Zeroes { .. } => None,
        }
    }
}

impl From<Buf> for Segment {
    fn from(buf: Buf) -> Self {
        Self { ptr: buf.as_ptr(), len: buf.len(), owner: Owner::Buf(buf) }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.len)
    }
}

/// Called once, with the bio and its result.
pub type Completion = Box<dyn FnOnce(Bio, Result<(), IoError>) + Send>;

/// One operation on one run of sectors.
pub struct Bio {
    /// The operation.
    pub op: Op,
    /// First sector.
    pub start: Sector,
    /// Length in bytes: the sum of the segments, or the length of the range to discard or zero.
    pub bytes: u64,
    /// Memory, in order; empty for flush, discard and write-zeroes.
    pub segments: Vec<Segment>,
    /// Hints and requirements.
    pub flags: BioFlags,
    /// The stream it is charged to.
    pub stream: StreamId,
    completion: Option<Completion>,
}

impl Bio {
    /// A bio with memory; its length is the sum of the segments' lengths.
    pub fn new(op: Op, start: Sector, segments: Vec<Segment>) -> Self {
        let bytes = segments.iter().map(|s| s.len() as u64).sum();
        Self {
            op,
            start,
            bytes,
            segments,
            flags: BioFlags::empty(),
            stream: StreamId::default(),
            completion: None,
        }
    }

    /// A bio for a range, without memory.
    pub fn range(op: Op, start: Sector, bytes: u64) -> Self {
        let mut bio = Self::new(op, start, Vec::new());
        bio.bytes = bytes;
        bio
    }

    /// Whether it moves no data and only flushes: [`Op::Flush`], or an empty write with `PREFLUSH`.
    pub fn is_flush(&self) -> bool {
        self.op == Op::Flush || (self.bytes == 0 && self.flags.contains(BioFlags::PREFLUSH))
    }

    /// Sets the completion, which is called when the bio ends. Replaces an earlier one.
    pub fn on_end(&mut self, completion: Completion) {
        self.completion = Some(completion);
    }

    /// Takes the completion set with [`Bio::on_end`]. A device that sets its own instead must call
    /// the original later.
    pub fn take_completion(&mut self) -> Option<Completion> {
        self.completion.take()
    }

    /// Makes `look` see the result when the bio ends, before the completion already set. For
    /// devices that observe others.
    pub fn before_end(&mut self, look: impl FnOnce(&Result<(), IoError>) + Send + 'static) {
        let completion = self.take_completion();
        self.on_end(Box::new(move |mut bio, result| {
            look(&result);
            if let Some(completion) = completion {
                bio.on_end(completion);
            }
            bio.end(result);
        }));
    }

    /// Ends the bio. A device calls this exactly once, from any thread. A bio that is dropped
    /// instead ends with [`IoErrorKind::Dropped`], so that its completion is always called.
    pub fn end(mut self, result: Result<(), IoError>) {
        if let Some(completion) = self.completion.take() {
            completion(self, result);
        }
    }

    /// Ends the bio. A failure carries the device's name and what the bio asked for.
    pub fn end_as(self, device: &str, result: Result<(), IoErrorKind>) {
        let result = result.map_err(|kind| self.error(device, kind));
        self.end(result);
    }

    /// The memory from byte `from`, in order; no slice is empty.
    pub(crate) fn memory_from(&self, from: u64) -> impl Iterator<Item = &[u8]> {
        let mut skip = from;
        self.segments.iter().filter_map(move |segment| {
            let n = skip.min(segment.len() as u64);
            skip -= n;
            (n < segment.len() as u64).then(|| &segment.as_slice()[n as usize..])
        })
    }

    /// Like [`Bio::memory_from`], for filling. The bio must have been admitted as a read.
    pub(crate) fn memory_from_mut(&mut self, from: u64) -> impl Iterator<Item = &mut [u8]> {
        let mut skip = from;
        self.segments.iter_mut().filter_map(move |segment| {
            let memory = segment.as_mut_slice().expect("an admitted read has its own memory");
            let n = skip.min(memory.len() as u64);
            skip -= n;
            (n < memory.len() as u64).then(|| &mut memory[n as usize..])
        })
    }

    /// The error for a failure of this bio on `device`, with cause `kind`.
    pub fn error(&self, device: &str, kind: IoErrorKind) -> IoError {
        IoError { device: device.into(), op: self.op, start: self.start, bytes: self.bytes, kind }
    }
}

impl Drop for Bio {
    fn drop(&mut self) {
        let Some(completion) = self.completion.take() else { return };
        let mut bio = Self::range(self.op, self.start, self.bytes);
        bio.segments = std::mem::take(&mut self.segments);
        (bio.flags, bio.stream) = (self.flags, self.stream);
        let error = bio.error("unknown device", IoErrorKind::Dropped);
        // A bio is often dropped by a panic; a second panic would then abort the process.
        let ended = catch_unwind(AssertUnwindSafe(|| completion(bio, Err(error))));
        if let Err(payload) = ended
            && !std::thread::panicking()
        {
            resume_unwind(payload);
        }
    }
}

/// Ends bios one after another, each with its own result. A completion that panics does not keep
/// the others from ending; the first panic is resumed afterwards.
pub fn end_all(ended: impl IntoIterator<Item = (Bio, Result<(), IoError>)>) {
    let mut first_panic = None;
    for (bio, result) in ended {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| bio.end(result))) {
            first_panic.get_or_insert(payload);
        }
    }
    if let Some(payload) = first_panic {
        resume_unwind(payload);
    }
}

impl fmt::Debug for Bio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bio({} {}+{} {:?})", self.op, self.start, self.bytes, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_dropped_bio_ends_with_an_error_and_an_ended_one_ends_once() {
        static ENDED: AtomicUsize = AtomicUsize::new(0);
        let bio = |expected: Result<(), IoErrorKind>| {
            let mut bio = Bio::new(Op::Write, Sector(8), vec![Buf::zeroed(512).into()]);
            bio.on_end(Box::new(move |bio, result| {
                assert_eq!(result.map_err(|error| error.kind), expected);
                assert_eq!((bio.start, bio.segments.len()), (Sector(8), 1), "with its memory");
                ENDED.fetch_add(1, Ordering::SeqCst);
            }));
            bio
        };
        drop(bio(Err(IoErrorKind::Dropped)));
        assert_eq!(ENDED.load(Ordering::SeqCst), 1);
        bio(Ok(())).end(Ok(()));
        assert_eq!(ENDED.load(Ordering::SeqCst), 2);
        // A panic drops both bios, and one completion panics as well.
        let both = catch_unwind(|| {
            let mut worse = bio(Ok(()));
            worse.on_end(Box::new(|_, _| panic!("the second")));
            let _held = [worse, bio(Err(IoErrorKind::Dropped))];
            panic!("the first");
        });
        assert_eq!(both.unwrap_err().downcast_ref(), Some(&"the first"));
        assert_eq!(ENDED.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn bios_that_end_together_all_end_and_the_first_panic_goes_on() {
        static ENDED: AtomicUsize = AtomicUsize::new(0);
        let bio = |n: u32| {
            let mut bio = Bio::range(Op::Flush, Sector(0), 0);
            bio.on_end(Box::new(move |_, result| {
                ENDED.fetch_add(1, Ordering::SeqCst);
                assert!(result.is_ok());
                assert!(n.is_multiple_of(2), "{n}");
            }));
            (bio, Ok(()))
        };
        let panic = catch_unwind(|| end_all((0..8).map(bio))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"1".to_owned()));
        assert_eq!(ENDED.load(Ordering::SeqCst), 8);
    }
}

//! Devices, which complete bios.

use crate::{Bio, Buf, IoError, IoErrorKind, Op, Sector, Segment};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io::IoSliceMut;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// The limits of a device.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Name in errors and traces.
    pub name: String,
    /// Size in bytes, in whole sectors.
    pub capacity_bytes: u64,
    /// Start and length of every read and write must be multiples of this many bytes.
    pub block_bytes: u32,
    /// Reads and writes in multiples of this many bytes avoid a read-modify-write (kernel:
    /// `physical_block_size`).
    pub physical_block_bytes: u32,
    /// Longest read or write, in bytes, that the device accepts as one command.
    pub max_bytes: u64,
    /// Maximum number of segments in one command.
    pub max_segments: u32,
    /// Whether completed writes can still be lost before a flush.
    pub volatile_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl Limits {
    /// A durable, writable device of 512-byte blocks, with generous limits.
    pub fn new(name: impl Into<String>, capacity_bytes: u64) -> Self {
        Self {
            name: name.into(),
            capacity_bytes,
            block_bytes: 512,
            physical_block_bytes: 512,
            max_bytes: 1 << 30,
            max_segments: 1024,
            volatile_cache: false,
            read_only: false,
        }
    }

    /// Byte offsets of the bio's start and end (exclusive), if the device may try it at all.
    ///
    /// # Errors
    /// [`IoErrorKind::OutOfRange`], [`IoErrorKind::Misaligned`], or [`IoErrorKind::ReadOnly`] for a
    /// change.
    pub fn admit(&self, bio: &Bio) -> Result<(u64, u64), IoErrorKind> {
        let start = bio.start.byte_offset().ok_or(IoErrorKind::OutOfRange)?;
        let end = start.checked_add(bio.bytes).ok_or(IoErrorKind::OutOfRange)?;
        if end > self.capacity_bytes {
            return Err(IoErrorKind::OutOfRange);
        }
        if !(start | bio.bytes).is_multiple_of(u64::from(self.block_bytes)) {
            return Err(IoErrorKind::Misaligned);
        }
        match bio.op {
            Op::Read | Op::Write => {
                let memory: u64 = bio.segments.iter().map(|s| s.len() as u64).sum();
                assert_eq!(memory, bio.bytes, "a bio's length is the sum of its segments");
                assert!(
                    bio.op == Op::Write || bio.segments.iter().all(Segment::is_writable),
                    "a read needs memory of its own"
                );
            }
            Op::Flush | Op::Discard | Op::WriteZeroes => {}
        }
        if self.read_only && matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes) {
            return Err(IoErrorKind::ReadOnly);
        }
        Ok((start, end))
    }
}

/// Exclusive use of a device by one writer, until dropped; see [`Device::claim`].
#[derive(Default)]
#[must_use = "dropping it ends the claim"]
pub struct Claim(Option<Box<dyn Any + Send + Sync>>);

impl Claim {
    /// A claim that ends when `held` is dropped.
    pub fn holding(held: impl Any + Send + Sync) -> Self {
        Self(Some(Box::new(held)))
    }
}

/// The claim of a device that can only be reached through this object.
#[derive(Debug, Default)]
pub(crate) struct OneClaim(Arc<AtomicBool>);

impl OneClaim {
    /// Takes the claim; `None` while another one lives.
    pub(crate) fn take(&self) -> Option<Claim> {
        struct Held(Arc<AtomicBool>);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let taken = self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Claim::holding(Held(self.0.clone())))
    }

    /// Takes the claim of the device with these limits.
    ///
    /// # Errors
    /// [`IoErrorKind::Claimed`] while another claim lives.
    pub(crate) fn take_for(&self, limits: &Limits) -> Result<Claim, IoError> {
        self.take().ok_or_else(|| IoError {
            device: limits.name.clone(),
            op: Op::Write,
            start: Sector(0),
            bytes: limits.capacity_bytes,
            kind: IoErrorKind::Claimed,
        })
    }
}

/// One claim on several devices, which may contain duplicates. If one of them is claimed by someone
/// else, none of them stays claimed.
pub(crate) fn claim_all(devices: &[Arc<dyn Device>]) -> Result<Claim, IoError> {
    let is_first = |&n: &usize| !devices[..n].iter().any(|before| Arc::ptr_eq(before, &devices[n]));
    let claims = (0..devices.len()).filter(is_first).map(|n| devices[n].claim());
    claims.collect::<Result<Vec<_>, _>>().map(Claim::holding)
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({})", if self.0.is_some() { "exclusive" } else { "shared" })
    }
}

/// Something that completes bios.
///
/// `submit` never waits for the medium: it queues or starts the bio and returns. [`Bio::end`] is
/// called exactly once, possibly before `submit` returns, possibly from another thread, and bios
/// may end in any order.
pub trait Device: Send + Sync + fmt::Debug {
    /// The limits of the device.
    fn limits(&self) -> &Limits;
    /// Takes over a bio and ends it at some later time.
    fn submit(&self, bio: Bio);
    /// Takes over several bios, in order. Cheaper than one by one where starting them costs a
    /// system call.
    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        bios.for_each(|bio| self.submit(bio));
    }
    /// Whether [`Device::read_here`] is worth trying: the device reads on the calling thread, and
    /// that is the fastest way for a thread that has nothing else to do.
    fn reads_here(&self) -> bool {
        false
    }
    /// Whether the host keeps in memory what is read from the device or written to it, so that
    /// another cache above it is good for short requests only.
    fn is_cached_by_host(&self) -> bool {
        false
    }
    /// Whether a flush depends on a local disk only. A thread that serves others may then block for
    /// it.
    fn flushes_soon(&self) -> bool {
        false
    }
    /// Reads at `start` on the calling thread, which waits for the medium; see
    /// [`extant_rt::Rt::may_wait`]. Returns whether `to` is filled. If not, its bytes are
    /// undefined, and a bio for the same range tells why.
    fn read_here(&self, start: Sector, to: &mut [IoSliceMut<'_>]) -> bool {
        let _ = (start, to);
        false
    }
    /// Claims the device for a user that changes it as a whole, such as a file system, until the
    /// claim is dropped. Devices that others cannot reach grant every claim.
    ///
    /// # Errors
    /// [`IoErrorKind::Claimed`] while another claim lives, here or in another process;
    /// [`IoErrorKind::Locked`] if another program has declared that it is using the device.
    fn claim(&self) -> Result<Claim, IoError> {
        Ok(Claim::default())
    }
    /// The first run of bytes at or after `from_bytes` that may contain anything but zeros, or
    /// `None` if only holes follow. Lets a reader skip holes. Devices that do not know return
    /// everything that follows.
    ///
    /// # Errors
    /// The device cannot be asked.
    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        let capacity = self.limits().capacity_bytes;
        Ok((from_bytes < capacity).then_some(from_bytes..capacity))
    }
}

/// Submits `bio` and waits for its end. If the future is dropped, the bio finishes on its own.
pub fn execute(
    device: &dyn Device,
    mut bio: Bio,
) -> impl Future<Output = (Bio, Result<(), IoError>)> + use<> {
    let ended = until_end(&mut bio);
    device.submit(bio);
    ended
}

/// Waits for the end of a bio that is submitted afterwards, perhaps in [pieces](crate::split).
/// Replaces an earlier completion.
pub fn until_end(bio: &mut Bio) -> impl Future<Output = (Bio, Result<(), IoError>)> + use<> {
    let slot = Arc::new(Mutex::new(Slot { done: None, waker: None }));
    let theirs = slot.clone();
    bio.on_end(Box::new(move |bio, result| {
        let waker = {
            let mut slot = theirs.lock();
            slot.done = Some((bio, result));
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }));
    Ended(slot)
}

struct Slot {
    done: Option<(Bio, Result<(), IoError>)>,
    waker: Option<Waker>,
}

struct Ended(Arc<Mutex<Slot>>);

impl Future for Ended {
    type Output = (Bio, Result<(), IoError>);
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock();
        match slot.done.take() {
            Some(done) => Poll::Ready(done),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Reads `len` bytes at `start` into new memory. Submits immediately, before the first poll.
///
/// # Errors
/// The device's error for the read.
pub fn read(
    device: &dyn Device,
    start: Sector,
    len: usize,
) -> impl Future<Output = Result<Buf, IoError>> + use<> {
    let (bio, read) = to_read(start, len);
    device.submit(bio);
    read
}

/// Reads several ranges, each into new memory. Submits all of them immediately and together, before
/// the first poll.
pub fn read_all(
    device: &dyn Device,
    ranges: &[(Sector, usize)],
) -> Vec<impl Future<Output = Result<Buf, IoError>> + Send + use<>> {
    let (bios, reads): (Vec<_>, Vec<_>) = ranges.iter().map(|&(start, len)| to_read(start, len)).unzip();
    device.submit_all(&mut bios.into_iter());
    reads
}

/// A bio that reads into new memory, and what waits for its end.
fn to_read(start: Sector, len: usize) -> (Bio, impl Future<Output = Result<Buf, IoError>> + Send + use<>) {
    let mut bio = Bio::new(Op::Read, start, vec![Segment::from(Buf::stale(len))]);
    let ended = until_end(&mut bio);
    let read = async move {
        let (mut bio, result) = ended.await;
        result?;
        Ok(bio
            .segments
            .pop()
            .and_then(Segment::into_buf)
            .expect("the device returns the buffer it was given"))
    };
    (bio, read)
}

/// Writes `buf` at `start`. Not durable before a [`flush`].
pub fn write(
    device: &dyn Device,
    start: Sector,
    buf: Buf,
) -> impl Future<Output = Result<(), IoError>> + use<> {
    write_segments(device, start, vec![Segment::from(buf)])
}

/// Writes several pieces of memory to consecutive sectors.
///
/// # Errors
/// The device's write error; some of the sectors may have been written.
pub fn write_segments(
    device: &dyn Device,
    start: Sector,
    segments: Vec<Segment>,
) -> impl Future<Output = Result<(), IoError>> + use<> {
    let ended = execute(device, Bio::new(Op::Write, start, segments));
    async move { ended.await.1 }
}

/// Makes all writes that completed earlier durable.
///
/// # Errors
/// The device's error for the flush; any of those writes may be lost.
pub fn flush(device: &dyn Device) -> impl Future<Output = Result<(), IoError>> + use<> {
    let ended = execute(device, Bio::range(Op::Flush, Sector(0), 0));
    async move { ended.await.1 }
}

/// Tells the device that a range is no longer needed. What it reads as afterwards is up to the
/// device.
///
/// # Errors
/// The device's error for the discard.
pub fn discard(
    device: &dyn Device,
    start: Sector,
    bytes: u64,
) -> impl Future<Output = Result<(), IoError>> + use<> {
    let ended = execute(device, Bio::range(Op::Discard, start, bytes));
    async move { ended.await.1 }
}

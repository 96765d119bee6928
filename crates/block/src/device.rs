//! Devices, which complete bios.

use crate::{Bio, Buf, IoError, IoErrorKind, Op, Sector, Segment};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// The limits of a device.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Name for errors and traces.
    pub name: String,
    /// Size in bytes, in whole sectors.
    pub capacity_bytes: u64,
    /// Start and length of every read and write are multiples of this many bytes.
    pub block_bytes: u32,
    /// Reads and writes that are multiples of this many bytes avoid a detour (kernel: `physical_block_size`).
    pub physical_block_bytes: u32,
    /// Longest read or write in bytes that the device takes as one command.
    pub max_bytes: u64,
    /// Most segments in one command.
    pub max_segments: u32,
    /// Whether completed writes may still be lost until a flush.
    pub volatile_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl Limits {
    /// An unbounded, durable, writable device of 512-byte blocks.
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

    /// Byte offsets of the first byte of `bio` and of the one after its last, if the device may try it at all.
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

/// A device that belongs to one writer, until this is dropped; see [`Device::claim`].
#[derive(Default)]
#[must_use = "dropping it ends the claim"]
pub struct Claim(Option<Box<dyn Any + Send + Sync>>);

impl Claim {
    /// A claim that ends when `held` is dropped.
    pub fn holding(held: impl Any + Send + Sync) -> Self {
        Self(Some(Box::new(held)))
    }
}

/// The claim of a device that nothing but this object stands for.
#[derive(Debug, Default)]
pub(crate) struct OneClaim(Arc<AtomicBool>);

impl OneClaim {
    /// The claim; `None` while another lives.
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

    /// The claim of the device with these limits.
    ///
    /// # Errors
    /// [`IoErrorKind::Claimed`] while another lives.
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

/// One claim on all of several devices, of which one may occur more than once; none of them stays claimed where one is
/// another's.
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
/// `submit` never waits for the medium: it queues or starts the bio and returns; [`Bio::end`] is called exactly once,
/// perhaps before `submit` returns, perhaps from another thread, in any order among bios.
pub trait Device: Send + Sync + fmt::Debug {
    /// The limits of the device.
    fn limits(&self) -> &Limits;
    /// Takes a bio over; ends it sometime.
    fn submit(&self, bio: Bio);
    /// Takes several bios over at once, in order; cheaper than one by one where starting them costs a system call.
    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        bios.for_each(|bio| self.submit(bio));
    }
    /// Claims the device for one that changes it as a whole, a file system, until the claim is dropped. Devices that others
    /// cannot reach let everyone have it.
    ///
    /// # Errors
    /// [`IoErrorKind::Claimed`] while another claim lives, here or in another process; [`IoErrorKind::Locked`] where another
    /// program says that it has the device in use.
    fn claim(&self) -> Result<Claim, IoError> {
        Ok(Claim::default())
    }
    /// The first run of bytes at or after `from_bytes` that may hold anything but zeroes, or `None` where only holes
    /// follow; lets a reader skip holes. Devices that do not know answer with all that follows.
    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        let capacity = self.limits().capacity_bytes;
        Ok((from_bytes < capacity).then_some(from_bytes..capacity))
    }
}

/// Submits `bio` and waits for its end. Dropping the future leaves the bio to finish on its own.
pub fn execute(
    device: &dyn Device,
    mut bio: Bio,
) -> impl Future<Output = (Bio, Result<(), IoError>)> + use<> {
    let ended = until_end(&mut bio);
    device.submit(bio);
    ended
}

/// Waits for the end of a bio that is submitted afterwards, perhaps in [pieces](crate::split). Replaces the completion that was
/// set before.
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

/// Reads `len` bytes from `start` into fresh memory. Submits at once, before the first poll.
pub fn read(
    device: &dyn Device,
    start: Sector,
    len: usize,
) -> impl Future<Output = Result<Buf, IoError>> + use<> {
    let ended = execute(device, Bio::new(Op::Read, start, vec![Segment::from(Buf::stale(len))]));
    async move {
        let (mut bio, result) = ended.await;
        result?;
        Ok(bio
            .segments
            .pop()
            .and_then(Segment::into_buf)
            .expect("the device returns the buffer it was given"))
    }
}

/// Writes `buf` from `start`. Not durable before a [`flush`].
pub fn write(
    device: &dyn Device,
    start: Sector,
    buf: Buf,
) -> impl Future<Output = Result<(), IoError>> + use<> {
    write_segments(device, start, vec![Segment::from(buf)])
}

/// Writes several runs of memory to one run of sectors.
pub fn write_segments(
    device: &dyn Device,
    start: Sector,
    segments: Vec<Segment>,
) -> impl Future<Output = Result<(), IoError>> + use<> {
    let ended = execute(device, Bio::new(Op::Write, start, segments));
    async move { ended.await.1 }
}

/// Makes every write that completed before durable.
pub fn flush(device: &dyn Device) -> impl Future<Output = Result<(), IoError>> + use<> {
    let ended = execute(device, Bio::range(Op::Flush, Sector(0), 0));
    async move { ended.await.1 }
}

/// Gives a range back to the device; what it reads as afterwards is the device's affair.
pub fn discard(
    device: &dyn Device,
    start: Sector,
    bytes: u64,
) -> impl Future<Output = Result<(), IoError>> + use<> {
    let ended = execute(device, Bio::range(Op::Discard, start, bytes));
    async move { ended.await.1 }
}

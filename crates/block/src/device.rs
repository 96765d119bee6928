//! What completes bios.

use crate::{Bio, Buf, IoError, Op, Sector, Segment};
use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// What a device can take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Name for errors and traces.
    pub name: String,
    /// Size in bytes; a multiple of [`Sector::BYTES`] rounded down.
    pub capacity_bytes: u64,
    /// Start and length of every read and write are multiples of this many bytes.
    pub block_bytes: u32,
    /// Longest read or write in bytes that the device takes as one command.
    pub max_bytes: u64,
    /// Most segments in one command.
    pub max_segments: u32,
    /// Whether completed writes may still be lost until a flush.
    pub volatile_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Something that completes bios.
///
/// `submit` never waits for the medium: it queues or starts the bio and returns; [`Bio::end`] is called exactly once,
/// perhaps before `submit` returns, perhaps from another thread, in any order among bios.
pub trait Device: Send + Sync + fmt::Debug {
    /// What the device can take.
    fn limits(&self) -> &Limits;
    /// Takes a bio over; ends it sometime.
    fn submit(&self, bio: Bio);
}

/// Submits `bio` and waits for its end. Dropping the future leaves the bio to finish on its own.
pub fn execute(
    device: &dyn Device,
    mut bio: Bio,
) -> impl Future<Output = (Bio, Result<(), IoError>)> + use<> {
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
    device.submit(bio);
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
    let ended = execute(device, Bio::new(Op::Read, start, vec![Segment::from(Buf::zeroed(len))]));
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

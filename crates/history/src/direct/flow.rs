//! A write past the page cache, as a process of Linux 2.6.19 makes it.

use super::{BlockMap, BoundaryRule, Cause, Cost, Event, Limits, Request, SentBio, cut_at_chunks};
use extant_block::{Bio, BioFlags, Device, IoError, IoErrorKind, Op, Sector, Segment, StreamId};
use extant_rt::{Nanos, Rt, WaitsOn};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A policy of direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// See [`BoundaryRule`].
    pub rule: BoundaryRule,
    /// Whether placeholders in the page cache's index keep others out of the range.
    pub placeholders: bool,
}

/// Properties of the host and its devices that a request depends on.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// A page, in bytes.
    pub page_bytes: u64,
    /// The longest command of the disks, in bytes (`max_sectors`), which bounds bios too (`bio_get_nr_vecs`).
    pub command_bytes: u64,
    /// The chunk of a striped device, in bytes, at which the device mapper cuts bios; `None` on a plain disk.
    pub chunk_bytes: Option<u64>,
    /// Time that a mapping waits for which blocks are allocated.
    pub map_wait: Nanos,
    /// The same, beside `map_wait`, where placeholders keep others out of the range.
    pub placeholder_wait: Nanos,
}

/// Pages that a bio has room for at most: `MAX_PHYS_SEGMENTS`, and `BIO_MAX_PAGES`, which is twice that.
const BIO_PAGES: u64 = 128;

/// Bios sent so far, by cause, and the pieces that the device mapper made of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Because the next block was elsewhere.
    pub gap: u64,
    /// Because they were full.
    pub full: u64,
    /// At a boundary.
    pub boundary: u64,
    /// At the end of a request.
    pub end: u64,
    /// Pieces of them.
    pub pieces: u64,
}

impl Sent {
    /// All of the bios.
    pub fn bios(&self) -> u64 {
        self.gap + self.full + self.boundary + self.end
    }

    fn count(&mut self, cause: Cause, pieces: u64) {
        let bios = match cause {
            Cause::Gap => &mut self.gap,
            Cause::Full => &mut self.full,
            Cause::Boundary => &mut self.boundary,
            Cause::End => &mut self.end,
        };
        *bios += 1;
        self.pieces += pieces;
    }
}

/// Pieces in flight, and the first error.
#[derive(Default)]
struct InFlight {
    state: Mutex<(usize, Option<IoError>, Option<Waker>)>,
}

impl InFlight {
    fn ended(&self, result: Result<(), IoError>) {
        let mut state = self.state.lock();
        state.0 -= 1;
        if let Err(error) = result {
            state.1.get_or_insert(error);
        }
        if state.0 == 0
            && let Some(waker) = state.2.take()
        {
            drop(state);
            waker.wake();
        }
    }

    async fn all(&self, rt: &Rt, stream: StreamId) -> Result<(), IoError> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.0 == 0 {
                return Poll::Ready(state.1.take().map_or(Ok(()), Err));
            }
            state.2 = Some(cx.waker().clone());
            drop(state);
            rt.waits_on(|| WaitsOn::Other("direct I/O of stream", stream.0));
            Poll::Pending
        })
        .await
    }
}

impl Direct {
    /// Writes `bytes` bytes of zeroes from byte `at` on, both whole blocks, to where `map` has them on `device`, and returns when
    /// all of it is there: the next request of the caller never overlaps this one. `sent` counts the bios.
    ///
    /// # Errors
    /// The first failure of the device, once nothing is in flight any more; a full volume counts as one.
    #[allow(clippy::too_many_arguments)] // a request, and the machine and map that it meets
    pub async fn write(
        self,
        rt: &Rt,
        device: &Arc<dyn Device>,
        kernel: &Kernel,
        map: &mut dyn BlockMap,
        (at, bytes): (u64, u64),
        stream: StreamId,
        sent: &mut Sent,
    ) -> Result<(), IoError> {
        let limits = Limits {
            page_bytes: kernel.page_bytes,
            block_bytes: map.block_bytes(),
            bio_pages: (kernel.command_bytes / kernel.page_bytes).clamp(1, BIO_PAGES),
        };
        let in_flight = Arc::new(InFlight::default());
        let mut request = Request::new(self.rule, limits, at, bytes);
        let full = loop {
            match request.next(map) {
                Ok(None) => break Ok(()),
                Ok(Some(Event::Pinned(pages))) => rt.charge(Cost::PagePin(pages)),
                Ok(Some(Event::Mapped(mapped))) => {
                    rt.charge(Cost::MapBlocks(1));
                    let more = if self.placeholders { kernel.placeholder_wait } else { Nanos::ZERO };
                    let wait = kernel.map_wait + more;
                    if mapped.allocated && wait > Nanos::ZERO {
                        rt.sleep(wait).await;
                    }
                }
                Ok(Some(Event::Sent(bio))) => {
                    let pieces = send(device, kernel, limits.block_bytes, &bio, stream, &in_flight);
                    sent.count(bio.cause, pieces);
                    // The clock of a task that never waits runs ahead of its devices'.
                    rt.resched().await;
                }
                Err(full) => break Err(full),
            }
        };
        in_flight.all(rt, stream).await?;
        full.map_err(|_| {
            let bio = Bio::range(Op::Write, Sector(0), bytes);
            bio.error(&device.limits().name, IoErrorKind::Os(ENOSPC))
        })
    }
}

/// No space left on the device.
const ENOSPC: i32 = 28;

/// Sends a bio, in pieces; says how many.
fn send(
    device: &Arc<dyn Device>,
    kernel: &Kernel,
    block_bytes: u64,
    bio: &SentBio,
    stream: StreamId,
    in_flight: &Arc<InFlight>,
) -> u64 {
    let sections: Vec<u64> = bio.sections.iter().map(|section| section.bytes).collect();
    let chunk_bytes = kernel.chunk_bytes.unwrap_or(u64::MAX / 2);
    let cuts = cut_at_chunks(bio.block * block_bytes, &sections, chunk_bytes);
    let pieces = cuts.len() as u64;
    in_flight.state.lock().0 += cuts.len();
    for cut in cuts {
        let memory = cut.sections.iter().map(|bytes| Segment::zeroes(*bytes as usize)).collect();
        let mut piece = Bio::new(Op::Write, Sector(cut.start_byte / Sector::BYTES), memory);
        (piece.flags, piece.stream) = (BioFlags::SYNC, stream);
        let in_flight = in_flight.clone();
        piece.on_end(Box::new(move |_, result| in_flight.ended(result)));
        device.submit(piece);
    }
    pieces
}

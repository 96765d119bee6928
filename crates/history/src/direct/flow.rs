//! A direct write, as in Linux 2.6.19.

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
    /// Page size in bytes.
    pub page_bytes: u64,
    /// The disks' maximum command size in bytes (`max_sectors`), which also limits bios
    /// (`bio_get_nr_vecs`).
    pub command_bytes: u64,
    /// The chunk size of a striped device in bytes, at which the device mapper splits bios; `None`
    /// for a plain disk.
    pub chunk_bytes: Option<u64>,
    /// How long a mapping waits if it allocates blocks.
    pub map_wait: Nanos,
    /// Added to `map_wait` where placeholders keep others out of the range.
    pub placeholder_wait: Nanos,
}

/// Maximum pages per bio: `MAX_PHYS_SEGMENTS`, half of `BIO_MAX_PAGES`.
const BIO_PAGES: u64 = 128;

/// Number of bios sent, by cause, and of the pieces that the device mapper made of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The next block was not adjacent.
    pub gap: u64,
    /// The bio was full.
    pub full: u64,
    /// The bio ended at a boundary.
    pub boundary: u64,
    /// The request ended.
    pub end: u64,
    /// Pieces of all these bios.
    pub pieces: u64,
}

impl Sent {
    /// Total number of bios.
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

/// Number of pieces in flight, the first error, and the waiting task.
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
    /// Writes `bytes` bytes of zeroes at byte `at`, both whole blocks, to the blocks of `map` on
    /// `device`. Returns when all of it is written, so a caller's requests never overlap. Counts
    /// the bios in `sent`.
    ///
    /// # Errors
    /// The device's first error, once nothing is in flight any more; a full volume is an error as
    /// well.
    #[allow(clippy::too_many_arguments)] // one request, and the machine and map it runs on
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
                    // A task that never waits would run ahead of its devices' clock.
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

/// Linux errno for no space left on the device.
const ENOSPC: i32 = 28;

/// Submits a bio in pieces and returns how many.
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

//! A device whose flush fails once, losing part of what its cache held.

use extant_block::{Bio, BioFlags, Buf, Device, IoErrorKind, Limits, Op, Sector, Segment};
use extant_rt::Rng;
use extant_torture::{Image, ImageDevice};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Sectors that are lost together, so that no block of the volume is torn.
const PIECE_SECTORS: u64 = 8;
const PIECE_BYTES: usize = (PIECE_SECTORS * Sector::BYTES) as usize;

/// Fails the nth flush; some of what was written since the previous flush reverts to its state
/// then.
pub(crate) struct Flaky {
    below: Arc<ImageDevice>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    /// Flushes left until the one that fails.
    left: u64,
    durable: Image,
    /// Pieces written but not flushed.
    cached: BTreeSet<u64>,
}

impl Flaky {
    pub(crate) fn new(below: Arc<ImageDevice>, nth: u64, seed: u64) -> Self {
        let (durable, rng) = (below.image(), Rng::labelled(seed, "flaky"));
        Self { below, state: Mutex::new(State { rng, left: nth, durable, cached: BTreeSet::new() }) }
    }

    /// Whether the flush has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().left == u64::MAX
    }

    fn lose_some(&self, state: &mut State) {
        for piece in std::mem::take(&mut state.cached) {
            if state.rng.below(2) == 0 {
                let mut old = vec![0; PIECE_BYTES];
                state.durable.read(piece as usize * PIECE_BYTES, &mut old);
                let segments = vec![Segment::from(Buf::from_slice(&old))];
                self.below.submit(Bio::new(Op::Write, Sector(piece * PIECE_SECTORS), segments));
            }
        }
    }
}

impl Device for Flaky {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn submit(&self, bio: Bio) {
        let mut state = self.state.lock();
        if bio.op == Op::Flush || bio.flags.contains(BioFlags::PREFLUSH) {
            if state.left == 0 {
                state.left = u64::MAX;
                self.lose_some(&mut state);
                drop(state);
                return bio.end_as("flaky", Err(IoErrorKind::Os(5)));
            }
            state.left -= u64::from(state.left < u64::MAX);
            state.durable = self.below.image();
            state.cached.clear();
        }
        if bio.op != Op::Read && bio.bytes > 0 {
            let (start, sectors) = (bio.start.0, bio.bytes / Sector::BYTES);
            if bio.flags.contains(BioFlags::FUA) {
                let mut at = (start * Sector::BYTES) as usize;
                for segment in &bio.segments {
                    state.durable.write(at, segment.len(), Some(segment.as_slice()));
                    at += segment.len();
                }
            } else {
                let last = start + sectors - 1;
                state.cached.extend(start / PIECE_SECTORS..=last / PIECE_SECTORS);
            }
        }
        drop(state);
        self.below.submit(bio);
    }
}

impl fmt::Debug for Flaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flaky")
    }
}

//! Admission: whether a bio gets a request now, or its stream waits for one.

use extant_block::StreamId;
use extant_rt::Nanos;
use rustc_hash::FxHashMap;

/// How far a stream that has waited for a request may exceed the limit on requests, as in Linux's
/// request queue before blk-mq (3.10, block/blk-core.c: `ioc_batching()`, `__get_request()`).
///
/// The stream that fills the queue gets a batch, and so does each stream woken because a request
/// became free. The others wait in order, and one is woken for each request freed below the limit.
/// All batches together may exceed the limit by half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Requests per batch (kernel: `BLK_BATCH_REQ`).
    pub requests: u32,
    /// A batch ends this long after it began; this does not apply to its first request (kernel:
    /// `BLK_BATCH_TIME`).
    pub span: Nanos,
}

impl Batching {
    /// Linux's values: 32 requests within 20 ms.
    pub const LINUX: Self = Self { requests: 32, span: Nanos::from_millis(20) };
}

/// The slots of both kinds of requests. They are counted separately, so that write-back cannot lock
/// readers out. If they are the device's tags, they are counted together.
#[derive(Debug)]
pub(super) struct Admission {
    bound: usize,
    are_tags: bool,
    batching: Option<Batching>,
    kinds: [Kind; 2],
    // Looked up, never iterated, and the hasher has no random seed.
    batches: FxHashMap<StreamId, Batch>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    taken: usize,
    /// Whether a stream has filled the queue and no request has been freed below the limit since.
    full: bool,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    left: u32,
    since: Nanos,
}

impl Admission {
    pub(super) fn new(bound: usize, are_tags: bool, batching: Option<Batching>) -> Self {
        Self { bound, are_tags, batching, kinds: [Kind::default(); 2], batches: FxHashMap::default() }
    }

    /// Whether streams wait for requests as tasks did before blk-mq: a waiting stream submits
    /// nothing else.
    pub(super) fn batches(&self) -> bool {
        self.batching.is_some()
    }

    /// Number of slots taken, of one kind.
    pub(super) fn taken(&self, kind: usize) -> usize {
        self.kinds[kind].taken
    }

    /// Number of slots taken that count against a kind's limit.
    fn taken_with(&self, kind: usize) -> usize {
        self.kinds[kind].taken + if self.are_tags { self.kinds[1 - kind].taken } else { 0 }
    }

    /// Whether a freed slot may go to the other kind.
    pub(super) fn are_tags(&self) -> bool {
        self.are_tags
    }

    /// Whether the number of taken slots is below the limit.
    pub(super) fn has_room(&self, kind: usize) -> bool {
        self.taken_with(kind) < self.bound
    }

    /// Takes a slot for a bio of `stream`, if allowed. `awaited` says that the device is kept idle
    /// for this bio.
    pub(super) fn take(&mut self, kind: usize, stream: StreamId, awaited: bool, now: Nanos) -> bool {
        let Kind { taken, full } = self.kinds[kind];
        let Some(batching) = self.batching else {
            let admitted = self.has_room(kind) || awaited && !self.are_tags;
            self.kinds[kind].taken += usize::from(admitted);
            return admitted;
        };
        if taken + 1 >= self.bound {
            if !full {
                self.begin(stream, batching, now);
                self.kinds[kind].full = true;
            } else if !awaited && !self.is_batching(stream, batching, now) {
                return false;
            }
        }
        if taken >= self.bound + self.bound / 2 {
            return false;
        }
        self.kinds[kind].taken += 1;
        if self.is_batching(stream, batching, now)
            && let Some(batch) = self.batches.get_mut(&stream)
        {
            batch.left -= 1;
        }
        true
    }

    /// A slot was freed. Returns whether to wake a waiting stream for it.
    pub(super) fn give_back(&mut self, kind: usize) -> bool {
        let slots = &mut self.kinds[kind];
        slots.taken -= 1;
        let below = slots.taken < self.bound;
        slots.full &= !below;
        below
    }

    /// A waiting stream was woken.
    pub(super) fn woken(&mut self, stream: StreamId, now: Nanos) {
        if let Some(batching) = self.batching {
            self.begin(stream, batching, now);
        }
    }

    /// The stream has ended.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.batches.remove(&stream);
    }

    fn begin(&mut self, stream: StreamId, batching: Batching, now: Nanos) {
        if !self.is_batching(stream, batching, now) {
            self.batches.insert(stream, Batch { left: batching.requests, since: now });
        }
    }

    fn is_batching(&self, stream: StreamId, batching: Batching, now: Nanos) -> bool {
        self.batches.get(&stream).is_some_and(|batch| {
            let in_time = now < batch.since.saturating_add(batching.span);
            batch.left == batching.requests || batch.left > 0 && in_time
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: usize = 1;
    const NOW: Nanos = Nanos::from_secs(1);

    fn taken(admission: &mut Admission, stream: u64, now: Nanos) -> usize {
        (0..1000).take_while(|_| admission.take(READS, StreamId(stream), false, now)).count()
    }

    #[test]
    fn without_batching_the_bound_is_the_bound() {
        let mut admission = Admission::new(128, false, None);
        assert_eq!(taken(&mut admission, 1, NOW), 128);
        assert!(
            !admission.take(READS, StreamId(2), false, NOW) && admission.take(READS, StreamId(2), true, NOW)
        );
        assert!(admission.take(1 - READS, StreamId(3), false, NOW), "the other kind has its own slots");
    }

    #[test]
    fn both_kinds_share_the_tags_of_a_device() {
        let mut admission = Admission::new(31, true, None);
        assert!(admission.take(1 - READS, StreamId(9), false, NOW));
        assert_eq!(taken(&mut admission, 1, NOW), 30);
        assert!(
            !admission.take(READS, StreamId(2), true, NOW),
            "the bound is the number of tags, so no read gets more"
        );
        assert!(!admission.take(1 - READS, StreamId(9), false, NOW));
        admission.give_back(READS);
        assert!(admission.has_room(1 - READS));
    }

    #[test]
    fn the_stream_that_fills_the_queue_takes_a_batch_and_all_batches_go_half_past_the_bound() {
        let mut admission = Admission::new(128, false, Some(Batching::LINUX));
        // The request that fills the queue is the first of the batch.
        assert_eq!(taken(&mut admission, 1, NOW), 127 + 32);
        assert_eq!(taken(&mut admission, 2, NOW), 0, "another stream waits");
        assert!(admission.take(READS, StreamId(2), true, NOW), "a read that the elevator waits for gets in");
        for stream in 3..10 {
            admission.woken(StreamId(stream), NOW);
            taken(&mut admission, stream, NOW);
        }
        assert_eq!(admission.kinds[READS].taken, 192);
        assert!(!admission.take(READS, StreamId(2), true, NOW), "nothing goes further");
    }

    #[test]
    fn a_stream_is_woken_for_each_slot_below_the_bound_and_a_late_batch_has_one_request() {
        let mut admission = Admission::new(4, false, Some(Batching::LINUX));
        assert_eq!(taken(&mut admission, 1, NOW), 6);
        let woken: Vec<bool> = (0..6).map(|_| admission.give_back(READS)).collect();
        assert_eq!(woken, [false, false, true, true, true, true]);
        let mut admission = Admission::new(4, false, Some(Batching::LINUX));
        (1..=4).for_each(|stream| assert!(admission.take(READS, StreamId(stream), false, NOW)));
        admission.woken(StreamId(9), NOW);
        let late = NOW.saturating_add(Nanos::from_millis(25));
        assert_eq!(taken(&mut admission, 9, late), 1);
    }
}

//! When to keep the disk idle for a stream's next request.
//!
//! The rest of CFQ decides who is next and for how long. A rule decides whether a queue that ran
//! dry keeps the disk, and until when. Our rule is here; Linux's, and those proposed for Linux, are
//! in `extant_history`.

mod expected_gain;

pub use expected_gain::ExpectedGain;

use crate::elevator::ProgramId;
use extant_block::StreamId;
use extant_rt::Nanos;
use std::fmt;

/// A request arrived in a synchronous queue.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The stream that submitted it.
    pub stream: StreamId,
    /// The stream's program.
    pub program: ProgramId,
    /// Time since the stream's last request completed; `None` for its first request, and while
    /// others of it are queued or in the device.
    pub thought: Option<Nanos>,
    /// Sectors between the end of the stream's last request and the start of this one; `None` for
    /// the first.
    pub distance: Option<u64>,
    /// Whether the idle window is open.
    pub open: bool,
    /// Whether the queue had four or more requests at once since its last failed wait.
    pub deep: bool,
    /// Whether more than an eighth of the queue's last 32 requests were seeks.
    pub seeky: bool,
    /// The stream's mean think time in ticks, once known.
    pub think_ticks: Option<i64>,
    /// The knob `slice_idle`, in ticks.
    pub slice_idle: i64,
}

/// A request of a synchronous queue completed.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// The stream that submitted it.
    pub stream: StreamId,
    /// Sectors between its start and the end of the request dispatched before it.
    pub distance: u64,
    /// How long the device worked on it: since its dispatch or the previous completion, whichever
    /// was later.
    pub interval: Nanos,
    /// Requests in the device when it was dispatched or when it completed, whichever were more,
    /// including this one.
    pub depth: u32,
}

/// The active queue has nothing queued: should the disk wait for it?
#[derive(Clone, Copy, Debug)]
pub struct Lull {
    /// The stream the queue served last; `None` if it has exited.
    pub stream: Option<StreamId>,
    /// The stream's program.
    pub program: ProgramId,
    /// Whether the queue's idle window is open.
    pub open: bool,
    /// Whether it is the only queue of a synchronous tree, and the tree's streams, taken together,
    /// think only briefly.
    pub last_of_tree: bool,
    /// Synchronous requests queued by other streams.
    pub waiting: u32,
    /// Time since the stream's last request completed; zero while a request of the queue is in the
    /// device.
    pub waited: Nanos,
    /// The knob `slice_idle`, in ticks.
    pub slice_idle: i64,
    /// The group's share of the target latency, in ticks.
    pub group_slice: i64,
    /// Number of queues in service whose idle window is open.
    pub busy_idle_queues: i64,
    /// Length of a tick.
    pub tick: Nanos,
}

/// See the [module](self). The provided methods are what CFQ did regardless of its rule.
pub trait IdleRule: Send + fmt::Debug {
    /// Name for tables and traces.
    fn name(&self) -> &'static str;

    /// Whether a new synchronous queue starts with its idle window open.
    fn opens_at_birth(&self, program: ProgramId) -> bool;

    /// Whether the queue's idle window is open from now on. Called once per arrival.
    fn window_after(&mut self, arrival: &Arrival) -> bool;

    /// Whether to idle at all.
    fn should_idle(&self, lull: &Lull) -> bool;

    /// How many ticks to wait. The timer runs at least to the next tick.
    fn wait_ticks(&self, lull: &Lull) -> i64;

    /// Whether to go on waiting; asked when others' requests are queued while the disk waits.
    fn keeps_waiting(&self, _lull: &Lull) -> bool {
        true
    }

    /// Whether others' requests near the head may be served while the disk waits.
    fn serves_neighbours(&self) -> bool {
        false
    }

    /// Within how many sectors two requests are close: worth serving one after the other instead of
    /// idling, and worth merging their queues.
    fn close_sectors(&self) -> u64 {
        8 * 1024
    }

    /// Whether to fix behaviour by which, in the kernel, a stream can wait for seconds or lose its
    /// share:
    /// - A place in the service trees depends on the current number of queues, 80 ms for each at
    ///   level 4, so a queue that arrived in a crowd still waits after the crowd has left. Fix:
    ///   count at most eight.
    /// - A request that ends the active queue's slice only because there is nothing left to do in
    ///   it is served first, so among many streams without idling the latest one wins. Fix: it
    ///   waits for its place.
    /// - A load's turn stands still while no queue is active, which is most of the time when the
    ///   device is full. Fix: it continues.
    /// - The length of a turn only counts queues with waiting requests. Fix: also count queues
    ///   whose requests are all in the device.
    fn waits_are_bounded(&self) -> bool {
        false
    }

    /// Whether queues for which the disk does not idle are served by position, in sweeps, instead
    /// of in order of time. A device that sorts its commands itself gains little from this; other
    /// devices gain much.
    fn sweeps(&self) -> bool {
        false
    }

    /// Whether to serve the first request of a stream between the slices of others, because the
    /// stream uses little of the disk. Asked once per such request; a yes is charged to the stream.
    /// `served` is the stream whose slice it is, if a stream has it.
    fn comes_between(&mut self, _stream: StreamId, _served: Option<StreamId>, _now: Nanos) -> bool {
        false
    }

    /// Whether streams have recently been served between the slices of others. Streams that need
    /// little then do not wait for a slice to end, so slices can be longer, and each end of a slice
    /// costs a seek.
    fn has_others_between(&self, _now: Nanos) -> bool {
        false
    }

    /// A request has completed.
    fn served(&mut self, _service: &Service) {}

    /// The stream has ended.
    fn exited(&mut self, _stream: StreamId) {}
}

//! When to keep the disk idle for the next request of a stream.
//!
//! The rest of CFQ decides who is next and for how long; what a rule decides is whether a queue that ran dry keeps the
//! disk, and until when. Ours is here; the one that Linux had, and those that were proposed for it, are in
//! `extant_history`.

mod expected_gain;

pub use expected_gain::ExpectedGain;

use crate::elevator::ProgramId;
use extant_block::StreamId;
use extant_rt::Nanos;
use std::fmt;

/// A request arrives in a synchronous queue.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Whose it is.
    pub stream: StreamId,
    /// The stream's program.
    pub program: ProgramId,
    /// Since the stream's last request ended; `None` for its first request, and while others of it are queued or in
    /// the device.
    pub thought: Option<Nanos>,
    /// Sectors between the end of the stream's last request and this one; `None` for the first.
    pub distance: Option<u64>,
    /// The idle window is open.
    pub open: bool,
    /// The queue had four or more requests at once since its last failed wait.
    pub deep: bool,
    /// More than an eighth of the queue's last 32 requests were seeks.
    pub seeky: bool,
    /// The stream's mean think time in ticks, once known.
    pub think_ticks: Option<i64>,
    /// The knob `slice_idle`, in ticks.
    pub slice_idle: i64,
}

/// A request of a synchronous queue has ended.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Whose it was.
    pub stream: StreamId,
    /// Sectors between the end of the request dispatched before it and its start.
    pub distance: u64,
    /// How long the device worked at it: since its dispatch, or since the completion before, whichever was later.
    pub interval: Nanos,
    /// Requests in the device when it was dispatched or when it ended, whichever were more; this one included.
    pub depth: u32,
}

/// The active queue has nothing queued. Shall the disk wait for it?
#[derive(Clone, Copy, Debug)]
pub struct Lull {
    /// The stream that the queue served last; `None` if it has exited.
    pub stream: Option<StreamId>,
    /// Its program.
    pub program: ProgramId,
    /// The queue's idle window is open.
    pub open: bool,
    /// It is the only queue of a synchronous tree whose streams, together, think briefly.
    pub last_of_tree: bool,
    /// Synchronous requests queued by others.
    pub waiting: u32,
    /// Since the stream's last request ended; zero while one of the queue is in the device.
    pub waited: Nanos,
    /// The knob `slice_idle`, in ticks.
    pub slice_idle: i64,
    /// The group's part of the target latency, in ticks.
    pub group_slice: i64,
    /// Queues in service whose idle window is open.
    pub busy_idle_queues: i64,
    /// Length of a tick.
    pub tick: Nanos,
}

/// See the [module](self). The provided methods are what CFQ did whatever its rule.
pub trait IdleRule: Send + fmt::Debug {
    /// Name for tables and traces.
    fn name(&self) -> &'static str;

    /// Whether a new synchronous queue starts with its idle window open.
    fn opens_at_birth(&self, program: ProgramId) -> bool;

    /// Whether the queue's idle window is open from now on. Called once for every arrival.
    fn window_after(&mut self, arrival: &Arrival) -> bool;

    /// Whether to idle at all.
    fn should_idle(&self, lull: &Lull) -> bool;

    /// How many ticks to wait. The timer runs at least to the next tick.
    fn wait_ticks(&self, lull: &Lull) -> i64;

    /// Asked when others' requests are queued while the disk waits: whether to go on waiting.
    fn keeps_waiting(&self, _lull: &Lull) -> bool {
        true
    }

    /// Whether, while the disk waits, requests of others near the head may be served.
    fn serves_neighbours(&self) -> bool {
        false
    }

    /// Within how many sectors two requests are close: worth serving one after the other instead of idling, and making
    /// one queue of theirs.
    fn close_sectors(&self) -> u64 {
        8 * 1024
    }

    /// Whether to mend what lets a stream wait for seconds in the kernel, or lose its share:
    /// - A place in the service trees depends on how many queues there are at the moment, 80 ms each at level 4, so
    ///   that who came in a crowd waits when it has gone. Mended: on at most eight.
    /// - A request that ends the active queue's slice only because nothing is left to do in it is served first, so that
    ///   of many streams without idling the latest wins. Mended: it waits for its place.
    /// - The turn of a load stands still while no queue is active, which in front of a full device is most of the time.
    ///   Mended: it goes on.
    /// - The length of a turn counts only queues with requests waiting. Mended: also those whose requests are all in
    ///   the device.
    fn waits_are_bounded(&self) -> bool {
        false
    }

    /// Whether queues for which the disk does not idle are served by position, in sweeps, rather than by their place in
    /// time: a device that sorts its commands gains little by it, one that does not, much.
    fn sweeps(&self) -> bool {
        false
    }

    /// Whether the first request of a stream comes between the slices of others, because the stream uses little of the disk. Asked
    /// once for such a request; one that comes between counts. `served` is the stream that has its slice, if it is one.
    fn comes_between(&mut self, _stream: StreamId, _served: Option<StreamId>, _now: Nanos) -> bool {
        false
    }

    /// Whether streams have come between the slices of others of late. Nobody who waits for little then waits for the end of a slice,
    /// which can be longer, and each end is a seek.
    fn has_others_between(&self, _now: Nanos) -> bool {
        false
    }

    /// A request has ended.
    fn served(&mut self, _service: &Service) {}

    /// The stream has ended.
    fn exited(&mut self, _stream: StreamId) {}
}

//! Elevators: which request goes to the device next, and whether to wait for a better one.
//!
//! An elevator is a pure state machine. It receives requests ([`Elevator::add`]), is asked for one ([`Elevator::next`])
//! and hears of completions ([`Elevator::completed`]); it sees plain numbers and the time, never a bio, a task, a clock
//! or a device. Its driver (the request queue, a simulator, a test) keeps the contract below.
//!
//! 1. A [`RequestId`] is the driver's slot number. It is free again after [`Elevator::completed`], or after the
//!    request was [absorbed](Elevator::absorbed) by another. Small numbers are best: elevators index tables with them.
//! 2. `now` never goes backwards.
//! 3. `next` is called whenever the device has room and something changed: after `add`, after `completed`, after `exited` and,
//!    if its last answer was [`Decision::IdleUntil`], at the time that it named, or soon after. A later answer replaces that time,
//!    and so does a device that is full: a change that an elevator has due at the time takes place at its next call. `next` is
//!    called again until it says something other than [`Decision::Dispatch`], or until the device is full.
//! 4. Every dispatched request is completed once, failed or not. A request that is queued is dispatched or absorbed.
//!
//! Flushes do not pass through an elevator; a driver that must drain calls `next` until it says [`Decision::Empty`]
//! with [`Elevator::queued`] zero.
//!
//! ```
//! use extant_iosched::elevator::{Decision, Elevator, Fifo, Request, RequestId};
//! use extant_block::{Op, Sector};
//! use extant_rt::Nanos;
//!
//! let mut elevator = Fifo::new();
//! elevator.add(Request::new(RequestId(0), Op::Read, Sector(8), 8), Nanos(0));
//! assert_eq!(elevator.next(Nanos(0)), Decision::Dispatch(RequestId(0)));
//! assert_eq!(elevator.next(Nanos(0)), Decision::Empty);
//! elevator.completed(RequestId(0), Nanos(5_000_000));
//! ```

pub mod cfq;
mod deadline;
mod none;
mod table;

pub use cfq::Cfq;
pub use deadline::{Deadline, Tunables as DeadlineTunables};
pub use none::Fifo;

use extant_block::{Op, Sector, StreamId};
use extant_rt::Nanos;
use std::fmt;

/// The driver's slot number of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// Which streams are expected to behave alike: those of one program, or of one container. Zero where nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u64);

/// The I/O scheduling classes of `ionice(1)` (Linux: Documentation/block/ioprio).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoClass {
    /// Served before every other class.
    RealTime,
    /// The class of a process that asks for no other.
    #[default]
    BestEffort,
    /// Served only when nobody else wants the disk.
    Idle,
}

/// Class and level of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Priority {
    /// Scheduling class.
    pub class: IoClass,
    /// 0 (highest) to 7 (lowest); without meaning in the idle class.
    pub level: u8,
}

impl Priority {
    /// Levels in a class.
    pub const LEVELS: u8 = 8;

    /// `level` above 7 counts as 7.
    pub const fn new(class: IoClass, level: u8) -> Self {
        Self { class, level: if level < Self::LEVELS { level } else { Self::LEVELS - 1 } }
    }
}

impl Default for Priority {
    /// Best effort, level 4: what Linux gives a process with nice 0.
    fn default() -> Self {
        Self::new(IoClass::BestEffort, 4)
    }
}

/// A request as an elevator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The driver's name for it.
    pub id: RequestId,
    /// First sector.
    pub start: Sector,
    /// Length in sectors of 512 bytes.
    pub sectors: u64,
    /// The operation; never [`Op::Flush`].
    pub op: Op,
    /// Whether a task waits for it; always set for reads.
    pub sync: bool,
    /// File-system metadata: merged with its like only.
    pub meta: bool,
    /// Others wait behind it (Linux: `REQ_PRIO`): may jump the queue of its class.
    pub prio: bool,
    /// The submitter does not expect to follow up soon (Linux: `REQ_NOIDLE`, set by fsync's writes).
    pub noidle: bool,
    /// The stream that it is charged to.
    pub stream: StreamId,
    /// The program that the stream belongs to.
    pub program: ProgramId,
    /// The stream's class and level when it submitted this.
    pub priority: Priority,
}

impl Request {
    /// A request of stream 0 with default priority, synchronous iff it reads.
    pub fn new(id: RequestId, op: Op, start: Sector, sectors: u64) -> Self {
        Self {
            id,
            start,
            sectors,
            op,
            sync: op == Op::Read,
            meta: false,
            prio: false,
            noidle: false,
            stream: StreamId::default(),
            program: ProgramId::default(),
            priority: Priority::default(),
        }
    }

    /// The sector after the last.
    pub fn end(&self) -> Sector {
        Sector(self.start.0 + self.sectors)
    }
}

/// The decision of [`Elevator::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send this request to the device. The elevator no longer holds it and waits for its completion.
    Dispatch(RequestId),
    /// Requests are queued, but the elevator keeps the device idle for a better one. Ask again at this time (it is
    /// later than `now`), or earlier after an `add`, a `completed` or an `exited`.
    IdleUntil(Nanos),
    /// Nothing to send before the next `add`, `completed` or `exited`. Requests may still be queued: then others are in flight,
    /// and the completion of one of them opens the way.
    Empty,
}

/// A policy for the order of requests. See the [module](self) for the contract.
///
/// Merging is in two steps, because limits are the driver's: look for a partner with [`back_merge`](Self::back_merge)
/// or [`front_merge`](Self::front_merge), merge if the limits allow, and report it with [`merged`](Self::merged) (a
/// bio joined a queued request) or [`absorbed`](Self::absorbed) (a queued request joined another). The elevator
/// offers only partners that its policy allows: same operation, same `meta`, and, for a policy with queues per
/// stream, same queue.
pub trait Elevator: Send + fmt::Debug {
    /// Name, as in `/sys/block/*/queue/scheduler`.
    fn name(&self) -> &'static str;

    /// Queues a request.
    fn add(&mut self, request: Request, now: Nanos);

    /// Decides what to do now.
    fn next(&mut self, now: Nanos) -> Decision;

    /// A dispatched request has ended.
    fn completed(&mut self, id: RequestId, now: Nanos);

    /// Requests added and neither dispatched nor absorbed.
    fn queued(&self) -> usize;

    /// A queued request that ends where `candidate` starts. `candidate` (its `id` is not looked at) may be about to be
    /// added, or be queued itself.
    fn back_merge(&self, candidate: &Request) -> Option<RequestId>;

    /// A queued request that starts where `candidate` ends.
    fn front_merge(&self, candidate: &Request) -> Option<RequestId>;

    /// The queued request `id` now covers `start` and `sectors`, having grown at one end by a bio of the same kind.
    fn merged(&mut self, id: RequestId, start: Sector, sectors: u64, now: Nanos);

    /// The queued request `gone`, adjacent to the queued request `kept`, is now part of it. `gone` is forgotten; its
    /// place in time, if older, passes to `kept`.
    fn absorbed(&mut self, kept: RequestId, gone: RequestId, now: Nanos);

    /// Whether the device is kept idle for this stream's next synchronous request. A driver with a limited number of
    /// requests lets that one past the limit (Linux: `ELV_MQUEUE_MUST`): idling for a request that stands in line for a
    /// slot helps nobody. An elevator may say so once for each of its waits.
    fn awaits(&mut self, _stream: StreamId) -> bool {
        false
    }

    /// The stream has ended (its process exited): nothing more will come from it. Its queued requests are still served.
    /// Until then an elevator may keep what it learned of the stream.
    fn exited(&mut self, stream: StreamId, now: Nanos);
}

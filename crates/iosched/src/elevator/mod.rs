//! Elevators: which request goes to the device next, and whether to wait for a better one.
//!
//! An elevator is a pure state machine. It receives requests ([`Elevator::add`]), is asked for one
//! ([`Elevator::next`]), and is told of completions ([`Elevator::completed`]). It sees plain
//! numbers and the time, never a bio, a task, a clock or a device. Its driver (the request queue, a
//! simulator, a test) keeps this contract:
//!
//! 1. A [`RequestId`] is the driver's slot number. It can be reused after [`Elevator::completed`],
//!    or after the request was [absorbed](Elevator::absorbed) by another. Use small numbers:
//!    elevators index tables with them.
//! 2. `now` never goes backwards.
//! 3. `next` is called whenever the device has room and something has changed: after `add`, after
//!    `completed`, after `exited` and, if the last answer was [`Decision::IdleUntil`], at or soon
//!    after the time it named. A later answer replaces that time, and a full device cancels it: a
//!    change that the elevator has planned for that time then takes place at its next call. `next`
//!    is called again until it returns something other than [`Decision::Dispatch`], or until the
//!    device is full.
//! 4. Every dispatched request is completed once, whether it failed or not. Every queued request is
//!    dispatched or absorbed.
//!
//! Flushes do not pass through an elevator. A driver that must drain calls `next` until it returns
//! [`Decision::Empty`] with [`Elevator::queued`] zero.
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

/// Identifies streams expected to behave alike: those of one program or container. Zero if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u64);

/// The I/O scheduling classes of `ionice(1)` (Linux: Documentation/block/ioprio).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoClass {
    /// Served before all other classes.
    RealTime,
    /// The class of a process that does not ask for another.
    #[default]
    BestEffort,
    /// Served only when no one else wants the disk.
    Idle,
}

/// Class and level of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Priority {
    /// Scheduling class.
    pub class: IoClass,
    /// 0 (highest) to 7 (lowest); has no meaning in the idle class.
    pub level: u8,
}

impl Priority {
    /// Levels in a class.
    pub const LEVELS: u8 = 8;

    /// A `level` above 7 counts as 7.
    pub const fn new(class: IoClass, level: u8) -> Self {
        Self { class, level: if level < Self::LEVELS { level } else { Self::LEVELS - 1 } }
    }
}

impl Default for Priority {
    /// Best effort, level 4: Linux's default for a process with nice 0.
    fn default() -> Self {
        Self::new(IoClass::BestEffort, 4)
    }
}

/// A request, as an elevator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The driver's number for it.
    pub id: RequestId,
    /// First sector.
    pub start: Sector,
    /// Length in sectors of 512 bytes.
    pub sectors: u64,
    /// The operation; never [`Op::Flush`].
    pub op: Op,
    /// Whether a task waits for it; always set for reads.
    pub sync: bool,
    /// Whether it is file-system metadata, which is only merged with other metadata.
    pub meta: bool,
    /// Whether others wait for it (Linux: `REQ_PRIO`): it may go to the front of its class.
    pub prio: bool,
    /// Whether the submitter does not expect to follow up soon (Linux: `REQ_NOIDLE`, set on fsync's
    /// writes).
    pub noidle: bool,
    /// The stream it is charged to.
    pub stream: StreamId,
    /// The program the stream belongs to.
    pub program: ProgramId,
    /// The stream's class and level when it submitted the request.
    pub priority: Priority,
}

impl Request {
    /// A request of stream 0 with default priority; synchronous if it is a read.
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

    /// The sector after the last one.
    pub fn end(&self) -> Sector {
        Sector(self.start.0 + self.sectors)
    }
}

/// The answer of [`Elevator::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send this request to the device. The elevator no longer holds it, and waits for its
    /// completion.
    Dispatch(RequestId),
    /// Requests are queued, but the elevator keeps the device idle for a better one. Ask again at
    /// this time (it is later than `now`), or earlier after an `add`, a `completed` or an `exited`.
    IdleUntil(Nanos),
    /// Nothing to send before the next `add`, `completed` or `exited`.
    ///
    /// Requests may still be queued: then others are in flight, and the completion of one of them
    /// lets the queued ones proceed.
    Empty,
}

/// A policy for the order of requests. See the [module](self) for the contract.
///
/// Merging has two steps, because the driver knows the limits: look for a partner with
/// [`back_merge`](Self::back_merge) or [`front_merge`](Self::front_merge), merge if the limits
/// allow it, and report the merge with [`merged`](Self::merged) (a bio joined a queued request) or
/// [`absorbed`](Self::absorbed) (a queued request joined another). The elevator only offers
/// partners that its policy allows: same operation, same `meta`, and, for a policy with a queue per
/// stream, same queue.
pub trait Elevator: Send + fmt::Debug {
    /// Name, as in `/sys/block/*/queue/scheduler`.
    fn name(&self) -> &'static str;

    /// Queues a request.
    fn add(&mut self, request: Request, now: Nanos);

    /// Decides what to do now.
    fn next(&mut self, now: Nanos) -> Decision;

    /// A dispatched request has completed.
    fn completed(&mut self, id: RequestId, now: Nanos);

    /// Number of requests added and neither dispatched nor absorbed.
    fn queued(&self) -> usize;

    /// A queued request that ends where `candidate` starts. `candidate` may be about to be added,
    /// or be queued itself; its `id` is ignored.
    fn back_merge(&self, candidate: &Request) -> Option<RequestId>;

    /// A queued request that starts where `candidate` ends.
    fn front_merge(&self, candidate: &Request) -> Option<RequestId>;

    /// The queued request `id` has grown at one end by a bio of the same kind, and now covers
    /// `start` and `sectors`.
    fn merged(&mut self, id: RequestId, start: Sector, sectors: u64, now: Nanos);

    /// The queued request `gone`, adjacent to the queued request `kept`, is now part of it. The
    /// elevator forgets `gone`; if `gone` is older, `kept` takes its place in time.
    fn absorbed(&mut self, kept: RequestId, gone: RequestId, now: Nanos);

    /// Whether the device is kept idle for this stream's next synchronous request. A driver with a
    /// limited number of requests lets that request exceed the limit (Linux: `ELV_MQUEUE_MUST`):
    /// idling for a request that waits in line for a slot helps no one. An elevator may return true
    /// once for each of its waits.
    fn awaits(&mut self, _stream: StreamId) -> bool {
        false
    }

    /// The stream has ended (its process exited) and will submit nothing more. Its queued requests
    /// are still served. Until this call, an elevator may keep what it learned about the stream.
    fn exited(&mut self, stream: StreamId, now: Nanos);
}

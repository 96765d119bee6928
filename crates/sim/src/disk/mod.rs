//! Modelled disks: how long commands take, in what order they complete, and what survives a crash.
//!
//! A [`Drive`] is a pure state machine. Commands go in with [`Drive::submit`];
//! [`Drive::next_event`] returns the time of the next event, and [`Drive::advance`] handles and
//! reports it. A drive knows times and positions but no bytes: those live in a [`Contents`],
//! sparse, with volatile data kept apart. A [`Rack`] puts drives behind a shared [`Bus`]; a
//! [`ModelDisk`] makes one of them a [`Device`](extant_block::Device) of a virtual world.
//!
//! | drive | model |
//! |---|---|
//! | [`Rotating`] | arm, rotation, zones, skew, read-ahead, write cache, rotation-aware queue |
//! | [`Ssd`] | channels, random latencies, a buffer that merges small writes, garbage collection |
//! | [`Ram`] | latency and one memory bus |
//! | [`Limited`] | one of these, limited in commands and bytes a second, with burst credits |
//!
//! ```
//! use extant_block::{Op, Sector};
//! use extant_rt::Nanos;
//! use extant_sim::disk::{Command, Drive, Ram, RamSpec, Report, Tag};
//!
//! let spec = RamSpec {
//!     capacity_bytes: 1 << 30,
//!     latency_ns: 1_000,
//!     bytes_s: 1_000_000_000,
//!     queue_depth: 64,
//! };
//! let mut ram = Ram::new(spec);
//! ram.submit(Nanos(0), Command::new(Tag(7), Op::Read, Sector(8), 8));
//! let mut reports = Vec::new();
//! ram.advance(ram.next_event().unwrap(), &mut reports);
//! assert_eq!(reports, [Report::Done { tag: Tag(7), at: Nanos(1_000 + 4_096) }]);
//! ```

mod buffer;
mod bus;
mod contents;
mod device;
mod extents;
mod limited;
mod model;
mod ram;
mod rotating;
mod ssd;

pub use bus::{Bus, BusSpec, Rack};
pub use contents::Contents;
pub use device::{Disks, ModelDisk, NOMINAL_SEED};
pub use limited::{Allowance, LimitSpec, Limited};
pub(crate) use model::read_models;
pub use model::{DiskKind, DiskModel};
pub use ram::{Ram, RamSpec};
pub use rotating::{Rotating, RotatingSpec};
pub use ssd::{Ssd, SsdSpec};

use extant_block::{Op, Sector};
use extant_rt::Nanos;
use std::fmt;

/// The submitter's id for a command; reusable once the command is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

/// A command to a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The submitter's id.
    pub tag: Tag,
    /// The operation.
    pub op: Op,
    /// First sector.
    pub start: Sector,
    /// Length in sectors of 512 bytes; zero for a flush.
    pub sectors: u64,
    /// Force unit access: a write completes only once it is on the medium.
    pub fua: bool,
}

impl Command {
    /// A command without force-unit-access.
    pub const fn new(tag: Tag, op: Op, start: Sector, sectors: u64) -> Self {
        Self { tag, op, start, sectors, fua: false }
    }

    fn end(&self) -> u64 {
        self.start.0 + self.sectors
    }
}

/// An event in a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A command completed.
    Done {
        /// Which command.
        tag: Tag,
        /// When.
        at: Nanos,
    },
    /// The last write to these sectors is on the medium and survives a crash.
    Durable {
        /// First sector.
        start: Sector,
        /// Number of sectors.
        sectors: u64,
    },
}

/// A modelled drive. `now` never goes backwards; commands lie within the capacity.
pub trait Drive: Send + fmt::Debug {
    /// Submits a command. The caller has [advanced](Drive::advance) to `now`; at most
    /// [`Drive::queue_depth`] commands may be in flight.
    fn submit(&mut self, now: Nanos, command: Command);

    /// Time of the next event; `None` if there is none until the next command.
    fn next_event(&self) -> Option<Nanos>;

    /// Handles all events due by `now`, in time order, and appends their reports.
    fn advance(&mut self, now: Nanos, reports: &mut Vec<Report>);

    /// Maximum commands in flight.
    fn queue_depth(&self) -> usize;

    /// Capacity in sectors of 512 bytes.
    fn sectors(&self) -> u64;

    /// Whether a completed write may be lost until a flush.
    fn has_volatile_cache(&self) -> bool;

    /// Simulates a power failure: commands in flight and the cache are lost. The drive comes back
    /// idle.
    fn lose_power(&mut self, now: Nanos);
}

/// A parameter's name, whether its value is valid, and the problem if not.
type Check = (&'static str, bool, &'static str);

/// Twice the capacity of the largest drives of 2025; a table of such a disk's contents still fits
/// in memory.
const MOST_CAPACITY_BYTES: u64 = 256 << 40;

fn capacity_check(bytes: u64) -> Check {
    ("capacity_bytes", (1 << 20..=MOST_CAPACITY_BYTES).contains(&bytes), "a disk has 1 MiB to 256 TiB")
}

/// The first invalid parameter.
fn first_fault<const N: usize>(checks: [Check; N]) -> Option<(&'static str, &'static str)> {
    checks.into_iter().find(|(_, holds, _)| !holds).map(|(key, _, problem)| (key, problem))
}

/// Nanoseconds to move `bytes` at `bytes_s` bytes per second, rounded up.
fn transfer_ns(bytes: u64, bytes_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_s)) as u64
}

/// Completions with a known time, in order of time, then of scheduling.
#[derive(Debug, Default)]
struct Promises {
    heap: std::collections::BinaryHeap<std::cmp::Reverse<(Nanos, u64, Tag)>>,
    made: u64,
}

impl Promises {
    fn push(&mut self, at: Nanos, tag: Tag) {
        self.made += 1;
        self.heap.push(std::cmp::Reverse((at, self.made, tag)));
    }

    fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|promise| promise.0.0)
    }

    fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, Tag)> {
        self.next().filter(|at| *at <= now)?;
        self.heap.pop().map(|promise| (promise.0.0, promise.0.2))
    }

    fn clear(&mut self) {
        self.heap.clear();
    }
}

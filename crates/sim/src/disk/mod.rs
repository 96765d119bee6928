//! Modelled disks: how long commands take, in what order they end, and what a crash leaves.
//!
//! A [`Drive`] is a pure state machine. Commands go in with [`Drive::submit`]; [`Drive::next_event`] says when something
//! happens next, and [`Drive::advance`] makes it happen and reports it. It knows times and places, never bytes:
//! contents live in a [`Contents`], sparse, with what is still volatile kept apart. A [`Rack`] puts drives behind a shared
//! [`Bus`]; a [`ModelDisk`] is one of them as a [`Device`](extant_block::Device) of a virtual world.
//!
//! | drive | model |
//! |---|---|
//! | [`Rotating`] | arm, rotation, zones, skew, read-ahead segments, write cache, queue ordered by rotational position |
//! | [`Ssd`] | channels, latencies drawn from a distribution, a buffer that gathers small writes, garbage collection |
//! | [`Ram`] | latency and one memory bus |
//!
//! ```
//! use extant_block::{Op, Sector};
//! use extant_rt::Nanos;
//! use extant_sim::disk::{Command, Drive, Ram, RamSpec, Report, Tag};
//!
//! let mut ram = Ram::new(RamSpec { capacity_bytes: 1 << 30, latency_ns: 1_000, bytes_s: 1_000_000_000, queue_depth: 64 });
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
mod model;
mod ram;
mod rotating;
mod ssd;

pub use bus::{Bus, BusSpec, Rack};
pub use contents::Contents;
pub use device::{Disks, ModelDisk, NOMINAL_SEED};
pub(crate) use model::read_models;
pub use model::{DiskKind, DiskModel};
pub use ram::{Ram, RamSpec};
pub use rotating::{Rotating, RotatingSpec};
pub use ssd::{Ssd, SsdSpec};

use extant_block::{Op, Sector};
use extant_rt::Nanos;
use std::fmt;

/// The submitter's name for a command; free again once the command is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

/// A command to a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The submitter's name for it.
    pub tag: Tag,
    /// The operation.
    pub op: Op,
    /// First sector.
    pub start: Sector,
    /// Length in sectors of 512 bytes; zero for a flush.
    pub sectors: u64,
    /// A write that is done only once it is on the medium.
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
    /// The command has ended.
    Done {
        /// Which.
        tag: Tag,
        /// When.
        at: Nanos,
    },
    /// The last write to these sectors is on the medium: a crash no longer takes it.
    Durable {
        /// First sector.
        start: Sector,
        /// How many.
        sectors: u64,
    },
}

/// A modelled drive. `now` never goes backwards; commands lie within the capacity.
pub trait Drive: Send + fmt::Debug {
    /// Takes a command, after [`Drive::advance`] up to `now`. At most [`Drive::queue_depth`] may be under way.
    fn submit(&mut self, now: Nanos, command: Command);

    /// When something happens next; `None` while nothing will without another command.
    fn next_event(&self) -> Option<Nanos>;

    /// Lets everything happen that is due, in order of time, and appends what did.
    fn advance(&mut self, now: Nanos, reports: &mut Vec<Report>);

    /// Commands that the drive takes at once.
    fn queue_depth(&self) -> usize;

    /// Capacity in sectors of 512 bytes.
    fn sectors(&self) -> u64;

    /// Whether a write that is done may be lost until a flush.
    fn has_volatile_cache(&self) -> bool;

    /// Power fails: commands and the cache's contents are gone. The drive comes back idle.
    fn lose_power(&mut self, now: Nanos);
}

/// A parameter's name, whether its value makes sense, and what is wrong with it if not.
type Check = (&'static str, bool, &'static str);

/// The largest drives of 2025 hold half of this; a table of what a disk of this size holds still fits memory.
const MOST_CAPACITY_BYTES: u64 = 256 << 40;

fn capacity_check(bytes: u64) -> Check {
    ("capacity_bytes", (1 << 20..=MOST_CAPACITY_BYTES).contains(&bytes), "a disk has 1 MiB to 256 TiB")
}

/// The first parameter that makes no sense.
fn first_fault<const N: usize>(checks: [Check; N]) -> Option<(&'static str, &'static str)> {
    checks.into_iter().find(|(_, holds, _)| !holds).map(|(key, _, problem)| (key, problem))
}

/// Time to move `bytes` at `bytes_s` bytes a second, rounded up.
fn transfer_ns(bytes: u64, bytes_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_s)) as u64
}

/// Completions that are certain, in order of time and then of promise.
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

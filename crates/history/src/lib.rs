//! Linux's policies, each behind the trait that Extant's own policy implements.
//!
//! To see what distinguishes a policy, compare two files here, or a file here with Extant's own
//! policy, which is in the crate that uses it. This crate also maps names to policies
//! ([`elevator`], [`dirty_control`], [`pass()`]), and its tests run the request queue and the page
//! cache with each of them. Production code never needs it.
//!
//! ```
//! use extant_history::{BlockHost, ELEVATORS, Host, dirty_control, elevator};
//!
//! let flash = BlockHost { rotational: false, hz: 250, ..BlockHost::default() };
//! assert_eq!(elevator("cfq", &flash).unwrap().queued(), 0);
//! let host = Host { cpus: 2, memory_bytes: 1 << 30, hz: 250 };
//! assert!(dirty_control("linux-3.1", &host).is_ok());
//! let error = elevator("lift", &flash).unwrap_err().to_string();
//! assert!(error.contains("there are none, mq-deadline") && ELEVATORS.len() == 8);
//! ```
#![forbid(unsafe_code)]

pub mod alloc;
pub mod anticipatory;
pub mod cfq;
pub mod direct;
pub mod dirty;
pub mod pass;
mod policy;
pub mod read_ahead;
pub mod waits;

use alloc::{BlockAllocator, Ext2, Ext3, FreeSpace, Linux2633 as Mballoc2633, Mballoc, StripeRule};
use anticipatory::Anticipatory;
use direct::{BoundaryRule, Direct};
use dirty::{Ioless, Linux31};
use extant_block::Device;
use extant_cache::control::DirtyControl;
use extant_cache::dirty::TurnControl;
use extant_cache::pass::{ByRuns, WriteBackPass};
use extant_iosched::elevator::cfq::{IdleRule, Tunables};
use extant_iosched::elevator::{Cfq, Deadline, DeadlineTunables, Elevator, Fifo};
use extant_iosched::{Batching, Queue, QueueConfig};
use extant_rt::Rt;
use pass::Linux2633;
pub use policy::{Choice, Kind, Named, OURS, UnknownPolicy};
use std::sync::Arc;

/// Creates an elevator.
pub type MakeElevator = fn(&BlockHost, &anticipatory::Tasks) -> Box<dyn Elevator>;

/// Creates a dirty controller for a host.
pub type MakeDirtyControl = fn(&Host) -> Box<dyn DirtyControl>;

/// Creates a writeback pass.
pub type MakePass = fn() -> Box<dyn WriteBackPass>;

/// Properties of the host that dirty controllers depend on.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Number of processors.
    pub cpus: u32,
    /// Memory for pages, in bytes.
    pub memory_bytes: u64,
    /// Ticks per second of the kernel (`CONFIG_HZ`), 1 to 10⁹.
    pub hz: u32,
}

/// Properties of the disk and of the kernel that elevators depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHost {
    /// Whether seeks cost time (kernel: `queue/rotational`).
    pub rotational: bool,
    /// Ticks per second (`CONFIG_HZ`), 1 to 10⁹. Our elevator has its own ticks of 100 µs.
    pub hz: u32,
    /// CFQ's `slice_idle` as set by an administrator, in milliseconds, rounded up to whole ticks;
    /// `None` is the kernel's default of 8 ms, rounded down to ticks. Our elevator sets its own.
    pub slice_idle_ms: Option<u32>,
    /// The knobs of mq-deadline.
    pub deadline: DeadlineTunables,
}

impl Default for BlockHost {
    /// A rotational disk, 1000 Hz, and the kernel's defaults.
    fn default() -> Self {
        Self { rotational: true, hz: 1000, slice_idle_ms: None, deadline: DeadlineTunables::default() }
    }
}

impl BlockHost {
    /// CFQ of Linux 3.10 with this idle rule.
    fn cfq(&self, rule: impl IdleRule + 'static) -> Box<dyn Elevator> {
        let defaults = Tunables::linux(self.hz);
        let set = self.slice_idle_ms.map(|ms| (i64::from(ms) * defaults.hz + 999) / 1000);
        let slice_idle = set.unwrap_or(defaults.slice_idle);
        Box::new(Cfq::with(Tunables { rotational: self.rotational, slice_idle, ..defaults }, rule))
    }
}

/// The elevators.
pub static ELEVATORS: [Named<MakeElevator>; 8] = [
    Named {
        name: "none",
        about: "in order of arrival, with at most as many requests as the device has tags (Linux 5.0)",
        make: |_, _| Box::new(Fifo::new()),
    },
    Named {
        name: "mq-deadline",
        about: "by position in batches; an expired request starts the next batch",
        make: |host, _| Box::new(Deadline::with(host.deadline)),
    },
    Named {
        name: "anticipatory",
        about: "by position; keeps the disk idle for the next read of the task that read last (Linux 2.6.11)",
        make: |host, tasks| Box::new(Anticipatory::new(host.hz, tasks.clone())),
    },
    Named { name: "cfq", about: "CFQ of Linux 3.10", make: |host, _| host.cfq(cfq::Linux310) },
    Named {
        name: "cfq-limited",
        about: "the same, but all idle queues together idle for at most one group slice (proposed in 2013)",
        make: |host, _| host.cfq(cfq::Limited),
    },
    Named {
        name: "cfq-earned",
        about: "the same, but a new queue has to earn its idle window (proposed in 2013)",
        make: |host, _| host.cfq(cfq::Earned),
    },
    Named {
        name: "extant",
        about: "CFQ with our rule for idling, which weighs what a wait saves and costs",
        make: |host, _| Box::new(Cfq::extant(host.rotational)),
    },
    Named {
        name: "noop",
        about: "in order of arrival, with requests of its own (Linux until 4.20)",
        make: |_, _| Box::new(Fifo::named("noop")),
    },
];

/// How streams that waited for a request may exceed the request limit under an elevator: in batches
/// for elevators of the request queue before blk-mq, not at all for others.
pub fn batching(elevator: &str) -> Option<Batching> {
    (elevator.starts_with("cfq") || matches!(elevator, "anticipatory" | "noop")).then_some(Batching::LINUX)
}

/// Number of requests of a queue unless an administrator changes it (kernel: `BLKDEV_MAX_RQ`,
/// `BLKDEV_DEFAULT_RQ`).
pub const DEFAULT_REQUESTS: usize = 128;

/// Number of requests in the queue of a device with `tags` tags under an elevator. Before blk-mq it
/// is a constant for each kind of request. A blk-mq elevator gets twice the tags, up to 256
/// (`blk_mq_init_sched()`); without an elevator it is the number of tags, shared by both kinds.
/// Ours gets one request per tag for each kind, at least 128.
pub fn default_requests(elevator: &str, tags: usize) -> usize {
    match elevator {
        "none" => tags,
        "mq-deadline" => 2 * tags.min(DEFAULT_REQUESTS),
        "extant" => tags.max(DEFAULT_REQUESTS),
        _ => DEFAULT_REQUESTS,
    }
}

/// Whether a queue's requests under an elevator are the device's tags, which limits their number.
pub fn uses_tags(elevator: &str) -> bool {
    elevator == "none"
}

/// Controllers of dirty memory.
pub static DIRTY_CONTROLS: [Named<MakeDirtyControl>; 5] = [
    Named {
        name: "linux-3.1",
        about: "writers over the limit write back pages themselves",
        make: |host| Box::new(Linux31::new(host)),
    },
    Named {
        name: "ioless-first",
        about: "writers pause at a rate that feedback finds, as first posted (September 2011)",
        make: |host| Box::new(Ioless::as_first_posted(host)),
    },
    Named {
        name: "ioless",
        about: "the same, with the reserve that was merged and the pauses of Linux 3.7",
        make: |host| Box::new(Ioless::new(host)),
    },
    Named {
        name: "ioless+background",
        about: "version 12 of the patches (3 October 2011): the merged reserve, and a background threshold for each device",
        make: |host| Box::new(Ioless::version_12(host)),
    },
    Named {
        name: OURS,
        about: "ours: credits for each device, and turns for its writers",
        make: |_| Box::new(TurnControl::new()),
    },
];

/// Variants of these that appeared in a single mail.
pub static OTHER_DIRTY_CONTROLS: [Named<MakeDirtyControl>; 1] = [Named {
    name: "ioless-september",
    about: "ioless+background with the reserve of the mail of 28 September 2011",
    make: |host| Box::new(Ioless::with_device_background(host)),
}];

/// The writeback passes.
pub static PASSES: [Named<MakePass>; 3] = [
    Named {
        name: "linux-2.6.33",
        about: "ext4's delayed allocation: an extent each round, all other pages of the run dirtied again",
        make: || Box::new(Linux2633::released()),
    },
    Named {
        name: "linux-2.6.33+resched",
        about: "the same, with a reschedule point after each page vector (proposed in 2010)",
        make: || Box::new(Linux2633::rescheduling()),
    },
    Named { name: OURS, about: "ours: whole runs, each page visited once", make: || Box::new(ByRuns) },
];

/// Creates an allocator for a volume with this free space.
pub type MakeAllocator = fn(&FreeSpace) -> Box<dyn BlockAllocator>;

/// Linux's block allocators. Extant's own belongs to the volume and is not in the table.
pub static ALLOCATORS: [Named<MakeAllocator>; 5] = [
    Named {
        name: "linux-2.4.18-ext2",
        about: "as pages are written, with seven blocks preallocated ahead until the file is closed",
        make: |space| Box::new(Ext2::new(space)),
    },
    Named {
        name: "linux-2.6.11-ext3",
        about: "as pages are written, in windows of 8 to 1,027 blocks reserved for each file",
        make: |space| Box::new(Ext3::new(space)),
    },
    Named {
        name: "linux-2.6.33",
        about: "ext4, as pages are written back: as much as the file is predicted to need; short files share a run",
        make: |space| Box::new(Mballoc2633::new(space)),
    },
    Named {
        name: "linux-6.5",
        about: "small files of ext4: runs at multiples of the stripe; where a group has none, it is asked for again (kernel bug \
                217965)",
        make: |space| Box::new(Mballoc::new(StripeRule::NextGroup, space)),
    },
    Named {
        name: "linux-6.8",
        about: "the same, but a group without such a run gives any other run",
        make: |space| Box::new(Mballoc::new(StripeRule::AnyRun, space)),
    },
];

/// Creates a policy of direct I/O.
pub type MakeDirect = fn() -> Direct;

/// Linux's policies of direct I/O. Extant's own belongs to the volume and is not in the table.
pub static DIRECT_IO: [Named<MakeDirect>; 5] = [
    Named {
        name: "linux-2.6.19",
        about: "every page of a mapping with a boundary counts as a boundary (as released)",
        make: || Direct { rule: BoundaryRule::EveryChunk, placeholders: false },
    },
    Named {
        name: "linux-2.6.19+placeholders",
        about: "the same, with placeholders in the page cache for the range (the \"-pl\" patches of 2006)",
        make: || Direct { rule: BoundaryRule::EveryChunk, placeholders: true },
    },
    Named {
        name: "linux-2.6.19+placeholders+first",
        about: "the same, but only the first page of a mapping counts (first patch of November 2006)",
        make: || Direct { rule: BoundaryRule::FirstChunk, placeholders: true },
    },
    Named {
        name: "linux-2.6.19+placeholders+last-early",
        about: "the same, but only the last page counts; the pages collected before it are sent without it",
        make: || Direct { rule: BoundaryRule::LastChunkEarly, placeholders: true },
    },
    Named {
        name: "linux-2.6.19+placeholders+last",
        about: "the same, but only the last page counts, and is sent with the pages before it (second patch)",
        make: || Direct { rule: BoundaryRule::LastChunk, placeholders: true },
    },
];

/// Creates an elevator for a machine with a single disk.
///
/// # Errors
/// [`UnknownPolicy`], with the existing names, if no elevator has this name.
pub fn elevator(name: &str, host: &BlockHost) -> Result<Box<dyn Elevator>, UnknownPolicy> {
    Ok(name.parse::<Choice<MakeElevator>>()?.make()(host, &anticipatory::Tasks::default()))
}

/// Creates the queues of a machine's disks, each with an elevator of its own. The elevators share
/// what they know about tasks.
pub fn disk_queues(
    rt: &Rt,
    elevator: Choice<MakeElevator>,
    disks: impl IntoIterator<Item = (Arc<dyn Device>, BlockHost, QueueConfig)>,
) -> Vec<Arc<Queue>> {
    let make = elevator.make();
    let tasks = anticipatory::Tasks::default();
    let queue = |(disk, host, config): (Arc<dyn Device>, BlockHost, QueueConfig)| {
        Arc::new(Queue::new(rt, disk, make(&host, &tasks), config))
    };
    disks.into_iter().map(queue).collect()
}

/// Creates a dirty controller for a host.
///
/// # Errors
/// [`UnknownPolicy`], with the existing names, if no controller has this name.
pub fn dirty_control(name: &str, host: &Host) -> Result<Box<dyn DirtyControl>, UnknownPolicy> {
    Ok(name.parse::<Choice<MakeDirtyControl>>()?.make()(host))
}

/// Creates a writeback pass.
///
/// # Errors
/// [`UnknownPolicy`], with the existing names, if no pass has this name.
pub fn pass(name: &str) -> Result<Box<dyn WriteBackPass>, UnknownPolicy> {
    Ok(name.parse::<Choice<MakePass>>()?.make()())
}

impl Kind for MakeElevator {
    const NAME: &'static str = "an elevator";
    const TABLE: &'static [Named<Self>] = &ELEVATORS;
}

impl Kind for MakeDirtyControl {
    const NAME: &'static str = "a dirty controller";
    const TABLE: &'static [Named<Self>] = &DIRTY_CONTROLS;
    const UNLISTED: &'static [Named<Self>] = &OTHER_DIRTY_CONTROLS;
}

impl Kind for MakePass {
    const NAME: &'static str = "a pass of write-back";
    const TABLE: &'static [Named<Self>] = &PASSES;
}

impl Kind for MakeAllocator {
    const NAME: &'static str = "an allocator";
    const TABLE: &'static [Named<Self>] = &ALLOCATORS;
}

impl Kind for MakeDirect {
    const NAME: &'static str = "a policy of direct I/O";
    const TABLE: &'static [Named<Self>] = &DIRECT_IO;
}

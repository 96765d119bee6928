//! Policies as Linux had them, each behind the seam that Extant's own policy uses.
//!
//! A claim about a policy is a difference between two files here, or between one here and Extant's, which stay in the
//! crates that they drive. This crate also maps names to policies ([`elevator`], [`dirty_control`], [`pass()`]), and its
//! tests run request queue and page cache under each of them. Production code never needs it.
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
pub mod read_ahead;
pub mod waits;

use alloc::{BlockAllocator, Ext2, Ext3, FreeSpace, Linux2633 as Mballoc2633, Mballoc, StripeRule};
use anticipatory::Anticipatory;
use direct::{BoundaryRule, Direct};
use dirty::{Ioless, Linux31};
use extant_cache::control::DirtyControl;
use extant_cache::dirty::TurnControl;
use extant_cache::pass::{ByRuns, WriteBackPass};
use extant_iosched::Batching;
use extant_iosched::elevator::cfq::{IdleRule, Tunables};
use extant_iosched::elevator::{Cfq, Deadline, DeadlineTunables, Elevator, Fifo};
use pass::Linux2633;

/// A policy that can be chosen by its name; `make` is the function that makes one.
#[derive(Debug)]
pub struct Named<F> {
    /// The name in experiments and command lines.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    make: F,
}

/// Makes an elevator.
pub type MakeElevator = fn(&BlockHost, &anticipatory::Tasks) -> Box<dyn Elevator>;

/// Makes a dirty controller for a host.
pub type MakeDirtyControl = fn(&Host) -> Box<dyn DirtyControl>;

/// Makes a pass of write-back.
pub type MakePass = fn() -> Box<dyn WriteBackPass>;

/// Properties of the host that dirty controllers depend on.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Processors.
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
    /// Ticks per second (`CONFIG_HZ`), 1 to 10⁹. Ours has ticks of its own, of 100 µs.
    pub hz: u32,
    /// CFQ's `slice_idle` as an administrator sets it, in milliseconds, which count as whole ticks, rounded up; `None` is
    /// the kernel's default of 8 ms, which is rounded down to ticks. Ours sets its own.
    pub slice_idle_ms: Option<u32>,
    /// The knobs of mq-deadline.
    pub deadline: DeadlineTunables,
}

impl Default for BlockHost {
    /// A disk with an arm, 1000 Hz, and the kernel's defaults.
    fn default() -> Self {
        Self { rotational: true, hz: 1000, slice_idle_ms: None, deadline: DeadlineTunables::default() }
    }
}

impl BlockHost {
    /// CFQ of Linux 3.10 with one of its rules.
    fn cfq(&self, rule: impl IdleRule + 'static) -> Box<dyn Elevator> {
        let defaults = Tunables::linux(self.hz);
        let set = self.slice_idle_ms.map(|ms| (i64::from(ms) * defaults.hz + 999) / 1000);
        let slice_idle = set.unwrap_or(defaults.slice_idle);
        Box::new(Cfq::with(Tunables { rotational: self.rotational, slice_idle, ..defaults }, rule))
    }
}

/// A name that no policy of its kind has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" is not {kind}; there are {known}")]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
    /// The kind of policy that was looked up.
    pub kind: &'static str,
    /// The names that there are.
    pub known: String,
}

/// The elevators.
pub static ELEVATORS: [Named<MakeElevator>; 8] = [
    Named {
        name: "none",
        about: "in order of arrival, no more requests than the device has tags (Linux 5.0)",
        make: |_, _| Box::new(Fifo::new()),
    },
    Named {
        name: "mq-deadline",
        about: "by position in batches, none beyond its expiry",
        make: |host, _| Box::new(Deadline::with(host.deadline)),
    },
    Named {
        name: "anticipatory",
        about: "by position, idle for the next read of the task that has read last (Linux 2.6.11)",
        make: |host, tasks| Box::new(Anticipatory::new(host.hz, tasks.clone())),
    },
    Named { name: "cfq", about: "CFQ of Linux 3.10", make: |host, _| host.cfq(cfq::Linux310) },
    Named {
        name: "cfq-limited",
        about: "the same, all idle queues together idle one group slice at most (proposed in 2013)",
        make: |host, _| host.cfq(cfq::Limited),
    },
    Named {
        name: "cfq-earned",
        about: "the same, a new queue earns its idle window (proposed in 2013)",
        make: |host, _| host.cfq(cfq::Earned),
    },
    Named {
        name: "extant",
        about: "CFQ with our rule for idling, which weighs what it saves",
        make: |host, _| Box::new(Cfq::extant(host.rotational)),
    },
    Named {
        name: "noop",
        about: "in order of arrival, with requests of its own (Linux until 4.20)",
        make: |_, _| Box::new(Fifo::named("noop")),
    },
];

/// How streams that waited for a request go past the bound on requests under an elevator: in batches under those of the request
/// queue before blk-mq, and not at all under the others.
pub fn batching(elevator: &str) -> Option<Batching> {
    (elevator.starts_with("cfq") || matches!(elevator, "anticipatory" | "noop")).then_some(Batching::LINUX)
}

/// Requests of a queue unless an administrator sets another number (kernel: `BLKDEV_MAX_RQ`, `BLKDEV_DEFAULT_RQ`).
pub const DEFAULT_REQUESTS: usize = 128;

/// Requests that Linux gives the queue of a device with so many tags under an elevator: of each kind before blk-mq, and with an elevator
/// of blk-mq twice the tags up to 256 (`blk_mq_init_sched()`); without one all of the tags, which both kinds share. Ours has as many as
/// there are tags, and no fewer than 128, of each kind.
pub fn default_requests(elevator: &str, tags: usize) -> usize {
    match elevator {
        "none" => tags,
        "mq-deadline" => 2 * tags.min(DEFAULT_REQUESTS),
        "extant" => tags.max(DEFAULT_REQUESTS),
        _ => DEFAULT_REQUESTS,
    }
}

/// Whether the requests of a queue under an elevator are the device's tags, so that there are no more of them.
pub fn uses_tags(elevator: &str) -> bool {
    elevator == "none"
}

/// The controllers of dirty memory.
pub static DIRTY_CONTROLS: [Named<MakeDirtyControl>; 5] = [
    Named {
        name: "linux-3.1",
        about: "over the limit, writers write back themselves",
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
        name: OUR_DIRTY_CONTROL,
        about: "ours: credits for each device, turns of long runs",
        make: |_| Box::new(TurnControl::new()),
    },
];

/// Versions of them that one mail had.
pub static OTHER_DIRTY_CONTROLS: [Named<MakeDirtyControl>; 1] = [Named {
    name: "ioless-september",
    about: "ioless+background with the reserve of the mail of 28 September 2011",
    make: |host| Box::new(Ioless::with_device_background(host)),
}];

/// The dirty controller that a run has unless told otherwise.
pub const OUR_DIRTY_CONTROL: &str = "extant";

/// The passes of write-back.
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
    Named { name: OUR_PASS, about: "ours: whole runs, each page visited once", make: || Box::new(ByRuns) },
];

/// The pass of write-back that a run has unless told otherwise.
pub const OUR_PASS: &str = "extant";

/// Makes an allocator of a volume with some free space.
pub type MakeAllocator = fn(&FreeSpace) -> Box<dyn BlockAllocator>;

/// The allocators of blocks as Linux had them; ours is that of the volume.
pub static ALLOCATORS: [Named<MakeAllocator>; 5] = [
    Named {
        name: "linux-2.4.18-ext2",
        about: "as pages are written, with seven blocks ahead in use until the close",
        make: |space| Box::new(Ext2::new(space)),
    },
    Named {
        name: "linux-2.6.11-ext3",
        about: "as pages are written, in windows of 8 to 1,027 blocks reserved for each file",
        make: |space| Box::new(Ext3::new(space)),
    },
    Named {
        name: "linux-2.6.33",
        about: "ext4, as pages are written back: as much as the file is guessed to need, for short files from a shared run",
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
        about: "the same; where a group has none, any of its runs will do",
        make: |space| Box::new(Mballoc::new(StripeRule::AnyRun, space)),
    },
];

/// The allocator that a run has unless told otherwise.
pub const OUR_ALLOCATOR: &str = "extant";

/// Makes a policy of direct I/O.
pub type MakeDirect = fn() -> Direct;

/// The policies of direct I/O as Linux had them; ours is that of the volume.
pub static DIRECT_IO: [Named<MakeDirect>; 5] = [
    Named {
        name: "linux-2.6.19",
        about: "every page of a mapping that ends at a boundary is one (as released)",
        make: || Direct { rule: BoundaryRule::EveryChunk, placeholders: false },
    },
    Named {
        name: "linux-2.6.19+placeholders",
        about: "the same, with placeholders in the page cache for the range (the \"-pl\" patches of 2006)",
        make: || Direct { rule: BoundaryRule::EveryChunk, placeholders: true },
    },
    Named {
        name: "linux-2.6.19+placeholders+first",
        about: "the same, only the first page of a mapping is a boundary (first patch of November 2006)",
        make: || Direct { rule: BoundaryRule::FirstChunk, placeholders: true },
    },
    Named {
        name: "linux-2.6.19+placeholders+last-early",
        about: "the same, only the last page is, and what was collected before it is sent without it",
        make: || Direct { rule: BoundaryRule::LastChunkEarly, placeholders: true },
    },
    Named {
        name: "linux-2.6.19+placeholders+last",
        about: "the same, only the last page is, and is sent with what was collected (second patch)",
        make: || Direct { rule: BoundaryRule::LastChunk, placeholders: true },
    },
];

/// The policy of direct I/O that a run has unless told otherwise.
pub const OUR_DIRECT_IO: &str = "extant";

fn find<F>(table: &'static [Named<F>], kind: &'static str, name: &str) -> Result<&'static F, UnknownPolicy> {
    match table.iter().find(|policy| policy.name == name) {
        Some(policy) => Ok(&policy.make),
        None => {
            let known = table.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
            Err(UnknownPolicy { name: name.to_owned(), kind, known })
        }
    }
}

/// An elevator for the only disk of a machine, and a kernel.
///
/// # Errors
/// No elevator is called so; says which there are.
pub fn elevator(name: &str, host: &BlockHost) -> Result<Box<dyn Elevator>, UnknownPolicy> {
    elevator_beside(name, host, &anticipatory::Tasks::default())
}

/// An elevator for a disk and a kernel, beside those of the machine's other disks, which have the same `tasks`.
///
/// # Errors
/// As [`elevator`].
pub fn elevator_beside(
    name: &str,
    host: &BlockHost,
    tasks: &anticipatory::Tasks,
) -> Result<Box<dyn Elevator>, UnknownPolicy> {
    find(&ELEVATORS, "an elevator", name).map(|make| make(host, tasks))
}

/// A dirty controller for a host.
///
/// # Errors
/// No controller is called so; says which there are.
pub fn dirty_control(name: &str, host: &Host) -> Result<Box<dyn DirtyControl>, UnknownPolicy> {
    let other = OTHER_DIRTY_CONTROLS.iter().find(|policy| policy.name == name).map(|policy| &policy.make);
    let make = other.map_or_else(|| find(&DIRTY_CONTROLS, "a dirty controller", name), Ok)?;
    Ok(make(host))
}

/// A pass of write-back.
///
/// # Errors
/// No pass is called so; says which there are.
pub fn pass(name: &str) -> Result<Box<dyn WriteBackPass>, UnknownPolicy> {
    find(&PASSES, "a pass of write-back", name).map(|make| make())
}

/// A policy of direct I/O as Linux had it.
///
/// # Errors
/// No policy is called so; says which there are.
pub fn direct_io(name: &str) -> Result<Direct, UnknownPolicy> {
    find(&DIRECT_IO, "a policy of direct I/O", name).map(|make| make())
}

/// The maker of an allocator as Linux had it.
///
/// # Errors
/// No allocator is called so; says which there are.
pub fn allocator(name: &str) -> Result<MakeAllocator, UnknownPolicy> {
    find(&ALLOCATORS, "an allocator", name).copied()
}

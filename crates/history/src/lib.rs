//! Policies as Linux had them, each behind the seam that Extant's own policy uses.
//!
//! A claim about a policy is a difference between two files here, or between one here and Extant's, which stay in the
//! crates that they drive. This crate also maps names to policies ([`elevator`], [`dirty_control`], [`pass()`]), and its
//! tests run request queue and page cache under each of them. Production code never needs it.
//!
//! ```
//! use extant_history::{ELEVATORS, Host, dirty_control, elevator};
//!
//! assert_eq!(elevator("cfq").unwrap().queued(), 0);
//! let host = Host { cpus: 2, memory_bytes: 1 << 30 };
//! assert!(dirty_control("linux-3.1", &host).is_ok());
//! let error = elevator("lift").unwrap_err().to_string();
//! assert!(error.contains("there are none, mq-deadline") && ELEVATORS.len() == 6);
//! ```
#![forbid(unsafe_code)]

pub mod cfq;
pub mod dirty;
pub mod pass;

use dirty::{Ioless, Linux31};
use extant_cache::control::DirtyControl;
use extant_cache::dirty::TurnControl;
use extant_cache::pass::{ByRuns, WriteBackPass};
use extant_iosched::elevator::{Cfq, Deadline, Elevator, Fifo};
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
pub type MakeElevator = fn() -> Box<dyn Elevator>;

/// Makes a dirty controller for a host.
pub type MakeDirtyControl = fn(&Host) -> Box<dyn DirtyControl>;

/// Makes a pass of write-back.
pub type MakePass = fn() -> Box<dyn WriteBackPass>;

/// Properties of the host that some policies depend on.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Processors.
    pub cpus: u32,
    /// Memory for pages, in bytes.
    pub memory_bytes: u64,
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
pub static ELEVATORS: [Named<MakeElevator>; 6] = [
    Named { name: "none", about: "in order of arrival", make: || Box::new(Fifo::new()) },
    Named {
        name: "mq-deadline",
        about: "by position in batches, none beyond its expiry",
        make: || Box::new(Deadline::new()),
    },
    Named { name: "cfq", about: "CFQ of Linux 3.10 at 1000 Hz", make: || Box::new(Cfq::new(cfq::Linux310)) },
    Named {
        name: "cfq-limited",
        about: "the same, all idle queues together idle one group slice at most (proposed in 2013)",
        make: || Box::new(Cfq::new(cfq::Limited)),
    },
    Named {
        name: "cfq-earned",
        about: "the same, a new queue earns its idle window (proposed in 2013)",
        make: || Box::new(Cfq::new(cfq::Earned)),
    },
    Named {
        name: "extant",
        about: "CFQ with our rule for idling, which weighs what it saves",
        make: || Box::new(Cfq::extant()),
    },
];

/// The controllers of dirty memory.
pub static DIRTY_CONTROLS: [Named<MakeDirtyControl>; 4] = [
    Named {
        name: "linux-3.1",
        about: "over the limit, writers write back themselves",
        make: |host| Box::new(Linux31::new(host.memory_bytes, host.cpus)),
    },
    Named {
        name: "ioless",
        about: "writers pause at a rate that feedback finds (Linux 3.2)",
        make: |host| Box::new(Ioless::new(host.cpus)),
    },
    Named {
        name: "ioless+background",
        about: "the same, with a background threshold for each device (proposed in 2011)",
        make: |host| Box::new(Ioless::with_device_background(host.cpus)),
    },
    Named {
        name: OUR_DIRTY_CONTROL,
        about: "ours: credits for each device, turns of long runs",
        make: |_| Box::new(TurnControl::new()),
    },
];

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

fn find<F>(table: &'static [Named<F>], kind: &'static str, name: &str) -> Result<&'static F, UnknownPolicy> {
    match table.iter().find(|policy| policy.name == name) {
        Some(policy) => Ok(&policy.make),
        None => {
            let known = table.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
            Err(UnknownPolicy { name: name.to_owned(), kind, known })
        }
    }
}

/// An elevator with its usual knobs.
///
/// # Errors
/// No elevator is called so; says which there are.
pub fn elevator(name: &str) -> Result<Box<dyn Elevator>, UnknownPolicy> {
    find(&ELEVATORS, "an elevator", name).map(|make| make())
}

/// A dirty controller for a host.
///
/// # Errors
/// No controller is called so; says which there are.
pub fn dirty_control(name: &str, host: &Host) -> Result<Box<dyn DirtyControl>, UnknownPolicy> {
    find(&DIRTY_CONTROLS, "a dirty controller", name).map(|make| make(host))
}

/// A pass of write-back.
///
/// # Errors
/// No pass is called so; says which there are.
pub fn pass(name: &str) -> Result<Box<dyn WriteBackPass>, UnknownPolicy> {
    find(&PASSES, "a pass of write-back", name).map(|make| make())
}

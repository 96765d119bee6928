//! Policies as Linux had them, each behind the seam that ours uses.
//!
//! A claim about a policy is a difference between two files here, or between one here and ours. Ours stay where they
//! work, as the defaults of their crates; this is where a name becomes a policy.

pub mod cfq;

use extant_block::elevator::{Cfq, Deadline, Elevator, Fifo};

/// A policy that can be chosen by its name.
#[derive(Debug)]
pub struct Policy<T> {
    /// What experiments and command lines call it.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    make: fn() -> T,
}

/// A name that no policy of its kind has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" is not {kind}; there are {known}")]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
    /// What it should have been one of.
    pub kind: &'static str,
    /// The names that there are.
    pub known: String,
}

/// The elevators.
pub static ELEVATORS: [Policy<Box<dyn Elevator>>; 6] = [
    Policy { name: "none", about: "in order of arrival", make: || Box::new(Fifo::new()) },
    Policy {
        name: "mq-deadline",
        about: "by position in batches, none beyond its expiry",
        make: || Box::new(Deadline::new()),
    },
    Policy { name: "cfq", about: "CFQ of Linux 3.10 at 1000 Hz", make: || Box::new(Cfq::new(cfq::Linux310)) },
    Policy {
        name: "cfq-limited",
        about: "the same, all idle queues together idle one group slice at most (proposed in 2013)",
        make: || Box::new(Cfq::new(cfq::Limited)),
    },
    Policy {
        name: "cfq-earned",
        about: "the same, a new queue earns its idle window (proposed in 2013)",
        make: || Box::new(Cfq::new(cfq::Earned)),
    },
    Policy {
        name: "extant",
        about: "CFQ with our rule for idling, which weighs what it saves",
        make: || Box::new(Cfq::extant()),
    },
];

fn by_name<T>(table: &'static [Policy<T>], kind: &'static str, name: &str) -> Result<T, UnknownPolicy> {
    match table.iter().find(|policy| policy.name == name) {
        Some(policy) => Ok((policy.make)()),
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
    by_name(&ELEVATORS, "an elevator", name)
}

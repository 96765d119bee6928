//! Errors of tasks and of their world.

use crate::Nanos;
use std::any::Any;

/// Why a task or the world returned no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RtError {
    /// The task panicked.
    #[error("task {name} panicked: {message}")]
    Panicked {
        /// The name given at spawn.
        name: String,
        /// The panic's message.
        message: String,
    },
    /// The world was shut down before the task ended.
    #[error("task {name} was dropped: its world was shut down before it ended")]
    ShutDown {
        /// The name given at spawn.
        name: String,
    },
    /// Virtual world: every task waits, and no pending event could wake one.
    #[error("deadlock at {at}: every task waits and nothing is left to happen\n{waiters}")]
    Deadlock {
        /// When it happened.
        at: Nanos,
        /// One line per task: its name and what it waits for.
        waiters: String,
    },
    /// Virtual world: a task ran for longer than the limit without yielding its processor.
    #[error("task {name} never yields: {used} of processor time in one go at {at} (limit {limit})")]
    NeverYields {
        /// The name given at spawn.
        name: String,
        /// When it last got a processor.
        at: Nanos,
        /// The processor time it had used by then.
        used: Nanos,
        /// The limit.
        limit: Nanos,
    },
    /// Virtual world: tasks keep running but time does not advance.
    #[error("time stands still at {at}: {polls} polls in a row, the last of task {name}")]
    Livelock {
        /// The task that ran last.
        name: String,
        /// When it happened.
        at: Nanos,
        /// How many times a task ran at that instant.
        polls: u64,
    },
    /// Virtual world: an event would lie beyond the end of time.
    #[error("virtual time overflows: task {name} at {at} asks for {span} more")]
    TimeOverflow {
        /// The task whose charge or timer overflowed.
        name: String,
        /// When it happened.
        at: Nanos,
        /// The span it asked for.
        span: Nanos,
    },
    /// Virtual world: a kind of work was charged that the machine's model has no price for.
    #[error("the machine's model has no price for {key}, which {layer} charges; add it to the table [costs]")]
    Unpriced {
        /// The layer that charged.
        layer: &'static str,
        /// The missing key.
        key: &'static str,
    },
    /// `block_on` was called inside a task, a completion or another `block_on`, where waiting would
    /// hold up others.
    #[error(
        "block_on was called inside a task or a completion, which must not wait; await the future instead"
    )]
    Nested,
}

/// The message of a panic's payload.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(s) = payload.downcast_ref::<&str>() {
        (*s).to_owned()
    } else if let Some(s) = payload.downcast_ref::<String>() {
        s.clone()
    } else {
        "(no message)".to_owned()
    }
}

//! Identifiers of queues, streams and trees.

/// Index of a [queue](super::queue).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueId(pub(super) u32);

/// Index of a [context](super::context).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContextId(pub(super) u32);

/// A class of queues, as used for turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    BestEffort = 0,
    RealTime = 1,
    Idle = 2,
}

/// Kind of load; decides whether to idle for a single queue, for its tree, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Async = 0,
    SyncNoIdle = 1,
    Sync = 2,
}

impl Type {
    pub(super) const ALL: [Self; 3] = [Self::Async, Self::SyncNoIdle, Self::Sync];
}

/// One of the seven trees of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeId(pub(super) u8);

impl TreeId {
    pub(super) const IDLE: Self = Self(6);

    pub(super) fn of(class: Class, kind: Type) -> Self {
        match class {
            Class::Idle => Self::IDLE,
            _ => Self(class as u8 * 3 + kind as u8),
        }
    }
}

//! The vocabulary of the trace.

use crate::Nanos;
use std::fmt;

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A span of time.
    Span(Nanos),
    /// A word from the program's text.
    Word(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "{n}"),
            Self::Span(span) => write!(f, "{}", span.0),
            Self::Word(word) => f.write_str(word),
        }
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Number(n)
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Self {
        Self::Number(n.into())
    }
}

impl From<Nanos> for Value {
    fn from(span: Nanos) -> Self {
        Self::Span(span)
    }
}

impl From<&'static str> for Value {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $name:literal {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    },)*) => {
        /// Something that happened. A field `took` says how long it had been going on.
        ///
        /// Numbers and words only, so that this crate needs to know no other.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Event {
            $($(#[$doc])* $variant { $($(#[$field_doc])* $field: $type,)* },)*
        }

        /// An event's kind, without its fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum EventKind {
            $($(#[$doc])* $variant,)*
        }

        impl EventKind {
            /// All of them.
            pub const ALL: &'static [EventKind] = &[$(EventKind::$variant),*];

            /// As printed: layer and event.
            pub fn name(self) -> &'static str {
                match self {
                    $(EventKind::$variant => $name,)*
                }
            }
        }

        impl Event {
            /// The event's kind.
            pub fn kind(&self) -> EventKind {
                match self {
                    $(Event::$variant { .. } => EventKind::$variant,)*
                }
            }

            /// Calls `each` with every field's name and value, in the order of their declaration.
            pub fn fields(&self, mut each: impl FnMut(&'static str, Value)) {
                match *self {
                    $(Event::$variant { $($field,)* } => { $(each(stringify!($field), Value::from($field));)* })*
                }
                let _ = &mut each;
            }
        }
    };
}

events! {
    /// A task was given a processor that had last run another.
    TaskSwitched = "sched/switch" {
        /// The task that had it before, 0 for none.
        from: u32,
    },
    /// A task lost its processor to another while it could have gone on.
    TaskPreempted = "sched/preempt" {
        /// The task that takes it.
        by: u32,
    },
    /// A task was made able to run.
    TaskWoken = "sched/wake" {
        /// The task woken.
        woken: u32,
    },
    /// A task got its processor after it had been able to run for so long.
    TaskRan = "sched/latency" {
        /// From able to running.
        took: Nanos,
    },
    /// A task began.
    TaskSpawned = "task/spawn" {
        /// The new task.
        spawned: u32,
    },
    /// A task ended.
    TaskEnded = "task/end" {},
    /// A task panicked.
    TaskPanicked = "task/panic" {},
    /// A task waited for a key of a wait table.
    Waited = "wait/key" {
        /// The key.
        key: u64,
        /// How long.
        took: Nanos,
        /// How often it was woken in vain meanwhile.
        spurious: u32,
    },
    /// Somebody woke the waiters of a key.
    Woke = "wait/wake" {
        /// The key.
        key: u64,
        /// Waiters looked at.
        examined: u32,
        /// Waiters woken.
        woken: u32,
    },
    /// A bio came to a queue.
    BioQueued = "block/queue" {
        /// The device's number.
        device: u32,
        /// Operation.
        op: &'static str,
        /// First sector of 512 bytes.
        sector: u64,
        /// Length.
        bytes: u64,
        /// On whose behalf.
        stream: u64,
    },
    /// A bio was merged into a request.
    BioMerged = "block/merge" {
        /// The device's number.
        device: u32,
        /// First sector of 512 bytes.
        sector: u64,
        /// Length.
        bytes: u64,
        /// `front` or `back`.
        side: &'static str,
    },
    /// A request went to the device.
    BioDispatched = "block/dispatch" {
        /// The device's number.
        device: u32,
        /// Operation.
        op: &'static str,
        /// First sector of 512 bytes.
        sector: u64,
        /// Length.
        bytes: u64,
        /// Which rule of the elevator chose it.
        rule: &'static str,
    },
    /// A request ended.
    BioCompleted = "block/complete" {
        /// The device's number.
        device: u32,
        /// Operation.
        op: &'static str,
        /// First sector of 512 bytes.
        sector: u64,
        /// Length.
        bytes: u64,
        /// Since it was queued.
        took: Nanos,
    },
    /// An elevator let its device idle.
    QueueIdled = "block/idle" {
        /// The device's number.
        device: u32,
        /// For whom it waited.
        stream: u64,
        /// How long.
        took: Nanos,
    },
    /// Pages became dirty.
    PagesDirtied = "cache/dirty" {
        /// Inode number.
        inode: u64,
        /// First page of 4 KiB.
        page: u64,
        /// How many.
        pages: u64,
    },
    /// A writer was made to wait because too much is dirty: by its dirty controller, or at the limits themselves.
    ///
    /// The numbers are those on which the decision rested, as in the kernel's trace point `balance_dirty_pages`. Amounts
    /// are in pages of 4 KiB, rates in pages per second. What a controller does not have is 0.
    WriterPaused = "cache/pause" {
        /// Which rule decided it.
        rule: &'static str,
        /// The device's number in its cache.
        device: u32,
        /// Inode number of the file that was written to.
        inode: u64,
        /// What the writer had dirtied since it was last looked at (kernel: `dirtied`).
        dirtied: u32,
        /// Most that may be dirty or under write-back (kernel: `limit`).
        limit: u32,
        /// Flushers work while more than this is dirty.
        background: u32,
        /// Dirty on all devices and not on its way.
        reclaimable: u32,
        /// On its way to all devices.
        writeback: u32,
        /// Most that the device may hold.
        device_limit: u32,
        /// Dirty on the device and not on its way.
        device_reclaimable: u32,
        /// On its way to the device (kernel: `bdi_dirty` is the sum of both).
        device_writeback: u32,
        /// Where the controller wants the sum of all dirty pages to be (kernel: `setpoint`).
        setpoint: u32,
        /// Likewise of the device's (kernel: `bdi_setpoint`).
        device_setpoint: u32,
        /// The factor to the rate limit, times 1024 (kernel: `pos_ratio`).
        position_ratio: u32,
        /// What the device is taken to write.
        write_rate: u32,
        /// What each writer may dirty, before the factor (kernel: `dirty_ratelimit`).
        rate_limit: u32,
        /// What this writer may dirty (kernel: `task_ratelimit`).
        task_rate: u32,
        /// Pages of a turn, where writers take turns.
        turn: u32,
        /// Writers that the controller counts on the device.
        writers: u32,
        /// How long.
        took: Nanos,
    },
    /// How much of a device's pages is dirty, from time to time while it changes. Amounts are in pages of 4 KiB.
    DirtyLevels = "cache/levels" {
        /// The device's number in its cache.
        device: u32,
        /// Dirty on the device and not on its way (kernel: `BDI_RECLAIMABLE`).
        device_reclaimable: u32,
        /// On its way to the device (kernel: `BDI_WRITEBACK`).
        device_writeback: u32,
        /// Most that the device may hold.
        device_limit: u32,
        /// Dirty on all devices and not on its way.
        reclaimable: u32,
        /// On its way to all devices.
        writeback: u32,
        /// Flushers work while more than this is dirty.
        background: u32,
        /// Most that may be dirty or under write-back.
        limit: u32,
    },
    /// Pages were written back.
    PagesWritten = "cache/written" {
        /// Inode number.
        inode: u64,
        /// First page of 4 KiB.
        page: u64,
        /// How many.
        pages: u64,
    },
    /// Pages were read ahead of need.
    PagesReadAhead = "cache/readahead" {
        /// Inode number.
        inode: u64,
        /// First page of 4 KiB.
        page: u64,
        /// How many.
        pages: u64,
    },
    /// A transaction's commit passed a phase.
    CommitPhase = "journal/commit" {
        /// Transaction number.
        transaction: u64,
        /// The phase that ended.
        phase: &'static str,
        /// How long it lasted.
        took: Nanos,
    },
    /// Blocks were allocated.
    BlocksAllocated = "fs/allocate" {
        /// Inode number.
        inode: u64,
        /// Block asked for.
        goal: u64,
        /// First block given.
        block: u64,
        /// How many.
        blocks: u64,
        /// Which rule chose them.
        rule: &'static str,
    },
    /// Anything that an experiment wants to see.
    Mark = "mark" {
        /// What.
        what: &'static str,
        /// With which number.
        number: u64,
    },
    /// Anything that took time and that an experiment wants to see.
    Span = "span" {
        /// What.
        what: &'static str,
        /// With which number.
        number: u64,
        /// How long it took.
        took: Nanos,
    },
}

impl Event {
    /// How long it had been going on, for events that took time.
    pub fn took(&self) -> Option<Nanos> {
        let mut took = None;
        self.fields(|name, value| {
            if let ("took", Value::Span(span)) = (name, value) {
                took = Some(span);
            }
        });
        took
    }
}

//! Counters that a world always keeps.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// An event that is always counted, whether traced or not.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All counters.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant),*];

            /// The name as printed.
            pub fn name(self) -> &'static str {
                match self {
                    $(Counter::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Tasks spawned, including blocking work.
    TasksSpawned = "tasks spawned",
    /// Tasks that ended, normally or by a panic.
    TasksEnded = "tasks ended",
    /// Tasks and completions that panicked.
    TasksPanicked = "tasks panicked",
    /// How often a thread in `block_on` drove the I/O itself.
    DriverSittings = "driver sittings",
    /// Timers armed.
    TimersArmed = "timers armed",
}

#[derive(Debug)]
pub(crate) struct Counters([AtomicU64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    /// Adds `n`; returns the previous value.
    pub(crate) fn add(&self, counter: Counter, n: u64) -> u64 {
        self.0[counter as usize].fetch_add(n, Ordering::Relaxed)
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}

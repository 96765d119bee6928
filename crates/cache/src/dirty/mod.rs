//! Our dirty controller: how fast writers may dirty memory, and when and how flushers write it
//! back.
//!
//! [`TurnControl`] is a [`DirtyControl`](crate::dirty::control_interface::DirtyControl): numbers
//! in, decisions out. Linux's historical controllers are in the crate `extant-history`.
//!
//! | file | what |
//! |---|---|
//! | `control_interface` | the trait of controllers: events in, decisions out |
//! | `turn_control` | our controller: how long a writer pauses, when a flusher works |
//! | `device_limit` | how much of the memory a device may hold |
//! | `bandwidth` | how fast a device writes |
//! | `ledger` | the counters of dirty and write-back pages, and their limits |
//! | `charges` | the values that move pages between these counters |
//! | `writer` | a writer between two requests to its controller |
//!
//! ```
//! use extant_cache::control::{
//!     Amounts, Asking, DeviceIndex, DirtyControl, DirtyLimits, Numbers, Verdict, WriterId,
//! };
//! use extant_cache::dirty::TurnControl;
//! use extant_rt::Nanos;
//!
//! let limits = DirtyLimits { background_pages: 6_553, limit_pages: 25_600 };
//! let on_device = Amounts { dirty_pages: limits.limit_pages - 1, writeback_pages: 0 };
//! let numbers = Numbers {
//!     limits,
//!     global: on_device,
//!     device: DeviceIndex(0),
//!     on_device,
//!     dirtied_total: 25_599,
//!     written_total: 0,
//!     devices: 1,
//! };
//! let asking = Asking { writer: WriterId(0), dirtied_pages: 256, written_pages: 0 };
//! let orders = TurnControl::new().orders(Nanos::from_secs(1), &numbers, Some(asking));
//! let pauses = matches!(orders.writer, Verdict::Pause { .. });
//! assert!(pauses, "one page below the limit, the writer waits");
//! ```
//!
//! Memory is counted in pages of 4 KiB, and rates in pages per second.

mod bandwidth;
pub(crate) mod charges;
pub mod control_interface;
mod device_limit;
pub(crate) mod ledger;
mod turn_control;
pub(crate) mod writer;

pub use bandwidth::BusyRate;
pub use turn_control::TurnControl;

use extant_rt::Nanos;

#[cfg(test)]
mod tests;

/// The longest single sleep of a writer (kernel: `MAX_PAUSE`).
pub const MAX_PAUSE: Nanos = Nanos::from_millis(200);

/// Assumed write rate of a device before any measurement, in pages per second: 100 MiB/s (kernel:
/// `INIT_BW`).
pub const INITIAL_RATE: u64 = 100 << 20 >> 12;

/// Number of pages at `rate` pages per second in `span`.
fn pages_in(rate: u64, span: Nanos) -> u64 {
    (u128::from(rate) * u128::from(span.0) / 1_000_000_000).try_into().unwrap_or(u64::MAX)
}

/// Time for `pages` pages at `rate` pages per second.
fn time_for(pages: u64, rate: u64) -> Nanos {
    Nanos((u128::from(pages) * 1_000_000_000 / u128::from(rate.max(1))).try_into().unwrap_or(u64::MAX))
}

//! Linux's controllers of dirty memory. Ours is [`extant_cache::dirty::TurnControl`].
//!
//! With [`Linux31`] writers write back pages themselves. With [`Ioless`] they pause at a rate found
//! by feedback, with or without a background threshold per device. The formulas are those of
//! `mm/page-writeback.c` and `fs/fs-writeback.c`; each file names its kernel version. Sleeps end at
//! a tick, as on the host. Memory is in pages of 4 KiB, rates in pages per second.
//!
//! | file | what |
//! |---|---|
//! | `linux_3_1` | the foreground throttle |
//! | `ioless` | pauses |
//! | `position` | position of the dirty pages between the limits, as a factor on the rate |
//! | `rate` | the rate limit, and the pauses that enforce it |
//! | `bandwidth` | how fast a device writes |
//! | `share` | each device's share of the writing, and each task's of the dirtying |
//! | `processors` | pages dirtied on each processor |
//! | `ticks` | time in ticks |
//! | `hard_limit` | the dirty limit as it changes |

mod bandwidth;
mod hard_limit;
mod ioless;
mod linux_3_1;
mod position;
mod processors;
mod rate;
mod share;
#[cfg(test)]
mod tests;
mod ticks;

pub use ioless::Ioless;
pub use linux_3_1::Linux31;

/// Linux's flusher writes multiples of this from a file: 4 MiB (kernel: `MIN_WRITEBACK_PAGES`).
const CHUNK_UNIT: u64 = 4 << 20 >> 12;
/// Capacity of a Linux request queue in pages: 128 requests of 512 KiB.
const QUEUE_PAGES: u64 = 128 * 128;
/// Interval in pages at which a writer asks. On a device over its share, the kernel checks writers
/// this often. It checks at every dirtied page whether the device is over its share.
const ASK_PAGES: u64 = 8;

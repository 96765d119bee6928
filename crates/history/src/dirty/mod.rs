//! Controllers of dirty memory as Linux had them. Ours is [`extant_cache::dirty::TurnControl`].
//!
//! [`Linux31`] has writers write back themselves; [`Ioless`] makes them pause at a rate that feedback finds, with or without
//! a background threshold of each device's own. The formulas are those of `mm/page-writeback.c` and `fs/fs-writeback.c`, each
//! file names its version; sleeps last until a tick, as the host has them, memory is counted in pages of 4 KiB, rates in
//! pages per second.
//!
//! | file | what |
//! |---|---|
//! | `linux_3_1` | the foreground throttle |
//! | `ioless` | pauses |
//! | `position` | where the dirty pages are between the limits, as a factor to the rate |
//! | `rate` | the rate, and the pauses that keep it |
//! | `bandwidth` | how fast a device writes |
//! | `share` | which part of the writing each device does, and of the dirtying each task |
//! | `processors` | pages dirtied on each processor |
//! | `ticks` | time in ticks |
//! | `hard_limit` | the limit as it changes |

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

/// Linux' flusher writes multiples of this from one file: 4 MiB (kernel: `MIN_WRITEBACK_PAGES`).
const CHUNK_UNIT: u64 = 4 << 20 >> 12;
/// Pages that a request queue of Linux takes before a submitter must wait: 128 requests of 512 KiB.
const QUEUE_PAGES: u64 = 128 * 128;
/// A writer asks every so many pages: on a device over its part the kernel looks at writers this often, and whether it is over
/// its part, at each page that is dirtied.
const ASK_PAGES: u64 = 8;

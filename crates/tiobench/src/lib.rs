//! tiobench on the page cache of Linux 2.6.6: threads write and read files of their own,
//! sequentially and at random.
//!
//! The thread "[0/2] filtered wakeups" (linux-kernel, 2 May 2004) measured this. The page cache is
//! a model of that kernel's, not ours: pages of the machine's size that are locked and unlocked one
//! by one, its read-ahead, its throttling of writers, and the buffers of ext2's metadata. The
//! volume is an ext2 made by our mkfs, and ext2's allocator places its blocks. Request queues,
//! disks and `rt`'s wait tables are those of every other run; the discipline of the wait tables is
//! selectable ([`extant_history::waits`]).
#![forbid(unsafe_code)]

mod block_map;
mod buffers;
mod disks;
mod ext2_of_2004;
mod host;
mod inodes;
mod options;
mod outcome;
mod page_cache;
mod reading;
mod request_counts;
mod run;
#[cfg(test)]
mod tests;
mod throttle;
mod volume;
mod waiting_crowd;
mod writeback;
mod writeback_control;
mod writing;

pub use host::PageCacheCost;
pub use options::{Policies, Tiobench, TiobenchError};
pub use outcome::{Phase, PhaseOutcome, Sleeps};
pub use run::run;

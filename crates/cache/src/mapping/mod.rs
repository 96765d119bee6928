//! Files as their owners and openers use them: reads, writes, read-ahead, truncation, exclusion.
//!
//! This layer is above [`crate::writeback`]: a sync, or a writer over its limit, writes back.

pub(crate) mod exclude;
pub(crate) mod file;
mod load;
pub(crate) mod open;
mod pause;
mod read;
pub mod readahead;
mod sweep;
mod throttle;
mod write;

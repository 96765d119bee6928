//! Files as their owner and their openers use them: reads, writes, read-ahead, truncation, exclusion.
//!
//! These flows lie above [`crate::writeback`]: a sync and a writer over its limit write back.

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

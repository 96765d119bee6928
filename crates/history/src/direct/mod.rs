//! Direct I/O of Linux 2.6.19 (fs/direct-io.c), with the boundary rules proposed in November 2006.
//!
//! A file system can mark the end of a mapping as a *boundary*: the next mapping needs a metadata
//! block that is not in memory, so the bio collected so far should be sent first. ext3 marks every
//! mapping that reaches the end of a pointer block (`ext3_get_blocks_handle`). The rules
//! ([`BoundaryRule`]) differ in which part of such a mapping counts as the boundary, and in whether
//! the bio is sent before or after that part is added.
//!
//! [`Request`] is the state machine, without time or I/O; [`BlockMap`] is the file system below it;
//! [`cut_at_chunks`] splits a bio as the device mapper does; [`Direct::write`] runs it all.

mod clones;
mod cost;
mod flow;
mod maps;
mod request;

pub use clones::{Cut, cut_at_chunks};
pub use cost::Cost;
pub use flow::{Direct, Kernel, Sent};
pub use maps::{BlockMap, Ext3Map, FullVolume, Mapped, XfsMap};
pub use request::{Cause, Event, Limits, Request, Section, SentBio};

/// Rules for the part of a mapping with a boundary at which the collected bio is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryRule {
    /// At every part, one per page, as released: bios of one page.
    EveryChunk,
    /// At the first part only ("avoid too many boundaries in DIO", the first patch).
    FirstChunk,
    /// At the last part only, sending the bio before adding that part: measured to be 5 % slower
    /// than the first patch.
    LastChunkEarly,
    /// At the last part only, after adding it to the bio (the second patch).
    LastChunk,
}

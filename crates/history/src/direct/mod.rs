//! Direct I/O of Linux 2.6.19 (fs/direct-io.c), with the rules for boundaries that were proposed in November 2006.
//!
//! A file system may mark the end of a mapping as a *boundary*: the next mapping needs a block of metadata that is not in memory,
//! and the bio collected so far should go to the disk first. ext3 marks every mapping that reaches the end of a pointer block
//! (`ext3_get_blocks_handle`). The rules differ in the part of such a mapping that is taken as the boundary, and in whether the
//! bio is sent before or after that part joins it ([`BoundaryRule`]).
//!
//! [`Request`] is the state machine, without time and without I/O; [`BlockMap`] is the file system below it; [`cut_at_chunks`]
//! is what the device mapper makes of a bio; [`Direct::write`] is the flow over them.

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

/// The part of a mapping marked as a boundary at which the collected bio is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryRule {
    /// At every part of it, one for each page, as released: bios of one page.
    EveryChunk,
    /// At the first part only ("avoid too many boundaries in DIO", the first patch).
    FirstChunk,
    /// At the last part only, the bio being sent before that part joins it: found to be 5 % slower than the first patch.
    LastChunkEarly,
    /// At the last part only, once that has joined the bio (the second patch).
    LastChunk,
}

//! Events of a run's page cache, kept in a file, and reports from it.
//!
//! The file is text, so that a mistake in it has a line: a head, then a line for each event. `kind` names an event's
//! fields and `word` a word that occurs in them, both before their first use and counted from 0; an event is its kind,
//! nanoseconds since the event before, and its fields.
//!
//! ```text
//! extant-trace 1
//! about a laptop of 2013; elevator none; dirty control extant
//! device 0 sda
//! kind cache/levels device device_reclaimable device_writeback …
//! 0 1200 0 512 0 …
//! kind cache/pause rule:word device inode … took:ns
//! word extant: turn
//! 1 250000 0 0 1 …
//! ```

mod draw;
mod pauses;
mod read;
mod write;

pub use draw::draw;
pub use pauses::{list, summary};
pub use read::{Levels, Pause, Trace, TraceError};
pub use write::TraceFile;

/// The first line.
pub(crate) const MAGIC: &str = "extant-trace 1";

/// A name that can stand in a line, in a terminal and in XML, which has no control characters: files may be called anything.
fn plain(name: &str) -> String {
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    name.chars().map(|c| if is_odd(c) { '\u{fffd}' } else { c }).collect()
}

//! Events of a run's page cache recorded in a file, and summaries of it.
//!
//! The file is text, so that errors can name a line. A header is followed by one line per event.
//! `kind` lines list an event's fields, and `word` lines define words that occur in them; both come
//! before their first use and are numbered from 0. An event is its kind's number, the nanoseconds
//! since the previous event, and its fields.
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

mod pauses;
mod trace_reader;
mod trace_writer;

pub use pauses::{list, summary};
pub use trace_reader::{Levels, Pause, Trace, TraceError};
pub use trace_writer::TraceFile;

/// The first line.
pub(crate) const MAGIC: &str = "extant-trace 1";

/// Replaces control characters, since file names may contain anything. The result is safe in a
/// line, in a terminal and in XML.
fn plain(name: &str) -> String {
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    name.chars().map(|c| if is_odd(c) { '\u{fffd}' } else { c }).collect()
}

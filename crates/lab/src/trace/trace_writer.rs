//! Writes a trace file.

use super::{MAGIC, plain};
use extant_rt::trace::{Record, Value};
use extant_rt::{Nanos, Sink};
use parking_lot::Mutex;
use std::io::{self, Write};

/// The events to record: those that reports use.
const KINDS: [&str; 2] = ["cache/pause", "cache/levels"];

/// Writes the cache's events as they occur. [`TraceFile::finish`] reports whether all were written.
pub struct TraceFile<W>(Mutex<TraceOutput<W>>);

struct TraceOutput<W> {
    out: W,
    kinds: Vec<&'static str>,
    words: Vec<&'static str>,
    at: Nanos,
    error: Option<io::Error>,
}

impl<W: Write + Send> TraceFile<W> {
    /// Writes to `out`, which should be buffered. `about` describes the run on one line.
    pub fn new(out: W, about: &str) -> Self {
        let mut state =
            TraceOutput { out, kinds: Vec::new(), words: Vec::new(), at: Nanos::ZERO, error: None };
        state.line(&format!("{MAGIC}\nabout {}", plain(about)));
        Self(Mutex::new(state))
    }

    /// Flushes the output, or returns the first error of an earlier write.
    ///
    /// # Errors
    /// The output cannot be written, now or earlier.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        match state.error.take() {
            Some(error) => Err(error),
            None => state.out.flush(),
        }
    }
}

impl<W: Write> TraceOutput<W> {
    fn line(&mut self, line: &str) {
        if self.error.is_none() {
            self.error = writeln!(self.out, "{line}").err();
        }
    }

    /// The number of the record's kind, which is defined first if it is new.
    fn kind(&mut self, record: &Record) -> usize {
        let kind = record.event.name();
        if let Some(number) = self.kinds.iter().position(|known| *known == kind) {
            return number;
        }
        let mut line = format!("kind {kind}");
        record.event.fields(&mut |name, value| {
            line.push(' ');
            line.push_str(name);
            line.push_str(match value {
                Value::Number(_) => "",
                Value::Span(_) => ":ns",
                Value::Word(_) => ":word",
            });
        });
        self.line(&line);
        self.kinds.push(kind);
        self.kinds.len() - 1
    }

    fn word(&mut self, word: &'static str) -> usize {
        if let Some(number) = self.words.iter().position(|known| *known == word) {
            return number;
        }
        self.line(&format!("word {word}"));
        self.words.push(word);
        self.words.len() - 1
    }
}

impl<W: Write + Send> Sink for TraceFile<W> {
    fn name(&self, kind: &'static str, device: u32, name: &str) {
        if kind != "device" {
            return;
        }
        self.0.lock().line(&format!("device {device} {}", plain(name)));
    }

    fn record(&self, record: &Record) {
        if !KINDS.contains(&record.event.name()) {
            return;
        }
        let mut state = self.0.lock();
        let kind = state.kind(record);
        // Processors of a virtual world report one after the other, so time may go back a little.
        let since = record.at.0 as i64 - state.at.0 as i64;
        state.at = record.at;
        let mut line = format!("{kind} {since}");
        record.event.fields(&mut |_, value| {
            let number = match value {
                Value::Number(number) => number,
                Value::Span(span) => span.0,
                Value::Word(word) => state.word(word) as u64,
            };
            line.push(' ');
            line.push_str(&number.to_string());
        });
        state.line(&line);
    }
}

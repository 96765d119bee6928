//! Chrome's JSON trace format, which Perfetto (ui.perfetto.dev) opens.

use super::{Record, Sink, Value};
use crate::Nanos;
use parking_lot::Mutex;
use std::io::{self, Write};

/// Writes events as they arrive, one per line, in the "JSON Array Format" of Chrome's trace viewer.
///
/// Tasks appear as threads. Events with a duration appear as bars, others as instants. The closing
/// bracket is optional in this format, so the file of an interrupted run also opens. Call
/// [`ChromeSink::finish`] to learn whether everything was written.
pub struct ChromeSink<W>(Mutex<State<W>>);

struct State<W> {
    out: W,
    started: bool,
    error: Option<io::Error>,
}

impl<W: Write + Send> ChromeSink<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W) -> Self {
        Self(Mutex::new(State { out, started: false, error: None }))
    }

    /// Ends the array and flushes. Returns the first error met while writing.
    ///
    /// # Errors
    /// An event was not written, now or earlier.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        let open = if state.started { "" } else { "[" };
        match state.error.take() {
            Some(error) => Err(error),
            None => {
                write!(state.out, "{open}\n]\n")?;
                state.out.flush()
            }
        }
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.0.into_inner().out
    }

    fn line(&self, write: impl FnOnce(&mut W) -> io::Result<()>) {
        let mut state = self.0.lock();
        if state.error.is_some() {
            return;
        }
        let lead: &[u8] = if state.started { b",\n" } else { b"[\n" };
        state.started = true;
        let result = state.out.write_all(lead).and_then(|()| write(&mut state.out));
        state.error = result.err();
    }
}

/// Microseconds with three decimals, as in this format, without going through floating point.
fn micros(at: Nanos) -> String {
    format!("{}.{:03}", at.0 / 1_000, at.0 % 1_000)
}

impl<W: Write + Send> Sink for ChromeSink<W> {
    fn record(&self, record: &Record) {
        self.line(|out| {
            let name = record.event.name();
            let category = name.split('/').next().unwrap_or(name);
            let (pid, tid) = (1, record.origin.task);
            write!(out, r#"{{"name":"{name}","cat":"{category}","pid":{pid},"tid":{tid},"#)?;
            match record.event.took() {
                Some(took) => {
                    let start = record.at.saturating_sub(took);
                    write!(out, r#""ph":"X","ts":{},"dur":{},"#, micros(start), micros(took))?;
                }
                None => write!(out, r#""ph":"i","s":"t","ts":{},"#, micros(record.at))?,
            }
            write!(out, r#""args":{{"lane":{}"#, record.origin.lane)?;
            let mut result = Ok(());
            record.event.fields(&mut |field, value| {
                if result.is_ok() && field != "took" {
                    result = match value {
                        Value::Word(word) => write!(out, r#","{field}":"{}""#, escaped(word)),
                        number => write!(out, r#","{field}":{number}"#),
                    };
                }
            });
            result?;
            out.write_all(b"}}")
        });
    }

    fn name(&self, kind: &'static str, task: u32, name: &str) {
        if kind != "task" {
            return;
        }
        self.line(|out| {
            let name = escaped(name);
            write!(
                out,
                r#"{{"name":"thread_name","ph":"M","pid":1,"tid":{task},"args":{{"name":"{name}"}}}}"#
            )
        });
    }
}

/// Escapes text for a JSON string (RFC 8259 §7).
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

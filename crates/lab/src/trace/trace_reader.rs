//! Reads a trace file.

use super::{MAGIC, plain};
use extant_rt::Nanos;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// A recorded run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// A description of the run.
    pub about: String,
    /// Device names by their number in the cache.
    pub devices: BTreeMap<u32, String>,
    /// Dirty memory over time, in order of time.
    pub levels: Vec<Levels>,
    /// Writers' waits, in order of their start.
    pub pauses: Vec<Pause>,
}

/// Amounts of dirty memory at one moment, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// When they were measured.
    pub at: Nanos,
    /// The device whose levels changed.
    pub device: u32,
    /// Pages of the device that are dirty and not under write-back.
    pub device_reclaimable: u64,
    /// Pages of the device under write-back.
    pub device_writeback: u64,
    /// Limit on the device's dirty pages, including those under write-back.
    pub device_limit: u64,
    /// Pages of all devices that are dirty and not under write-back.
    pub reclaimable: u64,
    /// Pages of all devices under write-back.
    pub writeback: u64,
    /// Flushers run while more pages than this are dirty.
    pub background: u64,
    /// Limit on dirty pages, including those under write-back.
    pub limit: u64,
}

/// A writer's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it started.
    pub at: Nanos,
    /// Its duration.
    pub took: Nanos,
    /// The rule that decided it.
    pub rule: String,
    /// The device being written.
    pub device: u32,
    /// The remaining fields: the state of the controller that decided it.
    pub state: Vec<(String, u64)>,
}

/// Why a trace was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct TraceError {
    /// File and line.
    pub place: String,
    /// The mistake, and how to fix it.
    pub problem: String,
}

/// No line of a trace is longer than this.
const MOST_LINE_BYTES: u64 = 64 << 10;

/// An event kind: its name and its fields, each with a flag for words.
struct EventKind {
    name: String,
    fields: Vec<(String, bool)>,
}

impl Levels {
    /// Pages of all devices that are dirty or under write-back.
    pub fn total(&self) -> u64 {
        self.reclaimable.saturating_add(self.writeback)
    }
}

impl Trace {
    /// Reads a trace from a file.
    ///
    /// # Errors
    /// Names the file and line of the first deviation from what [`super::TraceFile`] writes.
    pub fn load(path: &Path) -> Result<Self, TraceError> {
        let file = path.display().to_string();
        let problem = |error: std::io::Error| {
            let problem = match error.kind() {
                std::io::ErrorKind::NotFound => "No such file; record one with extant lab run --trace".into(),
                std::io::ErrorKind::IsADirectory => "is a directory; name a trace in it".into(),
                _ => error.to_string(),
            };
            TraceError { place: file.clone(), problem }
        };
        Self::read(&file, std::fs::File::open(path).map_err(problem)?)
    }

    /// Reads a trace; `file` is named in errors.
    ///
    /// # Errors
    /// As [`Trace::load`].
    pub fn read(file: &str, from: impl Read) -> Result<Self, TraceError> {
        let mut reader = TraceReader::default();
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let error = |problem: String| TraceError { place: format!("{file}:{number}"), problem };
            let bytes = from.by_ref().take(MOST_LINE_BYTES).read_until(b'\n', &mut line);
            let bytes = bytes.map_err(|problem| {
                let is_directory = problem.kind() == std::io::ErrorKind::IsADirectory;
                let text = if is_directory {
                    "is a directory; name a trace in it".into()
                } else {
                    problem.to_string()
                };
                TraceError { place: file.to_owned(), problem: text }
            })?;
            if number == 1 && line.trim_ascii_end() != MAGIC.as_bytes() {
                return Err(error("not a trace; record one with extant lab run --trace FILE".into()));
            }
            if bytes == 0 {
                break;
            }
            let text = std::str::from_utf8(line.trim_ascii_end()).ok().filter(|_| line.ends_with(b"\n"));
            let whole = "is cut off or no text; record the trace again, to its end";
            let text = text.ok_or_else(|| error(whole.into()))?;
            if number > 1 {
                reader.line(text).map_err(error)?;
            }
        }
        let mut trace = reader.trace;
        trace.levels.sort_by_key(|levels| levels.at);
        trace.pauses.sort_by_key(|pause| pause.at);
        Ok(trace)
    }

    /// The name of a device.
    pub fn device(&self, number: u32) -> String {
        self.devices.get(&number).cloned().unwrap_or_else(|| format!("device {number}"))
    }

    /// The end of the last event.
    pub fn end(&self) -> Nanos {
        let pauses = self.pauses.iter().map(|pause| pause.at.saturating_add(pause.took));
        self.levels.iter().map(|levels| levels.at).chain(pauses).max().unwrap_or(Nanos::ZERO)
    }
}

#[derive(Default)]
struct TraceReader {
    trace: Trace,
    kinds: Vec<EventKind>,
    words: Vec<String>,
    at: i64,
}

impl TraceReader {
    fn line(&mut self, text: &str) -> Result<(), String> {
        let (head, rest) = text.split_once(' ').unwrap_or((text, ""));
        match head {
            "about" => self.trace.about = plain(rest),
            "device" => {
                let (number, name) = rest.split_once(' ').ok_or("a device without a name")?;
                self.trace.devices.insert(small(number)?, plain(name));
            }
            "word" => self.words.push(plain(rest)),
            "kind" => {
                let mut parts = rest.split(' ');
                let name = parts.next().unwrap_or_default().to_owned();
                let fields = parts.map(|field| match field.split_once(':') {
                    Some((name, kind)) => (plain(name), kind == "word"),
                    None => (plain(field), false),
                });
                self.kinds.push(EventKind { name, fields: fields.collect() });
            }
            _ => self.event(text)?,
        }
        Ok(())
    }

    fn event(&mut self, text: &str) -> Result<(), String> {
        let mut parts = text.split(' ');
        let kind: usize = number(parts.next().unwrap_or_default())?;
        let kind = self
            .kinds
            .get(kind)
            .ok_or_else(|| format!("an event of a kind {kind} that was not named before"))?;
        let since: i64 = number(parts.next().unwrap_or_default())?;
        self.at = self.at.checked_add(since).filter(|at| *at >= 0).ok_or("a time before the beginning")?;
        let at = Nanos(self.at as u64);
        let values: Vec<u64> = parts.map(number).collect::<Result<_, _>>()?;
        if values.len() != kind.fields.len() {
            return Err(format!("{} has {} fields, not {}", kind.name, kind.fields.len(), values.len()));
        }
        let named = |name: &str| {
            let place = kind.fields.iter().position(|(field, _)| field == name);
            place.map(|place| values[place]).ok_or_else(|| format!("{} has no field {name}", kind.name))
        };
        let device =
            || u32::try_from(named("device")?).map_err(|_| "a device number that is too large".to_owned());
        match kind.name.as_str() {
            "cache/levels" => self.trace.levels.push(Levels {
                at,
                device: device()?,
                device_reclaimable: named("device_reclaimable")?,
                device_writeback: named("device_writeback")?,
                device_limit: named("device_limit")?,
                reclaimable: named("reclaimable")?,
                writeback: named("writeback")?,
                background: named("background")?,
                limit: named("limit")?,
            }),
            "cache/pause" => {
                let took = Nanos(named("took")?);
                let rule = named("rule")? as usize;
                let rule = self.words.get(rule).ok_or("a word that the trace has not named before")?.clone();
                let told =
                    kind.fields.iter().zip(&values).filter(|((name, is_word), _)| {
                        !is_word && !matches!(name.as_str(), "took" | "device")
                    });
                let state = told.map(|((name, _), value)| (name.clone(), *value)).collect();
                self.trace.pauses.push(Pause {
                    at: at.saturating_sub(took),
                    took,
                    rule,
                    device: device()?,
                    state,
                });
            }
            _ => {}
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number"))
}

fn small(text: &str) -> Result<u32, String> {
    number(text)
}

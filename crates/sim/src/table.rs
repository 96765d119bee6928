//! TOML reading in which every error names file, line and key.

use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

/// Why a machine model was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}{}: {problem}", of_line(*.line), of_key(.key))]
pub struct ModelError {
    /// The file's name.
    pub file: String,
    /// The line, counted from 1; for a missing key, its table's line. 0 if the problem is in no
    /// line.
    pub line: usize,
    /// The key, prefixed with its table's name; empty if the problem concerns the whole file.
    pub key: String,
    /// What is wrong, and what was expected.
    pub problem: String,
}

fn of_line(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

fn of_key(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(": {key}") }
}

/// An hour, the longest time in a model. Longer ones are typing errors, and sums of shorter ones do
/// not overflow.
pub(crate) const MOST_NS: u64 = 3_600_000_000_000;

/// A table of a model file. It remembers which keys were read, so that it can reject the others.
pub(crate) struct Table<'a> {
    source: Source<'a>,
    name: String,
    span: Range<usize>,
    table: &'a DeTable<'a>,
    known: Vec<&'static str>,
}

#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn error(self, at: usize, key: &str, problem: impl Into<String>) -> ModelError {
        let line = 1 + self.text[..at.min(self.text.len())].matches('\n').count();
        ModelError { file: self.file.into(), line, key: key.into(), problem: problem.into() }
    }
}

/// Parses `text` and passes its root table to `read`.
pub(crate) fn parse<T>(
    file: &str,
    text: &str,
    read: impl FnOnce(Table<'_>) -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    let source = Source { file, text };
    let root = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        source.error(at, "(syntax)", error.message().to_owned())
    })?;
    read(Table { source, name: String::new(), span: 0..0, table: root.get_ref(), known: Vec::new() })
}

impl<'a> Table<'a> {
    fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// An error for one of this table's keys.
    pub(crate) fn error(&self, key: &str, problem: impl Into<String>) -> ModelError {
        let at = self.table.get(key).map_or(self.span.start, |value| value.span().start);
        self.source.error(at, &self.full(key), problem)
    }

    fn get(&mut self, key: &'static str) -> Result<&'a Spanned<DeValue<'a>>, ModelError> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.table.get(key).ok_or_else(|| self.error(key, "missing"))
    }

    fn wrong(&self, key: &str, wanted: &str, found: &DeValue<'_>) -> ModelError {
        self.error(key, format!("expected {wanted}, found {}", found.type_str()))
    }

    /// The file's name and this table's line.
    pub(crate) fn place(&self) -> (String, usize) {
        let ModelError { file, line, .. } = self.source.error(self.span.start, "", "");
        (file, line)
    }

    /// All keys and values of this table. Values are nanoseconds with up to three decimals,
    /// returned as picoseconds.
    pub(crate) fn all_picoseconds(&self) -> Result<BTreeMap<String, u64>, ModelError> {
        let keys = self.table.keys().map(|key| key.get_ref().as_ref());
        keys.map(|key| Ok((key.to_owned(), self.picoseconds_at(key)?))).collect()
    }

    /// A required subtable.
    pub(crate) fn table(&mut self, key: &'static str) -> Result<Table<'a>, ModelError> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Ok(Table {
                source: self.source,
                name: self.full(key),
                span: value.span(),
                table,
                known: Vec::new(),
            }),
            other => Err(self.wrong(key, "a table", other)),
        }
    }

    /// An optional subtable.
    pub(crate) fn maybe_table(&mut self, key: &'static str) -> Result<Option<Table<'a>>, ModelError> {
        if self.table.contains_key(key) { self.table(key).map(Some) } else { Ok(self.skip(key)) }
    }

    /// Registers an optional key that is missing.
    fn skip<T>(&mut self, key: &'static str) -> Option<T> {
        self.known.push(key);
        None
    }

    /// The tables of a list (`[[key]]`); empty if it is missing.
    pub(crate) fn tables(&mut self, key: &'static str) -> Result<Vec<Table<'a>>, ModelError> {
        if !self.table.contains_key(key) {
            self.skip::<()>(key);
            return Ok(Vec::new());
        }
        let list = self.get(key)?;
        let DeValue::Array(items) = list.get_ref() else {
            return Err(self.wrong(key, "a list of tables", list.get_ref()));
        };
        let tables = items.iter().enumerate().map(|(number, item)| match item.get_ref() {
            DeValue::Table(table) => Ok(Table {
                source: self.source,
                name: format!("{}[{number}]", self.full(key)),
                span: item.span(),
                table,
                known: Vec::new(),
            }),
            other => Err(self.wrong(key, "a list of tables", other)),
        });
        tables.collect()
    }

    /// A boolean.
    pub(crate) fn flag(&mut self, key: &'static str) -> Result<bool, ModelError> {
        match self.get(key)?.get_ref() {
            DeValue::Boolean(flag) => Ok(*flag),
            other => Err(self.wrong(key, "true or false", other)),
        }
    }

    /// An optional boolean.
    pub(crate) fn maybe_flag(&mut self, key: &'static str) -> Result<Option<bool>, ModelError> {
        if self.table.contains_key(key) { self.flag(key).map(Some) } else { Ok(self.skip(key)) }
    }

    /// A list of pairs of whole numbers.
    pub(crate) fn pairs(&mut self, key: &'static str) -> Result<Vec<(u64, u64)>, ModelError> {
        let wanted = "a list of pairs of whole numbers";
        let list = self.get(key)?.get_ref();
        let DeValue::Array(items) = list else { return Err(self.wrong(key, wanted, list)) };
        let number = |value: &DeValue<'_>| match value {
            DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
            _ => None,
        };
        let pair = |item: &'a Spanned<DeValue<'a>>| match item.get_ref() {
            DeValue::Array(two) if two.len() == 2 => {
                Some((number(two[0].get_ref())?, number(two[1].get_ref())?))
            }
            _ => None,
        };
        items
            .iter()
            .map(|item| pair(item).ok_or_else(|| self.error(key, format!("expected {wanted}"))))
            .collect()
    }

    /// A string.
    pub(crate) fn string(&mut self, key: &'static str) -> Result<String, ModelError> {
        match self.get(key)?.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            other => Err(self.wrong(key, "a string", other)),
        }
    }

    /// An optional word out of `choices`; returns the value that it stands for.
    pub(crate) fn maybe_choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ModelError> {
        if !self.table.contains_key(key) {
            return Ok(self.skip(key));
        }
        let word = self.string(key)?;
        let found = choices.iter().find(|(name, _)| *name == word);
        found.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
            self.error(key, format!("{word:?} is not one of {}", names.join(", ")))
        })
    }

    /// Like [`Self::picoseconds`], but for an optional key.
    pub(crate) fn maybe_picoseconds(&mut self, key: &'static str) -> Result<Option<u64>, ModelError> {
        if self.table.contains_key(key) { self.picoseconds(key).map(Some) } else { Ok(self.skip(key)) }
    }

    /// A non-negative whole number.
    pub(crate) fn whole(&mut self, key: &'static str) -> Result<u64, ModelError> {
        match self.get(key)?.get_ref() {
            DeValue::Integer(n) => self.whole_of(key, n),
            other => Err(self.wrong(key, "a whole number", other)),
        }
    }

    fn whole_of(&self, key: &str, n: &DeInteger<'_>) -> Result<u64, ModelError> {
        u64::from_str_radix(n.as_str(), n.radix()).map_err(|_| {
            let wrong = if n.as_str().starts_with('-') { "negative" } else { "too large" };
            self.error(key, format!("{} is {wrong}", n.as_str()))
        })
    }

    fn nanoseconds_of(&self, key: &str, n: &DeInteger<'_>) -> Result<u64, ModelError> {
        let ns = self.whole_of(key, n)?;
        if ns <= MOST_NS { Ok(ns) } else { Err(self.error(key, format!("{ns} ns is longer than an hour"))) }
    }

    /// An optional whole number.
    pub(crate) fn maybe_whole(&mut self, key: &'static str) -> Result<Option<u64>, ModelError> {
        if self.table.contains_key(key) { self.whole(key).map(Some) } else { Ok(self.skip(key)) }
    }

    /// A whole number of nanoseconds.
    pub(crate) fn nanoseconds(&mut self, key: &'static str) -> Result<u64, ModelError> {
        let ns = self.whole(key)?;
        if ns <= MOST_NS { Ok(ns) } else { Err(self.error(key, format!("{ns} ns is longer than an hour"))) }
    }

    /// A number of nanoseconds with up to three decimals, returned as picoseconds.
    pub(crate) fn picoseconds(&mut self, key: &'static str) -> Result<u64, ModelError> {
        self.get(key)?;
        self.picoseconds_at(key)
    }

    fn picoseconds_at(&self, key: &str) -> Result<u64, ModelError> {
        let value = match self.table[key].get_ref() {
            DeValue::Float(n) => n.as_str().replace('_', "").parse::<f64>().unwrap_or(f64::NAN),
            DeValue::Integer(n) => return Ok(self.nanoseconds_of(key, n)? * 1_000),
            other => return Err(self.wrong(key, "a number of nanoseconds", other)),
        };
        if value < 0.0 {
            return Err(self.error(key, format!("{value} is negative")));
        }
        if !(0.0..=MOST_NS as f64).contains(&value) {
            return Err(self.error(key, format!("{value} ns is not between 0 and an hour")));
        }
        Ok((value * 1_000.0).round() as u64)
    }

    /// Rejects keys that were never read.
    pub(crate) fn finish(self) -> Result<(), ModelError> {
        let stranger = self.table.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref()));
        match stranger.min_by_key(|key| key.span().start) {
            None => Ok(()),
            Some(key) => {
                let problem = format!("unknown key; known are {}", self.known.join(", "));
                Err(self.source.error(key.span().start, &self.full(key.get_ref()), problem))
            }
        }
    }
}

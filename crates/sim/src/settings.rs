//! Overrides for keys of a machine file, applied before it is parsed: `key=value`.

use crate::table::ModelError;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A new value for a key of a machine file.
///
/// The key stands alone, `hz=250`, or after its table's name if several tables have it:
/// `disk.queue_depth=1`. It is set in every `[[disk]]` that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    table: Option<String>,
    key: String,
    /// In TOML syntax.
    value: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("\"{text}\" is not KEY=VALUE, such as hz=250");
        let (path, value) = text.split_once('=').ok_or_else(wanted)?;
        let (table, key) = match path.trim().split_once('.') {
            Some((table, key)) => (Some(table.to_owned()), key),
            None => (None, path.trim()),
        };
        let is_name =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !is_name(key) || !table.as_deref().is_none_or(is_name) {
            return Err(wanted());
        }
        let is_toml = DeTable::parse(&format!("v = {value}")).is_ok_and(|table| table.get_ref().len() == 1);
        // A bare word gets its quotes.
        let value = if is_toml { value.trim().to_owned() } else { format!("{:?}", value.trim()) };
        Ok(Self { table, key: key.to_owned(), value })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(table) = &self.table {
            write!(f, "{table}.")?;
        }
        write!(f, "{}={}", self.key, self.value)
    }
}

impl Setting {
    /// Key and value, for display in tables.
    pub fn parts(&self) -> (&str, &str) {
        (&self.key, self.value.trim_matches('"'))
    }

    /// The file's text with the value replaced or inserted.
    pub(crate) fn apply(&self, file: &str, text: &str) -> Result<String, ModelError> {
        let refused = |problem: String| ModelError {
            file: file.into(),
            line: 0,
            key: format!("--set {self}"),
            problem,
        };
        let root = DeTable::parse(text).map_err(|error| refused(error.message().to_owned()))?;
        // For each table that has the key: its name, and the position of the value.
        let mut found: Vec<(&str, Range<usize>)> = Vec::new();
        for (name, value) in root.get_ref() {
            let name = name.get_ref().as_ref();
            let mut look = |table: &DeTable<'_>| {
                found.extend(
                    table.get(self.key.as_str()).map(|value: &Spanned<DeValue<'_>>| (name, value.span())),
                );
            };
            match value.get_ref() {
                DeValue::Table(table) => look(table),
                DeValue::Array(items) => items.iter().for_each(|item| {
                    if let DeValue::Table(table) = item.get_ref() {
                        look(table);
                    }
                }),
                _ => {}
            }
        }
        if let Some(wanted) = &self.table {
            found.retain(|(name, _)| name == wanted);
        }
        let mut tables: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        tables.dedup();
        match tables[..] {
            [] => self.insert(text).ok_or_else(|| {
                refused(match crate::keys::UNMODELLED.iter().find(|(key, _)| *key == self.key) {
                    Some((_, why)) => (*why).to_owned(),
                    None => {
                        "no table of this machine has the key; \"extant lab list\" shows all keys".to_owned()
                    }
                })
            }),
            [_] => {
                let mut out = text.to_owned();
                found.sort_by_key(|(_, at)| at.start);
                for (_, at) in found.into_iter().rev() {
                    out.replace_range(at, &self.value);
                }
                Ok(out)
            }
            _ => Err(refused(format!(
                "several tables have the key: {}; write one before it, such as {}.{}",
                tables.join(", "),
                tables[0],
                self.key
            ))),
        }
    }

    /// Inserts an optional key that the file omits; `None` if there is no such key.
    fn insert(&self, text: &str) -> Option<String> {
        let is_wanted = |table: &str| self.table.as_deref().is_none_or(|wanted| wanted == table);
        let optional = crate::keys::KEYS.iter().filter(|key| key.default.is_some());
        let known = optional
            .map(|key| (key.in_table(), key.key))
            .find(|(table, key)| *key == self.key && is_wanted(table));
        let (table, key) = known?;
        let line = format!("{key} = {}\n", self.value);
        let header = if table == "disk" { "[[disk]]".to_owned() } else { format!("[{table}]") };
        if text.lines().any(|found| found.trim() == header) {
            let keep = |found: &str| {
                let after = if found.trim() == header { line.as_str() } else { "" };
                format!("{found}\n{after}")
            };
            return Some(text.lines().map(keep).collect());
        }
        (table != "disk").then(|| format!("{text}\n{header}\n{line}"))
    }
}

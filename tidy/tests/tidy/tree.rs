//! The tree's crates, their files and their allowances.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The root of the tree.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names of the folders in `crates/`, sorted.
pub(crate) fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).expect("crates/");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name in UTF-8"))
        .collect();
    names.sort();
    names
}

/// Violations of the rules that a part of the tree still has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Allowance {
    /// Modules that import each other, by common parent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) circles: BTreeMap<String, Vec<String>>,
}

fn allowance_file(part: &str) -> PathBuf {
    root().join("tidy/allowances").join(format!("{part}.toml"))
}

pub(crate) fn allowance(part: &str) -> Allowance {
    match fs::read_to_string(allowance_file(part)) {
        Ok(text) => {
            toml::from_str(&text).unwrap_or_else(|error| panic!("tidy/allowances/{part}.toml: {error}"))
        }
        Err(_) => Allowance::default(),
    }
}

/// Updates a part's allowance if requested (`EXTANT_TIDY=shrink`).
pub(crate) fn shrink(part: &str, change: impl FnOnce(&mut Allowance)) {
    if std::env::var("EXTANT_TIDY").is_ok_and(|value| value == "shrink") {
        let mut allowance = allowance(part);
        change(&mut allowance);
        let file = allowance_file(part);
        if allowance == Allowance::default() {
            let _ = fs::remove_file(file);
        } else {
            fs::write(file, toml::to_string(&allowance).expect("an allowance is TOML")).expect("written");
        }
    }
}

//! Comments and documents wrap at 100 columns.

use crate::tree::root;
use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS: usize = 100;
/// Files that a program generates, with sentences from the experiments' sources in them.
const GENERATED: [&str; 3] = ["docs/tables.md", "docs/intervals.md", "docs/questions.md"];

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            files(&path, ending, found);
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

/// The lines of `text` that are too long, counted from 1. A line without a space to break it at is
/// allowed.
fn too_long(text: &str, counts: impl Fn(&str) -> bool) -> Vec<usize> {
    let breaks = |line: &str| line.trim_start_matches(['/', '!', ' ', '-', '*']).contains(' ');
    let lines = (1..).zip(text.lines());
    let long = lines.filter(|(_, line)| line.chars().count() > COLUMNS && counts(line) && breaks(line));
    long.map(|(number, _)| number).collect()
}

fn report(ending: &str, counts: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    files(&root(), ending, &mut found);
    assert!(!found.is_empty());
    let mut told = Vec::new();
    for path in found {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        if GENERATED.contains(&name.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a file of text");
        told.extend(too_long(&text, &counts).into_iter().map(|line| format!("{name}:{line}")));
    }
    told
}

#[test]
fn comments_wrap_at_100_columns() {
    let told = report(".rs", |line| line.trim_start().starts_with("//") && !line.contains("://"));
    assert!(told.is_empty(), "wrap these at {COLUMNS} columns:\n{}", told.join("\n"));
}

#[test]
fn documents_wrap_at_100_columns() {
    // Tables and links cannot be broken. Drawings and transcripts are indented or fenced.
    let told = report(".md", |line| !line.starts_with(['|', ' ', '$']) && !line.contains("]("));
    assert!(told.is_empty(), "wrap these at {COLUMNS} columns:\n{}", told.join("\n"));
}

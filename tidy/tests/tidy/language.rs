//! Comments, documents and messages are in plain technical English: the subject of a sentence is a named thing, and the
//! field's words stand instead of paraphrases.

use crate::tree::{allowance, crates, files, root, shrink};
use std::fs;
use std::path::{Path, PathBuf};

/// Paraphrases, each with the words that should stand there.
const PARAPHRASES: [(&str, &str); 10] = [
    ("whoever", "the task, the caller, the writer"),
    ("somebody", "a task, a caller, another thread"),
    ("on its way", "in flight"),
    ("on their way", "in flight"),
    ("lets go of", "releases, drops"),
    ("let go of", "release, drop"),
    ("had better", "should, must"),
    ("other people's", "of other writers"),
    ("in vain", "spurious"),
    ("told of", "notified of"),
];

/// Words that begin no sentence: its subject would not be a named thing.
const OPENINGS: [&str; 5] = ["Who", "Whom", "What", "Whoever", "Whatever"];

/// A line of text and its number. Literals and names are sentences whose first letter need not be a capital.
struct Line {
    number: usize,
    text: String,
    is_code: bool,
}

/// The text of comments, line by line, with empty lines between what belongs to different paragraphs; for a document, all of
/// it. String literals and names of functions follow the comments, each a paragraph of its own; a name has spaces for its
/// underscores.
fn prose(path: &Path, text: &str) -> Vec<Line> {
    let line = |n: usize, text: &str, is_code| Line { number: n + 1, text: text.to_owned(), is_code };
    if path.extension().is_some_and(|extension| extension == "md" || extension == "toml") {
        return text.lines().enumerate().map(|(n, text)| line(n, text.trim(), false)).collect();
    }
    let mut lines = Vec::new();
    for (n, code) in text.lines().enumerate() {
        let code = code.trim_start();
        let comment = ["//!", "///", "//", "#"].iter().find_map(|mark| code.strip_prefix(mark));
        lines.push(line(n, comment.unwrap_or("").trim(), false));
    }
    for (n, code) in text.lines().enumerate().filter(|(_, code)| !code.trim_start().starts_with("//")) {
        let literals = code.split('"').skip(1).step_by(2).map(str::to_owned);
        let name = code.split_once("fn ").and_then(|(_, name)| name.split(['(', '<']).next());
        for text in literals.chain(name.map(|name| name.replace('_', " "))) {
            lines.extend([line(n, "", true), line(n, &text, true)]);
        }
    }
    lines
}

/// What is wrong in a text, each with its line and the place itself.
fn faults(path: &Path, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // Whether the line before ended a sentence or a paragraph.
    let mut begins = true;
    for Line { number, text: line, is_code } in prose(path, text) {
        let lower = line.to_lowercase();
        for (paraphrase, instead) in PARAPHRASES {
            for _ in lower.matches(paraphrase) {
                found.push((number, format!("\"{paraphrase}\": say {instead}")));
            }
        }
        let words: Vec<&str> =
            line.trim_start_matches(['-', '*', '|', '#', '>', ' ', '"']).split(' ').collect();
        for (n, word) in words.iter().enumerate() {
            let opens = match n {
                0 => begins || line.starts_with(['-', '*', '|', '#', '"']),
                _ => words[n - 1].ends_with(['.', '?', '!']) || words[n - 1] == "|",
            };
            let question = words[n..].iter().any(|word| word.ends_with('?'));
            let is_opening = |opening: &&str| {
                *word == *opening || (n == 0 && is_code && word.eq_ignore_ascii_case(opening))
            };
            if opens && !question && OPENINGS.iter().any(is_opening) {
                found.push((number, format!("a sentence begins with \"{word}\": name its subject")));
            }
        }
        begins = line.is_empty() || line.ends_with(['.', '?', '!', '|']);
    }
    found
}

/// Where a part's text is.
fn texts(part: &str) -> Vec<PathBuf> {
    let root = root();
    match part {
        "documents" => {
            let pages = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|page| root.join(page));
            let folders = ["docs", "machines", "experiments", "xtask/src", "fuzz/fuzz_targets"];
            pages
                .into_iter()
                .chain(folders.iter().flat_map(|folder| files(&root.join(folder), &["md", "toml", "rs"])))
                .collect()
        }
        name => ["src", "tests", "benches"]
            .iter()
            .flat_map(|folder| files(&root.join("crates").join(name).join(folder), &["rs"]))
            .collect(),
    }
}

#[test]
fn sentences_have_a_subject_and_the_field_s_words() {
    let mut wrong = Vec::new();
    for part in crates().into_iter().chain(["documents".to_owned()]) {
        let mut found = Vec::new();
        for path in texts(&part) {
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            found.extend(
                faults(&path, &text).into_iter().map(|(line, fault)| format!("{shown}:{line}: {fault}")),
            );
        }
        let allowed = allowance(&part).language;
        if found.len() > allowed || std::env::var("EXTANT_TIDY").is_ok_and(|value| value == part) {
            let places = found.join("\n");
            wrong.push(format!("{part}: {} places, of which {allowed} are allowed\n{places}", found.len()));
        }
        shrink(&part, |allowance| allowance.language = allowance.language.min(found.len()));
    }
    assert!(wrong.is_empty(), "the language of\n{}", wrong.join("\n"));
}

#[test]
fn faults_are_found_where_they_are() {
    let text = "//! Whoever waits.\n\n/// What it costs.\n/// The rest of it. Who pays\n/// What for is another\n/// line.\nlet a = \"What a pity\";\n";
    let lines: Vec<usize> = faults(Path::new("a.rs"), text).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [1, 1, 3, 4, 7]);
    let text =
        "fn what_is_left_stays() {}\nfn a_lock_that_somebody_holds() {}\npanic!(\"what came is gone\");\n";
    let lines: Vec<usize> = faults(Path::new("a.rs"), text).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [1, 2, 3]);
    let good = "/// A page in flight. Its waiters wake.\n/// What is this?\nlet whatever = 1;\nfn a_reader_says_what_it_saw() {}\n";
    assert_eq!(faults(Path::new("a.rs"), good), []);
}

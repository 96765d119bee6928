//! Numbers are converted with `From`, `TryFrom` and `UintExt`, whose names say what may be lost,
//! and not with `as`.

use crate::tree::{crates, root};
use std::fs;
use std::path::Path;

/// Maximum number of casts per 1,000 lines outside tests. These limits may fall, but not rise.
const MOST: [(&str, usize); 17] = [
    ("block", 15),
    ("cache", 13),
    ("check", 1),
    ("cli", 3),
    ("extant", 1),
    ("format", 3),
    ("fs", 1),
    ("fuse", 10),
    ("history", 13),
    ("image", 1),
    ("iosched", 11),
    ("lab", 14),
    ("rt", 5),
    ("sim", 25),
    ("testbed", 3),
    ("tiobench", 38),
    ("torture", 16),
];

const NUMBERS: [&str; 14] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "f32", "f64"];

/// Casts and lines of a file, without comments and tests.
fn count(text: &str) -> (usize, usize) {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let casts = code.map(|line| {
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        words.windows(2).filter(|pair| pair[0] == "as" && NUMBERS.contains(&pair[1])).count()
    });
    (casts.sum(), text.lines().count())
}

fn count_all(folder: &Path) -> (usize, usize) {
    let mut sum = (0, 0);
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name in UTF-8");
        let (casts, lines) = match name {
            "tests" | "testing" | "testbed" | "samples" => continue,
            _ if path.is_dir() => count_all(&path),
            _ => count(&fs::read_to_string(&path).expect("a file of text")),
        };
        sum = (sum.0 + casts, sum.1 + lines);
    }
    sum
}

#[test]
fn casts_are_counted() {
    assert_eq!(count("let a = b as u64 + c as usize;\n// as u8\nuse x as y;\n"), (2, 3));
    assert_eq!(count("a as u8\n#[cfg(test)]\nmod tests {\n    b as u8\n}\n"), (1, 1));
}

#[test]
fn casts_become_fewer() {
    assert_eq!(MOST.map(|(name, _)| name).to_vec(), crates());
    let mut wrong = Vec::new();
    for (name, most) in MOST {
        let (casts, lines) = count_all(&root().join("crates").join(name).join("src"));
        if casts * 1000 > most * lines {
            wrong.push(format!("{name}: {casts} casts in {lines} lines, more than {most} per 1,000"));
        }
    }
    assert!(wrong.is_empty(), "use From, TryFrom or extant_format::UintExt:\n{}", wrong.join("\n"));
}

//! Dependencies between crates, including those of tests, point down, as drawn in ARCHITECTURE.md.

use crate::tree::{crates, root};
use std::collections::BTreeSet;
use std::fs;

/// Each crate, with the crates below it that its code and tests may depend on.
const ARROWS: [(&str, &[&str]); 17] = [
    ("testbed", &[]),
    ("format", &["testbed"]),
    ("rt", &[]),
    ("block", &["rt", "testbed"]),
    ("sim", &["block", "rt"]),
    ("iosched", &["block", "rt", "sim"]),
    ("cache", &["block", "rt", "sim"]),
    ("fs", &["format", "cache", "block", "rt", "sim", "testbed"]),
    ("history", &["format", "cache", "iosched", "block", "rt", "sim"]),
    ("check", &["fs", "format", "block", "rt", "testbed"]),
    ("image", &["fs", "format", "cache", "block", "rt", "testbed"]),
    ("fuse", &["image", "fs", "format", "cache", "block", "rt", "testbed"]),
    ("extant", &["image", "check", "fs", "format", "cache", "block", "rt", "testbed"]),
    ("torture", &["extant", "fs", "format", "cache", "block", "rt", "sim", "testbed"]),
    ("tiobench", &["image", "history", "format", "cache", "iosched", "block", "rt", "sim"]),
    ("lab", &["tiobench", "image", "history", "fs", "format", "cache", "iosched", "block", "rt", "sim"]),
    (
        "cli",
        &["lab", "history", "fuse", "image", "check", "extant", "fs", "format", "block", "rt", "testbed"],
    ),
];

/// Dependencies allowed in tests only, because production code never needs them.
const FOR_TESTS: [(&str, &str); 14] = [
    ("fuse", "image"),
    ("fuse", "testbed"),
    ("iosched", "sim"),
    ("cache", "sim"),
    ("fs", "sim"),
    ("torture", "cache"),
    ("history", "sim"),
    ("format", "testbed"),
    ("block", "testbed"),
    ("fs", "testbed"),
    ("image", "testbed"),
    ("check", "testbed"),
    ("extant", "testbed"),
    ("cli", "testbed"),
];

fn dependencies(name: &str, section: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect("Cargo.toml");
    let manifest: toml::Table = text.parse().expect("TOML");
    let table = manifest.get(section).and_then(|section| section.as_table());
    table
        .into_iter()
        .flat_map(|table| table.keys())
        .filter_map(|key| Some(key.strip_prefix("extant-")?.to_owned()))
        .collect()
}

#[test]
fn arrows_between_crates_point_down() {
    for name in crates() {
        let Some((_, below)) = ARROWS.iter().find(|(above, _)| *above == name) else {
            panic!(
                "crates/{name} is not in the table of arrows (tidy/tests/tidy/arrows.rs) and in ARCHITECTURE.md"
            );
        };
        for section in ["dependencies", "dev-dependencies"] {
            for dependency in dependencies(&name, section) {
                assert!(
                    below.contains(&dependency.as_str()),
                    "crates/{name} must not depend on extant-{dependency} ([{section}]): the arrow does not point down"
                );
                let only_tests = FOR_TESTS.contains(&(name.as_str(), dependency.as_str()));
                assert!(
                    section == "dev-dependencies" || !only_tests,
                    "crates/{name} may name extant-{dependency} in its tests only"
                );
            }
        }
    }
}

#[test]
fn the_table_of_arrows_has_no_circle() {
    for (name, below) in ARROWS {
        for lower in below {
            let (_, lowest) =
                ARROWS.iter().find(|(other, _)| other == lower).expect("every crate is in the table");
            assert!(!lowest.contains(&name), "{name} and {lower} point at each other");
        }
    }
}

#[test]
fn the_table_of_arrows_names_the_crates_that_exist() {
    let named: BTreeSet<String> = ARROWS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(named, crates().into_iter().collect());
}

//! Licences and sources of all dependencies.

use serde::Deserialize;
use spdx::{Expression, ParseMode};
use std::collections::BTreeSet;
use std::process::Command;

/// Permissive licences: programs that use the code may be distributed freely.
const ALLOWED: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "Apache-2.0 WITH LLVM-exception",
];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    /// `None` for workspace members.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

/// Whether the expression can be satisfied with allowed licences.
fn is_allowed(licence: &str) -> bool {
    // Older packages use a slash for OR.
    Expression::parse_mode(licence, ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|requirement| ALLOWED.contains(&requirement.to_string().as_str()))
    })
}

/// What cargo prints.
fn cargo(args: &[&str]) -> Vec<u8> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let out = Command::new(cargo).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// What a program may have to compile to read and write volumes: the crates of `extant` without
/// optional features, itself among them.
const MOST_PACKAGES: usize = 40;

#[test]
fn reading_and_writing_needs_few_packages() {
    let args = ["tree", "--package", "extant", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let out = cargo(&[&args[..], &["--target", "x86_64-unknown-linux-gnu", "--locked"]].concat());
    let out = String::from_utf8(out).unwrap();
    let named = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let packages: BTreeSet<_> = out.lines().filter(|line| !line.is_empty()).map(named).collect();
    assert!(packages.contains("extant-fs v0.1.0") && packages.len() > 20, "{packages:#?}");
    assert!(packages.len() <= MOST_PACKAGES, "{} packages: {packages:#?}", packages.len());
}

#[test]
fn a_choice_of_licences_needs_one_that_is_allowed() {
    for good in ["MIT", "MIT OR GPL-2.0-only", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_allowed(good), "{good}");
    }
    for bad in [
        "GPL-3.0-only",
        "MIT AND GPL-2.0-only",
        "LGPL-2.1-or-later",
        "",
        "Apache-2.0 WITH Classpath-exception-2.0",
    ] {
        assert!(!is_allowed(bad), "{bad}");
    }
}

#[test]
fn every_dependency_has_a_permissive_licence_and_is_from_the_registry() {
    let out = cargo(&["metadata", "--format-version", "1", "--all-features", "--locked"]);
    let metadata: Metadata = serde_json::from_slice(&out).unwrap();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let name = &package.name;
        match &package.source {
            Some(source) => {
                let licence = package.license.as_deref().unwrap_or_default();
                if !is_allowed(licence) {
                    wrong
                        .push(format!("{name}: the licence {licence:?} is not among those that are allowed"));
                }
                if source != REGISTRY {
                    wrong.push(format!("{name} is from {source}"));
                }
            }
            None => {
                let any = package.dependencies.iter().filter(|one| one.req == "*" && one.path.is_none());
                wrong.extend(any.map(|one| format!("{name} takes any version of {}", one.name)));
            }
        }
    }
    assert!(metadata.packages.len() > 50, "{} packages", metadata.packages.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

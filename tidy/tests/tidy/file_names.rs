//! No two files of a crate have the same name, so that a name alone says what is in a file.

use crate::tree::{crates, root};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Names that say only which part of their folder's module a file is.
const MAY_REPEAT: [&str; 2] = ["mod.rs", "tests.rs"];

/// The files below `folder`, by name. Folders of tests are left out: a test may have the name of
/// what it tests.
fn by_name(folder: &Path, found: &mut BTreeMap<String, Vec<PathBuf>>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8").to_owned();
        if path.is_dir() {
            if name != "tests" {
                by_name(&path, found);
            }
        } else if !MAY_REPEAT.contains(&name.as_str()) {
            found.entry(name).or_default().push(path);
        }
    }
}

#[test]
fn no_two_files_of_a_crate_have_the_same_name() {
    let sources = crates().into_iter().map(|name| format!("crates/{name}/src"));
    let mut told = Vec::new();
    for source in sources.chain(["xtask/src".to_owned()]) {
        let mut found = BTreeMap::new();
        by_name(&root().join(&source), &mut found);
        assert!(!found.is_empty(), "{source} has files");
        for paths in found.into_values().filter(|paths| paths.len() > 1) {
            let mut paths: Vec<_> = paths
                .iter()
                .map(|path| path.strip_prefix(root().join(&source)).expect("in it").display().to_string())
                .collect();
            paths.sort();
            told.push(format!("{source}: {}", paths.join(", ")));
        }
    }
    assert!(told.is_empty(), "name these for what they hold:\n{}", told.join("\n"));
}

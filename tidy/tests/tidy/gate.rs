//! `./check` skips what it cannot run and says so; where skipping is not allowed, it fails.

use crate::tree::root;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder for `PATH` with the tools that the script itself needs, but neither `cargo` nor
/// `rustup`.
fn few_tools() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("few-tools");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = std::env::var_os("PATH").expect("a path");
    for tool in ["bash", "dirname", "sed"] {
        let place = std::env::split_paths(&path).map(|part| part.join(tool)).find(|place| place.exists());
        let place = place.unwrap_or_else(|| panic!("{tool} is not there"));
        let link = folder.join(tool);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(place, link).expect("a link");
    }
    folder
}

fn check(step: &str, path: &Path, variable: Option<&str>) -> Output {
    let mut command = Command::new(root().join("check"));
    command.arg(step).env_clear().env("PATH", path);
    if let Some(name) = variable {
        command.env(name, "1");
    }
    command.output().expect("the script runs")
}

#[test]
fn a_step_that_cannot_run_is_skipped_with_a_sentence_and_fails_in_ci() {
    let path = few_tools();
    for (step, sentence) in [("msrv", "cannot be installed by rustup"), ("miri", "Miri is not there")] {
        let skipped = check(step, &path, None);
        let told = String::from_utf8_lossy(&skipped.stderr).into_owned();
        assert!(skipped.status.success() && told.contains(sentence), "{step}: {told}");
        for variable in ["CI", "EXTANT_NO_SKIP"] {
            let failed = check(step, &path, Some(variable));
            let told = String::from_utf8_lossy(&failed.stderr).into_owned();
            assert!(!failed.status.success() && told.contains(sentence), "{step} with {variable}: {told}");
        }
    }
}

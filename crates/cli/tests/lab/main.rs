//! `extant lab` as used in practice: command lines in, reports out.

mod exports;
mod runs;
mod sweeps;
mod traces;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn output(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_extant")).arg("lab").args(words).output().expect("the command runs")
}

/// Runs `extant lab ...`, and returns its output or its error.
fn lab(words: &[&str]) -> Result<String, String> {
    let output = output(words);
    let [out, error] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    match output.status.success() {
        true => Ok(out),
        false => Err(error.trim_end().strip_prefix("extant: ").unwrap_or(&error).to_owned()),
    }
}

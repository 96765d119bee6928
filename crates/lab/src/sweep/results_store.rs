//! Stores results of runs in a folder.
//!
//! Each result is in a file named by the digest of the program and of everything the run depends
//! on. Any command of the same program finds it there, even while other commands use the folder.

use crate::experiment::{ExperimentRun, Figures};
use crate::figure::Figure;
use crate::setup::ExperimentError;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A folder of results.
#[derive(Debug)]
pub(crate) struct ResultsStore {
    folder: PathBuf,
    program: [u8; 32],
}

impl ResultsStore {
    /// Opens the folder, and creates it if missing.
    pub(crate) fn open(folder: &Path) -> Result<Self, ExperimentError> {
        std::fs::create_dir_all(folder).map_err(|error| in_file(folder, &error))?;
        Ok(Self { folder: folder.to_owned(), program: program()? })
    }

    /// The digest of a run with these inputs.
    pub(crate) fn digest(&self, contents: &str) -> String {
        digest(&self.program, contents)
    }

    /// Returns the result with this digest, if stored.
    pub(crate) fn find(&self, digest: &str) -> Option<Value> {
        let text = std::fs::read_to_string(self.file(digest)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Stores a result. The file appears whole or not at all, since the command may be stopped at
    /// any time.
    pub(crate) fn keep(&self, digest: &str, result: &Value) -> Result<(), ExperimentError> {
        let file = self.file(digest);
        // Another command may execute the same run, so the temporary name contains the process's
        // id.
        let beside = file.with_extension(format!("{}.part", std::process::id()));
        let text = format!("{result:#}\n");
        let kept = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &file));
        kept.map_err(|error| in_file(&file, &error))
    }

    fn file(&self, digest: &str) -> PathBuf {
        self.folder.join(format!("{digest}.json"))
    }
}

/// A row's figures as they are stored.
pub(super) fn json_of(row: &str, figures: &Figures) -> Value {
    let by_key = |all: &BTreeMap<Figure, f64>| -> BTreeMap<&str, f64> {
        all.iter().map(|(figure, value)| (figure.key(), *value)).collect()
    };
    let each: BTreeMap<&String, _> = figures.iter().map(|(name, all)| (name, by_key(all))).collect();
    json!({ "row": row, "figures": each })
}

/// The figures of a stored result.
fn figures_of(value: &Value) -> Option<Figures> {
    let of = |all: &Value| -> Option<BTreeMap<Figure, f64>> {
        all.as_object()?.iter().map(|(key, value)| Some((Figure::of_key(key)?, value.as_f64()?))).collect()
    };
    value["figures"].as_object()?.iter().map(|(name, all)| Some((name.clone(), of(all)?))).collect()
}

/// Returns a run's figures, and whether they were already stored.
pub(crate) fn stored_figures(
    store: &ResultsStore,
    run: &ExperimentRun,
) -> Result<(Figures, bool), ExperimentError> {
    let digest = store.digest(&run.contents());
    if let Some(figures) = store.find(&digest).and_then(|kept| figures_of(&kept)) {
        return Ok((figures, true));
    }
    let figures = run.figures()?;
    store.keep(&digest, &json_of(run.row(), &figures))?;
    Ok((figures, false))
}

/// The digest of the running program.
pub(crate) fn program() -> Result<[u8; 32], ExperimentError> {
    let program = std::env::current_exe().and_then(std::fs::read);
    let program = program.map_err(|error| in_file(Path::new("the program itself"), &error))?;
    Ok(Sha256::digest(program).into())
}

/// The digest of a program and a run's inputs.
pub(crate) fn digest(program: &[u8; 32], contents: &str) -> String {
    let digest = Sha256::new().chain_update(program).chain_update(contents).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn in_file(path: &Path, error: &std::io::Error) -> ExperimentError {
    ExperimentError::File(path.display().to_string(), error.to_string())
}

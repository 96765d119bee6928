//! Compares every published figure with the reproduced one: `extant lab reproduce`.
//!
//! Each experiment in a folder runs at its nominal point with its first seed. A row of the
//! comparison holds a published figure, the reproduced one, the null prediction (the figure of the
//! workload's first published row, as if nothing had changed), and ours. Experiment files list what
//! they leave out; the folder's `missing.toml` lists experiments that should exist but do not.

mod compared;
mod intervals;
mod score;
mod tables;

pub use compared::{Compared, FigureRole, Headline, compare, headlines};
pub use intervals::{Intervals, intervals};

use crate::experiment::{ExperimentRun, runs, side_by_side};
use crate::report::write_folder;
use crate::setup::input_file::{self, InputKind};
use crate::setup::{ExperimentError, Setup};
use compared::EachRow;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The results of all experiments in a folder.
#[derive(Clone, Debug)]
pub struct Reproduction {
    experiments: Vec<Reproduced>,
    missing: Vec<Missing>,
}

#[derive(Clone, Debug)]
struct Reproduced {
    folder: String,
    name: String,
    leaves_out: Vec<String>,
    compared: Vec<Compared>,
    headlines: Vec<Headline>,
    each_row: Vec<EachRow>,
    repeats: Option<String>,
}

/// An experiment that should be reproduced but is not.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MissingFile {
    missing: Vec<Missing>,
}

/// Returns the subfolders that have an `experiment.toml`, sorted by name, and the list of missing
/// experiments.
///
/// With names in `only`, returns only those folders.
pub(crate) fn folders(root: &Path, only: &[String]) -> Result<(Vec<PathBuf>, Vec<Missing>), ExperimentError> {
    let unreadable = |path: &Path, error: &dyn std::fmt::Display| {
        ExperimentError::File(path.display().to_string(), error.to_string())
    };
    let entries = std::fs::read_dir(root).map_err(|error| unreadable(root, &error))?;
    let mut folders: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.join("experiment.toml").is_file())
        .collect();
    folders.sort();
    if folders.is_empty() {
        return Err(unreadable(
            root,
            &"no folder with an experiment.toml in it; give the folder of the experiments",
        ));
    }
    if let Some(name) = only.iter().find(|name| !folders.iter().any(|folder| folder.ends_with(name))) {
        return Err(unreadable(&root.join(name), &"no experiment.toml in it; look for a slip in its name"));
    }
    folders.retain(|folder| only.is_empty() || only.iter().any(|name| folder.ends_with(name)));
    let list = root.join("missing.toml");
    let missing = if list.is_file() {
        let text =
            input_file::read(&list, InputKind::Experiment).map_err(|problem| unreadable(&list, &problem))?;
        let MissingFile { missing } = toml::from_str(&text).map_err(|error| unreadable(&list, &error))?;
        missing
    } else {
        Vec::new()
    };
    Ok((folders, missing))
}

/// Runs the experiments in a folder: all in order of their names, or those named in `only`.
///
/// Each is a subfolder with an `experiment.toml`. With `report`, each gets a report with drawings
/// in a folder of the same name there.
///
/// # Errors
/// Fails before any run if a file is refused; otherwise with the first run that fails.
pub fn reproduce(
    root: &Path,
    only: &[String],
    report: Option<&Path>,
) -> Result<Reproduction, ExperimentError> {
    let (folders, missing) = folders(root, only)?;
    let load = |folder: &PathBuf| Setup::load(folder).map(Setup::nominal);
    let loaded = folders.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let mut experiments = Vec::new();
    // Run all experiments together, so that processors do not idle at the end of each.
    let of_each: Vec<Vec<ExperimentRun>> =
        loaded.iter().map(|setup| if report.is_some() { Vec::new() } else { runs(setup) }).collect();
    let counts: Vec<usize> = of_each.iter().map(Vec::len).collect();
    let mut done = side_by_side(of_each.into_iter().flatten().collect(), ExperimentRun::cells)?.into_iter();
    for ((folder, setup), count) in folders.iter().zip(loaded).zip(counts) {
        let name = folder.file_name().unwrap_or_default();
        let cells = match report {
            Some(report) => write_folder(&setup, folder, &report.join(name))?,
            None => done.by_ref().take(count).flatten().collect(),
        };
        experiments.push(Reproduced {
            folder: name.to_string_lossy().into_owned(),
            name: setup.name.clone(),
            leaves_out: setup.leaves_out.clone(),
            compared: compared::compare(&setup, &cells),
            headlines: compared::headlines(&setup, &cells),
            each_row: compared::each_row(&setup, &cells),
            repeats: setup.repeats.clone(),
        });
    }
    Ok(Reproduction { experiments, missing })
}

//! Fits a machine's constants to published rows: `extant lab calibrate`.
//!
//! An experiment file names the constants, their ranges, and the published figures that each may be
//! fitted to. Only rows from before the change are allowed. Constants are fitted one at a time, in
//! the order of the file, by a search without derivatives: a grid in equal ratios, then
//! golden-section search around the best point.
//!
//! The fit also reports how far a constant can move before its figures change noticeably: its
//! range. If the range is wide, the optimum is a valley, and the value chosen is arbitrary.

use super::search::{Fit, search};
use crate::experiment::{ExperimentRun, side_by_side};
use crate::run::figure_of;
use crate::setup::input_file::{self, InputKind};
use crate::setup::{Constant, ExperimentError, Setup, Workload, line_of};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Fits every constant of an experiment and reports how well each fits.
///
/// With `write`, stores the values in the machine's file, each with its source and range.
///
/// # Errors
/// Fails if a run fails, if the experiment has no constants, or if the file cannot be written.
pub fn calibrate(path: &Path, write: bool) -> Result<String, ExperimentError> {
    let mut setup = Setup::load(path)?.nominal();
    let constants = setup.constants.clone();
    if constants.is_empty() {
        let problem = "no [[constant]] in it, so there is nothing to fit".to_owned();
        return Err(ExperimentError::File(path.display().to_string(), problem));
    }
    let mut out = String::new();
    for constant in &constants {
        let fitted = fit(&setup, constant)?;
        out.push_str(&sentence(constant, &fitted));
        setup = setup.with_constant(constant, fitted.value)?;
        if write {
            write_constant(&setup, constant, &fitted, &note(constant, &fitted))?;
        }
    }
    Ok(out)
}

/// Fits a constant to the figures that the experiment file allows.
///
/// # Errors
/// The first run that fails, or a machine that is refused.
fn fit(setup: &Setup, constant: &Constant) -> Result<Fit, ExperimentError> {
    let row = setup.rows.iter().find(|row| row.name == constant.row).expect("checked when it was loaded");
    let is_seen = |workload: &&Workload| constant.sees.contains_key(&workload.name);
    let workloads: Vec<&Workload> = setup.workloads.iter().filter(is_seen).collect();
    search(&constant.keys[0], [constant.least, constant.most], &constant.values, |value| {
        let machine = setup.machine_at(constant, value)?;
        let seeds = if constant.seeds.is_empty() { &setup.seeds[..1] } else { &constant.seeds };
        let run = |seed: &u64| ExperimentRun::new(setup, &machine, &workloads, row, *seed);
        let cells = side_by_side(seeds.iter().map(run).collect(), ExperimentRun::cells)?;
        // The logarithm of reproduced / published for each figure, summed over all seeds.
        let mut logarithms = BTreeMap::<_, f64>::new();
        for cell in cells.iter().flatten() {
            for (n, figure) in constant.sees[&cell.workload].iter().enumerate() {
                let published = row.published.figures[&cell.workload][figure];
                let got = figure_of(*figure, &cell.outcome, 0).unwrap_or(0.0).max(published * 1e-6);
                *logarithms.entry((&cell.workload, n)).or_default() += (got / published).ln();
            }
        }
        let squares = logarithms.values().map(|sum| (sum / seeds.len() as f64).powi(2));
        Ok((squares.sum::<f64>() / logarithms.len() as f64).sqrt())
    })
}

/// Writes a constant's value into the machine's file, followed by a note.
///
/// # Errors
/// If the file cannot be read or written.
fn write_constant(setup: &Setup, constant: &Constant, fit: &Fit, note: &str) -> Result<(), ExperimentError> {
    let file = setup.machine_file.display().to_string();
    let refused = |problem: String| ExperimentError::File(file.clone(), problem);
    let mut text = input_file::read(&setup.machine_file, InputKind::Experiment).map_err(refused)?;
    for setting in setup.constant_settings(constant, fit.value)? {
        let (key, value) = setting.parts();
        let Some((line, _)) = line_of(&text, key) else {
            return Err(refused(format!("constant {key}: the file has no line for it")));
        };
        let replaced = text.lines().enumerate().map(|(n, old)| {
            if n == line { format!("{key} = {value}  # {note}\n") } else { format!("{old}\n") }
        });
        text = replaced.collect();
    }
    std::fs::write(&setup.machine_file, text).map_err(|error| refused(error.to_string()))
}

fn plain(value: f64) -> String {
    format!("{value:.0}")
}

fn note(constant: &Constant, fit: &Fit) -> String {
    format!("fitted to {}: {} to {} are as good", constant.seen(), plain(fit.range[0]), plain(fit.range[1]))
}

fn sentence(constant: &Constant, fit: &Fit) -> String {
    let mut out = String::new();
    let [low, high] = fit.range.map(plain);
    let _ = writeln!(
        out,
        "{} = {}: error {:.1} % of {}",
        fit.key,
        plain(fit.value),
        fit.error * 100.0,
        constant.seen()
    );
    let _ = match fit.is_valley() {
        false => writeln!(out, "  {low} to {high} are as good"),
        true => writeln!(
            out,
            "  a valley: {low} to {high} are as good{}",
            if fit.at_end { ", up to an end of its range" } else { "" }
        ),
    };
    let together: Vec<&str> = constant.others().collect();
    if !together.is_empty() {
        let _ = writeln!(out, "  scaled with it: {}", together.join(", "));
    }
    out
}

//! Fits a machine's constants to published rows: `extant lab calibrate`.
//!
//! An experiment file names the constants, their ranges, and the published figures that each may be
//! fitted to. Only rows from before the change are allowed. Constants are fitted one at a time, in
//! the order of the file, by a search without derivatives: a grid in equal ratios, then
//! golden-section search around the best point.
//!
//! The fit also reports how far a constant can move before its figures change noticeably: its
//! range. If the range is wide, the optimum is a valley, and the value chosen is arbitrary.

use crate::experiment::{Constant, Experiment, ExperimentError};
use crate::fit::Fit;
use std::fmt::Write;
use std::path::Path;

/// Fits every constant of an experiment and reports how well each fits.
///
/// With `write`, stores the values in the machine's file, each with its source and range.
///
/// # Errors
/// Fails if a run fails, if the experiment has no constants, or if the file cannot be written.
pub fn calibrate(path: &Path, write: bool) -> Result<String, ExperimentError> {
    let mut experiment = Experiment::load(path)?.nominal();
    let constants = experiment.constants().to_vec();
    if constants.is_empty() {
        let problem = "no [[constant]] in it, so there is nothing to fit".to_owned();
        return Err(ExperimentError::File(path.display().to_string(), problem));
    }
    let mut out = String::new();
    for constant in &constants {
        let fit = experiment.fit(constant)?;
        out.push_str(&sentence(constant, &fit));
        experiment = experiment.with_constant(constant, fit.value)?;
        if write {
            experiment.write_constant(constant, &fit, &note(constant, &fit))?;
        }
    }
    Ok(out)
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

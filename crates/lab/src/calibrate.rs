//! Fitting constants of a machine to rows that may be seen: `extant lab calibrate`.
//!
//! An experiment's file names the constants, their ranges, and the published figures that each may see: those of the rows before
//! the change, and none else. Each is fitted alone, in the order of the file, by a search that needs no derivative: a grid in
//! equal ratios, then golden sections around its best point. The fit says how far a constant may move before its figures tell,
//! which is its range; where that is wide, the optimum is a valley, and the constant's value is a choice.

use crate::experiment::{Constant, Experiment, ExperimentError};
use crate::fit::Fit;
use std::fmt::Write;
use std::path::Path;

/// Fits every constant of an experiment and says how well; with `write`, the machine's file has the values afterwards, each with
/// its source and range.
///
/// # Errors
/// As those of the experiment's runs, an experiment without constants, and a file that could not be written.
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

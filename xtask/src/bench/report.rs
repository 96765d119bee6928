//! The table printed by a run.

use super::median;

/// Target of a figure; for a ratio, ours over theirs.
#[derive(Clone, Copy)]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Printed only for comparison.
    None,
}

impl Target {
    fn text(self, unit: &str) -> String {
        match self {
            Self::AtLeast(bound) => format!(">= {bound}{unit}"),
            Self::AtMost(bound) => format!("<= {bound}{unit}"),
            Self::None => String::new(),
        }
    }

    fn verdict(self, value: f64) -> &'static str {
        let met = match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
            Self::None => return "",
        };
        if met { "met" } else { "missed" }
    }
}

pub(super) fn head() {
    println!("| bench | ours | theirs | ratio | target | |");
    println!("|---|---|---|---|---|---|");
}

/// Prints figures of two sides that alternated, one of each per round: medians, and the median of
/// the rounds' ratios.
pub(super) fn compared(what: &str, unit: &str, ours: &[f64], theirs: &[f64], target: Target) {
    if ours.is_empty() || ours.len() != theirs.len() {
        let ours = if ours.is_empty() { f64::NAN } else { median(ours.to_vec()) };
        println!("| {what} | {} {unit} | | | {} | |", figure(ours), target.text("x"));
        return;
    }
    let ratio = median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect());
    let (ours, theirs) = (figure(median(ours.to_vec())), figure(median(theirs.to_vec())));
    let (bound, verdict) = (target.text("x"), target.verdict(ratio));
    println!("| {what} | {ours} {unit} | {theirs} {unit} | {ratio:.2}x | {bound} | {verdict} |");
}

/// Prints figures with a bound of their own.
pub(super) fn absolute(what: &str, unit: &str, ours: &[f64], target: Target) {
    let value = median(ours.to_vec());
    let (bound, verdict) = (target.text(&format!(" {unit}")), target.verdict(value));
    println!("| {what} | {} {unit} | | | {bound} | {verdict} |", figure(value));
}

/// Formats with about three significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

//! Benches: ours and somebody else's, alternated in one run, as ratios of medians.

mod block;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs the benches of one crate.
pub(crate) fn run(what: &str, args: &[&str]) -> Result<()> {
    match what {
        "block" => block::run(args),
        _ => Err(format!("no bench is called {what}; there is: block").into()),
    }
}

/// The middle of some measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

//! Results in fio's formats.

mod human;
mod json;
mod terse;

pub use human::human;
pub use json::json;
pub use terse::terse;

/// The percentiles that fio reports by default.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// Upper bounds of fio's latency classes within one unit; the last is 1,000 of the unit, where the
/// next unit begins.
const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// Latency classes of one unit, as `lat (usec)` counts them: exclusive lower and inclusive upper
/// bound in nanoseconds, and the upper bound in the unit.
fn classes(unit_ns: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    // The first class of a unit starts where the next smaller unit ends, at 1,000 of it; below the
    // smallest unit there is none.
    let begins = if unit_ns == 1 { 0 } else { unit_ns };
    let above = std::iter::once(begins).chain(CLASSES.iter().map(move |bound| bound * unit_ns));
    above.zip(CLASSES).map(move |(above, bound)| (above, bound * unit_ns, bound))
}

//! Results in fio's shapes.

mod human;
mod json;
mod terse;

pub use human::human;
pub use json::json;
pub use terse::terse;

/// The percentiles that fio reports unless told otherwise.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// Upper bounds of fio's latency classes within a unit of 1,000 of the unit below.
const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// By which classes `lat (usec)` and its like count: the bounds in nanoseconds, of one unit.
fn classes(unit_ns: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    // Two of a unit begin where the unit below ends, at a thousand of it; there is none below the first.
    let begins = if unit_ns == 1 { 0 } else { unit_ns };
    let above = std::iter::once(begins).chain(CLASSES.iter().map(move |bound| bound * unit_ns));
    above.zip(CLASSES).map(move |(above, bound)| (above, bound * unit_ns, bound))
}

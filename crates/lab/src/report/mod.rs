//! Everything that is printed or drawn.

mod axes;
mod experiment_table;
mod fio_json;
mod fio_terse;
mod fio_text;
mod folder;
mod names_list;
mod side_by_side;
mod text_table;
mod trace_drawing;
mod workload_drawing;

pub use experiment_table::experiment_table;
pub use fio_json::fio_json;
pub use fio_terse::fio_terse;
pub use fio_text::fio_text;
pub(crate) use folder::write_folder;
pub(crate) use names_list::{keys, list, show};
pub use side_by_side::{Column, CompareError, JobFigure, compare};
pub use text_table::Format;
pub(crate) use text_table::{TableRow, table};
pub use trace_drawing::draw_trace;

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

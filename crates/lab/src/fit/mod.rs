//! Fits constants of a machine to what was published.

mod calibrate;
mod search;

pub use calibrate::calibrate;

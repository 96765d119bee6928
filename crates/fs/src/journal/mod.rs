//! The journal (jbd2).

pub(crate) mod recover;

pub use recover::{Recovery, recover};

//! The handle to the world that a task runs in: clock, tasks, costs.
//!
//! [`Rt`] is cheap to clone and passed explicitly; there are no globals. This crate never knows about blocks or files.

mod nanos;
mod real;

pub use nanos::Nanos;
pub use real::{RealConfig, Rt, RtError, Task};

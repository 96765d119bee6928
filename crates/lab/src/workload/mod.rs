//! Workloads: fio's jobs, and programs that run in phases.

pub mod fio;
mod phased;
mod tiobench;

pub use phased::PhaseFigures;
pub(crate) use phased::{Phase, PhasePolicies, PhasedWorkload};
pub(crate) use tiobench::{phased_costs, phased_program};

//! Workloads: fio's jobs, and programs that run in phases.

mod phased;
mod tiobench;

pub use phased::PhaseFigures;
pub(crate) use phased::{Phase, PhasePolicies, PhasedWorkload};
pub(crate) use tiobench::{phased_costs, phased_program};

//! The lab: runs fio jobs on modelled machines and on real files, and compares the results.
//!
//! A job written for `fio(1)` runs on a modelled machine, under any policy, deterministically.
//! Results have fio's format. Production code never needs this crate.
//!
//! ```
//! use extant_lab::{Policy, fio, on_machine};
//! use extant_sim::Machine;
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/sata-7200-2013.toml");
//!
//! let text = "[reader]\nrw=randread\nsize=1g\nruntime=2\ndirect=1\n";
//! let jobs = fio::job_file("reader.fio", text).unwrap();
//! let machine = Machine::load(path.as_ref()).unwrap();
//! let outcome = on_machine(&jobs, machine, &Policy::default(), 1, None).unwrap();
//! let read = &outcome.reports[0].measured.read;
//! assert!(read.ios > 200 && read.completion.mean_ns > 4e6, "a disk with an arm");
//! ```
#![forbid(unsafe_code)]

pub mod bands;
pub mod calibrate;
pub mod command;
pub mod compare;
mod cost;
pub mod experiment;
pub mod fio;
mod fit;
mod list;
mod machine;
mod plots;
pub mod report;
pub mod reproduce;
mod run;
mod store;
pub mod sweep;
mod text;
pub mod trace;
mod workload;

pub use cost::Cost;
pub use extant_sim::Setting;
pub use run::{
    Aged, Chosen, Cyclictest, Direction, FileSystem, JobsOutcome, Latency, Layout, Measured, Memory,
    OnDevice, Outcome, Policy, ProcessorUse, QueueBounds, Report, RunError, Samples, VolumeSpec, Written,
    on_files, on_machine,
};
pub use workload::PhaseFigures;

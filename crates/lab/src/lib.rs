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
//! let read = &outcome.results[0].measured.read;
//! assert!(read.ios > 200 && read.completion.mean_ns > 4e6, "a disk with an arm");
//! ```
#![forbid(unsafe_code)]

pub mod command;
mod cost;
mod defaults;
mod experiment;
mod figure;
pub mod fit;
pub mod report;
pub mod reproduce;
mod run;
pub mod setup;
pub mod sweep;
pub mod trace;
mod workload;

pub use cost::Cost;
pub use experiment::{Cell, run_experiment};
pub use extant_sim::Setting;
pub use figure::Figure;
pub use run::{
    Aged, Chosen, Cyclictest, Direction, FileSystem, FilesLayout, JobResult, JobsOutcome, Latency, Measured,
    Memory, OnDevice, Outcome, Policy, ProcessorUse, QueueBounds, RunError, Samples, VolumeSpec, Written,
    on_files, on_machine,
};
pub use setup::Setup;
pub use workload::{PhaseFigures, fio};

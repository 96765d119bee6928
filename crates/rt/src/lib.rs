//! The handle to the world a task runs in: clock, tasks, costs, keyed waits, trace.
//!
//! The same code runs in two worlds. In the real one, [`Rt`] wraps a small executor, threads and
//! the system clock. In a virtual one (crate `sim`), time, processors and randomness are modelled,
//! and the same seed gives the same run. This crate knows nothing about blocks or files and has no
//! globals: code that needs a world is given one.
//!
//! ```
//! use extant_rt::{Class, Cpu, Nanos, Rt};
//!
//! let rt = Rt::real(Default::default());
//! let task = rt.spawn("copier", Class::Normal, {
//!     let rt = rt.clone();
//!     async move {
//!         rt.charge(Cpu(Nanos(500))); // free here; processor time in the virtual world
//!         rt.sleep(Nanos::from_micros(50)).await;
//!         42
//!     }
//! });
//! assert_eq!(rt.block_on(task).unwrap().unwrap(), 42);
//! assert!(rt.shutdown(Nanos::from_secs(1)).in_flight.is_empty());
//! ```
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("Extant runs on Linux only: it does its I/O with io_uring, and mounts with Linux's FUSE");

mod budget;
mod cost;
mod counters;
mod error;
mod handle;
mod nanos;
mod overseer;
mod panics;
mod real;
mod rng;
#[doc(hidden)]
pub mod sync;
mod task;
pub mod trace;
mod unstoppable;
pub mod wait;
mod watchdog;
mod world;

pub use budget::Budget;
pub use cost::{Charge, Cost, CostTable, Cpu, Work};
pub use counters::Counter;
pub use error::RtError;
pub use handle::{Alarm, Rt, Sleep};
pub use nanos::Nanos;
pub use overseer::{Overseen, Overseer};
pub use real::{Driver, DriverHandle, RealConfig, Reaping, Wait};
pub use rng::Rng;
pub use task::Task;
pub use trace::{Sink, TaskEvent, Tracer};
pub use unstoppable::Unstoppable;
pub use wait::{
    Flag, ReadGuard, RwLock, TaskMutex, TaskMutexGuard, WaitConfig, WaitKey, WaitStats, WaitTable, WriteGuard,
};
pub use watchdog::Watchdog;
pub use world::{
    Class, Origin, ReschedPoint, ShutdownReport, TaskFuture, TaskUsage, TimerId, WaitsOn, World,
};

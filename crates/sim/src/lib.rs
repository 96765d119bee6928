//! The virtual world: a model of processors, time and randomness in which the same seed gives the
//! same run.
//!
//! Code that takes an [`Rt`] runs here as in the real world. The work it charges ([`Rt::charge`])
//! becomes time on a modelled processor; scheduling classes, run queues and the machine's
//! preemption mode decide which task runs when. A run uses a single thread; an hour takes seconds.
//! Production code never needs this crate, and nothing here reads a clock, starts a thread or draws
//! from the system's randomness. The modelled disks are in [`disk`].
//!
//! ```
//! use extant_rt::{Class, Cpu, Nanos};
//! use extant_sim::{Machine, Preemption, Sim};
//!
//! let sim = Sim::new(Machine::free(1, Preemption::None), 7);
//! let rt = sim.rt().clone();
//! let late = rt.block_on(async {
//!     let alarm = {
//!         let rt = rt.clone();
//!         async move {
//!             rt.sleep(Nanos::from_millis(5)).await;
//!             rt.now()
//!         }
//!     };
//!     let alarm = rt.spawn("alarm", Class::RealTime(80), alarm);
//!     rt.yield_now().await; // the alarm is set
//!     rt.charge(Cpu(Nanos::from_millis(70))); // a long loop holds the only processor
//!     alarm.await
//! });
//! assert_eq!(late.unwrap().unwrap(), Nanos::from_millis(70));
//! ```
#![forbid(unsafe_code)]

mod core;
pub mod disk;
mod event;
mod jitter;
pub mod keys;
mod machine;
mod prices;
mod queue;
mod settings;
mod table;
mod world;

pub use crate::core::Stats;
pub use event::Event;
pub use jitter::Jitter;
pub use machine::{KernelSpec, Knobs, Machine, MemorySpec, Preemption, Processors, RunQueues, Wakeup};
pub use prices::Spent;
pub use settings::Setting;
pub use table::ModelError;
pub use world::SimConfig;

use extant_rt::{Nanos, Rt, Tracer, World};
use std::fmt;
use std::sync::Arc;
use world::SimWorld;

/// A virtual world. Dropping it drops its unfinished tasks; handles to it are useless afterwards.
pub struct Sim {
    world: Arc<SimWorld>,
    rt: Rt,
}

impl Sim {
    /// A world with this machine and seed, and the default limits.
    pub fn new(machine: Machine, seed: u64) -> Self {
        Self::with_config(SimConfig::new(machine, seed))
    }

    /// A world with this configuration.
    pub fn with_config(config: SimConfig) -> Self {
        let tracer = Tracer::default();
        let world = SimWorld::new(config, tracer.clone());
        let rt = Rt::from_world(world.clone(), tracer);
        Self { world, rt }
    }

    /// The handle for code in this world. [`Rt::block_on`] on it runs the world.
    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    /// Runs `call` at `at` (now, if that is past) as an interrupt, outside any task. Its charges
    /// are taken from the processor that handles device interrupts, whatever that is doing. For
    /// modelled devices: cheaper than a sleeping task.
    pub fn call_at(&self, at: Nanos, call: impl FnOnce() + Send + 'static) {
        self.world.call_at(at, Box::new(call));
    }

    /// A handle for modelled devices, which live inside the world and must not keep it alive.
    pub fn devices(&self) -> DeviceClock {
        DeviceClock(Arc::downgrade(&self.world))
    }

    /// The modelled machine.
    pub fn machine(&self) -> &Machine {
        self.world.machine()
    }

    /// Processor time spent so far, by kind of work charged, and by tasks and interrupts.
    pub fn spent(&self) -> Vec<Spent> {
        self.world.spent()
    }

    /// Event counters so far.
    pub fn stats(&self) -> Stats {
        self.world.stats()
    }
}

/// Shutdown rounds before giving up on work that restarts whenever it is dropped.
const ROUNDS_MAX: usize = 1_000;

impl Drop for Sim {
    fn drop(&mut self) {
        // I/O that ends with its world may start more, and a dropped future may spawn a task; all
        // of it holds the world.
        for _ in 0..ROUNDS_MAX {
            let _ = self.world.shutdown();
            if !self.world.has_work() {
                return;
            }
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sim({:?})", self.stats())
    }
}

/// Schedules callbacks for modelled devices; see [`Sim::call_at`].
#[derive(Clone)]
pub struct DeviceClock(std::sync::Weak<SimWorld>);

impl DeviceClock {
    /// Schedules `call` to run at `at`; does nothing if the world is gone.
    pub fn call_at(&self, at: Nanos, call: impl FnOnce() + Send + 'static) {
        if let Some(world) = self.0.upgrade() {
            world.call_at(at, Box::new(call));
        }
    }

    /// The current time; zero if the world is gone.
    pub fn now(&self) -> Nanos {
        self.0.upgrade().map_or(Nanos::ZERO, |world| world.now())
    }
}

impl fmt::Debug for DeviceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceClock")
    }
}

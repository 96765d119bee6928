//! The virtual world: processors, time and randomness as a model, so that the same seed gives the same run.
//!
//! Code that takes an [`Rt`] runs here as it runs in the real world. Work that it charges ([`Rt::charge`]) becomes time on a
//! modelled processor; who runs when follows from classes, run queues and the machine's preemption mode. A run is one
//! thread's work; an hour takes seconds. Production code never needs this crate, and nothing here reads a clock, starts a
//! thread or draws from the system's randomness. Its disks are in [`disk`].
//!
//! ```
//! use extant_rt::{Class, Cpu, Nanos};
//! use extant_sim::{Machine, Preemption, Sim};
//!
//! let sim = Sim::new(Machine::free(1, Preemption::None), 7);
//! let rt = sim.rt().clone();
//! let late = rt.block_on(async {
//!     let alarm = { let rt = rt.clone(); async move { rt.sleep(Nanos::from_millis(5)).await; rt.now() } };
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

/// A virtual world. Dropping it drops the tasks in it that have not ended; handles to it are useless from then on.
pub struct Sim {
    world: Arc<SimWorld>,
    rt: Rt,
}

impl Sim {
    /// A world with this machine and seed, and the usual limits.
    pub fn new(machine: Machine, seed: u64) -> Self {
        Self::with_config(SimConfig::new(machine, seed))
    }

    /// A world.
    pub fn with_config(config: SimConfig) -> Self {
        let tracer = Tracer::default();
        let world = SimWorld::new(config, tracer.clone());
        let rt = Rt::from_world(world.clone(), tracer);
        Self { world, rt }
    }

    /// The handle that code in this world uses. [`Rt::block_on`] on it runs the world.
    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    /// Has `call` run at `at` (now, if that is past), as an interrupt: outside of any task. Work that it charges is taken from
    /// the processor that devices interrupt, whatever that does. For modelled devices: cheaper than a task that sleeps.
    pub fn call_at(&self, at: Nanos, call: impl FnOnce() + Send + 'static) {
        self.world.call_at(at, Box::new(call));
    }

    /// A handle for modelled devices, which live inside the world and must not keep it alive.
    pub fn devices(&self) -> DeviceClock {
        DeviceClock(Arc::downgrade(&self.world))
    }

    /// The machine that is modelled.
    pub fn machine(&self) -> &Machine {
        self.world.machine()
    }

    /// Processor time spent so far, by the kind of work that was charged for, and by tasks and interrupts.
    pub fn spent(&self) -> Vec<Spent> {
        self.world.spent()
    }

    /// Counts of events so far.
    pub fn stats(&self) -> Stats {
        self.world.stats()
    }
}

/// Rounds after which work that begins again whenever it is dropped is left to itself.
const ROUNDS_MAX: usize = 1_000;

impl Drop for Sim {
    fn drop(&mut self) {
        // I/O that ends with its world may begin more, and a future that is dropped may leave a task: all of it holds the world.
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

/// Lets modelled devices have things happen at a time; see [`Sim::call_at`].
#[derive(Clone)]
pub struct DeviceClock(std::sync::Weak<SimWorld>);

impl DeviceClock {
    /// Has `call` run at `at`; nothing happens in a world that has gone.
    pub fn call_at(&self, at: Nanos, call: impl FnOnce() + Send + 'static) {
        if let Some(world) = self.0.upgrade() {
            world.call_at(at, Box::new(call));
        }
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.0.upgrade().map_or(Nanos::ZERO, |world| world.now())
    }
}

impl fmt::Debug for DeviceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceClock")
    }
}

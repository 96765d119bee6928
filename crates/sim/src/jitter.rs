//! A device that reorders bios and sometimes fails them, to test the code above it.

use crate::DeviceClock;
use crate::Sim;
use extant_block::{Bio, Device, IoErrorKind, Limits, Op};
use extant_rt::{Nanos, Rng};
use parking_lot::Mutex;
use std::sync::Arc;

/// Longest delay of a bio, in microseconds.
const DELAY_US: u64 = 300;

/// Delays each bio by a random time before passing it down, and fails some with `EIO` instead.
/// Flushes never fail. The same seed gives the same delays and failures.
#[derive(Debug)]
pub struct Jitter {
    below: Arc<dyn Device>,
    clock: DeviceClock,
    rng: Mutex<Rng>,
    fails_in_1000: u64,
}

impl Jitter {
    /// Wraps `below`; about `fails_in_1000` of 1,000 bios fail.
    pub fn new(sim: &Sim, below: Arc<dyn Device>, fails_in_1000: u64) -> Self {
        let rng = Mutex::new(sim.rt().rng("device"));
        Self { below, clock: sim.devices(), rng, fails_in_1000 }
    }
}

impl Device for Jitter {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn submit(&self, bio: Bio) {
        let (delay, fails) = {
            let mut rng = self.rng.lock();
            (Nanos::from_micros(rng.below(DELAY_US)), rng.below(1000) < self.fails_in_1000)
        };
        let below = self.below.clone();
        self.clock.call_at(self.clock.now().saturating_add(delay), move || {
            match fails && bio.op != Op::Flush {
                true => bio.end_as("jitter", Err(IoErrorKind::Os(5))),
                false => below.submit(bio),
            }
        });
    }
}
